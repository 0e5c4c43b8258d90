/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/init/user.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char passwd[] = "/tmp/test_user_passwd_XXXXXX", group[] = "/tmp/test_user_group_XXXXXX";

static void put(char *path, const char *text)
{
	int fd = mkstemp(path);

	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void make_files(void)
{
	put(passwd, "root:x:0:0:root:/root:/bin/bash\n"
	            "broken\n"
	            "user:x:1000:1000:,,,:/home/user:/bin/bash\n"
	            "bare:x:7:7:::\n");
	put(group, "root:x:0:\nsudo:x:27:other,user\nuser:x:1000:user\naudio:x:29:user\n");
}

static void remove_files(void)
{
	unlink(passwd);
	unlink(group);
}

TestSuite(user, .init = make_files, .fini = remove_files);

Test(user, find)
{
	struct user u;

	cr_assert_eq(user_find(passwd, group, "user", &u), 0);
	cr_assert(u.uid == 1000 && u.gid == 1000);
	cr_assert_str_eq(u.home, "/home/user");
	cr_assert_eq(u.nr_groups, 3, "%d groups", u.nr_groups);
	cr_assert(u.groups[0] == 1000 && u.groups[1] == 27 && u.groups[2] == 29);
	cr_assert_eq(user_find(passwd, group, "bare", &u), 0);
	cr_assert_str_eq(u.home, "/");
	cr_assert_str_eq(u.shell, "/bin/sh");
	cr_assert_eq(user_find(passwd, group, "nobody", &u), -ENOENT);
	cr_assert_eq(user_find("/no/such", group, "user", &u), -ENOENT);
}

Test(user, names)
{
	char name[64];

	user_name(passwd, 1000, name, sizeof(name));
	cr_assert_str_eq(name, "user");
	user_name(passwd, 4242, name, sizeof(name));
	cr_assert_str_eq(name, "4242");
	user_group_name(group, 27, name, sizeof(name));
	cr_assert_str_eq(name, "sudo");
}

static bool has(char **env, const char *entry)
{
	while (*env && strcmp(*env, entry) != 0)
		env++;
	return *env != NULL;
}

Test(user, env)
{
	json_t *common = json_pack("{s:s, s:s}", "A", "template", "B", "template");
	json_t *own = json_pack("{s:s, s:s}", "B", "request", "HOME", "/x");
	struct user u;
	const char *bad;
	char **env;

	cr_assert_eq(user_find(passwd, group, "user", &u), 0);
	env = user_env(&u, common, own, &bad);
	cr_assert_not_null(env);
	cr_assert(has(env, "A=template") && has(env, "B=request") && has(env, "HOME=/x"));
	cr_assert(has(env, "USER=user") && has(env, "LANG=C.UTF-8"));
	cr_assert_not(has(env, "B=template") || has(env, "HOME=/home/user"));
	free(env);

	json_object_set_new(own, "C=D", json_string("x"));
	cr_assert_null(user_env(&u, common, own, &bad));
	cr_assert_str_eq(bad, "C=D");
	json_object_del(own, "C=D");
	json_object_set_new(own, "N", json_integer(1));
	cr_assert_null(user_env(&u, common, own, &bad));
	cr_assert_str_eq(bad, "N");
	json_decref(common);
	json_decref(own);
}

Test(user, host_env_for_sudo)
{
	char path[] = "/tmp/host-env-XXXXXX", text[256] = "";
	int fd = mkstemp(path);

	cr_assert_geq(fd, 0);
	setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2", 1);
	setenv("UNRELATED", "1", 1);
	cr_assert_eq(user_save_host_env(path), 0);
	cr_assert_gt(read(fd, text, sizeof(text) - 1), 0);
	cr_assert_str_eq(text, "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2\n");
	cr_assert_eq(user_save_host_env("/nowhere/environment"), -ENOENT);
	close(fd);
	unlink(path);
}
