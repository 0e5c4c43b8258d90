/* SPDX-License-Identifier: Apache-2.0 */
/* virtio-vsock over real sockets and a real loop: connecting, data both ways, ends, errors. */
#include "tests/unit/devices/vsock_guest.h"

#include <stdio.h>
#include <sys/stat.h>

static struct guest g;
static char dir[64], path[80], path7[80];

static void setup(void)
{
	strcpy(dir, "/tmp/vsock-test-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/v", dir);
	snprintf(path7, sizeof(path7), "%s/v_7", dir);
	guest_open(&g, path);
}

static void teardown(void)
{
	guest_close(&g);
	unlink(path7);
	cr_assert_eq(rmdir(dir), 0, "the Unix socket was left behind");
}

TestSuite(vsock, .init = setup, .fini = teardown, .timeout = 120);

static unsigned live(void)
{
	struct vsock_stats stats;

	vsock_stats(g.v, &stats);
	return stats.live;
}

static void expect_text(int fd, const char *text)
{
	char got[64] = "";

	cr_assert_eq(host_read(&g, fd, got, sizeof(got) - 1), (ssize_t)strlen(text), "%s", text);
	cr_assert_str_eq(got, text);
}

static void say(int fd, const char *text)
{
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void expect_data(const char *text)
{
	char got[G_RX_LEN] = "";
	struct vsock_hdr hdr = guest_expect(&g, VSOCK_OP_RW, got);

	cr_assert_eq(hdr.len, strlen(text));
	cr_assert_str_eq(got, text);
}

/* ---- connecting ---- */

Test(vsock, configuration_is_the_cid)
{
	uint64_t cid = 0;
	uint32_t half = 1;

	vmmio_read(g.d.dev, 0x100, &cid, 8);
	cr_assert_eq(cid, G_CID);
	vmmio_read(g.d.dev, 0x104, &half, 4);
	cr_assert_eq(half, 0);
	cr_assert_eq(drv_read(&g.d, 0x08), 19);
}

Test(vsock, host_connects_and_talks)
{
	uint32_t port;
	int fd = host_connect(&g, 1024, &port);

	say(fd, "hello");
	expect_data("hello");
	guest_data(&g, 1024, port, "world", 5);
	expect_text(fd, "world");
	cr_assert_eq(live(), 1);
	close(fd);
}

Test(vsock, what_was_said_before_the_answer_arrives)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	say(sv[0], " second");
	cr_assert_eq(vsock_connect_with(g.v, sv[1], 9, "first", 5, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_expect_nothing(&g);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	expect_data("first");
	expect_data(" second");
	close(sv[0]);
}

Test(vsock, a_program_that_speaks_and_leaves_is_heard)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	say(sv[0], "do it");
	close(sv[0]);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_NOW, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_turn(&g);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_RCV);
	expect_data("do it");
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_BOTH);
	cr_assert_eq(live(), 1, "until the guest has said its RST");
	guest_op(&g, VSOCK_OP_RST, 9, hdr.src_port);
	guest_expect_nothing(&g);
	cr_assert_eq(live(), 0);
}

Test(vsock, guest_refuses)
{
	struct vsock_hdr hdr;
	char byte;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_NOW, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_op(&g, VSOCK_OP_RST, 9, hdr.src_port);
	cr_assert_eq(host_read(&g, sv[0], &byte, 1), 0);
	cr_assert_eq(live(), 0);
	close(sv[0]);
}

Test(vsock, asks_on_the_first_byte_only)
{
	struct vsock_hdr hdr;
	int sv[2], quiet[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, quiet), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_ON_FIRST_BYTE, NULL), 0);
	cr_assert_eq(vsock_connect(g.v, quiet[1], 9, VSOCK_ON_FIRST_BYTE, NULL), 0);
	guest_expect_nothing(&g);
	cr_assert_eq(live(), 2);
	close(quiet[0]);
	guest_expect_nothing(&g);
	cr_assert_eq(live(), 1);
	say(sv[0], "x");
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	expect_data("x");
	close(sv[0]);
}

Test(vsock, a_program_that_gives_up_is_forgotten)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_NOW, NULL), 0);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	close(sv[0]);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).src_port, hdr.src_port);
	guest_expect_nothing(&g);
	cr_assert_eq(live(), 0);
	guest_op(&g, VSOCK_OP_RESPONSE, 9, hdr.src_port);
	guest_expect(&g, VSOCK_OP_RST, NULL);
}

