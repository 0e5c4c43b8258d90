/* SPDX-License-Identifier: Apache-2.0 */
/* A group for each monitor, on the host's own cgroup v2; what is left by the killed goes. */
#include "api/cgroup.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[256]; /* "": this host lets us make none */

/* A directory of ours on the first file system of cgroup v2. */
static void setup(void)
{
	FILE *mounts = fopen("/proc/self/mounts", "re");
	char line[512], where[200], type[32];

	while (mounts && !dir[0] && fgets(line, sizeof(line), mounts))
		if (sscanf(line, "%*s %199s %31s", where, type) == 2 && !strcmp(type, "cgroup2"))
			snprintf(dir, sizeof(dir), "%s/test-%d", where, getpid());
	if (mounts)
		fclose(mounts);
	if (dir[0] && mkdir(dir, 0755))
		dir[0] = '\0';
}

static void teardown(void)
{
	if (dir[0])
		cr_assert_eq(rmdir(dir), 0, "groups are left: %s", strerror(errno));
}

TestSuite(cgroup, .init = setup, .fini = teardown);

static void need_cgroups(void)
{
	if (!dir[0])
		cr_skip_test("no cgroup v2 to be had here");
}

Test(cgroup, made_joined_and_removed)
{
	struct err err = { 0 };
	char *path;
	int fd, status;
	pid_t pid;

	need_cgroups();
	fd = cgroup_make(dir, &path, &err);
	cr_assert_geq(fd, 0, "%s", err.msg);
	cr_assert_eq(strncmp(path, dir, strlen(dir)), 0);
	pid = fork();
	if (pid == 0) {
		char text[512] = "", *at;
		int mine;

		if (write(fd, "0", 1) != 1)
			_exit(1);
		mine = open("/proc/self/cgroup", O_RDONLY);
		if (read(mine, text, sizeof(text) - 1) <= 0)
			_exit(2);
		at = strstr(text, "0::");
		_exit(!at || !strstr(at, strrchr(path, '/')));
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	close(fd);
	cr_assert_eq(access(path, F_OK), 0);
	cgroup_remove(path);
}

Test(cgroup, two_have_two)
{
	struct err err = { 0 };
	char *one, *other;
	int a, b;

	need_cgroups();
	a = cgroup_make(dir, &one, &err);
	b = cgroup_make(dir, &other, &err);
	cr_assert(a >= 0 && b >= 0, "%s", err.msg);
	cr_assert_str_neq(one, other);
	close(a);
	close(b);
	cgroup_remove(one);
	cgroup_remove(other);
}

Test(cgroup, what_the_killed_left_is_swept_and_what_the_living_have_is_not)
{
	struct err err = { 0 };
	char *path, left[300], kept[300];
	int fd;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	need_cgroups();
	snprintf(left, sizeof(left), "%s/thawbox-%d-7", dir, pid);
	snprintf(kept, sizeof(kept), "%s/thawbox-%d-7", dir, getppid());
	cr_assert_eq(mkdir(left, 0755) | mkdir(kept, 0755), 0);
	fd = cgroup_make(dir, &path, &err);
	cr_assert_geq(fd, 0, "%s", err.msg);
	close(fd);
	cr_assert_eq(access(left, F_OK), -1);
	cr_assert_eq(rmdir(kept), 0);
	cgroup_remove(path);
}

Test(cgroup, limits_that_cannot_be_are_refused_and_nothing_is_left)
{
	const char *const wrong[] = { ";memory.max",   ";=1",    ";../memory.max=1",
		                      ";memory/max=1", ";max=1", ";cgroup.procs=1",
		                      ";no.such=1G",   ";" };
	char spec[400], *path;

	need_cgroups();
	for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
		struct err err = { 0 };

		snprintf(spec, sizeof(spec), "%s%s", dir, wrong[i]);
		cr_assert_lt(cgroup_make(spec, &path, &err), 0, "%s", wrong[i]);
		cr_assert_null(path);
		cr_assert_neq(err.msg[0], '\0');
	}
}

/* The content of `name` in `path`; "" where it cannot be read. */
static void read_file(const char *path, const char *name, char out[256])
{
	char file[600];
	ssize_t n;
	int fd;

	snprintf(file, sizeof(file), "%s/%s", path, name);
	fd = open(file, O_RDONLY);
	n = fd < 0 ? 0 : read(fd, out, 255);
	out[n > 0 ? n : 0] = '\0';
	if (fd >= 0)
		close(fd);
}

/* Of a group that there is; a host whose controllers are not delegated says so. */
Test(cgroup, one_more_limit)
{
	struct err err = { 0 };
	char *path, text[256];
	int fd, rc;

	need_cgroups();
	fd = cgroup_make(dir, &path, &err);
	cr_assert_geq(fd, 0, "%s", err.msg);
	close(fd);
	rc = cgroup_limit(path, "cpu.max=50000 100000", &err);
	read_file(dir, "cgroup.controllers", text);
	if (strstr(text, "cpu")) {
		cr_assert_eq(rc, 0, "%s", err.msg);
		read_file(path, "cpu.max", text);
		cr_assert_str_eq(text, "50000 100000\n");
	} else {
		cr_assert_lt(rc, 0);
		cr_assert_not_null(strstr(err.remedy, "delegated"));
	}
	cr_assert_eq(cgroup_limit(path, "cgroup.procs=1", &err), -EINVAL);
	cr_assert_eq(cgroup_limit("/no/such", "cpu.max=1", &err), -ENOENT);
	cgroup_remove(path);
}

Test(cgroup, directory_that_is_none)
{
	struct err err = { 0 };
	char *path;

	cr_assert_eq(cgroup_make("/tmp", &path, &err), -EINVAL);
	cr_assert_not_null(strstr(err.remedy, "cgroup2"));
	cr_assert_eq(cgroup_make("/no/such", &path, &err), -ENOENT);
	cgroup_remove(NULL);
}
