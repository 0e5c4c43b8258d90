/* SPDX-License-Identifier: Apache-2.0 */
/* vsock across a pause, a snapshot and a thaw: nobody waits for ever, nothing is delivered twice. */
#include "tests/unit/devices/vsock_guest.h"

#include <time.h>

static struct guest g;
static struct vsock *old;    /* the monitor that the snapshot was taken in */
static struct vsock *thawed; /* what guest_turn() then serves is this one */
static struct state_buf buf;

static void setup(void)
{
	guest_open(&g, NULL);
}

static void teardown(void)
{
	vsock_close(old);
	guest_close(&g);
	state_buf_free(&buf);
}

TestSuite(vsock_state, .init = setup, .fini = teardown, .timeout = 120);

static void save(struct vsock *v)
{
	cr_assert(vdev_quiesce(vsock_vdev(v)));
	state_buf_free(&buf);
	vdev_save(vsock_vdev(v), &buf);
	cr_assert_eq(buf.err, 0);
}

static struct vsock *load(struct err *err)
{
	struct vsock_config config = { .path = NULL, .guest_cid = 99 };
	struct vsock *v;

	cr_assert_eq(vsock_open(&v, &config, &g.host, 0, err), 0);
	buf.pos = 0;
	if (vdev_load(vsock_vdev(v), &buf, err) == 0)
		return v;
	vsock_close(v);
	return NULL;
}

/* The guest goes on in another monitor; the first one stays paused. */
static void thaw(void)
{
	struct err err = { 0 };

	save(g.v);
	vsock_close(old);
	old = g.v;
	thawed = load(&err);
	cr_assert_not_null(thawed, "%s", err.msg);
	cr_assert_eq(buf.pos, buf.len);
	g.v = thawed;
	g.d.dev = vsock_vdev(thawed);
}

static void go(void)
{
	vdev_resume(vsock_vdev(g.v));
}

/* Throws away what has arrived. */
static void drain(void)
{
	struct g_packet *p;

	while ((p = guest_next(&g)))
		free(p);
}

static int dial(uint32_t port)
{
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	cr_assert_eq(vsock_connect(g.v, sv[1], port, VSOCK_NOW, NULL), 0);
	return sv[0];
}

Test(vsock_state, a_guest_without_connections_notices_nothing)
{
	unsigned irqs = g.d.irqs;
	uint64_t cid;
	int fd;

	thaw();
	go();
	guest_expect_nothing(&g);
	cr_assert_eq(g.events, 0);
	cr_assert_eq(g.d.irqs, irqs, "no interrupt for nothing");
	vmmio_read(g.d.dev, 0x100, &cid, 8);
	cr_assert_eq(cid, G_CID, "the guest keeps its CID");
	fd = dial(9);
	guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	cr_assert_gt(g.d.irqs, irqs);
	close(fd);
}

Test(vsock_state, a_guest_with_connections_gets_a_transport_reset)
{
	uint32_t port, stale;
	struct vsock_hdr hdr;
	int fd = host_connect(&g, 9, &stale), next;

	g.hold_event = true;
	thaw();
	next = dial(9); /* before anything else has happened */
	go();
	guest_expect_nothing(&g);
	cr_assert_eq(g.events, 1);
	guest_data(&g, 9, stale, "x", 1);
	guest_expect_nothing(&g);
	g.hold_event = false;
	hdr = guest_expect(&g, VSOCK_OP_RST, NULL);
	cr_assert_eq(hdr.src_port, stale);
	hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	port = hdr.src_port;
	cr_assert_neq(port, stale, "a port that the guest may still hold");
	guest_op(&g, VSOCK_OP_RESPONSE, 9, port);
	guest_data(&g, 9, port, "y", 1);
	cr_assert_eq(host_read(&g, next, &hdr, sizeof(hdr)), 1);
	cr_assert_eq(g.events, 1);
	close(fd);
	close(next);
}

Test(vsock_state, a_snapshot_leaves_the_running_machine_alone)
{
	uint32_t port;
	char text[8];
	int fd = host_connect(&g, 9, &port);

	save(g.v);
	cr_assert_eq(write(fd, "during", 6), 6);
	guest_expect_nothing(&g);
	go();
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RW, text).len, 6);
	guest_data(&g, 9, port, "after", 5);
	cr_assert_eq(host_read(&g, fd, text, sizeof(text)), 5);
	cr_assert_eq(g.events, 0);
	close(fd);
}

