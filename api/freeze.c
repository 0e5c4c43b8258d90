/* SPDX-License-Identifier: Apache-2.0 */
#include "api/freeze.h"

#include "api/paths.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A snapshot being written. */
struct folder {
	char dir[PATHS_MAX], tmp[PATHS_MAX + 32]; /* tmp "": nothing to remove */
	int tmp_fd;
	unsigned nr;
	int part[MONITOR_FDS_MAX];
};

static int failed(const char *what, int code, struct err *err)
{
	(void)err_set(err, code, "snapshot %s: %s", what, strerror(-code));
	return code == -ENOSPC ? err_remedy(err, "free some disk space") : code;
}

static int begin(struct folder *f, const char *dir, bool replace, struct err *err)
{
	size_t len = strlen(dir);

	*f = (struct folder){ .tmp_fd = -1 };
	while (len > 1 && dir[len - 1] == '/')
		len--;
	if (len == 0 || len >= sizeof(f->dir))
		return err_set(err, -ENAMETOOLONG, "snapshot: no usable path '%.64s'", dir);
	memcpy(f->dir, dir, len);
	if (!replace && access(f->dir, F_OK) == 0) {
		(void)err_set(err, -EEXIST, "snapshot %s is there already", f->dir);
		return err_remedy(err, "choose another name or ask to replace it");
	}
	(void)snprintf(f->tmp, sizeof(f->tmp), "%s.tmp-XXXXXX", f->dir);
	if (!mkdtemp(f->tmp)) {
		int code = failed(f->tmp, -errno, err);

		f->tmp[0] = '\0';
		return code;
	}
	f->tmp_fd = open(f->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return f->tmp_fd < 0 ? failed(f->tmp, -errno, err) : 0;
}

static bool is_plain(const char *name)
{
	return name && *name && *name != '.' && !strchr(name, '/');
}

/* A file for each name that the monitor has given: its word is not trusted with a path. */
static int make_parts(struct folder *f, const json_t *names, struct err *err)
{
	size_t i;
	json_t *each;

	json_array_foreach(names, i, each)
	{
		const char *name = json_string_value(each);
		int fd;

		if (!is_plain(name) || i >= ARRAY_LEN(f->part))
			return err_set(err, -EPROTO,
			               "snapshot: the monitor names parts that cannot be");
		fd = openat(f->tmp_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
		if (fd < 0)
			return failed(name, -errno, err);
		f->part[f->nr++] = fd;
	}
	return f->nr ? 0 : err_set(err, -EPROTO, "snapshot: the monitor names no parts");
}

static int fill(struct folder *f, struct sandbox *sb, int timeout_ms, struct err *err)
{
	json_t *answer = NULL, *names;
	int rc = sandbox_call(sb, json_pack("{s:s}", "cmd", "parts"), -1, timeout_ms, &answer, err);

	names = json_object_get(answer, "parts");
	rc = rc ? rc : make_parts(f, names, err);
	if (!rc)
		rc = sandbox_call_with(sb,
		                       json_pack("{s:s, s:O}", "cmd", "snapshot", "parts", names),
		                       f->part, f->nr, timeout_ms, NULL, err);
	json_decref(answer);
	return rc;
}

/* Returns `rc`; what cannot be removed is the bigger trouble only when nothing else was. */
static int end(struct folder *f, int rc, struct err *err)
{
	int left = 0;

	for (unsigned i = 0; i < f->nr; i++)
		close(f->part[i]);
	own_close_fd(&f->tmp_fd);
	if (f->tmp[0])
		left = paths_remove_tree(f->tmp);
	return !rc && left ? failed(f->tmp, left, err) : rc;
}

static void sync_parent(const char *path)
{
	char parent[PATHS_MAX];
	own_fd int fd = -1;
	char *slash;

	(void)snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent ? 1 : 0] = '\0';
	fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		(void)fsync(fd); /* the rename itself has been done */
}

/*
 * After an exchange the old directory has the temporary name. Others may put one there, or take it away, between two
 * looks: with `replace` the last one that comes stays.
 */
static int commit(struct folder *f, bool replace, struct err *err)
{
	bool exchange = false;

	if (fsync(f->tmp_fd))
		return failed(f->dir, -errno, err);
	while (renameat2(AT_FDCWD, f->tmp, AT_FDCWD, f->dir,
	                 exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE)) {
		if (!replace || errno != (exchange ? ENOENT : EEXIST))
			return failed(f->dir, -errno, err);
		exchange = !exchange;
	}
	sync_parent(f->dir);
	if (!exchange)
		f->tmp[0] = '\0';
	return 0;
}

int freeze_snapshot(struct sandbox *sb, const char *dir, bool replace, int timeout_ms,
                    struct err *err)
{
	struct folder f;
	int rc = begin(&f, dir, replace, err);

	rc = rc ? rc : fill(&f, sb, timeout_ms, err);
	rc = rc ? rc : commit(&f, replace, err);
	return end(&f, rc, err);
}

int freeze_workset(struct sandbox *sb, const char *dir, bool later, int timeout_ms, struct err *err)
{
	own_fd int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	own_fd int before = -1, fd = -1;
	char tmp[64];
	int fds[2], rc = dir_fd < 0 ? -errno : 0;

	(void)snprintf(tmp, sizeof(tmp), "workset.tmp-%d", getpid());
	if (!rc)
		(void)unlinkat(dir_fd, tmp, 0); /* of one that was killed */
	fd = rc ? -1 : openat(dir_fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (!rc && later)
		before = openat(dir_fd, "workset", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (rc || fd < 0 || (later && before < 0))
		rc = err_set(err, rc ? rc : -errno, "%s/workset: %s", dir,
		             strerror(rc ? -rc : errno));
	fds[0] = fd;
	fds[1] = before;
	if (!rc)
		rc = sandbox_call_with(sb, json_pack("{s:s}", "cmd", "workset"), fds, later ? 2 : 1,
		                       timeout_ms, NULL, err);
	if (!rc && renameat(dir_fd, tmp, dir_fd, "workset"))
		rc = err_set(err, -errno, "%s/workset: %s", dir, strerror(errno));
	if (rc && fd >= 0)
		(void)unlinkat(dir_fd, tmp, 0);
	return rc;
}
