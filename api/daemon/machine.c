/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/machine.h"

#include "api/daemon/handover.h"
#include "api/daemon/text.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define FIRST_BYTES \
	(48u << 10) /* of a first request and its environment: the mailbox takes 64 KiB */

#define END_WAIT_MS 100u /* all others wait meanwhile */
#define TURNS_MAX   4    /* reads of a control socket before others have theirs */

static void watch_in(struct guest_stream *s);

/* --- the machine ---------------------------------------------------------------------------------- */

static void lose(struct machine *m, const struct err *why)
{
	if (m->state == MACHINE_GONE)
		return;
	m->state = MACHINE_GONE;
	m->why = *why;
	loop_post(m->loop, &m->gone_event); /* not in the middle of what its owner does */
}

static void on_gone(struct loop_event *event)
{
	struct machine *m = container_of(event, struct machine, gone_event);

	m->gone(m, &m->why);
}

/* Gives a stream its connection. The monitor may be told of some more of them only later. */
static void connect_stream(struct guest_stream *s)
{
	struct machine *m = s->m;
	struct bytes out = s->s.out;
	struct err err = { 0 };
	unsigned port = s->port == GUEST_PORT_AGENT    ? m->sb.agent_port
	                : s->port == GUEST_PORT_KERNEL ? m->sb.port
	                                               : s->port;
	int rc = sandbox_open(&m->sb, &s->s, port, &err);

	s->s.out = out;
	if (rc == -EBUSY)
		return;
	if (rc) {
		lose(m, &err);
		return;
	}
	s->s.in.whole_max = GUEST_JSON_MAX;
	m->nr_unopened--;
	s->is_unopened = false;
	stream_flush(&s->s);
	watch_in(s);
}

static void connect_streams(struct machine *m)
{
	if (m->state != MACHINE_RUNS || !m->nr_unopened)
		return;
	list_each(&m->streams, node)
	{
		struct guest_stream *s = container_of(node, struct guest_stream, node);

		if (s->is_unopened && m->state == MACHINE_RUNS)
			connect_stream(s);
	}
}

/* What there is of its words: 0, or the error that ends it. A monitor that has been taken over may say more for ever. */
static int hear(struct machine *m, struct err *err)
{
	int rc = 1;

	for (unsigned turn = 0; rc > 0 && turn < TURNS_MAX; turn++)
		rc = sandbox_wait(&m->sb, NULL, 0, NULL, 0, 0, err);
	if (rc > 0 && m->sb.fail.code) {
		*err = m->sb.fail;
		rc = err->code;
	} else if (rc > 0 && m->sb.lost.code) {
		*err = m->sb.lost;
		rc = err->code;
	}
	return rc < 0 ? rc : 0;
}

/* The monitor has said something. */
static void on_control(struct loop_op *op, int res)
{
	struct machine *m = container_of(op, struct machine, control_op);
	struct err err = { 0 };

	if (res == -ECANCELED)
		return;
	if (hear(m, &err)) {
		lose(m, &err);
		return;
	}
	loop_poll(m->loop, &m->control_op, m->sb.control_fd, POLLIN);
	if (m->state == MACHINE_THAWS && m->sb.thawed) {
		m->state = MACHINE_RUNS;
		if (m->thawed)
			m->thawed(m);
	}
	connect_streams(m);
}

void machine_start(struct machine *m, struct loop *loop, struct sandbox *sb)
{
	m->loop = loop;
	m->sb = *sb;
	m->sb.end_wait_ms = END_WAIT_MS;
	sandbox_init(sb);
	m->state = MACHINE_WAITS;
	m->control_op.done = on_control;
	m->gone_event.fire = on_gone;
	m->nr_unopened = 0;
	list_init(&m->streams);
	loop_poll(loop, &m->control_op, m->sb.control_fd, POLLIN);
}

void machine_stop(struct machine *m, const struct err *why)
{
	if (m->state == MACHINE_NONE)
		return;
	m->state = MACHINE_GONE;
	m->why = *why;
	(void)loop_reap(m->loop, &m->control_op);
	loop_unpost(m->loop, &m->gone_event);
	while (!list_is_empty(&m->streams)) {
		struct guest_stream *s = container_of(m->streams.next, struct guest_stream, node);

		guest_close(s);
		s->ops->closed(s, why);
	}
	m->state = MACHINE_NONE;
}

/* Thaws it, with a first request or without. */
static int thaw(struct machine *m, const json_t *request)
{
	const struct thaw_spec spec = { .id = m->id, .env = m->env, .limits = m->limits };
	struct err err = { 0 };
	int rc = sandbox_take(&m->sb, &spec, request, &err);

	m->state = MACHINE_THAWS;
	if (rc)
		lose(m, &err);
	return rc;
}

