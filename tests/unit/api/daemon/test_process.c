/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in a guest that floods, or does not listen, and clients that do not read: what is held has a bound. */
#include "api/daemon/process.h"
#include "tests/unit/api/daemon/fake_host.h"

#include <criterion/criterion.h>

/* What of a queue is over when it is full: one frame of the guest as JSON, with its base64. */
#define ONE_MORE (128u << 10)

static char home[] = "/tmp/test_process.XXXXXX";

static void begin(void)
{
	start_host(home);
}

static void end(void)
{
	end_host(home);
}

TestSuite(process, .init = begin, .fini = end, .timeout = GUARD_S);

/* The first word of a command's line says what it does. */
static void do_request(int fd, const char *op, const json_t *request)
{
	const char *cmd = json_string_value(json_array_get(json_object_get(request, "argv"), 0));

	if (!strcmp(op, "exec"))
		tell(fd, FRAME_EVENT, "{\"event\":\"start\",\"pid\":7}");
	if (cmd && !strcmp(cmd, "flood"))
		flood(fd, FRAME_STDOUT);
	if (cmd && !strcmp(cmd, "deaf"))
		await_word();
	if (!strcmp(op, "signal"))
		tell(fd, FRAME_RESULT, "{\"status\":\"ok\",\"signal\":9}");
}

static void do_data(int fd, const struct frame *frame)
{
	(void)fd;
	shared->heard += frame->len;
}

static struct client *start(const char *cmd, const char *more)
{
	struct client *c;
	char body[100];

	snprintf(body, sizeof(body), "{\"process\":{\"cmd\":\"%s\"},\"stdin\":true}", cmd);
	c = ask("POST /process.Process/Start", PORT_ENVD, more, true, body);
	READ_TO(c, "\"pid\":7");
	return c;
}

static void list_has(bool wanted)
{
	struct client *c = call("POST /process.Process/List", "{}");

	READ_TO(c, "}");
	cr_expect_eq(has(c, "\"pid\":7"), wanted);
	leave(c);
}

Test(process, a_client_that_does_not_read)
{
	uint64_t goal = 4u << 20, said;
	struct client *c = start("flood", "");
	struct drain on = { .c = c, .left = 16u << 20 };

	cr_assert_eq(loop_run_until(&host.loop, is_paused, NULL), 0);
	cr_expect_leq(most_held(), REPLY_QUEUE_BYTES + ONE_MORE);
	list_has(true);
	cr_expect(is_paused(NULL), "nobody has read");
	cr_expect_leq(most_held(), REPLY_QUEUE_BYTES + ONE_MORE);
	said = shared->said;
	cr_expect_leq(said, 4u << 20, "the sockets on the way hold some, too");
	cr_assert_eq(loop_run_until(&host.loop, drain, &on), 0);
	cr_expect_geq(shared->said, said + (8u << 20), "it reads, and the guest goes on");
	cr_expect_leq(most_held(), REPLY_QUEUE_BYTES + ONE_MORE);
	leave(c); /* and when nobody watches, it is dropped */
	goal += shared->said + (8u << 20);
	cr_assert_eq(loop_run_until(&host.loop, has_said, &goal), 0);
	list_has(true);
}

/* It is read no faster than the slowest takes it, who may leave. */
Test(process, of_two_clients_one_reads)
{
	uint64_t goal;
	struct client *fast, *slow = start("flood", "");
	struct drain on;

	fast = stream("POST /process.Process/Connect", "{\"process\":{\"pid\":7}}");
	READ_TO(fast, "\"pid\":7");
	cr_assert_eq(loop_run_until(&host.loop, is_paused, NULL), 0);
	leave(slow);
	on = (struct drain){ .c = fast, .left = 8u << 20 };
	goal = shared->said + (2u << 20);
	cr_assert_eq(loop_run_until(&host.loop, drain, &on), 0);
	cr_expect_geq(shared->said, goal);
	cr_expect_leq(most_held(), REPLY_QUEUE_BYTES + ONE_MORE);
	leave(fast);
}

Test(process, something_is_said_from_time_to_time)
{
	struct client *c = start("quiet", "Keepalive-Ping-Interval: 1\r\n");

	READ_TO(c, "{\"event\":{\"keepalive\":{}}}");
	leave(c);
}

static bool none_runs(void *ctx)
{
	(void)ctx;
	return list_is_empty(&the_box()->processes);
}

Test(process, its_deadline)
{
	struct client *c = start("quiet", "Connect-Timeout-Ms: 200\r\n");

	READ_TO(c, "deadline has passed: killed");
	cr_expect(has(c, "deadline_exceeded"));
	cr_assert_eq(loop_run_until(&host.loop, none_runs, NULL), 0);
	list_has(false);
	leave(c);
}

/* As SendInput has it: `nr` bytes of base64. */
static struct client *give(size_t nr)
{
	static char body[6u << 20];
	size_t n = (size_t)snprintf(body, sizeof(body),
	                            "{\"process\":{\"pid\":7},\"input\":{\"stdin\":\"");

	memset(body + n, 'A', nr);
	body[n + nr] = '"';
	body[n + nr + 1] = body[n + nr + 2] = '}';
	return ask_long("POST /process.Process/SendInput", PORT_ENVD, body, n + nr + 3);
}

static bool are_held(void *ctx)
{
	return most_held() >= *(size_t *)ctx;
}

/* Who gives it more than fits has to wait, and who gives still more is refused. */
Test(process, a_command_that_does_not_listen)
{
	struct client *c = start("deaf", ""), *waits[3], *last;
	size_t held = 1u << 20; /* some of the first is in the socket */

	for (unsigned i = 0; i < 3; i++) {
		waits[i] = give(2u << 20);
		cr_assert_eq(loop_run_until(&host.loop, are_held, &held), 0);
		held += 3u << 19;
	}
	last = give(64);
	READ_TO(last, "HTTP/1.1 429");
	leave(last);
	last = give(5u << 20);
	READ_TO(last, "HTTP/1.1 413");
	leave(last);
	cr_expect_leq(most_held(), 6u << 20);
	for (unsigned i = 0; i < 3; i++)
		cr_expect(!has_read(waits[i]) && !waits[i]->len, "it is not there yet");
	give_word();
	for (unsigned i = 0; i < 3; i++) {
		READ_TO(waits[i], "HTTP/1.1 200");
		leave(waits[i]);
	}
	cr_expect_geq(shared->heard, 3u << 20);
	last = give(64);
	READ_TO(last, "HTTP/1.1 200");
	leave(last);
	leave(c);
}
