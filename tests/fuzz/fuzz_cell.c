/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile guest as the client reads it: cells, questions, commands and files. The input is what the interpreter
 * writes to its stream, what the agent answers on each of its streams, and lines of the monitor. Whatever comes, the
 * call ends with a result or with an error that has words, and a file that was fetched is whole or not there.
 */
#include "api/agent.h"
#include "api/cell.h"

#include "tests/fuzz/fuzz.h"

#include <pthread.h>
#include <sys/socket.h>

#define MAX_PART   16384u
#define MAX_OUTPUT 4096u
#define TIMEOUT_NS 20000000u

struct guest {
	int control;      /* the monitor's end of the control socket */
	unsigned streams; /* that it serves before it ends: waiting for an agent takes real time */
	struct fz_in agent, lines;
};

struct told {
	uint64_t output; /* bytes */
	unsigned displays;
};

/* What an agent's stream gets: the same for each, then its end. */
static void answer(int fd, const struct fz_in *bytes)
{
	if (bytes->n)
		(void)!send(fd, bytes->p, bytes->n, MSG_DONTWAIT | MSG_NOSIGNAL);
	(void)close(fd);
}

/* The monitor: for each line that brings a stream, an answer on it and one on the control socket. */
static void *monitor(void *ctx)
{
	struct guest *g = ctx;
	char text[65536];
	union {
		char buf[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr head;
	} ctl;

	while (g->streams--) {
		struct iovec iov = { text, sizeof(text) };
		struct msghdr msg = { .msg_iov = &iov,
			              .msg_iovlen = 1,
			              .msg_control = ctl.buf,
			              .msg_controllen = sizeof(ctl.buf) };
		int fd;

		if (recvmsg(g->control, &msg, MSG_CMSG_CLOEXEC) <= 0)
			break;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
			answer(fd, &g->agent);
		}
		if (g->lines.n)
			(void)!send(g->control, g->lines.p, g->lines.n,
			            MSG_DONTWAIT | MSG_NOSIGNAL);
		else
			(void)!send(g->control, "{\"ok\":true}\n", 12, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	(void)shutdown(g->control, SHUT_RDWR);
	return NULL;
}

static void on_output(void *ctx, enum frame_type type, const void *data, size_t len)
{
	struct told *told = ctx;
	volatile uint8_t sum = 0;

	FZ_CHECK(type == FRAME_STDOUT || type == FRAME_STDERR);
	for (size_t i = 0; i < len; i++) /* all of it must be there to read */
		sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
	told->output += len;
}

static void on_display(void *ctx, json_t *display)
{
	FZ_CHECK(json_is_object(json_object_get(display, "data")));
	((struct told *)ctx)->displays++;
}

static int do_cell(struct sandbox *sb, const struct cell_sink *sink, bool first, struct err *err)
{
	struct cell cell = { .code = "1",
		             .code_len = 1,
		             .max_output = MAX_OUTPUT,
		             .timeout_ns = TIMEOUT_NS,
		             .last = true };
	struct cell_result result;
	int rc;

	sb->first_pending = first;
	sb->start_ns = clock_ns();
	rc = cell_run(sb, &cell, sink, &result, err);
	FZ_CHECK(((struct told *)sink->ctx)->output <= MAX_OUTPUT + (2u << 20));
	if (rc == 0)
		FZ_CHECK(json_string_value(json_object_get(result.result, "status")));
	cell_result_free(&result);
	return rc;
}

/* Fetched whole, or not at all. */
static int do_get(struct sandbox *sb, struct err *err)
{
	char path[96];
	int rc;

	(void)snprintf(path, sizeof(path), "%s/fetched", fz_dir());
	(void)unlink(path);
	rc = agent_get(sb, "/home/user/file", path, err);
	FZ_CHECK((rc == 0) == (access(path, F_OK) == 0));
	return rc;
}

static int do_put(struct sandbox *sb, struct err *err)
{
	int fd = fz_file("content", 7), rc = agent_put(sb, fd, "/home/user/file", err);

	(void)close(fd);
	return rc;
}

static int do_exec(struct sandbox *sb, const struct cell_sink *sink, struct err *err)
{
	struct agent_exec exec = { .request = json_pack("{s:s}", "shell", "true"),
		                   .in_fd = -1,
		                   .timeout_ns = TIMEOUT_NS };
	int status = 0, rc = agent_exec(sb, &exec, sink, &status, err);

	FZ_CHECK(rc || status == AGENT_TIMED_OUT || (status >= 0 && status <= 255));
	return rc;
}

static int call(struct sandbox *sb, uint8_t op, struct err *err)
{
	struct told told = { 0 };
	const struct cell_sink sink = { .output = on_output, .display = on_display, .ctx = &told };
	json_t *json = NULL;
	int rc;

	switch (op % 8) {
	case 0:
	case 1:
		return do_cell(sb, &sink, op & 1, err);
	case 2:
		rc = cell_usage(sb, &sink, &json, err);
		break;
	case 3:
		rc = cell_complete(sb, "x", 1, &json, err);
		break;
	case 4:
		rc = agent_call(sb, json_pack("{s:s}", "op", "ping"), 20, &json, err);
		break;
	case 5:
		return do_get(sb, err);
	case 6:
		return do_put(sb, err);
	default:
		return do_exec(sb, &sink, err);
	}
	FZ_CHECK((rc == 0) == (json != NULL));
	json_decref(json);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n }, kernel;
	uint8_t op = fz_u8(&in);
	struct guest g = { .streams = op >= 0xf0 ? 1000 : op >= 0xe0 ? 2 : op / 8 % 2u };
	struct err err = { 0 };
	struct sandbox sb;
	pthread_t thread;
	int control[2], stream[2];

	fz_quiet();
	g.agent = fz_part(&in, fz_u8(&in) * 2u);
	g.lines = fz_part(&in, fz_u8(&in));
	kernel = fz_part(&in, MAX_PART);
	FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
	FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream) == 0);
	answer(stream[1], &kernel);
	g.control = control[1];
	sandbox_init(&sb);
	sb.control_fd = control[0];
	sb.kernel.fd = stream[0];
	sb.thawed = json_object();
	FZ_CHECK(pthread_create(&thread, NULL, monitor, &g) == 0);
	if (call(&sb, op, &err) != 0)
		FZ_CHECK(err.code < 0 && err.msg[0]);
	sandbox_close(&sb);
	(void)pthread_join(thread, NULL);
	(void)close(control[1]);
	return 0;
}
