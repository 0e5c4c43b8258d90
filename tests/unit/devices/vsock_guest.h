/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest's side of virtio-vsock for tests: packets by hand over driver.h's rings, receive buffers
 * of the size that Linux uses, credit kept as a well-behaved guest keeps it. What arrives is queued
 * and looked at by guest_next(). One thread: guest_turn() lets the device's loop work, then the guest.
 */
#ifndef TESTS_DEVICES_VSOCK_GUEST_H
#define TESTS_DEVICES_VSOCK_GUEST_H

#include "devices/vsock.h"
#include "devices/vsock_conn.h"
#include "tests/unit/devices/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define G_RX        0
#define G_TX        1
#define G_EVENT     2
#define G_SIZE      128
#define G_RX_LEN    3776u /* Linux: one page less what an skb needs */
#define G_TX_LEN    (VSOCK_HDR_LEN + VSOCK_MAX_PAYLOAD)
#define G_BUF_ALLOC (256u << 10)
#define G_CID       3u

struct g_packet {
	struct vsock_hdr hdr;
	struct g_packet *next;
	uint8_t data[];
};

struct guest {
	struct drv d;
	struct loop loop;
	struct vdev_host host;
	struct vsock *v;
	uint64_t rx_buf, tx_buf, event_buf; /* one slot for each descriptor */
	struct g_packet *first, **last;
	unsigned events; /* transport resets seen */
	bool hold_rx;    /* the guest does not refill its receive queue */
	bool hold_event; /* ... does not give event buffers back */
	unsigned nr_rx;  /* packets received */
};

DRV void g_rx_add(struct guest *g)
{
	struct drv_queue *q = &g->d.q[G_RX];

	while (q->nr_free) {
		uint64_t at = g->rx_buf + (uint64_t)G_RX_LEN * q->free[q->nr_free - 1];
		struct drv_seg seg = { at, G_RX_LEN };

		drv_add(&g->d, G_RX, &seg, 0, 1);
	}
	drv_kick(&g->d, G_RX);
}

DRV void g_event_add(struct guest *g)
{
	struct drv_queue *q = &g->d.q[G_EVENT];
	bool added = false;

	while (G_SIZE - q->nr_free < 8) {
		struct drv_seg seg = { g->event_buf + 4ull * q->free[q->nr_free - 1], 4 };

		drv_add(&g->d, G_EVENT, &seg, 0, 1);
		added = true;
	}
	if (added)
		drv_kick(&g->d, G_EVENT);
}

DRV void g_buffers(struct guest *g)
{
	g->rx_buf = drv_alloc(&g->d, (uint64_t)G_RX_LEN * G_SIZE, 64);
	g->tx_buf = drv_alloc(&g->d, (uint64_t)G_TX_LEN * 16, 64);
	g->event_buf = drv_alloc(&g->d, 4 * G_SIZE, 64);
}

/* Opens the device at `path` (or NULL), and brings the driver up. */
DRV void guest_open(struct guest *g, const char *path)
{
	struct vsock_config config = { .path = path, .guest_cid = G_CID };
	struct err err = { 0 };

	memset(g, 0, sizeof(*g));
	g->last = &g->first;
	cr_assert_eq(loop_open(&g->loop, 64, &err), 0, "%s", err.msg);
	drv_open(&g->d, &g->loop, &g->host);
	cr_assert_eq(vsock_open(&g->v, &config, &g->host, 0, &err), 0, "%s", err.msg);
	drv_start(&g->d, vsock_vdev(g->v), DRV_ALL_FEATURES, G_SIZE);
	g_buffers(g);
	g_rx_add(g);
	g_event_add(g);
}

DRV void guest_close(struct guest *g)
{
	vsock_close(g->v);
	loop_close(&g->loop);
	drv_close(&g->d);
	while (g->first) {
		struct g_packet *p = g->first;

		g->first = p->next;
		free(p);
	}
}

static void g_nothing(struct loop_event *event)
{
	(void)event;
}

DRV bool g_counted(void *ctx)
{
	return (*(int *)ctx)-- <= 0;
}

