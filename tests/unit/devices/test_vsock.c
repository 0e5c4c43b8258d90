/* SPDX-License-Identifier: Apache-2.0 */
/* virtio-vsock over real sockets and a real loop: connecting, data both ways, ends, errors. */
#include "tests/unit/devices/vsock_guest.h"

#include <stdio.h>

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

	host_say(fd, "hello");
	guest_expect_data(&g, "hello");
	guest_data(&g, 1024, port, "world", 5);
	host_expect(&g, fd, "world");
	cr_assert_eq(host_live(&g), 1);
	close(fd);
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
	cr_assert_eq(host_live(&g), 0);
	close(sv[0]);
}

/* ---- the Unix sockets ---- */

Test(vsock, guest_connects_to_the_host)
{
	int listener = host_listen(path7), fd;

	guest_op(&g, VSOCK_OP_REQUEST, 5000, 7);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RESPONSE, NULL).src_port, 7);
	fd = accept(listener, NULL, NULL);
	cr_assert_geq(fd, 0);
	guest_data(&g, 5000, 7, "hi", 2);
	host_expect(&g, fd, "hi");
	host_say(fd, "ho");
	guest_expect_data(&g, "ho");
	guest_op(&g, VSOCK_OP_REQUEST, 5001, 8);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, 5001, "nobody listens at 8");
	close(listener);
	guest_op(&g, VSOCK_OP_REQUEST, 5002, 7);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, 5002, "nor at 7 any more");
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
	cr_assert_eq(host_live(&g), 0);
	close(listener);
}

Test(vsock, a_second_request)
{
	int listener = host_listen(path7);

	guest_op(&g, VSOCK_OP_REQUEST, 1, 7);
	guest_expect(&g, VSOCK_OP_RESPONSE, NULL);
	guest_op(&g, VSOCK_OP_REQUEST, 1, 7);
	expect_rst_to(1, 7);
	cr_assert_eq(host_live(&g), 0);
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
	cr_assert_eq(host_live(&g), 0);
	close(fd);
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

static uint32_t dice(uint32_t n)
{
	static uint64_t seed = 0x9e3779b97f4a7c15ull;

	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 24) % n;
}