/* ---- the Unix sockets ---- */

Test(vsock, connect_convention)
{
	struct vsock_hdr hdr;
	char line[32];
	int fd = host_dial(path);

	cr_assert_geq(fd, 0);
	say(fd, "CONN");
	guest_expect_nothing(&g);
	say(fd, "ECT 4294967295\nmore");
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	cr_assert_eq(hdr.dst_port, UINT32_MAX);
	guest_op(&g, VSOCK_OP_RESPONSE, hdr.dst_port, hdr.src_port);
	snprintf(line, sizeof(line), "OK %u\n", hdr.src_port);
	expect_text(fd, line);
	expect_data("more");
	close(fd);
}

Test(vsock, bad_greetings_are_closed)
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

		say(fd, bad[i]);
		ret = host_read(&g, fd, &byte, 1);
		cr_assert(ret == 0 || ret == -ECONNRESET, "%s: %zd", bad[i], ret);
		close(fd);
	}
	guest_expect_nothing(&g);
	cr_assert_eq(live(), 0);
}

Test(vsock, guest_connects_to_the_host)
{
	int listener = host_listen(path7), fd;

	guest_op(&g, VSOCK_OP_REQUEST, 5000, 7);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RESPONSE, NULL).src_port, 7);
	fd = accept(listener, NULL, NULL);
	cr_assert_geq(fd, 0);
	guest_data(&g, 5000, 7, "hi", 2);
	expect_text(fd, "hi");
	say(fd, "ho");
	expect_data("ho");
	guest_op(&g, VSOCK_OP_REQUEST, 5001, 8);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, 5001, "nobody listens at 8");
	close(listener);
	guest_op(&g, VSOCK_OP_REQUEST, 5002, 7);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, 5002, "nor at 7 any more");
	close(fd);
}

static int try_open(const char *at, struct err *err)
{
	struct vsock_config config = { .path = at, .guest_cid = 3 };
	struct vsock *v;
	int ret = vsock_open(&v, &config, &g.host, 1, err);

	if (ret == 0)
		vsock_close(v);
	return ret;
}

Test(vsock, a_path_in_use_is_refused_and_a_stale_one_replaced)
{
	struct err err = { 0 };
	char other[80], text[120];
	int fd;

	cr_assert_eq(try_open(path, &err), -EADDRINUSE);
	cr_assert(strstr(err.msg, path) && err.remedy[0]);
	snprintf(other, sizeof(other), "%s/w", dir);
	close(host_listen(other));
	cr_assert_eq(try_open(other, &err), 0, "a socket that nobody serves: %s", err.msg);
	cr_assert_eq(access(other, F_OK), -1, "removed at close");
	fd = open(other, O_CREAT | O_WRONLY, 0600);
	close(fd);
	cr_assert_eq(try_open(other, &err), -EEXIST);
	cr_assert_eq(access(other, F_OK), 0, "a file of somebody is left alone");
	unlink(other);
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	cr_assert_eq(try_open(text, &err), -ENAMETOOLONG);
	snprintf(other, sizeof(other), "%s/no/such", dir);
	cr_assert_eq(try_open(other, &err), -ENOENT, "%s", err.msg);
	cr_assert(err.remedy[0]);
}

Test(vsock, a_socket_of_somebody_else_is_not_removed)
{
	unlink(path);
	close(host_listen(path));
	vsock_close(g.v);
	g.v = NULL;
	cr_assert_eq(access(path, F_OK), 0);
	unlink(path);
}

/* ---- ends ---- */

Test(vsock, host_half_closes)
{
	struct vsock_hdr hdr;
	uint32_t port;
	char byte;
	int fd = host_connect(&g, 9, &port);

	say(fd, "last");
	shutdown(fd, SHUT_WR);
	expect_data("last");
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_SEND);
	guest_data(&g, 9, port, "answer", 6);
	expect_text(fd, "answer");
	guest_shut(&g, 9, port, VSOCK_SHUT_BOTH);
	guest_expect(&g, VSOCK_OP_RST, NULL);
	cr_assert_eq(host_read(&g, fd, &byte, 1), 0);
	cr_assert_eq(live(), 0);
	close(fd);
}