Test(vsock_state, snapshots_under_traffic)
{
	static uint8_t data[G_RX_LEN];
	uint32_t port, sent = 0, got = 0, echoed = 0;
	int fd = host_connect(&g, 9, &port);
	struct g_packet *p;

	for (unsigned i = 0; i < 100; i++) {
		uint32_t word[250];

		for (unsigned k = 0; k < 250; k++)
			word[k] = sent++;
		cr_assert_eq(send(fd, word, sizeof(word), MSG_DONTWAIT), (ssize_t)sizeof(word));
		save(g.v);
		guest_turn(&g);
		go();
		guest_turn(&g);
		while (g.first && (p = guest_next(&g))) {
			if (p->hdr.op == VSOCK_OP_RW) {
				for (uint32_t at = 0; at < p->hdr.len; at += 4, got++)
					cr_assert_eq(memcmp(p->data + at, &got, 4), 0);
				memcpy(data, p->data, p->hdr.len);
				guest_data(&g, 9, port, data, p->hdr.len);
			}
			free(p);
		}
		if (i % 10 == 9) { /* our guest's credit is never told back: start again */
			close(fd);
			while ((p = guest_next(&g))) {
				if (p->hdr.op == VSOCK_OP_SHUTDOWN &&
				    p->hdr.flags == VSOCK_SHUT_BOTH)
					guest_op(&g, VSOCK_OP_RST, 9, port);
				free(p);
			}
			fd = host_connect(&g, 9, &port);
			sent = got = echoed = 0;
			continue;
		}
		while (recv(fd, word, 4, MSG_DONTWAIT) == 4)
			cr_assert_eq(word[0], echoed++);
	}
	close(fd);
}

Test(vsock_state, the_event_waits_for_a_buffer)
{
	uint32_t port;
	int fd, next;

	g.hold_event = true; /* a driver that has not added event buffers yet */
	drv_write(&g.d, 0x70, 0);
	g_loop(&g);
	drv_start(&g.d, vsock_vdev(g.v), DRV_ALL_FEATURES, G_SIZE);
	g_rx_add(&g);
	fd = host_connect(&g, 9, &port);
	thaw();
	go();
	next = dial(9);
	guest_expect_nothing(&g);
	cr_assert_eq(g.events, 0);
	g.hold_event = false;
	guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	cr_assert_eq(g.events, 1);
	close(fd);
	close(next);
}

/* The second generation is frozen before the guest has looked at the first one's event. */
Test(vsock_state, an_event_that_was_not_handled_holds_the_next_generation)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port), next;

	thaw();
	go(); /* the event lies in the queue, the guest did not run */
	thaw();
	go();
	next = dial(9);
	g_loop(&g);
	cr_assert_eq(drv_load16(&g.d, g.d.q[G_RX].used + 2), g.d.q[G_RX].last_used,
	             "nothing may arrive before the guest has seen the event");
	guest_expect(&g, VSOCK_OP_REQUEST, NULL);
	cr_assert_eq(g.events, 1);
	close(fd);
	close(next);
}

Test(vsock_state, a_connect_storm_before_the_event_is_handled)
{
	uint32_t port;
	int fd = host_connect(&g, 9, &port), storm[300];

	g.hold_event = true;
	thaw();
	go();
	for (int i = 0; i < 300; i++)
		storm[i] = dial(1000 + (uint32_t)i);
	guest_expect_nothing(&g);
	g.hold_event = false;
	for (int i = 0; i < 300; i++) {
		struct vsock_hdr hdr = guest_expect(&g, VSOCK_OP_REQUEST, NULL);

		cr_assert_eq(hdr.dst_port, 1000u + (uint32_t)i);
		guest_op(&g, VSOCK_OP_RESPONSE, hdr.dst_port, hdr.src_port);
	}
	for (int i = 0; i < 300; i++)
		close(storm[i]);
	close(fd);
}

/* A transport reset does not reach sockets that are still connecting: these get their RST. */
Test(vsock_state, requests_that_were_not_answered_are_refused_after_the_thaw)
{
	unsigned buffers;

	g.hold_rx = true;
	guest_turn(&g);
	buffers = G_SIZE - (unsigned)g.d.q[G_RX].nr_free;
	for (unsigned i = 0; i < buffers + 5; i++) /* the last five do not fit */
		guest_op(&g, VSOCK_OP_REQUEST, i, 77);
	guest_turn(&g);
	cr_assert_eq(g.nr_rx, buffers);
	thaw();
	go();
	for (unsigned i = 0; i < buffers; i++)
		guest_expect(&g, VSOCK_OP_RST, NULL);
	guest_expect_nothing(&g);
	g.hold_rx = false;
	for (unsigned i = buffers; i < buffers + 5; i++)
		cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, i);
	cr_assert_eq(g.events, 0);
}

Test(vsock_state, what_lies_in_the_queues_is_served_after_the_thaw)
{
	cr_assert(vdev_quiesce(vsock_vdev(g.v)));
	guest_op(&g, VSOCK_OP_RW, 5, 6);
	thaw();
	go();
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, 5);
	guest_op(&g, VSOCK_OP_RW, 7, 8);
	cr_assert_eq(guest_expect(&g, VSOCK_OP_RST, NULL).dst_port, 7, "kicks come again");
}

