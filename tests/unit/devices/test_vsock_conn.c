/* SPDX-License-Identifier: Apache-2.0 */
/* The connection state machine by itself: every operation in every state, and credit to the byte. */
#include "devices/vsock_conn.h"

#include <criterion/criterion.h>

static struct vsock_conn c;
static struct vsock_hdr out;

static struct vsock_hdr packet(enum vsock_op op)
{
	return (struct vsock_hdr){ .src_cid = 3,
		                   .dst_cid = 2,
		                   .src_port = 10,
		                   .dst_port = 20,
		                   .type = VSOCK_TYPE_STREAM,
		                   .op = (uint16_t)op,
		                   .buf_alloc = 1000 };
}

static enum vsock_event recv_op(enum vsock_op op)
{
	struct vsock_hdr hdr = packet(op);

	return vsock_conn_recv(&c, &hdr);
}

static enum vsock_event recv_credit(uint32_t alloc, uint32_t fwd)
{
	struct vsock_hdr hdr = packet(VSOCK_OP_CREDIT_UPDATE);

	hdr.buf_alloc = alloc;
	hdr.fwd_cnt = fwd;
	return vsock_conn_recv(&c, &hdr);
}

static enum vsock_event recv_data(uint32_t n)
{
	struct vsock_hdr hdr = packet(VSOCK_OP_RW);

	hdr.len = n;
	return vsock_conn_recv(&c, &hdr);
}

static enum vsock_event recv_shutdown(uint32_t flags)
{
	struct vsock_hdr hdr = packet(VSOCK_OP_SHUTDOWN);

	hdr.flags = flags;
	return vsock_conn_recv(&c, &hdr);
}

static void next_is(enum vsock_op op)
{
	cr_assert(vsock_conn_next(&c, &out));
	cr_assert_eq(out.op, op, "op %u, want %d", out.op, op);
	cr_assert_eq(out.src_cid, 2);
	cr_assert_eq(out.dst_cid, 3);
	cr_assert_eq(out.src_port, 20);
	cr_assert_eq(out.dst_port, 10);
	cr_assert_eq(out.type, VSOCK_TYPE_STREAM);
	cr_assert_eq(out.len, 0);
	cr_assert_eq(out.buf_alloc, VSOCK_BUF_ALLOC);
}

static void silent(void)
{
	cr_assert_not(vsock_conn_has_next(&c));
	cr_assert_not(vsock_conn_next(&c, &out));
}

static void requested(void)
{
	vsock_conn_request(&c, 3, 20, 10);
	next_is(VSOCK_OP_REQUEST);
	silent();
}

static void opened(void)
{
	struct vsock_hdr hdr = packet(VSOCK_OP_REQUEST);

	vsock_conn_accept(&c, 3, &hdr);
	next_is(VSOCK_OP_RESPONSE);
	silent();
}

static void is_dead_after_rst(void)
{
	cr_assert_eq(c.state, VSOCK_CONN_DEAD);
	cr_assert(vsock_conn_is_known(&c), "the guest has still to hear of it");
	next_is(VSOCK_OP_RST);
	cr_assert_not(vsock_conn_is_known(&c));
	silent();
}

Test(vsock_conn, host_asks_and_guest_accepts)
{
	vsock_conn_request(&c, 3, 20, 10);
	cr_assert_not(vsock_conn_is_known(&c));
	next_is(VSOCK_OP_REQUEST);
	cr_assert(vsock_conn_is_known(&c));
	cr_assert_eq(vsock_conn_room(&c), 0);
	cr_assert_eq(recv_op(VSOCK_OP_RESPONSE), VSOCK_EVENT_OPEN);
	cr_assert_eq(vsock_conn_room(&c), 1000);
	silent();
}

Test(vsock_conn, guest_asks)
{
	struct vsock_hdr hdr = packet(VSOCK_OP_REQUEST);

	vsock_conn_accept(&c, 3, &hdr);
	cr_assert(vsock_conn_owes_answer(&c));
	next_is(VSOCK_OP_RESPONSE);
	cr_assert_not(vsock_conn_owes_answer(&c));
	cr_assert_eq(c.state, VSOCK_CONN_OPEN);
}

Test(vsock_conn, an_answer_before_the_request_is_an_error)
{
	vsock_conn_request(&c, 3, 20, 10);
	cr_assert_eq(recv_op(VSOCK_OP_RESPONSE), VSOCK_EVENT_DEAD);
	is_dead_after_rst();
}

Test(vsock_conn, only_an_answer_may_follow_a_request)
{
	static const enum vsock_op bad[] = {
		VSOCK_OP_REQUEST,       VSOCK_OP_SHUTDOWN,       VSOCK_OP_RW,
		VSOCK_OP_CREDIT_UPDATE, VSOCK_OP_CREDIT_REQUEST, (enum vsock_op)0,
		(enum vsock_op)8,       (enum vsock_op)0xffff
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		requested();
		cr_assert_eq(recv_op(bad[i]), VSOCK_EVENT_DEAD, "op %d", bad[i]);
		is_dead_after_rst();
	}
	requested();
	cr_assert_eq(recv_op(VSOCK_OP_RST), VSOCK_EVENT_DEAD);
	silent();
}