/* --- streams ------------------------------------------------------------------------------------- */

static void end_stream(struct guest_stream *s, int code, const char *what)
{
	struct err err = { 0 };

	(void)err_set(&err, code, "%s", what);
	guest_close(s);
	s->ops->closed(s, &err);
}

/* Hands over the frames that are here, as long as their owner takes them. False: do not touch it any more. */
static bool take_frames(struct guest_stream *s)
{
	struct machine *m = s->m; /* outlives the call: a box is freed by a job's done() */
	struct frame frame;
	int rc = 0;

	m->talking = s;
	while (m->talking && !s->is_paused && (rc = frame_next(&s->s.in, &frame)) == 1)
		s->ops->frame(s, &frame);
	if (!m->talking)
		return false;
	m->talking = NULL;
	if (rc < 0) {
		end_stream(s, -EPROTO, "the guest broke the protocol");
		return false;
	}
	if (s->s.eof && !s->is_paused) {
		end_stream(s, -EPIPE, "the guest closed the stream");
		return false;
	}
	return true;
}

static void on_in(struct loop_op *op, int res)
{
	struct guest_stream *s = container_of(op, struct guest_stream, in_op);
	ssize_t n;

	if (res == -ECANCELED)
		return;
	n = frame_fill(&s->s.in, s->s.fd);
	if (n != -EAGAIN)
		s->s.eof = n <= 0;
	if (take_frames(s))
		watch_in(s);
}

static void watch_in(struct guest_stream *s)
{
	if (!s->is_paused && !s->s.eof && !s->in_op.busy)
		loop_poll(s->m->loop, &s->in_op, s->s.fd, POLLIN);
	if (s->s.out.pos < s->s.out.len && !s->out_op.busy)
		loop_poll(s->m->loop, &s->out_op, s->s.fd, POLLOUT);
}

static void on_again(struct loop_event *event)
{
	struct guest_stream *s = container_of(event, struct guest_stream, again_event);

	if (take_frames(s) && s->s.fd >= 0)
		watch_in(s);
}

static void on_out(struct loop_op *op, int res)
{
	struct guest_stream *s = container_of(op, struct guest_stream, out_op);

	if (res == -ECANCELED)
		return;
	stream_flush(&s->s);
	watch_in(s);
	if (s->is_full && s->s.out.len - s->s.out.pos < GUEST_QUEUE_BYTES / 2) {
		s->is_full = false;
		if (s->ops->drained)
			s->ops->drained(s);
	}
}

static void prepare(struct guest_stream *s, struct machine *m, unsigned port,
                    const struct guest_ops *ops)
{
	*s = (struct guest_stream){ .m = m,
		                    .ops = ops,
		                    .s = STREAM_NONE,
		                    .port = port,
		                    .in_op = { .done = on_in },
		                    .out_op = { .done = on_out },
		                    .again_event = { .fire = on_again } };
	list_append(&m->streams, &s->node);
}

void guest_open(struct guest_stream *s, struct machine *m, unsigned port,
                const struct guest_ops *ops)
{
	prepare(s, m, port, ops);
	s->is_unopened = true;
	m->nr_unopened++;
	if (m->state == MACHINE_WAITS)
		(void)thaw(m, NULL); /* a failure has been noted */
	if (m->state == MACHINE_RUNS)
		connect_stream(s);
}

/* An estimate from above of what the request takes in the mailbox. */
static bool fits_mailbox(const struct machine *m, const json_t *request)
{
	size_t n = json_dumpb(request, NULL, 0, JSON_COMPACT);

	return n + (m->env ? json_dumpb(m->env, NULL, 0, JSON_COMPACT) : 0) < FIRST_BYTES;
}

bool guest_open_first(struct guest_stream *s, struct machine *m, const json_t *request,
                      const struct guest_ops *ops)
{
	if (m->state != MACHINE_WAITS || !fits_mailbox(m, request))
		return false;
	prepare(s, m, GUEST_PORT_KERNEL, ops);
	if (thaw(m, request))
		return true; /* its end is on the way */
	s->s = m->sb.kernel;
	m->sb.kernel = STREAM_NONE;
	m->sb.first_pending = false;
	s->s.in.whole_max = GUEST_JSON_MAX;
	watch_in(s);
	return true;
}

void guest_close(struct guest_stream *s)
{
	struct machine *m = s->m;

	if (!m)
		return;
	(void)loop_reap(m->loop, &s->in_op);
	(void)loop_reap(m->loop, &s->out_op);
	loop_unpost(m->loop, &s->again_event);
	m->nr_unopened -= s->is_unopened;
	stream_close(&s->s);
	list_remove(&s->node);
	s->m = NULL;
	if (m->talking == s)
		m->talking = NULL;
}