Test(vsock, guest_half_closes)
{
	struct vsock_hdr hdr;
	uint32_t port;
	char byte;
	int fd = host_connect(&g, 9, &port);

	guest_data(&g, 9, port, "last", 4);
	guest_shut(&g, 9, port, VSOCK_SHUT_SEND);
	expect_text(fd, "last");
	cr_assert_eq(host_read(&g, fd, &byte, 1), 0);
	say(fd, "answer");
	expect_data("answer");
	close(fd);
	hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	if (hdr.flags != VSOCK_SHUT_BOTH)
		hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
	cr_assert_eq(hdr.flags, VSOCK_SHUT_BOTH);
	guest_op(&g, VSOCK_OP_RST, 9, port);
	guest_expect_nothing(&g);
	cr_assert_eq(live(), 0);
}

Test(vsock, guest_takes_no_more)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port);

	guest_shut(&g, 9, port, VSOCK_SHUT_RCV);
	guest_turn(&g);
	cr_assert_eq(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	cr_assert_eq(errno, EPIPE);
	guest_expect_nothing(&g);
	guest_data(&g, 9, port, "still", 5);
	expect_text(fd, "still");
	close(fd);
}

/* The guest closes at once; the host reads later, and loses nothing. */
Test(vsock, data_before_the_guests_close_is_delivered)
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
	cr_assert_eq(live(), 0);
	close(fd);
}

Test(vsock, driver_resets_the_device)
{
	uint32_t port;
	char byte;
	int fd = host_connect(&g, 9, &port), sv[2];

	drv_write(&g.d, 0x70, 0);
	cr_assert_eq(host_read(&g, fd, &byte, 1), 0, "connections of the old driver are closed");
	cr_assert_eq(drv_read(&g.d, 0x70), 0);
	close(fd);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], 9, VSOCK_NOW, NULL), 0);
	drv_start(&g.d, vsock_vdev(g.v), 1ull << VIRTIO_F_VERSION_1, G_SIZE);
	g_rx_add(&g);
	guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	close(sv[0]);
}

/* ---- errors: each one is answered by RST, and the device lives ---- */

static void expect_rst_to(uint32_t guest_port, uint32_t host_port)
{
	struct vsock_hdr hdr = guest_expect(&g, VSOCK_OP_RST, NULL);

	cr_assert_eq(hdr.dst_port, guest_port);
	cr_assert_eq(hdr.src_port, host_port);
	guest_expect_nothing(&g);
}

Test(vsock, packets_of_no_connection)
{
	static const enum vsock_op ops[] = { VSOCK_OP_RESPONSE, VSOCK_OP_SHUTDOWN, VSOCK_OP_RW,
		                             VSOCK_OP_CREDIT_UPDATE, VSOCK_OP_CREDIT_REQUEST };

	for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
		guest_op(&g, ops[i], 1, 2);
		expect_rst_to(1, 2);
	}
	guest_op(&g, VSOCK_OP_RST, 1, 2);
	guest_expect_nothing(&g);
	guest_op(&g, (enum vsock_op)99, 1, 2);
	expect_rst_to(1, 2);
}

Test(vsock, wrong_cids_and_types)
{
	struct vsock_hdr hdr = g_hdr(VSOCK_OP_REQUEST, 1, 7);
	struct vsock_hdr answer;
	int listener = host_listen(path7);

	hdr.dst_cid = 9;
	guest_send(&g, &hdr, NULL, 0);
	answer = guest_expect(&g, VSOCK_OP_RST, NULL);
	cr_assert_eq(answer.src_cid, 9);
	hdr = g_hdr(VSOCK_OP_REQUEST, 1, 7);
	hdr.src_cid = 4;
	guest_send(&g, &hdr, NULL, 0);
	expect_rst_to(1, 7);
	hdr = g_hdr(VSOCK_OP_REQUEST, 1, 7);
	hdr.type = 2;
	guest_send(&g, &hdr, NULL, 0);
	answer = guest_expect(&g, VSOCK_OP_RST, NULL);
	cr_assert_eq(answer.type, 2, "or the guest would not find its socket");
	cr_assert_eq(live(), 0);
	close(listener);
}

