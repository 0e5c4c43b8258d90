/* SPDX-License-Identifier: Apache-2.0 */
#include "api/proc.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>

static struct err err;
static char out[64];

static int sh(const char *text)
{
	const char *argv[] = { "/bin/sh", "-c", text, NULL };

	return proc_capture(argv, out, sizeof(out), &err);
}

Test(proc, output_and_exit_code)
{
	cr_assert_eq(sh("echo a; echo b; exit 3"), 3);
	cr_assert_str_eq(out, "a\nb\n");
	cr_assert_eq(sh("kill -9 $$"), 137);
	cr_assert_str_eq(out, "");
}

Test(proc, standard_input_is_empty)
{
	cr_assert_eq(sh("cat; echo end"), 0);
	cr_assert_str_eq(out, "end\n");
}

Test(proc, too_much_output_ends_it)
{
	cr_assert_eq(sh("while :; do echo aaaaaaaaaaaaaaaa; done"), -EFBIG);
}

Test(proc, what_is_not_there_is_said)
{
	const char *argv[] = { "/nonexistent/x", NULL };

	cr_assert_eq(proc_capture(argv, out, sizeof(out), &err), -ENOENT);
	cr_assert_str_eq(err.msg, "start /nonexistent/x: No such file or directory");
}
