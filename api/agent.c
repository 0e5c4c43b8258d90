/* SPDX-License-Identifier: Apache-2.0 */
#include "api/agent.h"

#include "api/paths.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define QUEUE_BYTES (256u << 10) /* enough in flight to keep the stream busy */
#define EXPLAIN_MS  100
#define STALL_MS    30000 /* without a byte either way a transfer is given up */

static const char *member(const json_t *json, const char *name)
{
	const char *text = json_string_value(json_object_get(json, name));

	return text ? text : "";
}

/* The refusals that a caller may want to tell apart. */
static int code_of(const char *name)
{
	if (!strcmp(name, "FileNotFoundError"))
		return -ENOENT;
	return strcmp(name, "PermissionError") != 0 ? -EREMOTEIO : -EACCES;
}

int agent_refused(const json_t *result, struct err *err)
{
	const json_t *error = json_object_get(result, "error");

	if (!strcmp(member(result, "status"), "ok"))
		return 0;
	return err_set(err, code_of(member(error, "name")), "%s: %s",
	               *member(error, "name") ? member(error, "name") : "the guest refused",
	               member(error, "value"));
}

int agent_begin(struct sandbox *sb, struct stream *s, json_t *request, struct err *err)
{
	int rc = sandbox_open(sb, s, sb->agent_port, err);

	if (!rc && stream_send(s, FRAME_REQUEST, request)) {
		stream_close(s);
		rc = err_set(err, -EINVAL, "the request is not valid UTF-8, or too long");
	}
	json_decref(request);
	return rc;
}

static int broken(struct sandbox *sb, struct err *err)
{
	sandbox_kill(sb, "the guest broke the protocol");
	return sandbox_why_lost(sb, err);
}

/*
 * The next frame of the stream: 1, or 0 when something else wants a look (queue, extra descriptor)
 * or `timeout_ms` passed without news (then *idle). A stream that ends early is an error.
 */
static int next_frame(struct sandbox *sb, struct stream *s, struct pollfd *extra, int timeout_ms,
                      struct frame *frame, bool *idle, struct err *err)
{
	int rc = frame_next(&s->in, frame);

	*idle = false;
	if (rc < 0)
		return broken(sb, err);
	if (rc)
		return 1;
	if (s->eof) {
		/* The refusal of a thaw, or a lost monitor, explains it better than this. */
		do
			rc = sandbox_wait(sb, NULL, 0, NULL, 0, EXPLAIN_MS, err);
		while (rc > 0);
		return rc ? rc : err_set(err, -EPIPE, "the guest's agent closed the stream");
	}
	rc = sandbox_wait(sb, &s, 1, extra, extra ? 1 : 0, timeout_ms, err);
	if (rc < 0)
		return rc;
	*idle = rc == 0;
	return 0;
}

static int take_result(struct sandbox *sb, const struct frame *frame, json_t **result,
                       struct err *err)
{
	*result = frame_json(frame->data, frame->len);
	return *result ? agent_refused(*result, err) : broken(sb, err);
}

int agent_call(struct sandbox *sb, json_t *request, int timeout_ms, json_t **result,
               struct err *err)
{
	uint64_t until = clock_ns() + (uint64_t)timeout_ms * 1000000u;
	struct stream s = STREAM_NONE;
	json_t *answer = NULL;
	struct frame frame;
	int rc = agent_begin(sb, &s, request, err);

	while (!rc && !answer) {
		uint64_t now = clock_ns();
		int left = until > now ? (int)((until - now + 999999) / 1000000) : 0;
		bool idle;

		rc = next_frame(sb, &s, NULL, left, &frame, &idle, err);
		if (idle)
			rc = err_set(err, -ETIMEDOUT, "the guest's agent did not answer in %d ms",
			             timeout_ms);
		else if (rc == 1 && frame.type == FRAME_RESULT)
			rc = take_result(sb, &frame, &answer, err);
		else if (rc == 1)
			rc = 0;
	}
	stream_close(&s);
	if (!rc && result)
		*result = json_incref(answer);
	json_decref(answer);
	return rc;
}

