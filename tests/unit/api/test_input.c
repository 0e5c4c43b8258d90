/* SPDX-License-Identifier: Apache-2.0 */
#include "api/input.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Adds the lines of `text`; true when it is complete after the last one, and not before. */
static bool complete_at_end(const char *text)
{
	struct input in = { 0 };
	char *copy = strdup(text), *line = copy, *end;
	bool complete = false, early = false;

	while ((end = strchr(line, '\n'))) {
		*end = '\0';
		early = early || complete;
		cr_assert_eq(input_add(&in, line), 0);
		complete = input_complete(&in);
		line = end + 1;
	}
	cr_assert_str_eq(in.text, text);
	free(copy);
	free(in.text);
	return complete && !early;
}

Test(input, one_line)
{
	cr_assert(complete_at_end("1 + 1\n"));
	cr_assert(complete_at_end("print('(')\n"));
	cr_assert(complete_at_end("x = 1  # a ( in a comment\n"));
	cr_assert(complete_at_end("s = 'a\\'('\n"));
	cr_assert(complete_at_end("!ls (\n"));
	cr_assert(complete_at_end("%timeit x[\n"));
	cr_assert(complete_at_end("d = {'a': 1}\n"));
	cr_assert(complete_at_end("s = 'unfinished\n"), "Python says what is wrong with it");
	cr_assert(complete_at_end(")\n"));
}

Test(input, goes_on)
{
	cr_assert_not(complete_at_end("f(1,\n"));
	cr_assert_not(complete_at_end("s = '''a\n"));
	cr_assert_not(complete_at_end("s = \"\"\"a\n"));
	cr_assert_not(complete_at_end("x = 1 + \\\n"));
	cr_assert_not(complete_at_end("for i in x:\n"));
	cr_assert_not(complete_at_end("if x:  # why\n"));
	cr_assert_not(complete_at_end("@decorated\n"));
	cr_assert_not(complete_at_end("def f():\n    return 1\n"));
	cr_assert_not(complete_at_end("%%bash\nls\n"));
}

Test(input, ends)
{
	cr_assert(complete_at_end("f(1,\n  2)\n\n"), "an indented line may be a block's");
	cr_assert(complete_at_end("f(1,\n2)\n"));
	cr_assert(complete_at_end("s = '''a\n\nb'''\n"));
	cr_assert(complete_at_end("x = 1 + \\\n1\n"));
	cr_assert(complete_at_end("def f():\n    return 1\n\n"));
	cr_assert(complete_at_end("class A:\n    def f(self):\n        pass\n\n"));
	cr_assert(complete_at_end("%%bash\nls\necho x\n\n"));
}

Test(input, blank_is_complete_and_clear_forgets)
{
	struct input in = { 0 };

	cr_assert(input_blank(&in) && input_complete(&in));
	cr_assert_eq(input_add(&in, "  "), 0);
	cr_assert(input_blank(&in) && input_complete(&in));
	cr_assert_eq(input_add(&in, "x"), 0);
	cr_assert_not(input_blank(&in));
	input_clear(&in);
	cr_assert(input_blank(&in) && in.len == 0);
	free(in.text);
}
