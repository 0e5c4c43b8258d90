/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sandbox.h"

#include "api/cgroup.h"
#include "api/zygote.h"
#include "core/own.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

/* The mailbox's request area is 16 pages; what the wake needs beside id and environment is less than this. */
#define MAILBOX_BYTES (16u * 4096u - 512u)
#define WAIT_FDS_MAX  16
#define THAW_MS       30000
#define END_WAIT_MS   2000u
#define READ_MAX      ((size_t)4 * MONITOR_LINE_MAX)

enum pending { PENDING_CALL = 1, PENDING_THAW, PENDING_CONNECT, PENDING_SHELL, PENDING_STANDBY };

uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void stream_close(struct stream *s)
{
	if (s->fd >= 0)
		close(s->fd);
	frame_reader_free(&s->in);
	bytes_free(&s->out);
	*s = STREAM_NONE;
}

int stream_send(struct stream *s, enum frame_type type, const json_t *json)
{
	return frame_append_json(&s->out, type, json);
}

void stream_flush(struct stream *s)
{
	while (s->out.pos < s->out.len) {
		ssize_t n = send(s->fd, s->out.p + s->out.pos, s->out.len - s->out.pos,
		                 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			s->out.pos = s->out.len;
		if (n < 0)
			return;
		s->out.pos += (size_t)n;
	}
}

/* --- control lines ------------------------------------------------------------------------- */

static void lose(struct sandbox *sb, const char *reason, const char *detail)
{
	if (sb->lost.code)
		return;
	(void)err_set(&sb->lost, -ECONNABORTED, "the sandbox was lost: %s%s%s", reason,
	              *detail ? ": " : "", detail);
}

static const char *member(const json_t *json, const char *name)
{
	const char *text = json_string_value(json_object_get(json, name));

	return text ? text : "";
}

static unsigned port_of(const json_t *answer, const char *name, unsigned otherwise)
{
	json_int_t port = json_integer_value(json_object_get(answer, name));

	return port > 0 && port <= UINT32_MAX ? (unsigned)port : otherwise;
}

static void on_event(struct sandbox *sb, const json_t *line, const char *event)
{
	if (!strcmp(event, "parked"))
		sb->parked = true;
	else if (!strcmp(event, "standby"))
		sb->ready = true;
	else if (!strcmp(event, "first-done"))
		sb->first_done = true;
	else if (!strcmp(event, "exit"))
		lose(sb, member(line, "reason"), member(line, "detail"));
}

static void on_answer(struct sandbox *sb, json_t *line)
{
	uint8_t kind = sb->pending[0];

	if (!sb->nr_pending)
		return;
	memmove(sb->pending, sb->pending + 1, --sb->nr_pending);
	if (kind == PENDING_CALL) {
		json_decref(sb->answer);
		sb->answer = json_incref(line);
	} else if (kind == PENDING_CONNECT) {
		; /* a refusal shows as a closed stream to whoever opened it */
	} else if (monitor_refused(line, &sb->fail)) {
		return;
	} else if (kind == PENDING_SHELL) {
		sb->ready = true; /* a standby's readiness is an event of its own */
	} else if (kind == PENDING_THAW) {
		sb->thawed = json_incref(line);
		sb->port = port_of(line, "port", sb->port);
		sb->agent_port = port_of(line, "agent_port", sb->agent_port);
	}
}

/* Parses what has arrived: whole lines only. */
static void take_lines(struct sandbox *sb)
{
	struct bytes *b = &sb->lines;
	uint8_t *end;

	while (!sb->lost.code && b->pos < b->len &&
	       (end = memchr(b->p + b->pos, '\n', b->len - b->pos))) {
		size_t n = (size_t)(end - (b->p + b->pos));
		json_t *line = json_loadb((const char *)b->p + b->pos, n, 0, NULL);
		const char *event = member(line, "event");

		b->pos += n + 1;
		if (!line)
			lose(sb, "the monitor sent a line that is not JSON", "");
		else if (*event)
			on_event(sb, line, event);
		else
			on_answer(sb, line);
		json_decref(line);
	}
	if (b->len - b->pos > MONITOR_LINE_MAX)
		lose(sb, "the monitor sent a line without an end", "");
}

/* Not more than READ_MAX at a time: one who never ends must not keep us from all else. */
static void read_control(struct sandbox *sb)
{
	size_t got = 0;

	while (got < READ_MAX && !sb->lost.code) {
		ssize_t n;

		if (bytes_reserve(&sb->lines, 4096))
			return;
		n = recv(sb->control_fd, sb->lines.p + sb->lines.len, sb->lines.cap - sb->lines.len,
		         MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) { /* the end of this socket is the end of the monitor */
			(void)sandbox_why_lost(sb, NULL);
			return;
		}
		sb->lines.len += (size_t)n;
		got += (size_t)n;
		take_lines(sb);
	}
}

/* A write found the socket closed: what the monitor said before tells more than that. */
static int gone(struct sandbox *sb, struct err *err)
{
	read_control(sb);
	if (!sb->fail.code)
		return sandbox_why_lost(sb, err);
	*err = sb->fail;
	return err->code;
}

static int send_line_with(struct sandbox *sb, const json_t *line, const int *fds, unsigned nr_fds,
                          enum pending kind, struct err *err)
{
	int rc;

	if (sb->nr_pending == SANDBOX_PENDING_MAX)
		return err_set(err, -EBUSY, "too many commands without an answer");
	rc = monitor_send(sb->control_fd, line, fds, nr_fds, err);
	if (rc == -EPIPE || rc == -ECONNRESET)
		return gone(sb, err);
	if (!rc)
		sb->pending[sb->nr_pending++] = (uint8_t)kind;
	return rc;
}

static int send_line(struct sandbox *sb, const json_t *line, int fd, enum pending kind,
                     struct err *err)
{
	return send_line_with(sb, line, &fd, fd >= 0, kind, err);
}

/* --- the monitor's process ------------------------------------------------------------------- */

int sandbox_why_lost(struct sandbox *sb, struct err *err)
{
	char how[300], words[320];

	/* The socket closes a moment before the process can be waited for. */
	if (!sb->lost.code &&
	    monitor_ended(sb->pid_fd, sb->log_fd, (int)sb->end_wait_ms, how, sizeof(how))) {
		(void)snprintf(words, sizeof(words), "its monitor %s", how);
		lose(sb, words, "");
	}
	lose(sb, "its monitor closed the control socket", "");
	if (err)
		*err = sb->lost;
	return sb->lost.code;
}

void sandbox_init(struct sandbox *sb)
{
	*sb = (struct sandbox){ .pid_fd = -1,
		                .control_fd = -1,
		                .log_fd = -1,
		                .intr_fd = -1,
		                .end_wait_ms = END_WAIT_MS,
		                .port = 2000,
		                .agent_port = 1024,
		                .kernel = STREAM_NONE };
}

/* The socket first, so that commands can be written before the process exists. */
static int prepare(struct sandbox *sb, const struct sandbox_spec *spec, int *theirs,
                   struct err *err)
{
	sb->intr_fd = spec->intr_fd;
	if (!spec->verbose)
		sb->log_fd = monitor_log();
	return monitor_pair(&sb->control_fd, theirs, err);
}

static int launch_program(struct sandbox *sb, const struct sandbox_spec *spec, int control,
                          int cgroup_fd, struct err *err)
{
	char path[PATHS_MAX];
	struct monitor_start how = { .path = path,
		                     .isolation = spec->isolation,
		                     .control_fd = control,
		                     .log_fd = sb->log_fd,
		                     .cgroup_fd = cgroup_fd };
	int rc = monitor_find(path, spec->vmm, err);

	sb->start_ns = clock_ns();
	return rc ? rc : monitor_start(&how, &sb->pid, &sb->pid_fd, err);
}

static int launch_fork(struct sandbox *sb, struct zygote *zygote, int control, int cgroup_fd,
                       struct err *err)
{
	int rc;

	sb->start_ns = clock_ns();
	rc = zygote_spawn(zygote, control, sb->log_fd, cgroup_fd, &sb->pid, err);
	if (rc)
		return rc;
	sb->pid_fd = pidfd_open(sb->pid, 0); /* our child: its pid is its own until we reap it */
	if (sb->pid_fd < 0)
		return err_set(err, -errno, "pidfd of thawbox-vmm: %s", strerror(errno));
	return 0;
}

static int launch(struct sandbox *sb, const struct sandbox_spec *spec, int control, struct err *err)
{
	own_fd int cgroup_fd = monitor_cgroup(&spec->isolation, &sb->cgroup, err);

	if (cgroup_fd < -1)
		return fd_take(&cgroup_fd);
	return spec->zygote ? launch_fork(sb, spec->zygote, control, cgroup_fd, err)
	                    : launch_program(sb, spec, control, cgroup_fd, err);
}

int sandbox_start(struct sandbox *sb, const struct sandbox_spec *spec, struct err *err)
{
	own_fd int control = -1;
	int rc;

	sandbox_init(sb);
	rc = prepare(sb, spec, &control, err);
	rc = rc ? rc : launch(sb, spec, control, err);
	if (rc)
		sandbox_close(sb);
	return rc;
}

static int begin(struct sandbox *sb, const char *cmd, enum pending kind,
                 const struct member_spec *spec, struct err *err)
{
	json_t *line = json_pack("{s:s, s:s*, s:s*, s:b, s:b}", "cmd", cmd, "dir", spec->dir,
	                         "overlay_dir", spec->overlay_dir, "warm", spec->warm, "record",
	                         spec->record);
	int rc = line ? send_line(sb, line, -1, kind, err)
	              : err_set(err, -EINVAL, "%s: a path is not UTF-8", cmd);

	json_decref(line);
	return rc;
}

int sandbox_begin_shell(struct sandbox *sb, const struct member_spec *spec, struct err *err)
{
	return begin(sb, "shell", PENDING_SHELL, spec, err);
}

int sandbox_begin_standby(struct sandbox *sb, const struct member_spec *spec, struct err *err)
{
	return begin(sb, "standby", PENDING_STANDBY, spec, err);
}

static json_t *thaw_line(const struct thaw_spec *thaw)
{
	json_t *line = json_pack("{s:s, s:s*}", "cmd", "thaw", "dir", thaw->dir);
	const struct sandbox_limits *l = &thaw->limits;
	char id[24] = "thawbox";
	uint64_t bits = 0;

	if (!thaw->id && getrandom(&bits, sizeof(bits), 0) == sizeof(bits))
		(void)snprintf(id, sizeof(id), "tb-%012" PRIx64, bits >> 16);
	json_object_set_new(line, "id", json_string(thaw->id ? thaw->id : id));
	json_object_set_new(line, "hostname", json_string(thaw->id ? thaw->id : id));
	if (thaw->env)
		json_object_set_new(line, "env", json_deep_copy(thaw->env));
	if (thaw->vsock)
		json_object_set_new(line, "vsock", json_string(thaw->vsock));
	if (thaw->overlay_dir)
		json_object_set_new(line, "overlay_dir", json_string(thaw->overlay_dir));
	if (l->disk_bytes || l->disk_ops || l->vsock_bytes)
		json_object_set_new(line, "limits",
		                    json_pack("{s:I, s:I, s:I}", "disk_bytes",
		                              (json_int_t)l->disk_bytes, "disk_ops",
		                              (json_int_t)l->disk_ops, "vsock_bytes",
		                              (json_int_t)l->vsock_bytes));
	if (thaw->record)
		json_object_set_new(line, "record", json_true());
	if (thaw->no_reseed)
		json_object_set_new(line, "reseed", json_false());
	if (thaw->age_s > 0)
		json_object_set_new(line, "age_s", json_integer((json_int_t)thaw->age_s));
	return line;
}

/* Writes the request into a stream that goes with the thaw, where it fits the mailbox. */
static int queue_first(struct sandbox *sb, const json_t *env, const json_t *request, int *theirs,
                       struct err *err)
{
	own_free char *wake = env ? json_dumps(env, JSON_COMPACT) : NULL;
	int rc = stream_send(&sb->kernel, FRAME_REQUEST, request);

	if (rc)
		return err_set(err, rc, "the request is too long");
	if (sb->kernel.out.len + (wake ? strlen(wake) : 0) > MAILBOX_BYTES) {
		bytes_free(&sb->kernel.out);
		return 0;
	}
	rc = monitor_pair(&sb->kernel.fd, theirs, err);
	if (rc)
		return rc;
	stream_flush(&sb->kernel);
	sb->first_pending = sb->first_sent = true;
	return 0;
}

static int queue_thaw(struct sandbox *sb, const struct thaw_spec *thaw, const json_t *request,
                      struct err *err)
{
	json_t *line = thaw_line(thaw);
	own_fd int theirs = -1;
	int rc = line ? 0 : err_set(err, -EINVAL, "%s: not UTF-8", thaw->dir);

	if (!rc && request)
		rc = queue_first(sb, thaw->env, request, &theirs, err);
	sb->start_ns = clock_ns();
	rc = rc ? rc : send_line(sb, line, theirs, PENDING_THAW, err);
	json_decref(line);
	return rc;
}

/* A request that did not fit the mailbox opens its stream when the thaw's answer has named the port. */
static int queue_late(struct sandbox *sb, const json_t *request, struct err *err)
{
	int rc;

	if (!request || sb->first_pending)
		return 0;
	rc = sandbox_open_kernel(sb, err);
	if (!rc && stream_send(&sb->kernel, FRAME_REQUEST, request))
		rc = err_set(err, -ENOMEM, "no memory for the request");
	sb->first_pending = !rc;
	return rc;
}

int sandbox_thaw(struct sandbox *sb, const struct sandbox_spec *spec, const struct thaw_spec *thaw,
                 const json_t *request, struct err *err)
{
	own_fd int control = -1;
	int rc;

	sandbox_init(sb);
	rc = prepare(sb, spec, &control, err);
	rc = rc ? rc : queue_thaw(sb, thaw, request, err);
	rc = rc ? rc : launch(sb, spec, control, err);
	rc = rc ? rc : queue_late(sb, request, err);
	if (rc)
		sandbox_close(sb);
	return rc;
}

int sandbox_take(struct sandbox *sb, const struct thaw_spec *thaw, const json_t *request,
                 struct err *err)
{
	int rc = queue_thaw(sb, thaw, request, err);

	return rc ? rc : queue_late(sb, request, err);
}

void sandbox_kill(struct sandbox *sb, const char *why)
{
	lose(sb, why, "");
	if (sb->pid)
		(void)pidfd_send_signal(sb->pid_fd, SIGKILL, NULL, 0);
}

void sandbox_close(struct sandbox *sb)
{
	monitor_end(sb->pid, sb->pid_fd);
	cgroup_remove(sb->cgroup);
	own_close_fd(&sb->pid_fd);
	own_close_fd(&sb->control_fd);
	own_close_fd(&sb->log_fd);
	stream_close(&sb->kernel);
	bytes_free(&sb->lines);
	json_decref(sb->answer);
	json_decref(sb->thawed);
	sandbox_init(sb);
}

/* --- waiting --------------------------------------------------------------------------------- */

static bool streams_readable(struct stream *const *streams, const struct pollfd *fds, unsigned nr)
{
	bool any = false;

	for (unsigned i = 0; i < nr; i++) {
		struct stream *s = streams[i];
		ssize_t n;

		if (s->fd < 0 || !fds[i].revents)
			continue;
		if (fds[i].revents & POLLOUT)
			stream_flush(s);
		if (!(fds[i].revents & (POLLIN | POLLHUP | POLLERR)))
			continue;
		n = frame_fill(&s->in, s->fd);
		if (n == -EAGAIN)
			continue;
		s->eof = n <= 0;
		any = true;
	}
	return any;
}

int sandbox_wait(struct sandbox *sb, struct stream *const *streams, unsigned nr,
                 struct pollfd *extra, unsigned nr_extra, int timeout_ms, struct err *err)
{
	uint64_t until = clock_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000u;

	BUG_ON(nr + nr_extra + 3 > WAIT_FDS_MAX);
	for (;;) {
		struct pollfd fds[WAIT_FDS_MAX];
		uint64_t now = clock_ns();
		int left = timeout_ms < 0 ? -1
		           : until > now  ? (int)((until - now + 999999) / 1000000)
		                          : 0;
		bool any;

		for (unsigned i = 0; i < nr; i++) {
			bool more = streams[i]->out.pos < streams[i]->out.len;

			fds[i] =
				(struct pollfd){ .fd = streams[i]->eof ? -1 : streams[i]->fd,
				                 .events = (short)(POLLIN | (more ? POLLOUT : 0)) };
		}
		for (unsigned i = 0; i < nr_extra; i++)
			fds[nr + i] = extra[i];
		/* What a dead monitor left in its streams counts before its death does. */
		fds[nr + nr_extra] = (struct pollfd){ .fd = sb->lost.code ? -1 : sb->control_fd,
			                              .events = POLLIN };
		fds[nr + nr_extra + 1] = (struct pollfd){ .fd = sb->intr_fd, .events = POLLIN };
		if (poll(fds, nr + nr_extra + 2, sb->lost.code || sb->fail.code ? 0 : left) < 0) {
			if (errno == EINTR)
				continue;
			return err_set(err, -errno, "poll: %s", strerror(errno));
		}
		any = streams_readable(streams, fds, nr);
		for (unsigned i = 0; i < nr_extra; i++) {
			extra[i].revents = fds[nr + i].revents;
			any = any || extra[i].revents;
		}
		if (fds[nr + nr_extra].revents)
			read_control(sb);
		if (any || fds[nr + nr_extra].revents)
			return 1;
		if (fds[nr + nr_extra + 1].revents)
			return err_set(err, -EINTR, "interrupted");
		if (sb->fail.code) {
			*err = sb->fail;
			return err->code;
		}
		if (sb->lost.code) {
			*err = sb->lost;
			return err->code;
		}
		if (!left)
			return 0;
	}
}

int sandbox_call(struct sandbox *sb, json_t *line, int fd, int timeout_ms, json_t **answer,
                 struct err *err)
{
	return sandbox_call_with(sb, line, &fd, fd >= 0, timeout_ms, answer, err);
}

int sandbox_call_with(struct sandbox *sb, json_t *line, const int *fds, unsigned nr_fds,
                      int timeout_ms, json_t **answer, struct err *err)
{
	int rc = send_line_with(sb, line, fds, nr_fds, PENDING_CALL, err);

	json_decref(line);
	json_decref(sb->answer);
	sb->answer = NULL;
	while (!rc && !sb->answer) {
		rc = sandbox_wait(sb, NULL, 0, NULL, 0, timeout_ms, err);
		if (!rc && !sb->answer)
			return err_set(err, -ETIMEDOUT, "the monitor did not answer within %d ms",
			               timeout_ms);
		rc = rc < 0 ? rc : 0;
	}
	if (rc)
		return rc;
	rc = monitor_refused(sb->answer, err);
	if (!rc && answer)
		*answer = json_incref(sb->answer);
	return rc;
}

int sandbox_wait_thawed(struct sandbox *sb, int timeout_ms, struct err *err)
{
	while (!sb->thawed) {
		int rc = sandbox_wait(sb, NULL, 0, NULL, 0, timeout_ms, err);

		if (rc < 0)
			return rc;
		if (!rc)
			return err_set(err, -ETIMEDOUT, "the thaw took longer than %d ms",
			               timeout_ms);
	}
	return 0;
}

int sandbox_wait_ready(struct sandbox *sb, int timeout_ms, struct err *err)
{
	while (!sb->ready) {
		int rc = sandbox_wait(sb, NULL, 0, NULL, 0, timeout_ms, err);

		if (rc < 0)
			return rc;
		if (!rc)
			return err_set(err, -ETIMEDOUT, "it was not ready within %d ms",
			               timeout_ms);
	}
	return 0;
}

int sandbox_open(struct sandbox *sb, struct stream *s, unsigned port, struct err *err)
{
	json_t *line = json_pack("{s:s, s:i}", "cmd", "connect", "port", (int)port);
	own_fd int theirs = -1;
	int rc = 0;

	*s = STREAM_NONE;
	/*
	 * A reader gets the bytes of a line without a descriptor and those of the next one with it
	 * in one piece, and cannot tell whose it is: so never two such lines under way.
	 */
	if (sb->nr_pending && sb->pending[0] == PENDING_THAW && !sb->first_sent)
		rc = sandbox_wait_thawed(sb, THAW_MS, err);
	rc = rc ? rc : monitor_pair(&s->fd, &theirs, err);
	rc = rc ? rc : send_line(sb, line, theirs, PENDING_CONNECT, err);
	json_decref(line);
	if (rc)
		stream_close(s);
	return rc;
}

int sandbox_open_kernel(struct sandbox *sb, struct err *err)
{
	if (sb->kernel.fd >= 0 && !sb->kernel.eof)
		return 0;
	stream_close(&sb->kernel);
	if (!sb->thawed) { /* the thaw's answer names the port */
		int rc = sandbox_wait_thawed(sb, -1, err);

		if (rc)
			return rc;
	}
	return sandbox_open(sb, &sb->kernel, sb->port, err);
}
