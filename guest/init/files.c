/* SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include "agent.h"
#include "exec.h"
#include "meta.h"
#include "path.h"
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_CHUNK  (64u << 10)
#define ENTRIES_MAX 16384 /* of one list */

/* Reads the member `key` as a path. False: the stream has its error. */
static bool get_path(struct stream *s, const json_t *request, const char *key, const char *home,
                     char *out)
{
	const char *path = json_string_value(json_object_get(request, key));
	int r = path ? path_resolve(home, path, out, PATH_MAX) : -EINVAL;

	if (r == -EINVAL)
		stream_error(s, "ValueError", "\"%s\" must be a path, and is not there or empty",
		             key);
	else if (r < 0)
		stream_errno(s, -r, path);
	return r == 0;
}

bool files_target(struct stream *s, const json_t *request, struct target *t)
{
	const char *name = json_string_value(json_object_get(request, "user"));

	if (!name)
		name = agent.user;
	if (user_find(agent.passwd, agent.group, name, &t->user) < 0) {
		stream_error(s, "KeyError", "no user '%s' in the sandbox", name);
		return false;
	}
	return get_path(s, request, "path", t->user.home, t->path);
}

/* mkdir -p for the folder that `path` is in; what is made belongs to the user. 0 or -errno. */
static int make_parents(const char *path, const struct user *u)
{
	char copy[PATH_MAX];
	char *slash = copy;

	memcpy(copy, path, strlen(path) + 1); /* at most PATH_MAX: it was resolved */
	while ((slash = strchr(slash + 1, '/'))) {
		*slash = '\0';
		if (mkdir(copy, 0755) == 0) {
			if (chown(copy, u->uid, u->gid) < 0)
				return -errno;
		} else if (errno != EEXIST) {
			return -errno;
		}
		*slash = '/';
	}
	return 0;
}

/* --- write ------------------------------------------------------------------------------------ */

#define TEMP_NEW  ".thawbox-new-"
#define TEMP_OLD  ".thawbox-old-"
#define TEMP_TAIL ".tmp"

struct upload {
	int fd;
	char temp[PATH_MAX], path[PATH_MAX];
	json_int_t size; /* that the client announced; -1: it did not */
	uint64_t received;
	bool is_new; /* nothing was there */
	mode_t mode;
	uid_t uid;
	gid_t gid;
};

bool files_is_temp(const char *name, bool *is_new)
{
	size_t n = strlen(name), tail = strlen(TEMP_TAIL);

	*is_new = strncmp(name, TEMP_NEW, strlen(TEMP_NEW)) == 0;
	return (*is_new || strncmp(name, TEMP_OLD, strlen(TEMP_OLD)) == 0) &&
	       n > strlen(TEMP_NEW) + tail && strcmp(name + n - tail, TEMP_TAIL) == 0;
}

static void free_upload(struct upload *u, bool keep)
{
	close(u->fd);
	if (!keep)
		unlink(u->temp);
	free(u);
}

static void on_upload_release(struct stream *s)
{
	free_upload(s->op, false);
}

static void fail_upload(struct stream *s, int err)
{
	struct upload *u = s->op;

	stream_errno(s, err, u->path);
	free_upload(u, false);
}

static void on_upload_data(struct stream *s, const uint8_t *bytes, size_t n)
{
	struct upload *u = s->op;
	ssize_t done;

	u->received += n;
	while (n > 0) {
		done = write(u->fd, bytes, n);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0) {
			fail_upload(s, errno);
			return;
		}
		bytes += done;
		n -= (size_t)done;
	}
}

static void on_upload_end(struct stream *s)
{
	struct upload *u = s->op;

	if (u->size >= 0 && (uint64_t)u->size != u->received) {
		stream_error(s, "ValueError",
		             "%llu bytes came, \"size\" says %lld: '%s' not written",
		             (unsigned long long)u->received, (long long)u->size, u->path);
		free_upload(u, false);
	} else if (fchown(u->fd, u->uid, u->gid) < 0 || fchmod(u->fd, u->mode) < 0 ||
	           rename(u->temp, u->path) < 0) {
		fail_upload(s, errno);
	} else {
		stream_result(s, json_pack("{s:s, s:I, s:o}", "status", "ok", "size",
		                           (json_int_t)u->received, "path", text_json(u->path)));
		free_upload(u, true);
	}
}

static const struct stream_ops upload_ops = {
	.data = on_upload_data,
	.end = on_upload_end,
	.release = on_upload_release,
};

/* Where the bytes go: the file a link leads to, with its owner and mode, or a new one. */
static int plan_upload(struct upload *u, const struct target *t, const json_t *mode)
{
	char *real = realpath(t->path, NULL); /* NULL: not there; a dangling link is replaced */
	struct stat st;
	int r = 0;

	(void)snprintf(u->path, sizeof(u->path), "%s", real ? real : t->path);
	u->uid = t->user.uid;
	u->gid = t->user.gid;
	u->mode = 0644;
	if (real && stat(real, &st) == 0) {
		u->uid = st.st_uid;
		u->gid = st.st_gid;
		u->mode = st.st_mode & 07777;
		r = S_ISDIR(st.st_mode) ? -EISDIR : S_ISREG(st.st_mode) ? 0 : -EOPNOTSUPP;
	} else {
		u->is_new = true;
		r = make_parents(t->path, &t->user);
	}
	free(real);
	if (json_is_integer(mode))
		u->mode = (mode_t)json_integer_value(mode) & 07777;
	return r;
}