Test(vsock, a_second_request)
{
	int listener = host_listen(path7);

	guest_op(&g, VSOCK_OP_REQUEST, 1, 7);
	guest_expect(&g, VSOCK_OP_RESPONSE, NULL);
	guest_op(&g, VSOCK_OP_REQUEST, 1, 7);
	expect_rst_to(1, 7);
	cr_assert_eq(live(), 0);
	guest_op(&g, VSOCK_OP_REQUEST, 1, 7);
	guest_expect(&g, VSOCK_OP_RESPONSE, NULL);
	close(listener);
}

Test(vsock, a_length_beyond_the_packet)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port);
	struct vsock_hdr hdr = g_hdr(VSOCK_OP_RW, 9, port);

	hdr.len = 100;
	guest_send(&g, &hdr, "short", 5);
	expect_rst_to(9, port);
	cr_assert_eq(live(), 0);
	close(fd);
}

Test(vsock, data_beyond_the_credit)
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
	cr_assert_eq(live(), 0);
}

Test(vsock, data_after_the_guests_shutdown)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port);

	guest_shut(&g, 9, port, VSOCK_SHUT_SEND);
	guest_data(&g, 9, port, "x", 1);
	expect_rst_to(9, port);
	close(fd);
}

Test(vsock, a_short_header_breaks_the_device)
{
	struct drv_seg seg = { g.tx_buf, VSOCK_HDR_LEN - 1 };

	drv_add(&g.d, G_TX, &seg, 1, 0);
	drv_kick(&g.d, G_TX);
	g_loop(&g);
	cr_assert(drv_read(&g.d, 0x70) & VIRTIO_STATUS_NEEDS_RESET);
}

Test(vsock, a_receive_buffer_without_room_breaks_the_device)
{
	struct drv_seg seg = { g.rx_buf, VSOCK_HDR_LEN };
	uint32_t taken = g.d.q[G_RX].next_avail;

	for (uint32_t i = 0; i < taken; i++) { /* use up the good ones */
		g.hold_rx = true;
		guest_op(&g, VSOCK_OP_RW, 1, 2);
		guest_turn(&g);
	}
	drv_add(&g.d, G_RX, &seg, 0, 1);
	guest_op(&g, VSOCK_OP_RW, 1, 2);
	g_loop(&g);
	cr_assert(drv_read(&g.d, 0x70) & VIRTIO_STATUS_NEEDS_RESET);
}

/* ---- starvation ---- */

Test(vsock, a_starved_receive_queue_loses_nothing)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port);
	unsigned buffers;

	g.hold_rx = true;
	guest_turn(&g);
	buffers = (unsigned)G_SIZE - g.d.q[G_RX].nr_free;
	for (unsigned i = 0; i < buffers + 70; i++)
		guest_op(&g, VSOCK_OP_RW, i, 1);
	for (unsigned i = 0; i < buffers; i++)
		cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, i);
	say(fd, "later");
	guest_expect_nothing(&g);
	g.hold_rx = false;
	for (unsigned i = buffers; i < buffers + 70; i++) {
		struct g_packet *p = guest_next(&g);

		cr_assert(p);
		if (p->hdr.op == VSOCK_OP_RW) { /* between the answers, wherever it fits */
			cr_assert_eq(memcmp(p->data, "later", 5), 0);
			i--;
		} else {
			cr_assert_eq(p->hdr.op, VSOCK_OP_RST);
			cr_assert_eq(p->hdr.dst_port, i);
		}
		free(p);
	}
	close(fd);
}

Test(vsock, the_table_is_bounded)
{
	struct err err = { 0 };
	int ends[1025], sv[2], ret = 0, nr;

	for (nr = 0; nr < 1025; nr++) {
		cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
		ends[nr] = sv[0];
		ret = vsock_connect(g.v, sv[1], 9, VSOCK_ON_FIRST_BYTE, &err);
		if (ret < 0)
			break;
	}
	cr_assert_eq(nr, 1024);
	cr_assert_eq(ret, -ENOSPC);
	cr_assert(err.remedy[0]);
	cr_assert_eq(fcntl(sv[1], F_GETFD) & ~FD_CLOEXEC, 0, "still the caller's");
	close(sv[1]);
	close(sv[0]);
	/* A program that comes now waits until one has gone. */
	sv[0] = host_dial(path);
	say(sv[0], "CONNECT 44\n");
	guest_expect_nothing(&g);
	close(ends[0]);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_REQUEST, NULL).dst_port, 44);
	while (--nr > 0)
		close(ends[nr]);
	close(sv[0]);
}
