/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/limits.h"

#include "vmm/clock.h"
#include "vmm/vm.h"

#include <errno.h>
#include <string.h>

#define BURST_PART 100 /* a smaller part of the rate would be used up before the loop is back */

static int take_number(const char *name, const json_t *value, uint64_t *to, struct err *err)
{
	json_int_t n = json_integer_value(value);

	if (!json_is_integer(value) || n < 0 || (uint64_t)n > BUCKET_MAX)
		return err_set(err, -EINVAL, "limits: %.32s is a whole number up to 2^40", name);
	*to = (uint64_t)n;
	return 0;
}

/* A rate, or {"rate", "burst", "once"}. */
static int parse_limit(const char *name, const json_t *value, struct limit *limit, struct err *err)
{
	const char *part;
	json_t *each;
	int ret = 0;

	*limit = (struct limit){ 0 };
	if (!json_is_object(value))
		return take_number(name, value, &limit->rate, err);
	json_object_foreach((json_t *)(uintptr_t)value, part, each)
	{
		uint64_t *to = strcmp(part, "rate") == 0    ? &limit->rate
		               : strcmp(part, "burst") == 0 ? &limit->burst
		               : strcmp(part, "once") == 0  ? &limit->once
		                                            : NULL;

		if (!to)
			return err_set(err, -EINVAL, "limits: %s has no member %.32s", name, part);
		if (ret == 0)
			ret = take_number(part, each, to, err);
	}
	if (ret == 0 && limit->burst && limit->burst < limit->rate / BURST_PART)
		ret = err_set(err, -EINVAL, "limits: the burst of %s is at least rate / %d", name,
		              BURST_PART);
	return ret;
}

int limits_parse(struct limits *limits, const json_t *json, struct err *err)
{
	const char *name;
	json_t *value;
	int ret = 0;

	if (!json)
		return 0;
	if (!json_is_object(json))
		return err_set(err, -EINVAL, "limits: want an object");
	*limits = (struct limits){ 0 };
	json_object_foreach((json_t *)(uintptr_t)json, name, value)
	{
		struct limit *limit = strcmp(name, "disk_bytes") == 0    ? &limits->disk_bytes
		                      : strcmp(name, "disk_ops") == 0    ? &limits->disk_ops
		                      : strcmp(name, "vsock_bytes") == 0 ? &limits->vsock_bytes
		                                                         : NULL;

		if (!limit)
			return err_set(err, -EINVAL,
			               "limits: there is no %.32s, only disk_bytes, disk_ops and "
			               "vsock_bytes",
			               name);
		ret = parse_limit(name, value, limit, err);
		if (ret < 0)
			return ret;
	}
	return 0;
}

void limits_apply(struct vm *vm)
{
	const struct limits *l = &vm->limits;

	if (vm->vsock)
		vsock_limit(vm->vsock, &l->vsock_bytes, clock_mono_ns);
	for (unsigned i = 0; i < vm->nr_disks; i++)
		blk_limit(vm->disk[i], &l->disk_bytes, &l->disk_ops, clock_mono_ns);
}

json_t *limits_throttle_json(const struct throttle_stats *stats)
{
	return json_pack("{s:I, s:I}", "waits", (json_int_t)stats->waits, "waited_ns",
	                 (json_int_t)stats->waited_ns);
}

json_t *limits_disks_json(struct vm *vm)
{
	json_t *disks = json_array();

	for (unsigned i = 0; i < vm->nr_disks; i++) {
		struct blk_stats s;

		blk_stats(vm->disk[i], &s);
		json_array_append_new(disks, json_pack("{s:I, s:I, s:I, s:o}", "requests",
		                                       (json_int_t)s.requests, "bytes_read",
		                                       (json_int_t)s.bytes_read, "bytes_written",
		                                       (json_int_t)s.bytes_written, "throttle",
		                                       limits_throttle_json(&s.throttle)));
	}
	return disks;
}
