/* SPDX-License-Identifier: Apache-2.0 */
#include "api/paths.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/test_paths.XXXXXX";
static char out[PATHS_MAX];
static struct err err;

static void setup(void)
{
	cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
	cr_assert_eq(paths_remove_tree(dir), 0);
}

TestSuite(paths, .init = setup, .fini = teardown);

Test(paths, home_follows_the_environment)
{
	setenv("THAWBOX_HOME", "/x", 1);
	cr_assert_eq(paths_home(out, &err), 0);
	cr_assert_str_eq(out, "/x");
	setenv("THAWBOX_HOME", "", 1);
	setenv("XDG_DATA_HOME", "/data", 1);
	cr_assert_eq(paths_home(out, &err), 0);
	cr_assert_str_eq(out, geteuid() ? "/data/thawbox" : "/var/lib/thawbox");
}

Test(paths, monitor_by_environment_and_path)
{
	char path[PATHS_MAX];
	FILE *f;

	setenv("THAWBOX_VMM", "/opt/vmm", 1);
	cr_assert_eq(paths_vmm(out, &err), 0);
	cr_assert_str_eq(out, "/opt/vmm");
	unsetenv("THAWBOX_VMM");
	setenv("PATH", "/nonexistent", 1);
	cr_assert_eq(paths_vmm(out, &err), -ENOENT);
	cr_assert_neq(err.remedy[0], '\0');
	cr_assert_eq(paths_format(path, &err, "%s/thawbox-vmm", dir), 0);
	f = fopen(path, "w");
	fclose(f);
	cr_assert_eq(chmod(path, 0755), 0);
	cr_assert_eq(paths_format(out, &err, "/nonexistent:%s", dir), 0);
	setenv("PATH", out, 1);
	cr_assert_eq(paths_vmm(out, &err), 0);
	cr_assert_str_eq(out, path);
}

Test(paths, assets_by_environment_only_when_it_is_set)
{
	char path[PATHS_MAX];
	FILE *f;

	setenv("THAWBOX_ASSETS", dir, 1);
	cr_assert_eq(paths_asset("kernel", "vmlinux", out, &err), -ENOENT);
	cr_assert_not_null(strstr(err.msg, dir));
	cr_assert_eq(paths_format(path, &err, "%s/kernel/current", dir), 0);
	cr_assert_eq(paths_make_dirs(path, &err), 0);
	strcat(path, "/vmlinux");
	f = fopen(path, "w");
	fclose(f);
	cr_assert_eq(paths_asset("kernel", "vmlinux", out, &err), 0);
	cr_assert_str_eq(out, path);
}

Test(paths, too_long_is_refused)
{
	char *name = malloc(PATHS_MAX + 1);

	memset(name, 'a', PATHS_MAX);
	name[PATHS_MAX] = '\0';
	cr_assert_eq(paths_format(out, &err, "/%s", name), -ENAMETOOLONG);
	free(name);
}

Test(paths, trees_are_made_and_removed_and_links_not_followed)
{
	char tree[PATHS_MAX], link[PATHS_MAX], keep[PATHS_MAX];

	cr_assert_eq(paths_format(keep, &err, "%s/keep", dir), 0);
	cr_assert_eq(paths_format(tree, &err, "%s/a/b/c", dir), 0);
	cr_assert_eq(paths_make_dirs(keep, &err) | paths_make_dirs(tree, &err), 0);
	cr_assert_eq(paths_make_dirs(tree, &err), 0, "a second time is no error");
	cr_assert_eq(paths_format(link, &err, "%s/a/link", dir), 0);
	cr_assert_eq(symlink(keep, link), 0);
	cr_assert_eq(paths_format(tree, &err, "%s/a", dir), 0);
	cr_assert_eq(paths_remove_tree(tree), 0);
	cr_assert_neq(access(tree, F_OK), 0);
	cr_assert_eq(access(keep, F_OK), 0);
	cr_assert_eq(paths_remove_tree(tree), 0, "missing is fine");
}
