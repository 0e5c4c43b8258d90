/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile agent, interpreter and monitor against the daemon's end of them: a thread speaks on the control socket
 * and on every stream that is opened, and says what the test wants it to. Whatever that is, the loop goes on, the
 * machine beside it answers, what is held is bounded, and the owner is told why.
 */
#include "api/daemon/machine.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALL_MS 20000 /* a guard */

/* What is said on a stream, once: these bytes, `times` times (0: until nobody listens), then its end or, with `stay`, nothing. */
struct words {
	const void *bytes;
	size_t len;
	unsigned times;
	bool stay;
};

/* A machine and who plays it. */
struct peer {
	struct machine m;
	struct sandbox sb;
	int theirs;
	pthread_t thread;
	const char *thawed;         /* answer to the thaw; NULL: the usual */
	const struct words *stream; /* NULL: an agent that answers */
	struct words control;       /* said after the answer to the thaw */
	bool is_gone;
	struct err why;
};

static struct loop loop;
static struct peer evil, good;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static unsigned nr_speakers; /* threads that have a stream; under `lock` */

static bool put(int fd, const struct words *w)
{
	const char *p = w->bytes;

	for (unsigned n = 0; !w->times || n < w->times; n++) {
		size_t at = 0;

		while (at < w->len) {
			ssize_t sent = send(fd, p + at, w->len - at, MSG_NOSIGNAL);

			if (sent <= 0)
				return false;
			at += (size_t)sent;
		}
	}
	return true;
}

static const char ok_frame[] = "\x0f\0\0\0\x10{\"status\":\"ok\"}";