static int open_temp(struct upload *u)
{
	static unsigned counter;
	char split[PATH_MAX + 2];
	const char *dir, *name;

	path_split(u->path, split, &dir, &name);
	if (snprintf(u->temp, sizeof(u->temp), "%s/%s%u" TEMP_TAIL, dir,
	             u->is_new ? TEMP_NEW : TEMP_OLD, counter++) >= (int)sizeof(u->temp))
		return -ENAMETOOLONG;
	unlink(u->temp); /* of an agent before us */
	u->fd = open(u->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return u->fd < 0 ? -errno : 0;
}

void files_write(struct stream *s, const json_t *request)
{
	const json_t *size = json_object_get(request, "size");
	struct target t;
	struct upload *u;
	int r;

	if (!files_target(s, request, &t))
		return;
	u = calloc(1, sizeof(*u));
	if (!u) {
		stream_errno(s, ENOMEM, NULL);
		return;
	}
	u->size = json_is_integer(size) ? json_integer_value(size) : -1;
	r = plan_upload(u, &t, json_object_get(request, "mode"));
	if (r == 0)
		r = open_temp(u);
	if (r < 0) {
		stream_errno(s, -r, t.path);
		free(u);
		return;
	}
	r = meta_write(u->fd, json_object_get(request, "metadata"));
	if (r < 0) {
		stream_errno(s, -r, t.path);
		free_upload(u, false);
		return;
	}
	s->op = u;
	s->ops = &upload_ops;
}

/* --- read ------------------------------------------------------------------------------------- */

struct download {
	int fd;
	uint64_t sent;
	mode_t mode;
};

static void on_download_release(struct stream *s)
{
	struct download *d = s->op;

	close(d->fd);
	free(d);
}

/* Reads until the stream is full or the file ends; its size is not asked, as /proc says 0. */
static void send_more(struct stream *s)
{
	static uint8_t chunk[READ_CHUNK];
	struct download *d = s->op;
	ssize_t n;

	while (!stream_full(s)) {
		n = read(d->fd, chunk, sizeof(chunk));
		if (n > 0) {
			stream_send(s, FRAME_DATA, chunk, (size_t)n);
			d->sent += (uint64_t)n;
			continue;
		}
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			stream_errno(s, errno, NULL);
		} else {
			stream_send(s, FRAME_END, NULL, 0);
			stream_result(s, json_pack("{s:s, s:I, s:i}", "status", "ok", "size",
			                           (json_int_t)d->sent, "mode",
			                           (int)(d->mode & 07777)));
		}
		close(d->fd);
		free(d);
		return;
	}
}

static const struct stream_ops download_ops = {
	.drained = send_more,
	.release = on_download_release,
};

/* Opens a regular file; anything else could block the agent. */
static int open_regular(const char *path, mode_t *mode)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int r;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else
		r = S_ISDIR(st.st_mode) ? -EISDIR : S_ISREG(st.st_mode) ? 0 : -EOPNOTSUPP;
	if (r < 0) {
		close(fd);
		return r;
	}
	*mode = st.st_mode;
	return fd;
}

void files_read(struct stream *s, const json_t *request)
{
	struct target t;
	struct download *d;
	mode_t mode = 0;
	int fd;

	if (!files_target(s, request, &t))
		return;
	fd = open_regular(t.path, &mode);
	if (fd < 0) {
		stream_errno(s, -fd, t.path);
		return;
	}
	d = calloc(1, sizeof(*d));
	if (!d) {
		close(fd);
		stream_errno(s, ENOMEM, NULL);
		return;
	}
	d->fd = fd;
	d->mode = mode;
	s->op = d;
	s->ops = &download_ops;
	send_more(s);
}

/* --- stat, list ------------------------------------------------------------------------------- */

static const char *type_name(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "dir";
	case S_IFLNK:
		return "link"; /* only one that leads nowhere: others show what they lead to */
	default:
		return "other";
	}
}

