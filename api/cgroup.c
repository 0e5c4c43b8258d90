/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cgroup.h"

#include "core/own.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define NAME         "thawbox-%d-%u" /* our pid, and a number of ours */
#define CGROUP_MAGIC 0x63677270
#define WORD_MAX     64u

static int write_at(int dir_fd, const char *name, const char *text)
{
	own_fd int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int open_dir(const char *dir, struct err *err)
{
	own_fd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct statfs fs;

	if (fd < 0 || fstatfs(fd, &fs) < 0)
		return err_set(err, -errno, "cgroup %s: %s", dir, strerror(errno));
	if (fs.f_type != CGROUP_MAGIC) {
		(void)err_set(err, -EINVAL, "cgroup %s: not a directory of cgroup v2", dir);
		return err_remedy(err, "mount -t cgroup2 none /sys/fs/cgroup, or boot with "
		                       "systemd.unified_cgroup_hierarchy=1");
	}
	return fd_take(&fd);
}

/* Of those that were killed: a group that has a process cannot be removed, one whose maker lives is not touched. */
static void sweep(int dir_fd)
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *each;
	unsigned number;
	int pid;

	while (dir && (each = readdir(dir)))
		if (sscanf(each->d_name, NAME, &pid, &number) == 2 && kill(pid, 0) < 0 &&
		    errno == ESRCH)
			(void)unlinkat(dir_fd, each->d_name, AT_REMOVEDIR); /* or it is in use */
	if (dir)
		closedir(dir);
}

/* "memory.max" */
static bool is_file(const char *name, size_t len)
{
	const char *dot = memchr(name, '.', len);

	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)name[i]) && name[i] != '.' && name[i] != '_')
			return false;
	return dot && dot != name && len < WORD_MAX && strncmp(name, "cgroup.", 7) != 0;
}

/* The controller has to be on for those below; where it is not ours to switch, it is on or the limit fails. */
static void switch_on(int dir_fd, const char *file)
{
	char word[WORD_MAX + 2];

	(void)snprintf(word, sizeof(word), "+%.*s", (int)strcspn(file, "."), file);
	(void)write_at(dir_fd, "cgroup.subtree_control", word); /* as above */
}

/* One FILE=VALUE of `len` bytes. */
static int set_limit(int dir_fd, int group_fd, const char *limit, size_t len, struct err *err)
{
	own_free char *file = strndup(limit, len);
	char *value = file ? strchr(file, '=') : NULL;
	int rc;

	if (!value || !is_file(file, (size_t)(value - file)))
		return err_set(err, -EINVAL,
		               "cgroup: \"%.*s\" is not FILE=VALUE, as in memory.max=1G", (int)len,
		               limit);
	*value++ = '\0';
	switch_on(dir_fd, file);
	rc = write_at(group_fd, file, value);
	if (!rc)
		return 0;
	(void)err_set(err, rc, "cgroup: %s=%s: %s", file, value, strerror(-rc));
	return err_remedy(err, "the controller must be delegated: `cat cgroup.controllers` in that "
	                       "directory names those that are");
}

static int set_limits(int dir_fd, int group_fd, const char *limits, struct err *err)
{
	int rc = 0;

	while (!rc && *limits++ == ';') {
		size_t len = strcspn(limits, ";");

		rc = set_limit(dir_fd, group_fd, limits, len, err);
		limits += len;
	}
	return rc;
}

static int fill(int dir_fd, const char *name, const char *limits, struct err *err)
{
	own_fd int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int rc = fd < 0 ? err_set(err, -errno, "cgroup: %s", strerror(errno))
	                : set_limits(dir_fd, fd, limits, err),
	    procs;

	if (rc)
		return rc;
	procs = openat(fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	return procs < 0 ? err_set(err, -errno, "cgroup.procs: %s", strerror(errno)) : procs;
}

int cgroup_make(const char *spec, char **path, struct err *err)
{
	static atomic_uint last;
	size_t len = strcspn(spec, ";");
	own_free char *dir = strndup(spec, len);
	own_fd int dir_fd = -1;
	char name[64];
	int rc;

	*path = NULL;
	if (!dir)
		return err_set(err, -ENOMEM, "cgroup: out of memory");
	dir_fd = open_dir(dir, err);
	if (dir_fd < 0)
		return dir_fd;
	sweep(dir_fd);
	do { /* a program that this process ran before has left groups of its numbers */
		(void)snprintf(name, sizeof(name), NAME, getpid(), atomic_fetch_add(&last, 1));
		rc = mkdirat(dir_fd, name, 0755) < 0 ? -errno : 0;
	} while (rc == -EEXIST);
	if (asprintf(path, "%s/%s", dir, name) < 0) {
		*path = NULL;
		return err_set(err, -ENOMEM, "cgroup: out of memory");
	}
	if (rc) {
		(void)err_set(err, rc, "cgroup %s: %s", *path, strerror(-rc));
		(void)err_remedy(err,
		                 "the directory must be yours: systemd does it with Delegate=yes");
	} else {
		rc = fill(dir_fd, name, spec + len, err);
	}
	if (rc < 0) {
		cgroup_remove(*path);
		*path = NULL;
	}
	return rc;
}

int cgroup_limit(const char *path, const char *limit, struct err *err)
{
	own_fd int group_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	own_fd int dir_fd =
		group_fd < 0 ? -1 : openat(group_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd < 0)
		return err_set(err, -errno, "cgroup %s: %s", path, strerror(errno));
	return set_limit(dir_fd, group_fd, limit, strlen(limit), err);
}

void cgroup_remove(char *path)
{
	if (path)
		(void)rmdir(path); /* one that cannot go is swept by a later start */
	free(path);
}
