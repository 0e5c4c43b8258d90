/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hundreds of connections at once, with pseudo-random data both ways in random pieces, bounded by
 * credit on both sides, with both ends closing at random: every byte arrives once and in order.
 */
#include "tests/unit/devices/vsock_guest.h"

#define NR     500u
#define TOTAL  (96u << 10) /* bytes each way of each connection */
#define WINDOW (16u << 10) /* the guest's buffer: small, so that credit runs out */
#define PORT   4000u

struct end {
	int fd;
	uint32_t host_port;
	bool open, guest_done, host_done;
	uint32_t host_sent, host_got, guest_sent, guest_got;
	uint32_t tx_cnt, peer_fwd, peer_alloc; /* the guest's credit */
	uint32_t fwd_told;
};

static struct guest g;
static struct end ends[NR];
static uint64_t seed = 88172645463325252ull;

static uint32_t dice(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 20) % n;
}

static uint8_t pattern(unsigned i, unsigned way, uint32_t at)
{
	uint32_t x = (at / 4 + 1) * 2654435761u ^ i * 40503u ^ way * 977u;

	return (uint8_t)(x >> (8 * (at % 4)));
}

static void fill(uint8_t *to, unsigned i, unsigned way, uint32_t at, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		to[k] = pattern(i, way, at + k);
}

static void check(const uint8_t *got, unsigned i, unsigned way, uint32_t at, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		cr_assert_eq(got[k], pattern(i, way, at + k), "connection %u way %u byte %u", i,
		             way, at + k);
}

static struct vsock_hdr hdr_of(unsigned i, enum vsock_op op)
{
	struct vsock_hdr hdr = g_hdr(op, PORT + i, ends[i].host_port);

	hdr.buf_alloc = WINDOW;
	hdr.fwd_cnt = ends[i].guest_got;
	ends[i].fwd_told = ends[i].guest_got;
	return hdr;
}

static void guest_says(unsigned i)
{
	static uint8_t data[VSOCK_MAX_PAYLOAD];
	struct end *e = &ends[i];
	uint32_t room = e->peer_alloc - (e->tx_cnt - e->peer_fwd);
	uint32_t n = TOTAL - e->guest_sent;
	struct vsock_hdr hdr;

	n = n < room ? n : room;
	n = n > 1 ? 1 + dice(n) : n;
	if (n > 9000)
		n = 9000;
	if (!e->open || e->guest_done || !n)
		return;
	fill(data, i, 1, e->guest_sent, n);
	hdr = hdr_of(i, VSOCK_OP_RW);
	hdr.len = n;
	guest_send(&g, &hdr, data, n);
	e->tx_cnt += n;
	e->guest_sent += n;
	if (e->guest_sent < TOTAL)
		return;
	hdr = hdr_of(i, VSOCK_OP_SHUTDOWN);
	hdr.flags = VSOCK_SHUT_SEND;
	guest_send(&g, &hdr, NULL, 0);
	e->guest_done = true;
}

