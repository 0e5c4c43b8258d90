/* SPDX-License-Identifier: Apache-2.0 */
/* The table of streams: its bound, who gives way, which ports are taken. */
#include "devices/vsock_table.h"
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

TestSuite(vsock_table, .init = setup, .fini = teardown, .timeout = 120);

Test(vsock_table, the_table_is_bounded)
{
	struct err err = { 0 };
	int ends[1025], sv[2], ret = 0, nr;

	host_want_files(2200);
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
	host_say(sv[0], "CONNECT 44\n");
	guest_expect_nothing(&g);
	close(ends[0]);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_REQUEST, NULL).dst_port, 44);
	while (--nr > 0)
		close(ends[nr]);
	close(sv[0]);
}

/* A guest that never closes its end of connections that the host has closed does not fill the table. */
Test(vsock_table, streams_that_only_wait_give_way)
{
	struct vsock_hdr hdr;
	uint32_t first = 0, port;
	int fd;

	for (unsigned i = 0; i < VSOCK_MAX_STREAMS; i++) {
		fd = host_connect(&g, 9, &port);
		first = i ? first : port;
		close(fd);
		do {
			hdr = guest_expect(&g, VSOCK_OP_SHUTDOWN, NULL);
		} while (hdr.flags != VSOCK_SHUT_BOTH);
	}
	cr_assert_eq(host_live(&g), VSOCK_MAX_STREAMS);
	fd = host_dial(path);
	host_say(fd, "CONNECT 44\n");
	hdr = guest_expect(&g, VSOCK_OP_RST, NULL);
	cr_assert_eq(hdr.src_port, first, "the oldest");
	cr_assert_eq(guest_expect(&g, VSOCK_OP_REQUEST, NULL).dst_port, 44);
	cr_assert_eq(host_live(&g), VSOCK_MAX_STREAMS);
	close(fd);
}

/* ---- by itself ---- */

static struct vsock_table table;

static struct vsock_stream *add(enum vsock_phase phase)
{
	struct vsock_stream *s;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	close(sv[0]);
	cr_assert_eq(vsock_table_add(&table, sv[1], phase, &s), 0);
	return s;
}

Test(vsock_table, host_ports_are_not_taken_twice)
{
	struct vsock_stream *a, *b, *c;

	cr_assert_eq(vsock_table_open(&table, 3, NULL), 0);
	table.next_port = UINT32_MAX; /* about to wrap around */
	a = add(VSOCK_SILENT);
	vsock_ask_guest(a, 80);
	b = add(VSOCK_SILENT);
	vsock_ask_guest(b, 80);
	cr_assert_neq(a->conn.host_port, b->conn.host_port);
	cr_assert_geq(b->conn.host_port, VSOCK_PORT_MIN);
	table.next_port = a->conn.host_port;
	c = add(VSOCK_SILENT);
	vsock_ask_guest(c, 80);
	cr_assert_neq(c->conn.host_port, a->conn.host_port);
	cr_assert_neq(c->conn.host_port, b->conn.host_port);
	cr_assert_eq(vsock_table_find(&table, a->conn.host_port, 80), a);
	cr_assert_null(vsock_table_find(&table, a->conn.host_port, 81));
	vsock_bury(a);
	cr_assert_null(vsock_table_find(&table, a->conn.host_port, 80));
	vsock_table_close(&table);
}

Test(vsock_table, each_table_begins_elsewhere)
{
	struct vsock_table other;

	cr_assert_eq(vsock_table_open(&table, 3, NULL), 0);
	cr_assert_eq(vsock_table_open(&other, 3, NULL), 0);
	cr_assert_neq(table.next_port, other.next_port);
	vsock_table_close(&table);
	vsock_table_close(&other);
}

Test(vsock_table, ready_streams_take_turns)
{
	struct vsock_stream *a, *b;

	cr_assert_eq(vsock_table_open(&table, 3, NULL), 0);
	a = add(VSOCK_SILENT);
	b = add(VSOCK_SILENT);
	vsock_want_guest(a);
	vsock_want_guest(b);
	vsock_want_guest(a);
	cr_assert_eq(vsock_table_next(&table), a);
	vsock_want_guest(a);
	cr_assert_eq(vsock_table_next(&table), b);
	vsock_bury(a);
	cr_assert_null(vsock_table_next(&table));
	cr_assert(vsock_table_free_buried(&table));
	cr_assert_not(vsock_table_free_buried(&table));
	vsock_table_close(&table);
}

Test(vsock_table, replies_are_bounded_and_in_order)
{
	struct vsock_hdr hdr;
	unsigned n = 0;

	cr_assert_eq(vsock_table_open(&table, 3, NULL), 0);
	for (int round = 0; round < 3; round++) {
		for (; n < VSOCK_MAX_REPLIES; n++)
			cr_assert(vsock_table_reply(&table,
			                            &(struct vsock_reply){ 2, n, 1000 + n, 1 }));
		cr_assert_not(vsock_table_reply(&table, &(struct vsock_reply){ 2, n, n, 1 }));
		cr_assert_not(vsock_table_can_reply(&table));
		for (n = 0; n < 40; n++) {
			vsock_table_next_reply(&table, &hdr);
			cr_assert_eq(hdr.op, VSOCK_OP_RST);
			if (!round)
				cr_assert_eq(hdr.dst_port, 1000 + n);
		}
		n = VSOCK_MAX_REPLIES - 40;
		cr_assert(vsock_table_can_reply(&table));
	}
	vsock_table_close(&table);
}
