/* SPDX-License-Identifier: Apache-2.0 */
/* Servers in a guest and clients outside, each faster than the other: what is held between them has a bound. */
#include "api/daemon/port.h"
#include "tests/unit/api/daemon/fake_host.h"

#include <criterion/criterion.h>

#define PORT     8000
#define ALL      (8u << 20)   /* bytes of a long body */
#define ONE_MORE (128u << 10) /* that may come when a queue is just not full */

static char home[] = "/tmp/test_port.XXXXXX";

static void begin(void)
{
	start_host(home);
}

static void end(void)
{
	end_host(home);
}

TestSuite(port, .init = begin, .fini = end, .timeout = GUARD_S);

static void do_request(int fd, const char *op, const json_t *request)
{
	(void)fd;
	(void)request;
	CHECK(!strcmp(op, "connect"));
}

static const char upgraded[] = "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n";

/* By the path of its first piece; what comes behind that is counted. */
static void do_data(int fd, const struct frame *frame)
{
	static bool has_begun;

	shared->heard += frame->len;
	if (shared->heard >= ALL)
		tell(fd, FRAME_DATA, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall");
	if (has_begun)
		return;
	has_begun = true;
	if (memmem(frame->data, frame->len, " /flood ", 8)) {
		tell(fd, FRAME_DATA, "HTTP/1.1 200 OK\r\n\r\nbegun");
		flood(fd, FRAME_DATA);
	} else if (memmem(frame->data, frame->len, " /early ",
	                  8)) { /* before the request is there */
		tell(fd, FRAME_DATA, "HTTP/1.1 200 OK\r\n\r\n");
		flood(fd, FRAME_DATA);
	} else if (memmem(frame->data, frame->len, " /raw-flood ", 12)) {
		tell(fd, FRAME_DATA, upgraded);
		tell(fd, FRAME_DATA, "begun");
		flood(fd, FRAME_DATA);
	} else if (memmem(frame->data, frame->len, " /raw-deaf ", 11)) {
		tell(fd, FRAME_DATA, upgraded);
		await_word();
	} else if (memmem(frame->data, frame->len, " /deaf ", 7)) {
		await_word();
	}
}

/* Nothing more comes of it, and what there is does not grow. */
static void expect_bound(struct client *c)
{
	struct drain on = { .c = c, .left = 8u << 20 };
	uint64_t said;

	cr_assert_eq(loop_run_until(&host.loop, is_paused, NULL), 0);
	cr_expect_leq(most_held(), REPLY_QUEUE_BYTES + ONE_MORE);
	said = shared->said;
	cr_expect_leq(said, 4u << 20, "the sockets on the way hold some, too");
	cr_assert_eq(loop_run_until(&host.loop, drain, &on), 0);
	cr_expect_geq(shared->said, 7u << 20, "it reads, and the server goes on");
	cr_expect_leq(most_held(), REPLY_QUEUE_BYTES + ONE_MORE);
	leave(c);
}

Test(port, a_client_that_does_not_read)
{
	struct client *c = ask("GET /flood", PORT, "", false, "");

	READ_TO(c, "begun");
	expect_bound(c);
}

Test(port, a_client_that_does_not_read_a_tunnel)
{
	struct client *c =
		ask("GET /raw-flood", PORT, "Connection: Upgrade\r\nUpgrade: raw\r\n", false, "");

	READ_TO(c, "begun");
	expect_bound(c);
}

/* An answer that is there before the request is: it waits for that, and its server with it. */
Test(port, an_answer_that_comes_early)
{
	struct client *c = ask_head("POST /early", PORT, "", "json", 2);

	cr_assert_eq(loop_run_until(&host.loop, is_paused, NULL), 0);
	cr_expect_leq(shared->said, 2u << 20);
	cr_expect(!has_read(c) && !c->len);
	cr_assert_eq(send(c->fd, "{}", 2, 0), 2);
	READ_TO(c, "xxxx");
	expect_bound(c);
}

static bool is_held(void *ctx)
{
	struct sender *s = ctx;

	(void)send_some(s);
	list_each(&host.http.requests, node)
	{
		if (container_of(node, struct request, node)->is_held)
			return true;
	}
	return false;
}

static bool has_answer(void *ctx)
{
	struct sender *s = ctx;

	s->c->wanted = "all";
	s->c->wanted_len = 3;
	return send_some(s) && has_read(s->c);
}

Test(port, a_server_that_does_not_listen)
{
	static char body[ALL];
	struct sender s = { .data = body, .left = sizeof(body) };

	s.c = ask_head("POST /deaf", PORT, "", "json", sizeof(body));
	cr_assert_eq(loop_run_until(&host.loop, is_held, &s), 0);
	cr_expect_leq(most_held(), GUEST_QUEUE_BYTES + ONE_MORE);
	cr_expect_gt(s.left, 4u << 20, "the client has to wait");
	give_word();
	cr_assert_eq(loop_run_until(&host.loop, has_answer, &s), 0);
	cr_expect_leq(most_held(), GUEST_QUEUE_BYTES + ONE_MORE);
	leave(s.c);
}

/* The queue is full: the tunnel does not read its client any more. */
static bool is_full(void *ctx)
{
	(void)send_some(ctx);
	return most_held() >= GUEST_QUEUE_BYTES;
}

Test(port, a_server_that_does_not_listen_to_a_tunnel)
{
	static char body[ALL];
	struct sender s = { .data = body, .left = sizeof(body) };

	s.c = ask("GET /raw-deaf", PORT, "Connection: Upgrade\r\nUpgrade: raw\r\n", false, "");
	READ_TO(s.c, "101");
	cr_assert_eq(loop_run_until(&host.loop, is_full, &s), 0);
	cr_expect_leq(most_held(), GUEST_QUEUE_BYTES + ONE_MORE);
	cr_expect_gt(s.left, 4u << 20);
	give_word();
	cr_assert_eq(loop_run_until(&host.loop, has_answer, &s), 0);
	cr_expect_leq(most_held(), GUEST_QUEUE_BYTES + ONE_MORE);
	leave(s.c);
}