static void guest_hears(const struct g_packet *p)
{
	unsigned i = p->hdr.dst_port - PORT;
	struct end *e = &ends[i];
	struct vsock_hdr hdr;

	cr_assert_lt(i, NR);
	if (p->hdr.op == VSOCK_OP_REQUEST) {
		cr_assert_eq(e->host_port, 0);
		e->host_port = p->hdr.src_port;
		hdr = hdr_of(i, VSOCK_OP_RESPONSE);
		guest_send(&g, &hdr, NULL, 0);
		e->open = true;
	}
	cr_assert_eq(p->hdr.src_port, e->host_port);
	e->peer_alloc = p->hdr.buf_alloc;
	e->peer_fwd = p->hdr.fwd_cnt;
	switch (p->hdr.op) {
	case VSOCK_OP_RW:
		cr_assert_leq(e->guest_got + p->hdr.len - e->fwd_told, WINDOW, "over our credit");
		check(p->data, i, 0, e->guest_got, p->hdr.len);
		e->guest_got += p->hdr.len;
		if (e->guest_got - e->fwd_told > WINDOW / 2) {
			hdr = hdr_of(i, VSOCK_OP_CREDIT_UPDATE);
			guest_send(&g, &hdr, NULL, 0);
		}
		break;
	case VSOCK_OP_SHUTDOWN:
		if (p->hdr.flags != VSOCK_SHUT_BOTH)
			break;
		hdr = hdr_of(i, VSOCK_OP_RST);
		guest_send(&g, &hdr, NULL, 0);
		e->open = false;
		break;
	case VSOCK_OP_CREDIT_REQUEST:
		hdr = hdr_of(i, VSOCK_OP_CREDIT_UPDATE);
		guest_send(&g, &hdr, NULL, 0);
		break;
	case VSOCK_OP_REQUEST:
	case VSOCK_OP_CREDIT_UPDATE:
		break;
	default:
		cr_assert_fail("connection %u: op %u", i, p->hdr.op);
	}
}

static void host_works(unsigned i)
{
	static uint8_t data[16384];
	struct end *e = &ends[i];
	uint32_t n = TOTAL - e->host_sent;
	ssize_t ret;

	n = n > sizeof(data) ? sizeof(data) : n;
	if (n) {
		n = 1 + dice(n);
		fill(data, i, 0, e->host_sent, n);
		ret = send(e->fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (ret > 0)
			e->host_sent += (uint32_t)ret;
		if (e->host_sent == TOTAL)
			shutdown(e->fd, SHUT_WR);
	}
	ret = recv(e->fd, data, 1 + dice(sizeof(data)), MSG_DONTWAIT);
	if (ret > 0) {
		check(data, i, 1, e->host_got, (uint32_t)ret);
		e->host_got += (uint32_t)ret;
	}
	if (ret == 0)
		e->host_done = true;
}

static bool all_done(void)
{
	for (unsigned i = 0; i < NR; i++)
		if (ends[i].guest_got < TOTAL || ends[i].host_got < TOTAL || !ends[i].host_done)
			return false;
	return true;
}

Test(vsock_many, all_bytes_of_500_connections, .timeout = 300)
{
	struct vsock_stats stats;
	struct g_packet *p;

	host_want_files(2 * NR + 64);
	guest_open(&g, NULL);
	for (unsigned i = 0; i < NR; i++) {
		int sv[2];

		cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
		ends[i].fd = sv[0];
		cr_assert_eq(vsock_connect(g.v, sv[1], PORT + i, VSOCK_NOW, NULL), 0);
	}
	for (unsigned round = 0; !all_done(); round++) {
		cr_assert_lt(round, 20000, "no progress");
		for (unsigned k = 0; k < 64; k++) {
			host_works(dice(NR));
			guest_says(dice(NR));
		}
		guest_turn(&g);
		while (g.first && (p = guest_next(&g))) {
			guest_hears(p);
			free(p);
		}
		for (unsigned i = 0; round > 500 && i < NR;
		     i++) { /* the last ones need not wait for luck */
			host_works(i);
			guest_says(i);
		}
	}
	for (int k = 0; k < 8; k++) {
		guest_turn(&g);
		while (g.first && (p = guest_next(&g))) {
			guest_hears(p);
			free(p);
		}
	}
	vsock_stats(g.v, &stats);
	cr_assert_eq(stats.live, 0, "%u still there", stats.live);
	cr_assert_eq(stats.opened, NR);
	cr_assert_eq(stats.closed, NR);
	cr_assert_eq(stats.bytes_to_guest, (uint64_t)NR * TOTAL);
	cr_assert_eq(stats.bytes_to_host, (uint64_t)NR * TOTAL);
	for (unsigned i = 0; i < NR; i++)
		close(ends[i].fd);
	guest_close(&g);
}
