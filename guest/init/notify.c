/* SPDX-License-Identifier: Apache-2.0 */
#include "notify.h"

#include "files.h"
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define READ_BYTES 8192
#define FOUND_MAX  (1u << 20) /* bytes of events about what was found in new folders, in one go */
#define EVENTS                                                                         \
	(IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | \
	 IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR)

struct folder {
	int wd;
	char *name; /* from the top; "": the top */
};

struct notify {
	struct stream *s;
	struct watch in;
	char top[PATH_MAX];
	struct folder *folders;
	unsigned nr, cap;
	bool is_recursive, has_entries;
	unsigned syncs;         /* to be answered when the kernel's queue is empty */
	uint32_t upload_cookie; /* of an upload whose first half of a rename was seen; 0: none */
	bool upload_is_new;
};

/* --- the folders ------------------------------------------------------------------------------ */

static struct folder *find(struct notify *n, int wd)
{
	for (unsigned i = 0; i < n->nr; i++) {
		if (n->folders[i].wd == wd)
			return &n->folders[i];
	}
	return NULL;
}

static void drop(struct notify *n, struct folder *f)
{
	free(f->name);
	*f = n->folders[--n->nr];
}

/* "a" and "b" are "a/b"; either may be "". False: too long to be named. */
static bool join(char out[PATH_MAX], const char *a, const char *b)
{
	return snprintf(out, PATH_MAX, "%s%s%s", a, *a && *b && strcmp(a, "/") != 0 ? "/" : "", b) <
	       PATH_MAX;
}

/* Watches a folder. 1: it is new here; 0: it was watched already, or is none (any more); -errno. */
static int add(struct notify *n, const char *name)
{
	char path[PATH_MAX], *copy;
	struct folder *f, *bigger;
	int wd;

	if (!join(path, n->top, name))
		return 0;
	wd = inotify_add_watch(n->in.fd, path, EVENTS | (*name ? IN_DONT_FOLLOW : 0));
	if (wd < 0)
		return *name && (errno == ENOENT || errno == ENOTDIR) ? 0 : -errno;
	copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	f = find(n, wd);
	if (f) { /* it has moved since */
		free(f->name);
		f->name = copy;
		return 0;
	}
	bigger = n->nr == n->cap ? realloc(n->folders, (n->cap + 64) * sizeof(*bigger)) : NULL;
	if (bigger) {
		n->folders = bigger;
		n->cap += 64;
	}
	if (n->nr == n->cap || n->nr == NOTIFY_FOLDERS_MAX) {
		free(copy);
		return n->nr == NOTIFY_FOLDERS_MAX ? -ENOSPC : -ENOMEM;
	}
	n->folders[n->nr++] = (struct folder){ .wd = wd, .name = copy };
	return 1;
}

/* Watches none of `name` and what is below it. */
static void forget(struct notify *n, const char *name)
{
	size_t len = strlen(name);

	for (unsigned i = n->nr; i-- > 0;) {
		struct folder *f = &n->folders[i];

		if (strncmp(f->name, name, len) == 0 && (!f->name[len] || f->name[len] == '/')) {
			(void)inotify_rm_watch(n->in.fd, f->wd);
			drop(n, f);
		}
	}
}

/* --- what is told ----------------------------------------------------------------------------- */

static void tell(struct notify *n, const char *kind, const char *name)
{
	json_t *event = json_pack("{s:s, s:o}", "event", kind, "name", text_json(name));
	char path[PATH_MAX], *text;

	if (event && n->has_entries && join(path, n->top, strcmp(name, ".") != 0 ? name : ""))
		json_object_set_new(event, "entry", files_describe(path)); /* NULL: not there */
	text = event ? json_dumps(event, JSON_COMPACT) : NULL;
	json_decref(event);
	if (text)
		stream_send(n->s, FRAME_EVENT, text, strlen(text));
	free(text);
}

/* Something in a folder that was made a moment ago, before it was watched. */
static int tell_found(struct notify *n, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	tell(n, "create", name);
	if (join(path, n->top, name) && lstat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	    st.st_size > 0)
		tell(n, "write", name);
	return n->s->out.len > FOUND_MAX ? -EOVERFLOW : 0;
}