static void flush(struct guest_stream *s)
{
	if (s->s.fd < 0)
		return;
	stream_flush(&s->s);
	watch_in(s);
}

/* An owner cannot be told of a failure while it calls us: it sees the end of the stream. */
static void fail_soon(struct guest_stream *s)
{
	s->s.eof = true;
	loop_post(s->m->loop, &s->again_event);
}

void guest_send(struct guest_stream *s, enum frame_type type, const void *data, size_t len)
{
	if (!s->m)
		return;
	if (frame_append(&s->s.out, type, data, len))
		fail_soon(s);
	else
		flush(s);
}

void guest_send_json(struct guest_stream *s, json_t *json)
{
	if (s->m && (!json || stream_send(&s->s, FRAME_REQUEST, json)))
		fail_soon(s);
	else if (s->m)
		flush(s);
	json_decref(json);
}

bool guest_has_room(struct guest_stream *s)
{
	bool has_room = s->s.out.len - s->s.out.pos < GUEST_QUEUE_BYTES;

	if (!has_room)
		s->is_full = true;
	return has_room;
}

void guest_pause(struct guest_stream *s)
{
	s->is_paused = true;
}

void guest_resume(struct guest_stream *s)
{
	if (!s->m || !s->is_paused)
		return;
	s->is_paused = false;
	loop_post(s->m->loop, &s->again_event);
}

/* --- from one daemon to the next ----------------------------------------------------------------- */

bool machine_rests(const struct machine *m)
{
	return (m->state == MACHINE_WAITS || m->state == MACHINE_RUNS) && !m->nr_unopened &&
	       !m->sb.nr_pending && !m->sb.lost.code && !m->sb.fail.code;
}

json_t *machine_save(const struct machine *m, struct handover *h)
{
	const struct sandbox *sb = &m->sb;

	return json_pack(
		"{s:b, s:i, s:o, s:o, s:o, s:s*, s:o*, s:O*, s:b, s:b, s:b, s:i, s:i, s:[I, I, I]}",
		"runs", m->state == MACHINE_RUNS, "pid", (int)sb->pid, "pid_fd",
		handover_fd(h, sb->pid_fd), "control_fd", handover_fd(h, sb->control_fd), "log_fd",
		handover_fd(h, sb->log_fd), "cgroup", sb->cgroup, "lines",
		handover_bytes(&sb->lines), "thawed", sb->thawed, "parked", sb->parked, "ready",
		sb->ready, "first_done", sb->first_done, "port", (int)sb->port, "agent_port",
		(int)sb->agent_port, "limits", (json_int_t)m->limits.disk_bytes,
		(json_int_t)m->limits.disk_ops, (json_int_t)m->limits.vsock_bytes);
}

static bool is_true(const json_t *saved, const char *name)
{
	return json_is_true(json_object_get(saved, name));
}

static uint64_t saved_limit(const json_t *saved, size_t i)
{
	return (uint64_t)json_integer_value(json_array_get(json_object_get(saved, "limits"), i));
}

/* Always something to close. */
static int restore_sandbox(struct sandbox *sb, const json_t *saved, struct handover *h)
{
	const char *cgroup = text_member(saved, "cgroup");

	sandbox_init(sb);
	sb->pid_fd = handover_take_fd(h, json_object_get(saved, "pid_fd"));
	if (sb->pid_fd >= 0) /* else the number may be another process's by now */
		sb->pid = (pid_t)json_integer_value(json_object_get(saved, "pid"));
	sb->control_fd = handover_take_fd(h, json_object_get(saved, "control_fd"));
	sb->log_fd = handover_take_fd(h, json_object_get(saved, "log_fd"));
	sb->cgroup = cgroup ? strdup(cgroup) : NULL;
	sb->thawed = json_incref(json_object_get(saved, "thawed"));
	sb->parked = is_true(saved, "parked");
	sb->ready = is_true(saved, "ready");
	sb->first_sent = sb->first_done = is_true(saved, "first_done");
	sb->port = (unsigned)json_integer_value(json_object_get(saved, "port"));
	sb->agent_port = (unsigned)json_integer_value(json_object_get(saved, "agent_port"));
	if (sb->pid <= 0 || sb->control_fd < 0)
		return -EPROTO;
	return handover_take_bytes(json_object_get(saved, "lines"), &sb->lines);
}

