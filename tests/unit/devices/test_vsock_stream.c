/* SPDX-License-Identifier: Apache-2.0 */
/* One stream between a guest's connection and a program's socket: how it begins, and each way to end. */
#include "tests/unit/devices/vsock_guest.h"

#include <stdio.h>

static struct guest g;
static char dir[64], path[80];

static void setup(void)
{
	strcpy(dir, "/tmp/vsock-test-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/v", dir);
	guest_open(&g, path);
}

static void teardown(void)
{
	guest_close(&g);
	cr_assert_eq(rmdir(dir), 0);
}

TestSuite(vsock_stream, .init = setup, .fini = teardown, .timeout = 120);

Test(vsock_stream, what_was_said_before_the_answer_arrives)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	host_say(sv[0], " second");
	cr_assert_eq(vsock_connect_with(g.v, sv[1], 9, "first", 5, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_expect_nothing(&g);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	guest_expect_data(&g, "first");
	guest_expect_data(&g, " second");
	close(sv[0]);
}

Test(vsock_stream, a_program_that_speaks_and_leaves_is_heard)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	host_say(sv[0], "do it");
	close(sv[0]);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_NOW, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_turn(&g);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_RCV);
	guest_expect_data(&g, "do it");
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_BOTH);
	cr_assert_eq(host_live(&g), 1, "until the guest has said its RST");
	guest_op(&g, VSOCK_OP_RST, 9, hdr.src_port);
	guest_expect_nothing(&g);
	cr_assert_eq(host_live(&g), 0);
}

Test(vsock_stream, asks_on_the_first_byte_only)
{
	struct vsock_hdr hdr;
	int sv[2], quiet[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, quiet), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_ON_FIRST_BYTE, NULL), 0);
	cr_assert_eq(vsock_connect(g.v, quiet[1], 9, VSOCK_ON_FIRST_BYTE, NULL), 0);
	guest_expect_nothing(&g);
	cr_assert_eq(host_live(&g), 2);
	close(quiet[0]);
	guest_expect_nothing(&g);
	cr_assert_eq(host_live(&g), 1);
	host_say(sv[0], "x");
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	guest_expect_data(&g, "x");
	close(sv[0]);
}

Test(vsock_stream, a_program_that_gives_up_is_forgotten)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_NOW, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	close(sv[0]);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).src_port, hdr.src_port);
	guest_expect_nothing(&g);
	cr_assert_eq(host_live(&g), 0);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	guest_expect(&g, VSOCK_OP_RST, NULL);
}

Test(vsock_stream, host_half_closes)
{
	struct vsock_hdr hdr;
	uint32_t port;
	char byte;
	int fd = host_connect(&g, 9, &port);

	host_say(fd, "last");
	shutdown(fd, SHUT_WR);
	guest_expect_data(&g, "last");
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_SEND);
	guest_data(&g, 9, port, "answer", 6);
	host_expect(&g, fd, "answer");
	guest_shut(&g, 9, port, VSOCK_SHUT_BOTH);
	guest_expect(&g, VSOCK_OP_RST, NULL);
	cr_assert_eq(host_read(&g, fd, &byte, 1), 0);
	cr_assert_eq(host_live(&g), 0);
	close(fd);
}

Test(vsock_stream, guest_half_closes)
{
	struct vsock_hdr hdr;
	uint32_t port;
	char byte;
	int fd = host_connect(&g, 9, &port);

	guest_data(&g, 9, port, "last", 4);
	guest_shut(&g, 9, port, VSOCK_SHUT_SEND);
	host_expect(&g, fd, "last");
	cr_assert_eq(host_read(&g, fd, &byte, 1), 0);
	host_say(fd, "answer");
	guest_expect_data(&g, "answer");
	close(fd);
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	if (hdr.flags != VSOCK_SHUT_BOTH)
		hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_BOTH);
	guest_op(&g, VSOCK_OP_RST, 9, port);
	guest_expect_nothing(&g);
	cr_assert_eq(host_live(&g), 0);
}

