/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/context.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Strings become Python literals: what JSON escapes, Python reads the same way. */
Test(context, code_of_an_environment)
{
	json_t *env = json_pack("{s:s}", "A", "q\"b\\n\nl\xc3\xa9 \x01");
	char *code = context_setup_code(env, "/tmp/\"x");

	cr_expect_str_eq(code, "__import__('os').environ.update({\"A\":\"q\\\"b\\\\n\\nl\xc3\xa9 "
	                       "\\u0001\"})\n__import__('os').chdir(\"/tmp/\\\"x\")");
	free(code);
	code = context_setup_code(env, NULL);
	cr_expect(strstr(code, "chdir(\"/home/user\")"));
	free(code);
	code = context_env_code(env);
	cr_expect(strstr(code, "(__import__('os'), {\"A\":\"q\\\"b"));
	free(code);
	json_decref(env);
}