/* Some turns of the loop, without waiting for anything. */
DRV void g_loop(struct guest *g)
{
	struct loop_event event = { .fire = g_nothing };

	for (int i = 0; i < 3; i++) {
		int turns = 1;

		loop_post(&g->loop, &event);
		cr_assert_eq(loop_run_until(&g->loop, g_counted, &turns), 0);
	}
	loop_unpost(&g->loop, &event);
}

DRV void g_take_rx(struct guest *g)
{
	uint32_t written;
	int head;

	while ((head = drv_used(&g->d, G_RX, &written)) >= 0) {
		uint64_t at = g->rx_buf + (uint64_t)G_RX_LEN * (unsigned)head;
		struct g_packet *p = malloc(sizeof(*p) + G_RX_LEN);

		cr_assert_geq(written, VSOCK_HDR_LEN);
		drv_get(&g->d, at, &p->hdr, VSOCK_HDR_LEN);
		cr_assert_eq(p->hdr.len, written - VSOCK_HDR_LEN);
		drv_get(&g->d, at + VSOCK_HDR_LEN, p->data, p->hdr.len);
		p->next = NULL;
		*g->last = p;
		g->last = &p->next;
		g->nr_rx++;
	}
	if (!g->hold_rx)
		g_rx_add(g);
}

DRV void g_take_events(struct guest *g)
{
	uint32_t written;
	int head;

	while ((head = drv_used(&g->d, G_EVENT, &written)) >= 0) {
		uint32_t id;

		cr_assert_eq(written, 4);
		drv_get(&g->d, g->event_buf + 4ull * (unsigned)head, &id, 4);
		cr_assert_eq(id, 0);
		g->events++;
	}
	if (!g->hold_event)
		g_event_add(g);
}

DRV void guest_turn(struct guest *g)
{
	g_loop(g);
	while (drv_used(&g->d, G_TX, NULL) >= 0)
		;
	g_take_rx(g);
	g_take_events(g);
}

/* The oldest packet that has arrived, to be freed; NULL when none comes in some turns. */
DRV struct g_packet *guest_next(struct guest *g)
{
	struct g_packet *p;

	for (int i = 0; i < 4 && !g->first; i++)
		guest_turn(g);
	p = g->first;
	if (!p)
		return NULL;
	g->first = p->next;
	if (!p->next)
		g->last = &g->first;
	return p;
}

/* As guest_next(), and it must be `op`; returns a header whose payload went to `data` (may be NULL). */
DRV struct vsock_hdr guest_expect(struct guest *g, enum vsock_op op, void *data)
{
	struct g_packet *p = guest_next(g);
	struct vsock_hdr hdr;

	cr_assert(p, "no packet, want op %d", op);
	hdr = p->hdr;
	cr_assert_eq(hdr.op, op, "op %u with flags %u, want %d", hdr.op, hdr.flags, op);
	cr_assert_eq(hdr.dst_cid, G_CID);
	if (data)
		memcpy(data, p->data, hdr.len);
	free(p);
	return hdr;
}

DRV void guest_expect_nothing(struct guest *g)
{
	struct g_packet *p = guest_next(g);

	cr_assert_null(p, "op %u, want nothing", p ? p->hdr.op : 0);
}

DRV struct vsock_hdr g_hdr(enum vsock_op op, uint32_t guest_port, uint32_t host_port)
{
	return (struct vsock_hdr){ .src_cid = G_CID,
		                   .dst_cid = VSOCK_HOST_CID,
		                   .src_port = guest_port,
		                   .dst_port = host_port,
		                   .type = VSOCK_TYPE_STREAM,
		                   .op = (uint16_t)op,
		                   .buf_alloc = G_BUF_ALLOC };
}