Test(vsock_conn, what_an_open_connection_refuses)
{
	static const enum vsock_op bad[] = { VSOCK_OP_REQUEST, VSOCK_OP_RESPONSE, (enum vsock_op)0,
		                             (enum vsock_op)8, (enum vsock_op)0xffff };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		opened();
		cr_assert_eq(recv_op(bad[i]), VSOCK_EVENT_DEAD, "op %d", bad[i]);
		is_dead_after_rst();
	}
}

Test(vsock_conn, one_rst_and_no_answer_to_one)
{
	opened();
	cr_assert_eq(recv_op(VSOCK_OP_REQUEST), VSOCK_EVENT_DEAD);
	cr_assert_eq(recv_data(5), VSOCK_EVENT_DEAD);
	cr_assert_eq(recv_op(VSOCK_OP_RST), VSOCK_EVENT_DEAD);
	silent();
	opened();
	cr_assert_eq(recv_op(VSOCK_OP_RST), VSOCK_EVENT_DEAD);
	silent();
}

/* ---- host to guest ---- */

Test(vsock_conn, room_follows_the_guests_credit)
{
	opened();
	vsock_conn_data(&c, 600, &out);
	cr_assert_eq(out.op, VSOCK_OP_RW);
	cr_assert_eq(out.len, 600);
	cr_assert_eq(vsock_conn_room(&c), 400);
	vsock_conn_data(&c, 400, &out);
	cr_assert_eq(vsock_conn_room(&c), 0);
	recv_credit(1000, 1);
	cr_assert_eq(vsock_conn_room(&c), 1);
	recv_credit(500, 600);
	cr_assert_eq(vsock_conn_room(&c), 100, "the guest has made its buffer smaller");
	recv_credit(300, 600);
	cr_assert_eq(vsock_conn_room(&c), 0, "below what is under way");
	recv_credit(UINT32_MAX, 1000);
	cr_assert_eq(vsock_conn_room(&c), VSOCK_MAX_PAYLOAD, "one packet's worth");
	recv_credit(1000, 5000);
	cr_assert_eq(vsock_conn_room(&c), 0, "a guest that has read what was never sent");
}

Test(vsock_conn, counters_wrap_around)
{
	opened();
	c.tx_cnt = c.peer_fwd = UINT32_MAX - 100;
	cr_assert_eq(vsock_conn_room(&c), 1000);
	vsock_conn_data(&c, 1000, &out);
	cr_assert_eq(vsock_conn_room(&c), 0);
	recv_credit(1000, UINT32_MAX - 100 + 700);
	cr_assert_eq(vsock_conn_room(&c), 700);
	c.rx_cnt = c.fwd_cnt = c.fwd_told = UINT32_MAX - 10;
	cr_assert_eq(recv_data(VSOCK_BUF_ALLOC), VSOCK_EVENT_DATA);
	cr_assert_eq(recv_data(1), VSOCK_EVENT_DEAD);
}

Test(vsock_conn, credit_is_asked_for_once)
{
	opened();
	vsock_conn_data(&c, 1000, &out);
	vsock_conn_want_room(&c);
	next_is(VSOCK_OP_CREDIT_REQUEST);
	vsock_conn_want_room(&c);
	silent();
	recv_credit(1000, 0);
	vsock_conn_want_room(&c);
	silent(); /* or two sides without credit would talk of nothing else */
	recv_credit(1000, 1000);
	vsock_conn_data(&c, 1000, &out);
	vsock_conn_want_room(&c);
	next_is(VSOCK_OP_CREDIT_REQUEST);
}

/* ---- guest to host ---- */

Test(vsock_conn, the_guests_data_is_bounded_by_our_credit)
{
	opened();
	cr_assert_eq(recv_data(VSOCK_BUF_ALLOC - 1), VSOCK_EVENT_DATA);
	cr_assert_eq(recv_data(1), VSOCK_EVENT_DATA);
	cr_assert_eq(recv_data(0), VSOCK_EVENT_NONE);
	vsock_conn_forwarded(&c, 10);
	cr_assert_eq(recv_data(10), VSOCK_EVENT_DATA);
	cr_assert_eq(recv_data(1), VSOCK_EVENT_DEAD);
	is_dead_after_rst();
	opened();
	cr_assert_eq(recv_data(UINT32_MAX), VSOCK_EVENT_DEAD);
}