static void *play_stream(void *arg)
{
	struct peer *peer = ((void **)arg)[0];
	const struct words honest = { ok_frame, sizeof(ok_frame) - 1, 1, false };
	const struct words *w = peer->stream ? peer->stream : &honest;
	int fd = (int)(intptr_t)((void **)arg)[1];
	char byte[4096];

	free(arg);
	if (put(fd, w) && w->stay)
		while (recv(fd, byte, sizeof(byte), 0) > 0)
			;
	close(fd);
	pthread_mutex_lock(&lock);
	nr_speakers--;
	pthread_cond_signal(&ended);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* When streams have been closed here, their speakers notice: what they say is nobody's then. */
static void wait_for_speakers(void)
{
	pthread_mutex_lock(&lock);
	while (nr_speakers)
		pthread_cond_wait(&ended, &lock);
	pthread_mutex_unlock(&lock);
}

static void open_stream(struct peer *peer, int fd)
{
	void **arg = calloc(2, sizeof(*arg));
	pthread_t thread;

	arg[0] = peer;
	arg[1] = (void *)(intptr_t)fd;
	pthread_mutex_lock(&lock);
	nr_speakers++;
	pthread_mutex_unlock(&lock);
	if (pthread_create(&thread, NULL, play_stream, arg))
		abort();
	pthread_detach(thread);
}

static void answer_line(struct peer *peer, const char *line, int fd)
{
	const char *usual = "{\"ok\":true,\"port\":2000,\"agent_port\":1024}\n";
	bool thaws = strstr(line, "\"thaw\"");
	const char *text = !thaws ? "{\"ok\":true}\n" : peer->thawed ? peer->thawed : usual;

	(void)send(peer->theirs, text, strlen(text), MSG_NOSIGNAL);
	if (fd >= 0)
		open_stream(peer, fd);
	if (thaws && peer->control.len)
		(void)put(peer->theirs, &peer->control);
}

static void *play_monitor(void *arg)
{
	struct peer *peer = arg;
	char buf[65536 + 1];

	for (;;) {
		union {
			char buf[CMSG_SPACE(sizeof(int))];
			struct cmsghdr align;
		} ctl;
		struct iovec iov = { buf, sizeof(buf) - 1 };
		struct msghdr msg = { .msg_iov = &iov,
			              .msg_iovlen = 1,
			              .msg_control = ctl.buf,
			              .msg_controllen = sizeof(ctl.buf) };
		ssize_t n = recvmsg(peer->theirs, &msg, 0);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		char *rest, *line;
		int fd = -1;

		if (n <= 0)
			return NULL;
		if (c)
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
		buf[n] = '\0';
		for (line = strtok_r(buf, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
			answer_line(peer, line, fd);
			fd = -1;
		}
	}
}

static void on_gone(struct machine *m, const struct err *why)
{
	struct peer *peer = container_of(m, struct peer, m);

	peer->is_gone = true;
	peer->why = *why;
}

static void begin(struct peer *peer)
{
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	sandbox_init(&peer->sb);
	peer->sb.control_fd = sv[0];
	peer->theirs = sv[1];
	peer->m.id = "x";
	peer->m.gone = on_gone;
	machine_start(&peer->m, &loop, &peer->sb);
	cr_assert_eq(pthread_create(&peer->thread, NULL, play_monitor, peer), 0);
}

static void end(struct peer *peer)
{
	struct err why = { .code = -ECONNABORTED };

	machine_stop(&peer->m, &why);
	sandbox_close(&peer->m.sb);
	pthread_join(peer->thread, NULL);
	wait_for_speakers();
	close(peer->theirs);
	*peer = (struct peer){ 0 };
}

static void setup(void)
{
	struct err err = { 0 };

	signal(SIGPIPE, SIG_IGN);
	cr_assert_eq(loop_open(&loop, 64, &err), 0, "%s", err.msg);
	begin(&good);
}

static void teardown(void)
{
	end(&good);
	loop_close(&loop);
}

TestSuite(machine, .init = setup, .fini = teardown, .timeout = 120);

/* --- one request and its answer ----------------------------------------------------------------------- */

struct call {
	struct guest_call call;
	bool is_done;
	json_t *result;
	struct err err;
};

static void on_done(struct guest_call *call, const json_t *result, const struct err *err)
{
	struct call *c = container_of(call, struct call, call);

	cr_assert_not(c->is_done, "told twice");
	c->is_done = true;
	c->result = json_incref((json_t *)(uintptr_t)result);
	if (err)
		c->err = *err;
}

static bool call_is_done(void *ctx)
{
	return ((struct call *)ctx)->is_done;
}

static void ask(struct peer *peer, struct call *c, unsigned timeout_ms)
{
	*c = (struct call){ 0 };
	guest_call(&c->call, &peer->m, json_pack("{s:s}", "op", "ping"), timeout_ms, on_done);
}

/* The machine beside it serves. */
static void good_one_answers(void)
{
	struct call c;

	ask(&good, &c, CALL_MS);
	cr_assert_eq(loop_run_until(&loop, call_is_done, &c), 0);
	cr_assert_not_null(c.result, "%s", c.err.msg);
	json_decref(c.result);
	cr_assert_not(good.is_gone);
}

/* The error of a request that `words` answer; 0: there was a result. */
static int answered_with(const struct words *words, unsigned timeout_ms)
{
	struct call c;
	int code;

	evil.stream = words;
	ask(&evil, &c, timeout_ms);
	good_one_answers();
	cr_assert_eq(loop_run_until(&loop, call_is_done, &c), 0);
	code = c.result ? 0 : c.err.code;
	cr_assert(c.result || c.err.msg[0], "no word why");
	json_decref(c.result);
	cr_assert_not(guest_is_open(&c.call.s));
	return code;
}

#define SAY(text, end)                           \
	{                                        \
		text, sizeof(text) - 1, 1, (end) \
	}
#define STAYS true
#define ENDS  false

Test(machine, answers_that_are_none)
{
	static const struct {
		struct words words;
		int code;
	} cases[] = {
		{ SAY("\xff\xff\xff\xff\x10", STAYS), -EPROTO }, /* 4 GiB */
		{ SAY("\x01\x00\x10\x00\x10", STAYS), -EPROTO }, /* one byte too many */
		{ SAY("\x02\0\0\0\x55{}", STAYS), -EPROTO },     /* no such type */
		{ SAY("\0\0\0\0\0", STAYS), -EPROTO },           /* nor this */
		{ SAY("\x01\0\0\0\x90{\x01\0\0\0\x94{", STAYS),
		  -EPROTO },                                          /* parts of two payloads */
		{ SAY("\x02\0\0\0\x10[]", STAYS), -EPROTO },          /* not an object */
		{ SAY("\x04\0\0\0\x10null", STAYS), -EPROTO },        /* nor this */
		{ SAY("\0\0\0\0\x10", STAYS), -EPROTO },              /* nothing at all */
		{ SAY("\x06\0\0\0\x10{\"\xff\":1", STAYS), -EPROTO }, /* not UTF-8, not whole */
		{ SAY("", ENDS), -EPIPE },                            /* gone without a word */
		{ SAY("\x0f\0\0\0\x10{\"status\":", ENDS), -EPIPE },  /* in the middle of one */
		{ SAY("\x0f\0", ENDS), -EPIPE }, /* in the middle of a header */
	};

	begin(&evil);
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
		cr_assert_eq(answered_with(&cases[i].words, CALL_MS), cases[i].code, "case %u", i);
	cr_assert_eq(answered_with(NULL, CALL_MS), 0, "the machine itself is as it was");
	cr_assert_not(evil.is_gone);
	end(&evil);
}

static char *frame_of(uint8_t type, const char *open, size_t n, size_t *len)
{
	size_t unit = strlen(open);
	char *p = malloc(FRAME_HEAD + n * unit);

	*len = FRAME_HEAD + n * unit;
	for (unsigned i = 0; i < 4; i++)
		p[i] = (char)(n * unit >> 8 * i);
	p[4] = (char)type;
	for (size_t i = 0; i < n; i++)
		memcpy(p + FRAME_HEAD + i * unit, open, unit);
	return p;
}

Test(machine, json_that_is_deep_or_wide)
{
	static const char *const units[] = { "[", "{\"a\":", "[[],", "{\"a\":{},", "\"\\" };

	begin(&evil);
	for (unsigned i = 0; i < ARRAY_LEN(units); i++) {
		struct words w = { .times = 1, .stay = true };
		char *p = frame_of(FRAME_RESULT, units[i], (1u << 20) / strlen(units[i]), &w.len);

		w.bytes = p;
		cr_assert_eq(answered_with(&w, CALL_MS), -EPROTO, "%s", units[i]);
		wait_for_speakers();
		free(p);
	}
	end(&evil);
}

/* Bytes that a stream's owner holds of it. */
static size_t held(const struct call *c)
{
	return c->call.s.s.in.in.cap + c->call.s.s.in.whole.cap;
}

/* What has no end is given up when its bound, or the time, is reached; until then little is held and others are served. */
Test(machine, streams_without_an_end)
{
	static const struct {
		uint8_t type;
		size_t size;
		int code;
	} cases[] = { { FRAME_STDOUT, 65536, -ETIMEDOUT },
		      { FRAME_STDOUT | FRAME_MORE, 65536, -ETIMEDOUT },
		      { FRAME_STDOUT, 0, -ETIMEDOUT },
		      { FRAME_EVENT, 100, -ETIMEDOUT },
		      { FRAME_RESULT | FRAME_MORE, 65536, -EPROTO },
		      { FRAME_DISPLAY | FRAME_MORE, 1u << 20, -EPROTO } };

	begin(&evil);
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct words w = { .times = 0 };
		char *p = frame_of(cases[i].type, "x", cases[i].size, &w.len);
		struct call c;

		w.bytes = p;
		evil.stream = &w;
		ask(&evil, &c, cases[i].code == -EPROTO ? CALL_MS : 300);
		while (!c.is_done) {
			good_one_answers();
			cr_assert_leq(held(&c), 2u * GUEST_JSON_MAX + 4u * FRAME_MAX);
		}
		cr_assert_null(c.result);
		cr_assert_eq(c.err.code, cases[i].code, "case %u: %s", i, c.err.msg);
		wait_for_speakers();
		evil.stream = NULL;
		cr_assert_eq(answered_with(NULL, CALL_MS), 0);
		free(p);
	}
	end(&evil);
}

static bool evil_is_gone(void *ctx)
{
	(void)ctx;
	return evil.is_gone;
}

/* The first request travels with the thaw; its stream is as hostile as any. */
static unsigned nr_frames;
static struct err closed_why;

static void on_frame(struct guest_stream *s, const struct frame *frame)
{
	(void)s;
	(void)frame;
	nr_frames++;
}

static void on_closed(struct guest_stream *s, const struct err *why)
{
	guest_close(s);
	closed_why = *why;
}

static bool is_closed(void *ctx)
{
	(void)ctx;
	return closed_why.code;
}

Test(machine, first_cell_answered_by_nonsense)
{
	static const struct guest_ops ops = { .frame = on_frame, .closed = on_closed };
	static const struct words nonsense = SAY("\x01\0\0\0\x11x\xff\xff\xff\xff\x11", STAYS);
	json_t *request = json_pack("{s:s, s:s}", "op", "run", "code", "1");
	struct guest_stream s = { 0 };

	begin(&evil);
	evil.stream = &nonsense;
	cr_assert(guest_open_first(&s, &evil.m, request, &ops));
	cr_assert_eq(loop_run_until(&loop, is_closed, NULL), 0);
	cr_assert_eq(closed_why.code, -EPROTO);
	cr_assert_eq(nr_frames, 1u, "what was right before it is taken");
	good_one_answers();
	json_decref(request);
	end(&evil);
}

/* --- a monitor that has been taken over ------------------------------------------------------------------ */

#define LINE(text)                              \
	{                                       \
		text, sizeof(text) - 1, 1, true \
	}
#define FOR_EVER(text)                          \
	{                                       \
		text, sizeof(text) - 1, 0, true \
	}

/* The machine is given up, with the reason; or it is borne, and asking goes on. */
Test(machine, control_lines_that_are_wrong)
{
	static const struct {
		const char *thawed;
		struct words after;
		bool borne;
	} cases[] = {
		{ "nonsense\n", { 0 }, false },
		{ "{\"ok\":false}\n", { 0 }, false },
		{ "{\"ok\":\"yes\"}\n", { 0 }, false },
		{ "{}\n", { 0 }, false },
		{ "[]\n", { 0 }, false },
		{ "{\"event\":\"exit\",\"reason\":[],\"detail\":{}}\n", { 0 }, false },
		{ NULL, LINE("}{\n"), false },
		{ NULL, LINE("\0\n"), false },
		{ NULL, LINE("{\"event\":\"exit\",\"reason\":\"killed\"}\n"), false },
		{ NULL, FOR_EVER("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
		  false },
		{ NULL, LINE("{\"event\":\"parked\"}\n{\"event\":\"first-done\"}\n"), true },
		{ NULL, LINE("{\"event\":\"no such\"}\n{\"event\":7}\n"), true },
		{ NULL, LINE("{\"ok\":true}\n{\"ok\":true}\n[1,2]\n"),
		  true }, /* nobody has asked */
		{ NULL, FOR_EVER("{\"event\":\"parked\"}\n"), true },
		{ "{\"ok\":true,\"port\":-1,\"agent_port\":99999999999}\n", { 0 }, true },
	};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct call c;

		begin(&evil);
		evil.thawed = cases[i].thawed;
		evil.control = cases[i].after;
		ask(&evil, &c, cases[i].borne ? 1000 : CALL_MS);
		for (unsigned n = 0; n < 20; n++)
			good_one_answers();
		cr_assert_leq(evil.m.sb.lines.cap, 16u * MONITOR_LINE_MAX, "case %u", i);
		if (cases[i].borne) {
			cr_assert_eq(loop_run_until(&loop, call_is_done, &c), 0);
			cr_assert_not(evil.is_gone, "case %u: %s", i, evil.why.msg);
		} else {
			cr_assert_eq(loop_run_until(&loop, evil_is_gone, NULL), 0);
			cr_assert(evil.why.code && evil.why.msg[0], "case %u", i);
		}
		shutdown(evil.theirs, SHUT_RDWR);
		end(&evil);
		cr_assert(c.is_done, "case %u: its owner was not told", i);
		json_decref(c.result);
	}
}

/* Its socket is closed, its process goes on: others do not wait for its end. */
Test(machine, monitor_that_hangs_up_and_stays)
{
	struct call c;

	begin(&evil);
	ask(&evil, &c, CALL_MS);
	cr_assert_eq(loop_run_until(&loop, call_is_done, &c), 0);
	json_decref(c.result);
	cr_assert_leq(evil.m.sb.end_wait_ms, 200u);
	shutdown(evil.theirs, SHUT_RDWR);
	cr_assert_eq(loop_run_until(&loop, evil_is_gone, NULL), 0);
	cr_assert_eq(evil.why.code, -ECONNABORTED);
	good_one_answers();
	end(&evil);
}