int machine_restore(struct machine *m, struct loop *loop, const json_t *saved, struct handover *h)
{
	struct sandbox sb;
	int rc = restore_sandbox(&sb, saved, h);

	if (rc) {
		sandbox_close(&sb);
		return rc;
	}
	machine_start(m, loop, &sb);
	m->state = is_true(saved, "runs") ? MACHINE_RUNS : MACHINE_WAITS;
	m->limits = (struct sandbox_limits){ .disk_bytes = saved_limit(saved, 0),
		                             .disk_ops = saved_limit(saved, 1),
		                             .vsock_bytes = saved_limit(saved, 2) };
	return 0;
}

void machine_discard(const json_t *saved, struct handover *h)
{
	struct sandbox sb;

	(void)restore_sandbox(&sb, saved, h);
	sandbox_close(&sb);
}

json_t *guest_save(const struct guest_stream *s, struct handover *h)
{
	const struct frame_reader *in = &s->s.in;
	const struct bytes none = { 0 };

	if (!guest_is_open(s) || s->s.eof)
		return json_null();
	return json_pack("{s:o, s:i, s:o, s:o, s:o, s:i, s:I}", "fd", handover_fd(h, s->s.fd),
	                 "port", (int)s->port, "in", handover_bytes(&in->in), "out",
	                 handover_bytes(&s->s.out), "whole",
	                 handover_bytes(in->part_type ? &in->whole : &none), "part_type",
	                 (int)in->part_type, "part_len", (json_int_t)in->part_len);
}

int guest_restore(struct guest_stream *s, struct machine *m, const json_t *saved,
                  const struct guest_ops *ops, struct handover *h)
{
	struct frame_reader *in = &s->s.in;
	int rc;

	if (!json_is_object(saved))
		return 0;
	prepare(s, m, (unsigned)json_integer_value(json_object_get(saved, "port")), ops);
	s->s.fd = handover_take_fd(h, json_object_get(saved, "fd"));
	in->whole_max = GUEST_JSON_MAX;
	in->part_type = (uint8_t)json_integer_value(json_object_get(saved, "part_type"));
	in->part_len = (size_t)json_integer_value(json_object_get(saved, "part_len"));
	rc = s->s.fd < 0 ? -EPROTO : 0;
	rc = rc ? rc : handover_take_bytes(json_object_get(saved, "in"), &in->in);
	rc = rc ? rc : handover_take_bytes(json_object_get(saved, "out"), &s->s.out);
	rc = rc ? rc : handover_take_bytes(json_object_get(saved, "whole"), &in->whole);
	if (rc)
		guest_close(s);
	else
		loop_post(m->loop, &s->again_event); /* looks at what is here, and waits for more */
	return rc;
}

/* --- calls ---------------------------------------------------------------------------------------- */

static void finish_call(struct guest_call *call, const json_t *result, const struct err *err)
{
	guest_call_cancel(call);
	call->done(call, result, err);
}

static void on_call_frame(struct guest_stream *s, const struct frame *frame)
{
	struct guest_call *call = container_of(s, struct guest_call, s);
	struct err err = { 0 };
	json_t *result;

	if (frame->type != FRAME_RESULT)
		return; /* what a removed tree's `rm` says */
	result = frame_json(frame->data, frame->len);
	if (!result)
		(void)err_set(&err, -EPROTO, "the guest's agent answered with no object");
	finish_call(call, result, &err);
	json_decref(result);
}

static void on_call_closed(struct guest_stream *s, const struct err *why)
{
	finish_call(container_of(s, struct guest_call, s), NULL, why);
}

static void on_call_timer(struct loop_op *op, int res)
{
	struct guest_call *call = container_of(op, struct guest_call, timer);
	struct err err = { 0 };

	if (res == -ECANCELED)
		return;
	(void)err_set(&err, -ETIMEDOUT, "the guest's agent did not answer in time");
	finish_call(call, NULL, &err);
}

static const struct guest_ops call_ops = { .frame = on_call_frame, .closed = on_call_closed };

void guest_call(struct guest_call *call, struct machine *m, json_t *request, unsigned timeout_ms,
                void (*done)(struct guest_call *, const json_t *, const struct err *))
{
	call->loop = m->loop;
	call->done = done;
	call->timer = (struct loop_op){ .done = on_call_timer };
	guest_open(&call->s, m, GUEST_PORT_AGENT, &call_ops);
	loop_timer(m->loop, &call->timer, timeout_ms * (uint64_t)1000000);
	guest_send_json(&call->s, request);
}

void guest_call_cancel(struct guest_call *call)
{
	if (call->loop)
		(void)loop_reap(call->loop, &call->timer);
	guest_close(&call->s);
}
