/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/init/path.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

Test(path, resolve)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{ "/", "/" },
		{ "//", "/" },
		{ "/a/./b//c/", "/a/b/c" },
		{ "/a/b/../c", "/a/c" },
		{ "/../../etc", "/etc" },
		{ "..", "/home" },
		{ "../../..", "/" },
		{ "x", "/home/user/x" },
		{ "./x/..", "/home/user" },
		{ "~", "/home/user" },
		{ "~/x", "/home/user/x" },
		{ "~x", "/home/user/~x" },
		{ "/~", "/~" },
		{ "...", "/home/user/..." },
		{ "/a b/\xc3\xbc", "/a b/\xc3\xbc" },
	};
	char out[PATH_MAX];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cr_assert_eq(path_resolve("/home/user", cases[i].in, out, sizeof(out)), 0);
		cr_assert_str_eq(out, cases[i].out, "%s gave %s", cases[i].in, out);
	}
}

Test(path, resolve_bounds)
{
	char out[8];

	cr_assert_eq(path_resolve("/", "", out, sizeof(out)), -EINVAL);
	cr_assert_eq(path_resolve("/", "abcdef", out, sizeof(out)), 0);
	cr_assert_str_eq(out, "/abcdef");
	cr_assert_eq(path_resolve("/", "abcdefg", out, sizeof(out)), -ENAMETOOLONG);
	cr_assert_eq(path_resolve("/", "abc/../abcdef", out, sizeof(out)), 0);
	cr_assert_str_eq(out, "/abcdef");
}

static void assert_split(const char *path, const char *want_dir, const char *want_name)
{
	char buf[PATH_MAX + 2];
	const char *dir, *name;

	path_split(path, buf, &dir, &name);
	cr_assert_str_eq(dir, want_dir);
	cr_assert_str_eq(name, want_name);
}

Test(path, split)
{
	assert_split("/a/b", "/a", "b");
	assert_split("/a", "/", "a");
	assert_split("/", "/", "");
}