Test(vsock_conn, updates_come_before_the_guest_stalls)
{
	opened();
	recv_data(VSOCK_BUF_ALLOC / 2);
	vsock_conn_forwarded(&c, VSOCK_BUF_ALLOC / 2);
	silent();
	recv_data(1);
	vsock_conn_forwarded(&c, 1);
	next_is(VSOCK_OP_CREDIT_UPDATE);
	cr_assert_eq(out.fwd_cnt, VSOCK_BUF_ALLOC / 2 + 1);
	silent();
	/* Whatever is sent carries the count: no update of its own. */
	recv_data(VSOCK_BUF_ALLOC);
	vsock_conn_forwarded(&c, 77);
	cr_assert(vsock_conn_has_next(&c));
	vsock_conn_data(&c, 1, &out);
	cr_assert_eq(out.fwd_cnt, VSOCK_BUF_ALLOC / 2 + 78);
	silent();
}

/* However the host reads, a guest that uses all its credit is never left without an update. */
Test(vsock_conn, no_credit_is_lost)
{
	uint32_t told = 0, sent = 0, seed = 1;

	opened();
	for (int i = 0; i < 20000; i++) {
		uint32_t room = VSOCK_BUF_ALLOC - (sent - told), n;

		seed = seed * 1664525u + 1013904223u;
		n = seed % (room + 1);
		if (n) {
			cr_assert_eq(recv_data(n), VSOCK_EVENT_DATA);
			sent += n;
		}
		n = c.rx_cnt - c.fwd_cnt;
		vsock_conn_forwarded(&c, i % 7 ? seed / 7 % (n + 1) : n);
		while (vsock_conn_next(&c, &out))
			told = out.fwd_cnt;
		if (c.rx_cnt == c.fwd_cnt)
			cr_assert_leq(sent - told, VSOCK_BUF_ALLOC / 2, "stalled with all read");
	}
}

Test(vsock_conn, a_credit_request_is_answered)
{
	opened();
	recv_data(100);
	vsock_conn_forwarded(&c, 60);
	cr_assert_eq(recv_op(VSOCK_OP_CREDIT_REQUEST), VSOCK_EVENT_NONE);
	cr_assert_eq(recv_op(VSOCK_OP_CREDIT_REQUEST), VSOCK_EVENT_NONE);
	next_is(VSOCK_OP_CREDIT_UPDATE);
	cr_assert_eq(out.fwd_cnt, 60);
	silent();
}

/* ---- ends ---- */

Test(vsock_conn, guest_shuts_in_two_steps)
{
	opened();
	cr_assert_eq(recv_shutdown(VSOCK_SHUT_SEND), VSOCK_EVENT_NONE);
	cr_assert_eq(vsock_conn_room(&c), 1000, "the other direction goes on");
	cr_assert_eq(recv_shutdown(0), VSOCK_EVENT_NONE);
	cr_assert_eq(recv_shutdown(VSOCK_SHUT_RCV | 0x100), VSOCK_EVENT_DEAD);
	is_dead_after_rst();
}

Test(vsock_conn, guest_takes_no_more)
{
	opened();
	recv_shutdown(VSOCK_SHUT_RCV);
	cr_assert_eq(vsock_conn_room(&c), 0);
	cr_assert_eq(recv_data(3), VSOCK_EVENT_DATA);
}

Test(vsock_conn, guest_sends_no_more)
{
	opened();
	recv_shutdown(VSOCK_SHUT_SEND);
	cr_assert_eq(recv_data(1), VSOCK_EVENT_DEAD);
	is_dead_after_rst();
}

Test(vsock_conn, host_shuts_in_two_steps)
{
	opened();
	vsock_conn_shut(&c, VSOCK_SHUT_RCV);
	next_is(VSOCK_OP_SHUTDOWN);
	cr_assert_eq(out.flags, VSOCK_SHUT_RCV);
	cr_assert_eq(recv_data(VSOCK_BUF_ALLOC), VSOCK_EVENT_NONE, "was under way: dropped");
	cr_assert_eq(recv_data(VSOCK_BUF_ALLOC), VSOCK_EVENT_NONE, "... and not held");
	vsock_conn_data(&c, 5, &out);
	vsock_conn_shut(&c, VSOCK_SHUT_SEND);
	cr_assert_eq(vsock_conn_room(&c), 0);
	next_is(VSOCK_OP_SHUTDOWN);
	cr_assert_eq(out.flags, VSOCK_SHUT_BOTH);
	vsock_conn_shut(&c, VSOCK_SHUT_BOTH);
	silent();
	cr_assert_eq(c.state, VSOCK_CONN_OPEN, "until the guest's RST");
	cr_assert_eq(recv_op(VSOCK_OP_RST), VSOCK_EVENT_DEAD);
	silent();
}

Test(vsock_conn, abort_speaks_to_those_who_know)
{
	vsock_conn_request(&c, 3, 20, 10);
	vsock_conn_abort(&c);
	cr_assert_eq(c.state, VSOCK_CONN_DEAD);
	silent();
	requested();
	vsock_conn_abort(&c);
	is_dead_after_rst();
	opened();
	vsock_conn_abort(&c);
	vsock_conn_abort(&c);
	is_dead_after_rst();
}