json_t *files_describe(const char *path)
{
	char owner[64], group[64], split[PATH_MAX + 2];
	const char *dir, *name;
	struct stat own, st;
	json_t *e;
	char *real;

	if (lstat(path, &own) < 0)
		return NULL;
	if (stat(path, &st) < 0)
		st = own;
	user_name(agent.passwd, own.st_uid, owner, sizeof(owner));
	user_group_name(agent.group, own.st_gid, group, sizeof(group));
	path_split(path, split, &dir, &name);
	e = json_pack("{s:o, s:o, s:s, s:I, s:i, s:i, s:i, s:s, s:s, s:I}", "name", text_json(name),
	              "path", text_json(path), "type", type_name(st.st_mode), "size",
	              (json_int_t)st.st_size, "mode", (int)(st.st_mode & 07777), "uid",
	              (int)own.st_uid, "gid", (int)own.st_gid, "owner", owner, "group", group,
	              "mtime_ns", (json_int_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
	if (e && S_ISLNK(own.st_mode)) {
		real = realpath(path, NULL);
		json_object_set_new(e, "target", text_json(real ? real : path));
		free(real);
	}
	if (e)
		json_object_set_new(e, "metadata", meta_read(path)); /* NULL: none */
	else
		errno = ENOMEM;
	return e;
}

/* RESULT {"status":"ok","entry":{...}} of a path, or its error. */
static void result_entry(struct stream *s, const char *path)
{
	json_t *entry = files_describe(path);

	if (entry)
		stream_result(s, json_pack("{s:s, s:o}", "status", "ok", "entry", entry));
	else
		stream_errno(s, errno, path);
}

void files_stat(struct stream *s, const json_t *request)
{
	struct target t;

	if (files_target(s, request, &t))
		result_entry(s, t.path);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *e)
{
	return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

static int list_into(json_t *entries, const char *dir, json_int_t depth);

static int list_entry(json_t *entries, const char *dir, const char *name, json_int_t depth)
{
	char path[PATH_MAX];
	struct stat st;
	json_t *e;

	if (snprintf(path, sizeof(path), "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, name) >=
	    (int)sizeof(path))
		return 0; /* too deep to be named */
	if (json_array_size(entries) >= ENTRIES_MAX)
		return -EFBIG;
	e = files_describe(path);
	if (!e)
		return errno == ENOMEM ? -ENOMEM : 0; /* gone since */
	if (json_array_append_new(entries, e) < 0)
		return -ENOMEM;
	/* Links are not followed, so this ends; a folder that cannot be read is shown empty. */
	if (depth > 1 && lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		int r = list_into(entries, path, depth - 1);

		return r == -ENOMEM || r == -EFBIG ? r : 0;
	}
	return 0;
}

static int list_into(json_t *entries, const char *dir, json_int_t depth)
{
	struct dirent **names;
	int n = scandir(dir, &names, no_dots, by_name), r = 0;

	if (n < 0)
		return -errno;
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = list_entry(entries, dir, names[i]->d_name, depth);
		free(names[i]);
	}
	free(names);
	return r;
}

void files_list(struct stream *s, const json_t *request)
{
	json_int_t depth = json_integer_value(json_object_get(request, "depth"));
	json_t *entries;
	struct target t;
	int r;

	if (!files_target(s, request, &t))
		return;
	entries = json_array();
	r = entries ? list_into(entries, t.path, depth > 1 ? depth : 1) : -ENOMEM;
	if (r == 0) {
		stream_result(s, json_pack("{s:s, s:o}", "status", "ok", "entries", entries));
		return;
	}
	json_decref(entries);
	if (r == -EFBIG)
		stream_error(s, "OSError", "more than %d entries below '%s': list a part of it",
		             ENTRIES_MAX, t.path);
	else
		stream_errno(s, -r, t.path);
}

/* --- mkdir, remove, rename -------------------------------------------------------------------- */

void files_mkdir(struct stream *s, const json_t *request)
{
	struct target t;
	int r;

	if (!files_target(s, request, &t))
		return;
	r = make_parents(t.path, &t.user);
	if (r == 0 && (mkdir(t.path, 0755) < 0 || chown(t.path, t.user.uid, t.user.gid) < 0))
		r = -errno;
	if (r < 0)
		stream_errno(s, -r, t.path);
	else
		result_entry(s, t.path);
}

/* A full folder may hold a hundred thousand files: a process of its own takes the time. */
static void remove_tree(struct stream *s, const char *path)
{
	json_t *rm = json_pack("{s:[s,s,s,s], s:s, s:s, s:b, s:b}", "argv", "/bin/rm", "-rf", "--",
	                       path, "user", "root", "cwd", "/", "stdin", 0, "must_succeed", 1);

	if (rm)
		exec_start(s, rm);
	else
		stream_errno(s, EILSEQ, path);
	json_decref(rm);
}

void files_remove(struct stream *s, const json_t *request)
{
	struct target t;

	if (!files_target(s, request, &t))
		return;
	if (strcmp(t.path, "/") == 0)
		stream_error(s, "PermissionError", "the root of the file system cannot be removed");
	else if (unlink(t.path) == 0 || (errno == EISDIR && rmdir(t.path) == 0))
		stream_result(s, json_pack("{s:s}", "status", "ok"));
	else if (errno == ENOTEMPTY || errno == EEXIST)
		remove_tree(s, t.path);
	else
		stream_errno(s, errno, t.path);
}

void files_rename(struct stream *s, const json_t *request)
{
	struct target t;
	char to[PATH_MAX];
	struct stat st;
	int r;

	if (!files_target(s, request, &t) || !get_path(s, request, "to", t.user.home, to))
		return;
	r = lstat(t.path, &st) < 0 ? -errno : make_parents(to, &t.user);
	if (r == 0 && rename(t.path, to) < 0)
		r = -errno;
	if (r < 0)
		stream_errno(s, -r, t.path);
	else
		result_entry(s, to);
}
