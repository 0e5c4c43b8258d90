/* SPDX-License-Identifier: Apache-2.0 */
/* What of a line becomes the interpreter's environment, byte for byte. */
#include "vmm/env.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static int make(struct env *env, const char *text, struct err *err)
{
	json_t *line = json_loads(text, 0, NULL);
	int ret;

	cr_assert_not_null(line);
	*env = (struct env){ 0 };
	*err = (struct err){ 0 };
	ret = env_make(env, line, err);
	json_decref(line);
	return ret;
}

Test(env, identity_comes_first)
{
	static const char want[] = "HOSTNAME=box\0THAWBOX_ID=tb-1\0A=1";
	struct env env;
	struct err err;

	cr_assert_eq(
		make(&env, "{\"env\":{\"A\":\"1\"},\"id\":\"tb-1\",\"hostname\":\"box\"}", &err),
		0);
	cr_assert_eq(env.len, sizeof(want));
	cr_assert_arr_eq(env.p, want, sizeof(want));
	env_free(&env);
	cr_assert_null(env.p);
}

Test(env, nothing_is_nothing)
{
	struct env env;
	struct err err;

	cr_assert_eq(make(&env, "{}", &err), 0);
	cr_assert_eq(env.len, 0u);
	env_free(&env);
}

Test(env, what_is_none_is_refused_by_name)
{
	const char *const wrong[] = { "{\"env\":{\"A=B\":\"1\"}}", "{\"env\":{\"\":\"1\"}}",
		                      "{\"env\":{\"A\":1}}" };

	for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
		struct env env;
		struct err err;

		cr_assert_eq(make(&env, wrong[i], &err), -EINVAL, "%s", wrong[i]);
		cr_assert_not_null(strstr(err.msg, "env: "));
		env_free(&env);
	}
}
