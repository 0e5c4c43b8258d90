/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cmd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct err err;

Test(cmd, environment)
{
	struct arg_list list = { { "A=1", "B=x=y", "C=" }, 3 };
	json_t *env = cmd_env(&list, &err);

	cr_assert_str_eq(json_string_value(json_object_get(env, "A")), "1");
	cr_assert_str_eq(json_string_value(json_object_get(env, "B")), "x=y");
	cr_assert_str_eq(json_string_value(json_object_get(env, "C")), "");
	json_decref(env);
}

Test(cmd, bad_environment)
{
	static const char *const bad[] = { "A", "=1", "A=\xff", "\xff=a" };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct arg_list list = { { bad[i] }, 1 };

		cr_assert_null(cmd_env(&list, &err), "%s", bad[i]);
		cr_assert_eq(err.code, -EINVAL);
	}
}

Test(cmd, sizes_for_people)
{
	char text[32];

	cr_assert_str_eq(cmd_bytes(0, text), "0 B");
	cr_assert_str_eq(cmd_bytes(1023, text), "1023 B");
	cr_assert_str_eq(cmd_bytes(1536, text), "1.5 KiB");
	cr_assert_str_eq(cmd_bytes(UINT64_MAX, text), "16777216.0 TiB");
}

Test(cmd, ages_for_people)
{
	static const struct {
		int64_t s;
		const char *text;
	} cases[] = { { -1, "unknown" },  { 0, "0 s" },         { 119, "119 s" },
		      { 120, "2 min" },   { 7199, "119 min" },  { 7200, "2 h" },
		      { 172799, "47 h" }, { 172800, "2 days" }, { 3000000, "34 days" } };
	char text[32];

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
		cr_assert_str_eq(cmd_age(cases[i].s, text), cases[i].text);
	cr_assert_str_eq(cmd_age(INT64_MAX, text), "106751991167300 days");
}

Test(cmd, exit_codes)
{
	struct sandbox sb;
	struct err lost = { .code = -ECONNABORTED }, intr = { .code = -EINTR },
		   refused = { .code = -EREMOTEIO };

	sandbox_init(&sb);
	cr_assert_eq(cmd_exit_code(&sb, &lost), 125);
	cr_assert_eq(cmd_exit_code(&sb, &intr), 130);
	cr_assert_eq(cmd_exit_code(&sb, &refused), 1, "the guest refused");
	sb.fail = refused;
	cr_assert_eq(cmd_exit_code(&sb, &refused), 3, "the thaw was refused");
}

Test(cmd, files_are_read_whole_and_bounded)
{
	char name[] = "/tmp/test_cmd.XXXXXX", *text = NULL;
	int fd = mkstemp(name);
	size_t len = 0;

	cr_assert_eq(ftruncate(fd, 300000), 0);
	cr_assert_eq(cmd_read_file(name, 300000, &text, &len, &err), 0);
	cr_assert_eq(len, 300000);
	free(text);
	cr_assert_eq(cmd_read_file(name, 299999, &text, &len, &err), -EFBIG);
	cr_assert_eq(cmd_read_file("/nonexistent", 10, &text, &len, &err), -ENOENT);
	cr_assert_eq(cmd_read_file("/tmp", 10, &text, &len, &err), -EISDIR);
	unlink(name);
	close(fd);
}

Test(cmd, interrupts_make_a_descriptor_readable, .timeout = 10)
{
	int fd = cmd_intr_open(&err);

	cr_assert_geq(fd, 0);
	cr_assert_eq(cmd_intr_take(), 0);
	raise(SIGTERM);
	raise(SIGINT);
	cr_assert_eq(cmd_intr_take(), SIGINT);
	cr_assert_eq(cmd_intr_take(), 0);
}

Test(cmd, no_colour_when_asked_for_none)
{
	setenv("NO_COLOR", "1", 1);
	cr_assert_not(cmd_has_colour(1));
}