static bool is_folder(int dir, const struct dirent *e)
{
	struct stat st;

	if (e->d_type != DT_UNKNOWN)
		return e->d_type == DT_DIR;
	return fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Adds the folders that are in one; with `told`, what is in it is told. 0 or -errno. */
static int look_into(struct notify *n, const char *name, bool told)
{
	char path[PATH_MAX], child[PATH_MAX];
	struct dirent *e;
	bool is_new;
	int r = 0;
	DIR *dir;

	if (!join(path, n->top, name))
		return 0;
	dir = opendir(path);
	if (!dir)
		return 0; /* gone since */
	while (r == 0 && (e = readdir(dir))) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
		    files_is_temp(e->d_name, &is_new) || !join(child, name, e->d_name))
			continue;
		if (told)
			r = tell_found(n, child);
		if (r == 0 && is_folder(dirfd(dir), e))
			r = add(n, child);
		r = r > 0 ? 0 : r;
	}
	closedir(dir);
	return r;
}

/* Adds a folder and, where that is asked for, all below it. The list is the queue of this walk. */
static int add_tree(struct notify *n, const char *name, bool told)
{
	unsigned at = n->nr;
	int r = add(n, name);

	for (r = r > 0 ? 0 : r; r == 0 && n->is_recursive && at < n->nr; at++) {
		char copy[PATH_MAX];

		memcpy(copy, n->folders[at].name, strlen(n->folders[at].name) + 1);
		r = look_into(n, copy, told);
	}
	return r;
}

/* --- its end ---------------------------------------------------------------------------------- */

static void release(struct notify *n)
{
	loop_close(&n->in);
	while (n->nr > 0)
		drop(n, &n->folders[n->nr - 1]);
	free(n->folders);
	loop_free_later(n);
}

static void on_release(struct stream *s)
{
	release(s->op);
}

static void fail(struct notify *n, int err)
{
	struct stream *s = n->s;

	if (err == EOVERFLOW)
		stream_error(s, "OverflowError",
		             "events were lost, more came than were taken: list '%s' again, or "
		             "watch a part of it",
		             n->top);
	else if (err == ENOSPC)
		stream_error(s, "OSError",
		             "more folders below '%s' than can be watched (%d): watch a part of it",
		             n->top, NOTIFY_FOLDERS_MAX);
	else
		stream_errno(s, err, n->top);
	release(n);
}

/* --- events ----------------------------------------------------------------------------------- */

static const char *kind_of(uint32_t mask)
{
	if (mask & (IN_CREATE | IN_MOVED_TO))
		return "create";
	if (mask & IN_MODIFY)
		return "write";
	if (mask & (IN_DELETE | IN_DELETE_SELF))
		return "remove";
	if (mask & (IN_MOVED_FROM | IN_MOVE_SELF))
		return "rename";
	return mask & IN_ATTRIB ? "chmod" : NULL;
}

/* Uploads come under a name of their own and are renamed (files.c). True: that is what it was. */
static bool is_upload(struct notify *n, const struct inotify_event *ev, const char *name)
{
	bool is_new;

	if (files_is_temp(ev->name, &is_new)) {
		n->upload_cookie = ev->mask & IN_MOVED_FROM ? ev->cookie : 0;
		n->upload_is_new = is_new;
		return true;
	}
	if (!(ev->mask & IN_MOVED_TO) || !ev->cookie || ev->cookie != n->upload_cookie)
		return false;
	n->upload_cookie = 0;
	if (n->upload_is_new) {
		tell(n, "create", name);
		tell(n, "chmod", name);
	}
	tell(n, "write", name);
	return true;
}

/* 0 or -errno, with which it ends. */
static int take_named(struct notify *n, const struct inotify_event *ev, const char *folder)
{
	const char *kind = kind_of(ev->mask);
	char name[PATH_MAX];

	if (!kind || !join(name, folder, ev->name) || is_upload(n, ev, name))
		return 0;
	tell(n, kind, name);
	if (!(ev->mask & IN_ISDIR) || !n->is_recursive)
		return 0;
	if (ev->mask & IN_MOVED_FROM)
		forget(n, name);
	/* One that was moved here is told as one: only what is made in it from now on is news. */
	if (ev->mask & (IN_CREATE | IN_MOVED_TO))
		return add_tree(n, name, (ev->mask & IN_CREATE) != 0);
	return 0;
}