Test(vsock_stream, guest_takes_no_more)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port);

	guest_shut(&g, 9, port, VSOCK_SHUT_RCV);
	guest_turn(&g);
	cr_assert_eq(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	cr_assert_eq(errno, EPIPE);
	guest_expect_nothing(&g);
	guest_data(&g, 9, port, "still", 5);
	host_expect(&g, fd, "still");
	close(fd);
}

/* The guest closes at once; the host reads later, and loses nothing. */
Test(vsock_stream, data_before_the_guests_close_is_delivered)
{
	static uint8_t block[VSOCK_MAX_PAYLOAD], got[VSOCK_MAX_PAYLOAD];
	size_t total = 0, sent = 0;
	uint32_t port;
	ssize_t n;
	int fd = host_connect(&g, 9, &port);

	memset(block, 'x', sizeof(block));
	for (; sent < VSOCK_BUF_ALLOC; sent += sizeof(block))
		guest_data(&g, 9, port, block, sizeof(block));
	guest_shut(&g, 9, port, VSOCK_SHUT_BOTH);
	for (int i = 0; i < 8; i++)
		guest_turn(&g);
	while ((n = host_read(&g, fd, got, sizeof(got))) > 0)
		total += (size_t)n;
	cr_assert_eq(n, 0);
	cr_assert_eq(total, sent);
	guest_turn(&g);
	cr_assert_eq(host_live(&g), 0);
	close(fd);
}

Test(vsock_stream, connect_convention)
{
	struct vsock_hdr hdr;
	char line[32];
	int fd = host_dial(path);

	cr_assert_geq(fd, 0);
	host_say(fd, "CONN");
	guest_expect_nothing(&g);
	host_say(fd, "ECT 4294967295\nmore");
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	cr_assert_eq(hdr.dst_port, UINT32_MAX);
	guest_op(&g, VSOCK_OP_RESPONSE, hdr.dst_port, hdr.src_port);
	snprintf(line, sizeof(line), "OK %u\n", hdr.src_port);
	host_expect(&g, fd, line);
	guest_expect_data(&g, "more");
	close(fd);
}

Test(vsock_stream, bad_greetings_are_closed)
{
	static const char *const bad[] = {
		"CONNECT\n",
		"CONNECT \n",
		"CONNECT 4294967296\n",
		"CONNECT -1\n",
		"CONNECT 1 \n",
		"CONNECT 1\r\n",
		"connect 1\n",
		"GET / HTTP/1.1\r\n\r\n",
		"\n",
		"CONNECT 0000000000000000000000000001\n",
	};
	char byte;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		int fd = host_dial(path);
		ssize_t ret;

		host_say(fd, bad[i]);
		ret = host_read(&g, fd, &byte, 1);
		cr_assert(ret == 0 || ret == -ECONNRESET, "%s: %zd", bad[i], ret);
		close(fd);
	}
	guest_expect_nothing(&g);
	cr_assert_eq(host_live(&g), 0);
}

Test(vsock_stream, data_beyond_the_credit)
{
	static uint8_t block[VSOCK_MAX_PAYLOAD];
	uint32_t port;
	int fd = host_connect(&g, 9, &port);
	int small = 4096;
	struct g_packet *p;
	unsigned i;

	/* Nobody reads at the other end; sent without looking at the credit. */
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	for (i = 0; i < 64; i++) {
		guest_data(&g, 9, port, block, sizeof(block));
		p = guest_next(&g);
		if (p && p->hdr.op == VSOCK_OP_RST) {
			free(p);
			break;
		}
		free(p);
	}
	cr_assert_lt(i, 64);
	cr_assert_geq(i * sizeof(block), VSOCK_BUF_ALLOC);
	close(fd);
	guest_turn(&g);
	cr_assert_eq(host_live(&g), 0);
}