/* Adds one DATA frame of what `fd` has now: bytes, 0 at its end, -errno. */
static ssize_t queue_data(struct stream *s, int fd)
{
	uint8_t *p;
	ssize_t n;

	if (bytes_reserve(&s->out, FRAME_HEAD + FRAME_MAX))
		return -ENOMEM;
	p = s->out.p + s->out.len;
	n = read(fd, p + FRAME_HEAD, FRAME_MAX);
	if (n < 0)
		return -errno;
	if (!n)
		return frame_append(&s->out, FRAME_END, NULL, 0) ? -ENOMEM : 0;
	p[0] = (uint8_t)n;
	p[1] = (uint8_t)(n >> 8);
	p[2] = (uint8_t)(n >> 16);
	p[3] = 0;
	p[4] = FRAME_DATA;
	s->out.len += FRAME_HEAD + (size_t)n;
	return n;
}

int agent_put(struct sandbox *sb, int fd, const char *guest_path, struct err *err)
{
	struct stream s = STREAM_NONE;
	json_t *answer = NULL;
	uint64_t sent = 0;
	bool ended = false;
	struct stat st;
	int rc;

	if (fstat(fd, &st))
		return err_set(err, -errno, "%s: %s", guest_path, strerror(errno));
	rc = agent_begin(sb, &s,
	                 json_pack("{s:s, s:s, s:i, s:I}", "op", "write", "path", guest_path,
	                           "mode", (int)(st.st_mode & 0777), "size",
	                           (json_int_t)st.st_size),
	                 err);
	while (!rc && !answer) {
		struct frame frame;
		bool idle;

		/* The descriptor says when the socket takes more, so that the queue never runs dry. */
		if (!ended && s.out.len - s.out.pos < QUEUE_BYTES) {
			ssize_t n = queue_data(&s, fd);

			if (n < 0) {
				rc = err_set(err, (int)n, "read the file for %s: %s", guest_path,
				             strerror((int)-n));
				break;
			}
			ended = n == 0;
			sent += (uint64_t)n;
		}
		rc = next_frame(sb, &s,
		                ended ? NULL : &(struct pollfd){ .fd = s.fd, .events = POLLOUT },
		                STALL_MS, &frame, &idle, err);
		if (idle)
			rc = err_set(err, -ETIMEDOUT, "no progress for %d s", STALL_MS / 1000);
		else if (rc == 1 && frame.type == FRAME_RESULT)
			rc = take_result(sb, &frame, &answer, err);
		else if (rc == 1)
			rc = 0;
	}
	stream_close(&s);
	json_decref(answer);
	if (!rc && sent != (uint64_t)st.st_size)
		rc = err_set(err, -EIO,
		             "the file changed while it was read: %" PRIu64 " bytes, not %jd", sent,
		             (intmax_t)st.st_size);
	return rc ? err_wrap(err, "put %s", guest_path) : 0;
}

/* A file on its way to `path`, under a temporary name beside it. */
struct landing {
	char tmp[PATHS_MAX];
	int fd;
	uint64_t len;
};

static int landing_open(struct landing *l, const char *path, struct err *err)
{
	const char *slash = strrchr(path, '/');
	int dir_len = slash ? (int)(slash - path) + 1 : 0;
	int rc = paths_format(l->tmp, err, "%.*s.thawbox-get.XXXXXX", dir_len, path);

	if (rc)
		return rc;
	l->fd = mkostemp(l->tmp, O_CLOEXEC);
	if (l->fd >= 0)
		return 0;
	l->tmp[0] = '\0';
	return err_set(err, -errno, "make a file beside %s: %s", path, strerror(errno));
}

