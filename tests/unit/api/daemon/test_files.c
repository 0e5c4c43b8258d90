/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/files.h"

#include <criterion/criterion.h>

/* The vector that E2B's SDKs have in their tests. */
Test(files, signature)
{
	char out[SIGNATURE_MAX], other[SIGNATURE_MAX];

	files_sign("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", NULL, out);
	cr_expect_str_eq(out, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
	files_sign("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "1", other);
	cr_expect_str_neq(out, other);
	files_sign("hello.txt", "write", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", NULL, other);
	cr_expect_str_neq(out, other);
}

Test(files, refusals)
{
	static const struct {
		const char *name, *value;
		unsigned status;
	} cases[] = { { "FileNotFoundError", "", 404 },
		      { "KeyError", "", 401 },
		      { "PermissionError", "", 403 },
		      { "IsADirectoryError", "", 400 },
		      { "OSError", "[Errno 28] No space left on device", 507 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *result = json_pack("{s:{s:s, s:s}}", "error", "name", cases[i].name,
		                           "value", cases[i].value);

		cr_expect_eq(files_status(result), cases[i].status, "%s", cases[i].name);
		json_decref(result);
	}
	cr_expect_eq(files_status(NULL), 500);
}