/* Puts one packet into the transmit queue (its length as the header says, `n` bytes behind it). */
DRV void guest_send(struct guest *g, const struct vsock_hdr *hdr, const void *data, uint32_t n)
{
	struct drv_queue *q = &g->d.q[G_TX];
	uint64_t at;
	struct drv_seg seg[2];

	cr_assert_leq(n, VSOCK_MAX_PAYLOAD);
	/* A slot of its own for each chain that is under way. */
	while ((uint16_t)(q->next_avail - q->last_used) >= 16)
		guest_turn(g);
	at = g->tx_buf + (uint64_t)G_TX_LEN * (q->next_avail % 16);
	seg[0] = (struct drv_seg){ at, VSOCK_HDR_LEN };
	seg[1] = (struct drv_seg){ at + VSOCK_HDR_LEN, n };
	drv_put(&g->d, at, hdr, VSOCK_HDR_LEN);
	if (n)
		drv_put(&g->d, at + VSOCK_HDR_LEN, data, n);
	cr_assert_geq(drv_add(&g->d, G_TX, seg, n ? 2 : 1, 0), 0);
	drv_kick(&g->d, G_TX);
}

DRV void guest_op(struct guest *g, enum vsock_op op, uint32_t guest_port, uint32_t host_port)
{
	struct vsock_hdr hdr = g_hdr(op, guest_port, host_port);

	guest_send(g, &hdr, NULL, 0);
}

DRV void guest_data(struct guest *g, uint32_t guest_port, uint32_t host_port, const void *data,
                    uint32_t n)
{
	struct vsock_hdr hdr = g_hdr(VSOCK_OP_RW, guest_port, host_port);

	hdr.len = n;
	guest_send(g, &hdr, data, n);
}

DRV void guest_shut(struct guest *g, uint32_t guest_port, uint32_t host_port, uint32_t flags)
{
	struct vsock_hdr hdr = g_hdr(VSOCK_OP_SHUTDOWN, guest_port, host_port);

	hdr.flags = flags;
	guest_send(g, &hdr, NULL, 0);
}

/* ---- the host's programs ---- */

/* A connection that the host has begun over a socket pair, accepted by the guest: our end, non-blocking. */
DRV int host_connect(struct guest *g, uint32_t port, uint32_t *host_port)
{
	struct vsock_hdr hdr;
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	fcntl(sv[0], F_SETFL, O_NONBLOCK);
	cr_assert_eq(vsock_connect(g->v, sv[1], port, VSOCK_NOW, NULL), 0);
	hdr = guest_expect(g, VSOCK_OP_REQUEST, NULL);
	cr_assert_eq(hdr.dst_port, port);
	*host_port = hdr.src_port;
	guest_op(g, VSOCK_OP_RESPONSE, port, *host_port);
	guest_turn(g);
	return sv[0];
}

DRV int host_dial(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, path);
	if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	close(fd);
	return -1;
}

DRV int host_listen(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, path);
	cr_assert_eq(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
	cr_assert_eq(listen(fd, 1024), 0);
	return fd;
}

/* What read(2) says after the device has had time: bytes, 0 at the end, -errno. */
DRV ssize_t host_read(struct guest *g, int fd, void *dst, size_t n)
{
	ssize_t ret = -1;

	for (int i = 0; i < 4 && ret < 0; i++) {
		guest_turn(g);
		ret = recv(fd, dst, n, MSG_DONTWAIT);
	}
	return ret < 0 ? -errno : ret;
}

DRV unsigned host_live(struct guest *g)
{
	struct vsock_stats stats;

	vsock_stats(g->v, &stats);
	return stats.live;
}

DRV void host_say(int fd, const char *text)
{
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

DRV void host_expect(struct guest *g, int fd, const char *text)
{
	char got[64] = "";

	cr_assert_eq(host_read(g, fd, got, sizeof(got) - 1), (ssize_t)strlen(text), "%s", text);
	cr_assert_str_eq(got, text);
}

DRV void guest_expect_data(struct guest *g, const char *text)
{
	char got[G_RX_LEN] = "";
	struct vsock_hdr hdr = guest_expect(g, VSOCK_OP_RW, got);

	cr_assert_eq(hdr.len, strlen(text));
	cr_assert_str_eq(got, text);
}

/* Some tests need more descriptors than the usual soft limit. */
DRV void host_want_files(rlim_t n)
{
	struct rlimit files;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
	if (files.rlim_cur < n && files.rlim_max >= n) {
		files.rlim_cur = files.rlim_max;
		cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	}
	if (files.rlim_cur < n)
		cr_skip("needs %lu descriptors, the hard limit is %lu", (unsigned long)n,
		        (unsigned long)files.rlim_max);
}

#endif