static int take(struct notify *n, const struct inotify_event *ev)
{
	struct folder *f = find(n, ev->wd);
	char folder[PATH_MAX];

	if (ev->mask & IN_Q_OVERFLOW)
		return -EOVERFLOW;
	if (!f)
		return 0; /* of a folder that was forgotten */
	if (ev->mask & IN_IGNORED) {
		drop(n, f);
		return 0;
	}
	if (ev->len == 0) { /* the folder itself; of those below, the folder they are in tells */
		if (!*f->name && kind_of(ev->mask))
			tell(n, kind_of(ev->mask), ".");
		return 0;
	}
	memcpy(folder, f->name, strlen(f->name) + 1); /* the list may change */
	return take_named(n, ev, folder);
}

/* Takes what the kernel had queued when it was called, as long as the client takes it. 0 or -errno. */
static int drain(struct notify *n)
{
	static alignas(struct inotify_event) char buf[READ_BYTES];
	int left = 0, r = 0;
	ssize_t len = 0;

	if (ioctl(n->in.fd, FIONREAD, &left) < 0)
		return -errno;
	for (; r == 0 && left > 0 && !stream_full(n->s); left -= (int)len) {
		len = read(n->in.fd, buf, sizeof(buf));
		if (len < 0)
			return -errno;
		for (ssize_t at = 0; r == 0 && at < len;) {
			const struct inotify_event *ev = (const void *)(buf + at);

			r = take(n, ev);
			at += (ssize_t)(sizeof(*ev) + ev->len);
		}
	}
	if (r == 0 && left > 0) {
		loop_pause(&n->in); /* until `drained` */
		return 0;
	}
	for (; r == 0 && n->syncs > 0; n->syncs--)
		stream_send(n->s, FRAME_EVENT, "{\"event\":\"sync\"}", 16);
	return r == 0 ? loop_set(&n->in, EPOLLIN) : r;
}

static void drain_or_fail(struct notify *n)
{
	int r = drain(n);

	if (r < 0)
		fail(n, -r);
}

static void on_events(struct watch *w, uint32_t events)
{
	(void)events;
	drain_or_fail((struct notify *)((char *)w - offsetof(struct notify, in)));
}

static void on_drained(struct stream *s)
{
	drain_or_fail(s->op);
}

/* A further REQUEST, {"op":"sync"}: answered when all that has happened so far was told. */
static void on_sync(struct stream *s, const json_t *request)
{
	struct notify *n = s->op;

	(void)request;
	n->syncs++;
	drain_or_fail(n);
}

static const struct stream_ops notify_ops = { .request = on_sync,
	                                      .drained = on_drained,
	                                      .release = on_release };

/* --- start ------------------------------------------------------------------------------------ */

static bool is_network_mount(const char *path)
{
	static const long types[] = { NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC,  CIFS_SUPER_MAGIC,
		                      SMB2_SUPER_MAGIC, FUSE_SUPER_MAGIC, V9FS_MAGIC };
	struct statfs fs;

	if (statfs(path, &fs) < 0)
		return false;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (fs.f_type == types[i])
			return true;
	}
	return false;
}

/* False: the stream has its error. */
static bool check(struct stream *s, const json_t *request, const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		stream_errno(s, errno, path);
	else if (!S_ISDIR(st.st_mode))
		stream_errno(s, ENOTDIR, path);
	else if (!json_is_true(json_object_get(request, "network_mounts")) &&
	         is_network_mount(path))
		stream_error(s, "ValueError",
		             "'%s' is on a network file system, where events may be missing: say "
		             "that it may be (\"network_mounts\")",
		             path);
	return !s->finished;
}

void notify_start(struct stream *s, const json_t *request)
{
	struct target t;
	struct notify *n;
	int r;

	if (!files_target(s, request, &t) || !check(s, request, t.path))
		return;
	n = calloc(1, sizeof(*n));
	if (!n) {
		stream_errno(s, ENOMEM, NULL);
		return;
	}
	n->s = s;
	memcpy(n->top, t.path, strlen(t.path) + 1);
	n->is_recursive = json_is_true(json_object_get(request, "recursive"));
	n->has_entries = json_is_true(json_object_get(request, "entries"));
	n->in.ready = on_events;
	n->in.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	r = n->in.fd < 0 ? -errno : add_tree(n, "", false);
	r = r < 0 ? r : loop_set(&n->in, EPOLLIN);
	if (r < 0) {
		fail(n, -r);
		return;
	}
	s->op = n;
	s->ops = &notify_ops;
	stream_send(s, FRAME_EVENT, "{\"event\":\"started\"}", 19);
}