/* Any operation with any flags, credit and length on a few ports, while programs come and go. */
Test(vsock, random_packets)
{
	static uint8_t block[4096];
	int listener = host_listen(path7), fd[16], nr = 0, last;
	uint32_t seen[16] = { 7, 7, 7, 7, 7, 7, 7, 7 }; /* host ports that the guest has heard of */
	struct vsock_stats stats;
	struct g_packet *p;
	uint16_t op;

	for (unsigned i = 0; i < 4000; i++) {
		struct vsock_hdr hdr = g_hdr((enum vsock_op)dice(9), dice(8), seen[dice(16)]);
		uint32_t n = dice(3) ? 0 : dice(sizeof(block));

		hdr.len = dice(20) ? n : dice(UINT32_MAX);
		hdr.flags = dice(5);
		hdr.buf_alloc = dice(4) ? 65536 : dice(UINT32_MAX);
		hdr.fwd_cnt = dice(4) ? 0 : dice(UINT32_MAX);
		hdr.type = dice(30) ? VSOCK_TYPE_STREAM : (uint16_t)dice(4);
		hdr.dst_cid = dice(30) ? VSOCK_HOST_CID : dice(5);
		guest_send(&g, &hdr, block, n);
		if (nr < 16 && dice(3) == 0) {
			fd[nr] = dice(2) ? host_dial(path) : accept(listener, NULL, NULL);
			if (fd[nr] >= 0)
				send(fd[nr++], "CONNECT 5\nand more", dice(19),
				     MSG_DONTWAIT | MSG_NOSIGNAL);
		}
		if (nr && dice(4) == 0)
			close(fd[--nr]);
		if (dice(3) == 0)
			guest_turn(&g);
		while (g.first && (p = guest_next(&g))) {
			seen[8 + dice(8)] = p->hdr.src_port;
			free(p);
		}
	}
	while (nr)
		close(fd[--nr]);
	close(listener);
	while ((p = guest_next(&g)))
		free(p);
	cr_assert(vdev_is_live(g.d.dev));
	vsock_stats(g.v, &stats);
	cr_assert_gt(stats.opened, 50, "%u", (unsigned)stats.opened);
	cr_assert_gt(stats.resets, 50);
	/* And it still works. */
	last = host_dial(path);
	host_say(last, "CONNECT 99\n");
	do {
		p = guest_next(&g);
		cr_assert(p);
		op = p->hdr.op;
		free(p);
	} while (op != VSOCK_OP_REQUEST);
	close(last);
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
	host_say(fd, "later");
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

/* ---- rate limits ---- */

static uint64_t test_now;

static uint64_t test_clock(void)
{
	return test_now;
}

static void hold(uint64_t bytes, uint64_t burst)
{
	const struct limit limit = { .rate = bytes, .burst = burst };

	test_now = 1;
	vsock_limit(g.v, &limit, test_clock);
}

/* Time goes by, and the device looks at its queues. */
static void pass(uint64_t ms)
{
	test_now += ms * 1000000;
	vdev_resume(vsock_vdev(g.v));
}

Test(vsock, bytes_to_the_guest_are_held_back)
{
	static char data[3 * 3000];
	struct vsock_stats stats;
	uint32_t port;
	int fd = host_connect(&g, 1024, &port);
	struct g_packet *p;
	size_t got = 0;

	hold(1000000, 3000);
	cr_assert_eq(write(fd, data, sizeof(data)), sizeof(data));
	p = guest_next(&g);
	cr_assert(p && p->hdr.op == VSOCK_OP_RW);
	got = p->hdr.len;
	cr_assert_gt(got, 3000 - 1, "a packet more than the burst is not split");
	free(p);
	while (got < sizeof(data)) {
		guest_expect_nothing(&g);
		pass(4); /* 4,000 bytes: a packet has at most 3,732 */
		p = guest_next(&g);
		cr_assert(p && p->hdr.op == VSOCK_OP_RW);
		got += p->hdr.len;
		free(p);
	}
	cr_assert_eq(got, sizeof(data));
	vsock_stats(g.v, &stats);
	cr_assert_geq(stats.to_guest.waits, 2);
	cr_assert_eq(stats.to_host.waits, 0);
	close(fd);
}

Test(vsock, bytes_to_the_host_are_held_back)
{
	static char data[3000], got[3000];
	struct vsock_stats stats;
	uint32_t port;
	int fd = host_connect(&g, 1024, &port);

	hold(1000000, 3000);
	for (int i = 0; i < 3; i++)
		guest_data(&g, 1024, port, data, sizeof(data));
	cr_assert_eq(host_read(&g, fd, got, sizeof(got)), 3000);
	cr_assert_eq(host_read(&g, fd, got, sizeof(got)), -EAGAIN);
	pass(4);
	cr_assert_eq(host_read(&g, fd, got, sizeof(got)), 3000);
	cr_assert_eq(host_read(&g, fd, got, sizeof(got)), -EAGAIN);
	pass(4);
	cr_assert_eq(host_read(&g, fd, got, sizeof(got)), 3000);
	vsock_stats(g.v, &stats);
	cr_assert_geq(stats.to_host.waits, 2);
	cr_assert_eq(stats.bytes_to_host, 9000);
	close(fd);
}

Test(vsock, the_other_direction_is_not_held_back)
{
	static char data[3000];
	uint32_t port;
	int fd = host_connect(&g, 1024, &port);

	hold(1, 1);
	guest_data(&g, 1024, port, data, sizeof(data));
	host_say(fd, "hello");
	guest_expect_data(&g, "hello");
	close(fd);
}

Test(vsock, reset_while_held_back)
{
	static char data[3000];
	uint32_t port;
	int fd = host_connect(&g, 1024, &port);

	hold(1000000, 1);
	for (int i = 0; i < 3; i++)
		guest_data(&g, 1024, port, data, sizeof(data));
	drv_write(&g.d, 0x70, 0);
	g_loop(&g);
	cr_assert_eq(drv_read(&g.d, 0x70), 0);
	cr_assert_eq(host_live(&g), 0, "the guest forgot its connections");
	close(fd);
}
