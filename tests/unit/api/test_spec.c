/* SPDX-License-Identifier: Apache-2.0 */
#include "api/spec.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct spec s;
static struct err err;
static char out[PATHS_MAX];

Test(spec, from_and_to)
{
	cr_assert_eq(spec_parse("a b.csv", &s, &err), 0);
	cr_assert(!strcmp(s.from, "a b.csv") && !s.to[0]);
	cr_assert_eq(spec_parse("\xc3\xa4.csv:/tmp/x y", &s, &err), 0);
	cr_assert(!strcmp(s.from, "\xc3\xa4.csv") && !strcmp(s.to, "/tmp/x y"));
	cr_assert_eq(spec_parse("a:", &s, &err), 0);
	cr_assert(!strcmp(s.from, "a") && !s.to[0]);
}

Test(spec, colons_in_names)
{
	cr_assert_eq(spec_parse("a\\:b:c\\\\d", &s, &err), 0);
	cr_assert_str_eq(s.from, "a:b");
	cr_assert_str_eq(s.to, "c\\d");
	cr_assert_eq(spec_parse("a:b:c", &s, &err), -EINVAL);
	cr_assert_eq(spec_parse("a\\b", &s, &err), 0, "any other backslash is itself");
	cr_assert_str_eq(s.from, "a\\b");
}

Test(spec, bad_ones)
{
	char *longer = malloc(PATHS_MAX + 10);

	cr_assert_eq(spec_parse("", &s, &err), -EINVAL);
	cr_assert_eq(spec_parse(":x", &s, &err), -EINVAL);
	memset(longer, 'a', PATHS_MAX + 9);
	longer[PATHS_MAX + 9] = '\0';
	cr_assert_eq(spec_parse(longer, &s, &err), -ENAMETOOLONG);
	free(longer);
}

Test(spec, guest_paths)
{
	cr_assert_eq(spec_guest_path("", "data/in.csv", out, &err), 0);
	cr_assert_str_eq(out, "/home/user/in.csv");
	cr_assert_eq(spec_guest_path("/tmp/", "data/in.csv", out, &err), 0);
	cr_assert_str_eq(out, "/tmp/in.csv");
	cr_assert_eq(spec_guest_path("sub/x", "data/in.csv", out, &err), 0);
	cr_assert_str_eq(out, "/home/user/sub/x");
	cr_assert_eq(spec_guest_path("/etc/x", "y", out, &err), 0);
	cr_assert_str_eq(out, "/etc/x");
	cr_assert_eq(spec_guest_path("dir/", "", out, &err), -EINVAL);
}

Test(spec, local_paths)
{
	char dir[] = "/tmp/test_spec.XXXXXX", name[64];

	cr_assert_not_null(mkdtemp(dir));
	cr_assert_eq(spec_local_path("", "/home/user/chart.png", out, &err), 0);
	cr_assert_str_eq(out, "chart.png");
	cr_assert_eq(spec_local_path(dir, "/home/user/chart.png", out, &err), 0);
	cr_assert_eq(strncmp(out, dir, strlen(dir)), 0);
	cr_assert_str_eq(out + strlen(dir), "/chart.png");
	snprintf(name, sizeof(name), "%s/missing/x", dir);
	cr_assert_eq(spec_local_path(name, "/a", out, &err), -ENOENT);
	cr_assert_neq(err.remedy[0], '\0');
	snprintf(name, sizeof(name), "%s/missing/", dir);
	cr_assert_eq(spec_local_path(name, "/a", out, &err), -ENOENT);
	cr_assert_eq(spec_local_path("", "/a/", out, &err), -EINVAL);
	rmdir(dir);
}
