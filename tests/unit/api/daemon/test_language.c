/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/language.h"

#include <criterion/criterion.h>

Test(language, names_and_aliases)
{
	cr_expect(language_is_python(language_find(NULL)));
	cr_expect(language_is_python(language_find("")));
	cr_expect(language_is_python(language_find("Python3")));
	cr_expect_str_eq(language_find("js")->name, "javascript");
	cr_expect_str_eq(language_find("TypeScript")->name, "typescript");
	cr_expect_eq(language_find("bash"), language_find("sh"));
	cr_expect(!language_is_python(language_find("bash")));
	cr_expect_null(language_find("r"));
	cr_expect_null(language_find("python "));
}

Test(language, a_cell_is_a_literal_of_python)
{
	json_t *code = json_string("echo \"a\\b\"\n'\xc3\xbc\xf0\x9f\x98\x80'\x01");
	json_t *cell = language_cell(language_find("bash"), code);

	cr_expect_eq(language_cell(language_find(NULL), code), code);
	json_decref(code);
	cr_expect_str_eq(json_string_value(cell),
	                 "__import__('thawbox_languages').run('bash', "
	                 "\"echo \\\"a\\\\b\\\"\\n'\xc3\xbc\xf0\x9f\x98\x80'\\u0001\")");
	json_decref(cell);
	json_decref(code);
}
