/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/zygote.h"

#include "core/log.h"
#include "core/own.h"
#include "vmm/clock.h"
#include "vmm/ctl.h"
#include "vmm/files.h"
#include "vmm/jail.h"
#include "vmm/kvm.h"
#include "vmm/lines.h"
#include "vmm/thaw.h"
#include "vmm/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct zygote {
	int fd;
	bool over;
	bool is_child;
	int ret; /* of the child */
	struct thaw_source *source;
	struct lines lines;
};

static void say(struct zygote *z, json_t *object)
{
	own_free char *text = json_dumps(object, JSON_COMPACT);

	json_decref(object);
	if (!text || lines_write(z->fd, text) < 0)
		z->over = true;
}

/* Its forks make their private disks in there, and have no other way to it. */
static int open_overlay_dir(struct thaw_source *src, const json_t *line, struct err *err)
{
	const char *dir = json_string_value(json_object_get(line, "overlay_dir"));

	dir = dir ? dir : FILES_OVERLAY_DIR;
	if (snprintf(src->overlay_dir, sizeof(src->overlay_dir), "%s", dir) >=
	    (int)sizeof(src->overlay_dir))
		return err_set(err, -ENAMETOOLONG, "overlay_dir: too long");
	src->overlay_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return src->overlay_fd < 0
	               ? err_set(err, -errno, "overlay_dir %s: %s", dir, strerror(errno))
	               : 0;
}

/*
 * What is the same for all forks: one empty root, one empty network. It keeps the rights to give each of them a pid
 * namespace and a user of its own; it runs no guest and reads nothing but its starter's lines.
 */
static int enter_jail(struct err *err)
{
	int ret;

	(void)kvm_kind(); /* known from now on, in the forks too */
	ret = jail_enter(err);
	return ret < 0 ? ret : jail_drop_some(err);
}

static int open_source(struct zygote *z, const json_t *line, struct err *err)
{
	const char *dir = json_string_value(json_object_get(line, "dir"));
	int ret;

	if (!dir)
		return err_set(err, -EINVAL, "open: dir is missing");
	if (jail_is_entered())
		return err_set(err, -EPERM, "open: this zygote is in its jail with its snapshot");
	thaw_source_close(z->source);
	ret = thaw_source_open(&z->source, dir, err);
	if (ret == 0)
		ret = kvm_open_checked(&z->source->kvm_fd, err);
	if (ret == 0)
		ret = open_overlay_dir(z->source, line, err);
	if (ret == 0)
		ret = enter_jail(err);
	if (ret == 0)
		say(z, json_pack("{s:b}", "ok", 1));
	return ret;
}

/* What the group does not take is not isolated by it: jail_drop() finds out and says so. */
static void join_cgroup(int procs_fd)
{
	if (write(procs_fd, "0", 1) < 0)
		log_warn("cgroup: %s", strerror(errno));
	close(procs_fd);
}

/* The rest of the child's life. */
static void become_monitor(struct zygote *z, bool cgroup)
{
	uint64_t now_ns = clock_mono_ns();
	int control = fd_take(&z->lines.sent_fd[0]), log;
	unsigned last = z->lines.nr_sent - 1;

	if (cgroup)
		join_cgroup(fd_take(&z->lines.sent_fd[last]));
	log = fd_take(&z->lines.sent_fd[1]);

	trace_end("fork", 0);
	trace_thread(TRACE_LOOP);
	trace_begin("process set up");
	close(z->fd);
	z->fd = -1;
	if (log >= 0)
		(void)dup2(log,
		           STDERR_FILENO); /* without it the log goes where the zygote's does */
	own_close_fd(&log);
	z->is_child = z->over = true;
	z->ret = ctl_serve(control, ptr_take(z->source), now_ns);
}

static int spawn(struct zygote *z, const json_t *line, struct err *err)
{
	pid_t pid;

	bool cgroup = json_is_true(json_object_get(line, "cgroup"));

	if (z->lines.nr_sent < (cgroup ? 2u : 1u))
		return err_set(err, -EINVAL, "spawn: no control socket came with the line");
	trace_begin("fork");
	pid = jail_fork();
	if (pid < 0) {
		err_set(err, -errno, "fork: %s", strerror(errno));
		return err_remedy(
			err, "raise the limit of processes (ulimit -u) or the cgroup's pids.max");
	}
	if (pid == 0)
		become_monitor(z, cgroup);
	else
		say(z, json_pack("{s:b, s:i}", "ok", 1, "pid", (int)pid));
	return 0;
}

static int dispatch(struct zygote *z, const json_t *line, struct err *err)
{
	const char *cmd = json_string_value(json_object_get(line, "cmd"));

	if (cmd && strcmp(cmd, "spawn") == 0)
		return spawn(z, line, err);
	if (cmd && strcmp(cmd, "open") == 0)
		return open_source(z, line, err);
	if (!cmd || strcmp(cmd, "quit") != 0)
		return err_set(err, -ENOSYS, "unknown command \"%.32s\"", cmd ? cmd : "");
	say(z, json_pack("{s:b}", "ok", 1));
	z->over = true;
	return 0;
}

static void on_line(struct zygote *z, const char *text, size_t len)
{
	struct err err = { 0 };
	json_t *line;

	trace_begin("spawn line parsed");
	line = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	trace_end("spawn line parsed", len);
	if (!line)
		err_set(&err, -EINVAL, "not JSON");
	else
		(void)dispatch(z, line, &err); /* the error itself is answered */
	json_decref(line);
	if (err.code)
		say(z,
		    json_pack("{s:b, s:s, s:s}", "ok", 0, "error", err.msg, "remedy", err.remedy));
	if (!z->is_child)
		lines_drop_fds(&z->lines);
}

int zygote_serve(int fd)
{
	struct zygote *z = calloc(1, sizeof(*z));
	const char *text;
	size_t len;
	int ret;

	if (!z) {
		close(fd);
		return -ENOMEM;
	}
	z->fd = fd;
	lines_init(&z->lines, fd);
	signal(SIGINT, SIG_IGN); /* Ctrl-C is for the program that holds the control socket */
	while (!z->over) {
		trace_restart(); /* a child's trace begins with the line that asked for it */
		trace_begin("wait: spawn line");
		z->over = lines_read(&z->lines, 0) < 0;
		trace_end("wait: spawn line", z->lines.len);
		while (!z->over && (text = lines_next(&z->lines, &len)))
			on_line(z, text, len);
	}
	thaw_source_close(z->source);
	own_close_fd(&z->fd);
	ret = z->ret;
	free(z);
	return ret;
}
