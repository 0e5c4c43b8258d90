/* SPDX-License-Identifier: Apache-2.0 */
/* What a control line may ask for as limits; that they hold is tested with the devices. */
#include "vmm/limits.h"

#include <criterion/criterion.h>
#include <errno.h>

static struct limits limits;
static struct err err;

static int parse(const char *text)
{
	json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
	int ret;

	cr_assert_not_null(json, "%s", text);
	ret = limits_parse(&limits, json, &err);
	json_decref(json);
	return ret;
}

Test(limits, none)
{
	limits.disk_ops.rate = 7;
	cr_assert_eq(limits_parse(&limits, NULL, &err), 0);
	cr_assert_eq(limits.disk_ops.rate, 7, "as it was");
	cr_assert_eq(parse("{}"), 0);
	cr_assert_eq(limits.disk_ops.rate, 0);
}

Test(limits, rates_and_bursts)
{
	cr_assert_eq(parse("{\"disk_bytes\": 1000, \"disk_ops\": {\"rate\": 50, \"burst\": 5, "
	                   "\"once\": 100}}"),
	             0);
	cr_assert_eq(limits.disk_bytes.rate, 1000);
	cr_assert_eq(limits.disk_bytes.burst, 0);
	cr_assert_eq(limits.disk_ops.rate, 50);
	cr_assert_eq(limits.disk_ops.burst, 5);
	cr_assert_eq(limits.disk_ops.once, 100);
	cr_assert_eq(limits.vsock_bytes.rate, 0);
	cr_assert_eq(parse("{\"vsock_bytes\": 1099511627776}"), 0);
	cr_assert_eq(limits.vsock_bytes.rate, BUCKET_MAX);
}

Test(limits, refused)
{
	static const char *const bad[] = {
		"7",
		"{\"disk\": 7}",
		"{\"disk_ops\": \"7\"}",
		"{\"disk_ops\": -1}",
		"{\"disk_ops\": 1.5}",
		"{\"disk_ops\": 1099511627777}",
		"{\"disk_ops\": {\"rat\": 1}}",
		"{\"disk_ops\": {\"rate\": []}}",
		"{\"disk_bytes\": {\"rate\": 1000000, \"burst\": 9999}}",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(parse(bad[i]), -EINVAL, "%s", bad[i]);
		cr_assert_not_null(strstr(err.msg, "limits"), "%s", err.msg);
	}
}
