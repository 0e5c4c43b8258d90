/* SPDX-License-Identifier: Apache-2.0 */
#include "api/args.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct {
	bool flag;
	const char *text;
	struct arg_list list;
	uint64_t number, bytes, seconds, rate;
} got;

static const struct arg table[] = {
	{ "flag", 'f', ARG_FLAG, &got.flag, NULL, "a flag" },
	{ "text", 'c', ARG_TEXT, &got.text, "TEXT", "a text" },
	{ "put", 'p', ARG_LIST, &got.list, "WHAT", "a list" },
	{ "number", '\0', ARG_NUMBER, &got.number, "N", "a number" },
	{ "bytes", 'b', ARG_BYTES, &got.bytes, "BYTES", "a size" },
	{ "rate", 'r', ARG_RATE, &got.rate, "BYTES/S", "a rate" },
	{ "timeout", 't', ARG_SECONDS, &got.seconds, "TIME", "a time" },
};

static struct arg_rest rest;
static struct err err;

/* The operands that come back point into it. */
static char *argv_buf[16];

static int parse(bool stop, const char *const *words, int nr)
{
	memset(&got, 0, sizeof(got));
	memcpy(argv_buf, words, (size_t)nr * sizeof(*words));
	return args_parse(table, ARRAY_LEN(table), nr, argv_buf, stop, &rest, &err);
}

#define PARSE(stop, ...)                                       \
	parse(stop, (const char *const[]){ "x", __VA_ARGS__ }, \
	      (int)ARRAY_LEN(((const char *const[]){ "x", __VA_ARGS__ })))

Test(args, every_form_of_an_option)
{
	cr_assert_eq(PARSE(false, "--text", "a", "-f"), 0);
	cr_assert(got.flag && !strcmp(got.text, "a"));
	cr_assert_eq(PARSE(false, "--text=b=c"), 0);
	cr_assert_str_eq(got.text, "b=c");
	cr_assert_eq(PARSE(false, "-c", "-1"), 0, "a value may look like an option");
	cr_assert_str_eq(got.text, "-1");
	cr_assert_eq(PARSE(false, "-cshort"), 0);
	cr_assert_str_eq(got.text, "short");
	cr_assert_eq(PARSE(false, "--text="), 0);
	cr_assert_str_eq(got.text, "");
}

Test(args, lists_keep_their_order)
{
	cr_assert_eq(PARSE(false, "-p", "a", "--put=b", "--put", "c"), 0);
	cr_assert_eq(got.list.nr, 3);
	cr_assert_str_eq(got.list.at[0], "a");
	cr_assert_str_eq(got.list.at[2], "c");
}

Test(args, operands_stand_anywhere)
{
	cr_assert_eq(PARSE(false, "one", "-f", "two", "-", "--", "-f", "--text"), 0);
	cr_assert_eq(rest.nr, 5);
	cr_assert_str_eq(rest.at[0], "one");
	cr_assert_str_eq(rest.at[2], "-");
	cr_assert_str_eq(rest.at[4], "--text");
	cr_assert(rest.dashes && got.flag);
}

Test(args, command_keeps_its_own_options)
{
	cr_assert_eq(PARSE(true, "-f", "ls", "-c", "--", "x"), 0);
	cr_assert_eq(rest.nr, 4);
	cr_assert_str_eq(rest.at[0], "ls");
	cr_assert_str_eq(rest.at[2], "--");
	cr_assert_null(got.text);
}

Test(args, what_is_wrong_is_said)
{
	cr_assert_eq(PARSE(false, "--nope"), -EINVAL);
	cr_assert_str_eq(err.msg, "unknown option --nope");
	cr_assert_eq(PARSE(false, "-z"), -EINVAL);
	cr_assert_eq(PARSE(false, "-ff"), -EINVAL);
	cr_assert_eq(PARSE(false, "--tex", "a"), -EINVAL, "no abbreviations");
	cr_assert_eq(PARSE(false, "--text"), -EINVAL);
	cr_assert_str_eq(err.msg, "--text needs a value: --text TEXT");
	cr_assert_eq(PARSE(false, "--flag=yes"), -EINVAL);
}

Test(args, numbers)
{
	cr_assert(PARSE(false, "--number", "512") == 0 && got.number == 512);
	cr_assert_eq(PARSE(false, "--number", "-1"), -EINVAL);
	cr_assert_eq(PARSE(false, "--number", ""), -EINVAL);
	cr_assert_eq(PARSE(false, "--number", "5x"), -EINVAL);
	cr_assert_eq(PARSE(false, "--number", "99999999999999999999999"), -EINVAL);
}

Test(args, sizes)
{
	cr_assert(PARSE(false, "-b", "0") == 0 && got.bytes == 0);
	cr_assert(PARSE(false, "-b", "64K") == 0 && got.bytes == 65536);
	cr_assert(PARSE(false, "-b", "8MiB") == 0 && got.bytes == 8 << 20);
	cr_assert(PARSE(false, "-b", "2gB") == 0 && got.bytes == 2ull << 30);
	cr_assert_eq(PARSE(false, "-b", "8X"), -EINVAL);
	cr_assert_eq(PARSE(false, "-b", "99999999999T"), -EINVAL);
	cr_assert_eq(PARSE(false, "-b", "-1"), -EINVAL);
}

Test(args, times)
{
	cr_assert(PARSE(false, "-t", "2") == 0 && got.seconds == 2000000000);
	cr_assert(PARSE(false, "-t", "0.5s") == 0 && got.seconds == 500000000);
	cr_assert(PARSE(false, "-t", "250ms") == 0 && got.seconds == 250000000);
	cr_assert(PARSE(false, "-t", "5m") == 0 && got.seconds == 300ull * 1000000000);
	cr_assert(PARSE(false, "-t", "12h") == 0 && got.seconds == 43200ull * 1000000000);
	cr_assert(PARSE(false, "-t", "7d") == 0 && got.seconds == 604800ull * 1000000000);
	cr_assert_eq(PARSE(false, "-t", "0"), -EINVAL);
	cr_assert_eq(PARSE(false, "-t", "-3"), -EINVAL);
	cr_assert_eq(PARSE(false, "-t", "nan"), -EINVAL);
	cr_assert_eq(PARSE(false, "-t", "inf"), -EINVAL);
	cr_assert_eq(PARSE(false, "-t", "3 days"), -EINVAL);
}

Test(args, help_lists_every_option)
{
	char *text;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	args_help(table, ARRAY_LEN(table), f);
	fclose(f);
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		cr_assert_not_null(strstr(text, table[i].name));
		cr_assert_not_null(strstr(text, table[i].help));
	}
	free(text);
}

Test(args, rates)
{
	cr_assert_eq(PARSE(false, "-r", "500"), 0);
	cr_assert_eq(got.rate, 500);
	cr_assert_eq(PARSE(false, "--rate=50M/s"), 0);
	cr_assert_eq(got.rate, 50u << 20);
	cr_assert_eq(PARSE(false, "-r64KiB/s"), 0);
	cr_assert_eq(got.rate, 64u << 10);
	cr_assert_eq(PARSE(false, "-r", "0"), 0);
	cr_assert_eq(got.rate, 0);
	cr_assert_eq(PARSE(false, "-r", "5/m"), -EINVAL);
	cr_assert_not_null(strstr(err.msg, "a rate such as"));
	cr_assert_eq(PARSE(false, "-r", "5M/s/s"), -EINVAL);
	cr_assert_eq(PARSE(false, "-b", "5M/s"), -EINVAL, "a size is not a rate");
}