static int landing_write(struct landing *l, const struct frame *frame, struct err *err)
{
	size_t done = 0;

	while (done < frame->len) {
		ssize_t n = write(l->fd, frame->data + done, frame->len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_set(err, -errno, "write %s: %s", l->tmp, strerror(errno));
		done += (size_t)n;
	}
	l->len += frame->len;
	return 0;
}

static int landing_finish(struct landing *l, const json_t *result, const char *path,
                          struct err *err)
{
	json_int_t size = json_integer_value(json_object_get(result, "size"));
	json_int_t mode = json_integer_value(json_object_get(result, "mode"));
	mode_t mask = umask(0);

	(void)umask(mask);
	if (l->fd < 0 || size < 0 || (uint64_t)size != l->len)
		return err_set(err, -EIO, "%" PRIu64 " bytes came, not %lld", l->len,
		               (long long)size);
	if (fchmod(l->fd, (mode_t)(mode ? mode & 0777 : 0644) & ~mask) || rename(l->tmp, path))
		return err_set(err, -errno, "write %s: %s", path, strerror(errno));
	l->tmp[0] = '\0';
	return 0;
}

int agent_get(struct sandbox *sb, const char *guest_path, const char *local, struct err *err)
{
	struct landing landing = { .fd = -1 };
	struct stream s = STREAM_NONE;
	json_t *answer = NULL;
	int rc =
		agent_begin(sb, &s, json_pack("{s:s, s:s}", "op", "read", "path", guest_path), err);

	while (!rc && !answer) {
		struct frame frame;
		bool idle;

		rc = next_frame(sb, &s, NULL, STALL_MS, &frame, &idle, err);
		if (idle)
			rc = err_set(err, -ETIMEDOUT, "no progress for %d s", STALL_MS / 1000);
		if (rc != 1)
			continue;
		rc = 0;
		if ((frame.type == FRAME_DATA || frame.type == FRAME_END) && landing.fd < 0)
			rc = landing_open(&landing, local, err);
		if (!rc && frame.type == FRAME_DATA)
			rc = landing_write(&landing, &frame, err);
		else if (!rc && frame.type == FRAME_RESULT)
			rc = take_result(sb, &frame, &answer, err);
	}
	if (!rc)
		rc = landing_finish(&landing, answer, local, err);
	if (landing.tmp[0])
		(void)unlink(landing.tmp); /* ours alone: nothing to do about a failure */
	own_close_fd(&landing.fd);
	stream_close(&s);
	json_decref(answer);
	return rc ? err_wrap(err, "get %s", guest_path) : 0;
}

/* Moves what stdin has to the command, once. */
static int pump_stdin(struct stream *s, int *in_fd, struct err *err)
{
	ssize_t n = queue_data(s, *in_fd);

	if (n == -EINTR || n == -EAGAIN)
		return 0;
	if (n < 0)
		return err_set(err, (int)n, "standard input: %s", strerror((int)-n));
	if (!n)
		*in_fd = -1;
	return 0;
}

static int exit_status(const json_t *result)
{
	json_int_t sig = json_integer_value(json_object_get(result, "signal"));
	json_int_t code = json_integer_value(json_object_get(result, "exit"));

	return (int)((sig ? 128 + sig : code) & 0xff);
}

int agent_exec(struct sandbox *sb, const struct agent_exec *exec, const struct cell_sink *sink,
               int *status, struct err *err)
{
	uint64_t until = exec->timeout_ns ? clock_ns() + exec->timeout_ns : UINT64_MAX;
	struct stream s = STREAM_NONE;
	int in_fd = exec->in_fd;
	json_t *answer = NULL;
	int rc;

	json_object_set_new(exec->request, "op", json_string("exec"));
	rc = agent_begin(sb, &s, exec->request, err);
	if (!rc && in_fd < 0 && frame_append(&s.out, FRAME_END, NULL, 0))
		rc = err_set(err, -ENOMEM, "no memory for a frame");
	while (!rc && !answer) {
		struct pollfd in = { .fd = in_fd, .events = POLLIN };
		uint64_t now = clock_ns();
		struct frame frame;
		bool idle, full;

		if (now >= until) {
			*status = AGENT_TIMED_OUT;
			break; /* a closed stream kills the command */
		}
		full = s.out.len - s.out.pos >= QUEUE_BYTES;
		if (full) /* stdin waits until the command has taken some */
			in = (struct pollfd){ .fd = s.fd, .events = POLLOUT };
		rc = next_frame(sb, &s, &in,
		                until == UINT64_MAX ? -1 : (int)((until - now) / 1000000u + 1),
		                &frame, &idle, err);
		if (rc == 0 && in.revents && !full)
			rc = pump_stdin(&s, &in_fd, err);
		if (rc != 1)
			continue;
		rc = 0;
		if (frame.type == FRAME_RESULT)
			rc = take_result(sb, &frame, &answer, err);
		else if (sink->output && (frame.type == FRAME_STDOUT || frame.type == FRAME_STDERR))
			sink->output(sink->ctx, frame.type, frame.data, frame.len);
	}
	if (!rc && answer)
		*status = exit_status(answer);
	stream_close(&s);
	json_decref(answer);
	return rc;
}