/* Both sides speak first after many generations. */
Test(vsock_state, generations)
{
	for (int i = 0; i < 20; i++) {
		uint32_t port;
		char byte;
		int fd;

		thaw();
		go();
		fd = host_connect(&g, 9, &port);
		guest_data(&g, 9, port, "a", 1);
		cr_assert_eq(host_read(&g, fd, &byte, 1), 1);
		cr_assert_eq(write(fd, "b", 1), 1);
		guest_expect(&g, VSOCK_OP_RW, &byte);
		close(fd);
		while (1) {
			struct g_packet *p = guest_next(&g);

			if (!p)
				break;
			if (p->hdr.op == VSOCK_OP_SHUTDOWN && p->hdr.flags == VSOCK_SHUT_BOTH)
				guest_op(&g, VSOCK_OP_RST, 9, port);
			free(p);
		}
		cr_assert_eq(g.events, 0, "generation %d", i);
	}
}

/* ---- an idle device costs nothing ---- */

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void wake(struct loop_op *op, int res)
{
	(void)op;
	(void)res;
	loop_stop(&g.loop);
}

static void expect_idle(const char *when)
{
	struct loop_op timer = { .done = wake };
	uint64_t before = cpu_ns();

	loop_timer(&g.loop, &timer, 300000000);
	cr_assert_eq(loop_run(&g.loop), 0);
	cr_assert_lt(cpu_ns() - before, 20000000, "%s: %llu us of 300 ms", when,
	             (unsigned long long)(cpu_ns() - before) / 1000);
}

Test(vsock_state, idle_devices_do_not_spin)
{
	static uint8_t block[VSOCK_MAX_PAYLOAD];
	uint32_t port, other;
	int fd, small;

	expect_idle("fresh");
	thaw();
	go();
	expect_idle("thawed");
	/* A reader that has closed its sending side and does not read. */
	fd = host_connect(&g, 9, &port);
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 4; i++)
		guest_data(&g, 9, port, block, sizeof(block));
	guest_turn(&g);
	expect_idle("half-closed, not reading");
	drain();
	/* A guest that gives no credit. */
	small = host_connect(&g, 10, &other);
	fcntl(small, F_SETFL, O_NONBLOCK);
	while (send(small, block, sizeof(block), MSG_NOSIGNAL) > 0)
		guest_turn(&g);
	guest_turn(&g);
	expect_idle("no credit");
	close(small);
	expect_idle("no credit, and the writer gone");
	close(fd);
	drain();
	/* An event that the guest does not acknowledge. */
	fd = host_connect(&g, 11, &port);
	g.hold_event = true;
	thaw();
	go();
	small = dial(12);
	guest_turn(&g);
	expect_idle("event not handled");
	close(small);
	close(fd);
}

/* ---- forged sections ---- */

static void forge(size_t from_end, uint8_t value, const char *what)
{
	struct err err = { 0 };

	save(g.v);
	buf.p[buf.len - from_end] = value;
	cr_assert_null(load(&err), "%s", what);
	cr_assert_eq(err.code, -EBADMSG, "%s: %s", what, err.msg);
	cr_assert(strstr(err.msg, "vsock0"), "%s", err.msg);
}

Test(vsock_state, damaged_sections_are_refused)
{
	struct err err = { 0 };

	forge(1, 0xaa, "checksum");
	forge(700, 0x55, "checksum");
	save(g.v);
	buf.len -= 8;
	cr_assert_null(load(&err), "cut");
}

#define FORGED_STATE(F, A)             \
	F(1, uint64_t, guest_cid)      \
	F(1, uint32_t, live)           \
	F(1, uint32_t, event_due)      \
	F(1, uint32_t, events_unacked) \
	F(1, uint16_t, event_base) F(1, uint32_t, nr_replies) A(1, uint8_t, replies, 64 * 18)
STATE_STRUCT(forged_state, FORGED_STATE);
const struct state_desc *forged_state_desc(void);
STATE_DESC(forged_state, FORGED_STATE, "VSCK", 1, NULL)

/* Replaces the device's own section, checksum and all. */
static int load_forged(const struct forged_state *state)
{
	struct err err = { 0 };
	struct vsock *v;

	save(g.v);
	buf.len -= 16 + 26 + 64 * 18;
	state_put(&buf, forged_state_desc(), 0, state);
	v = load(&err);
	vsock_close(v);
	return err.code;
}

Test(vsock_state, forged_values_are_refused)
{
	const struct forged_state good = { .guest_cid = 3 };
	struct forged_state bad[5];

	cr_assert_eq(load_forged(&good), 0, "or the test forges in the wrong place");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].guest_cid = 2;
	bad[1].guest_cid = 1ull << 32;
	bad[2].event_due = 2;
	bad[3].nr_replies = 65;
	bad[4].events_unacked = 1000;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		cr_assert_eq(load_forged(&bad[i]), -EBADMSG, "case %zu", i);
}
