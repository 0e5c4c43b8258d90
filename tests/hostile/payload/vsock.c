/* SPDX-License-Identifier: Apache-2.0 */
/* Packets to the vsock device. On the host a program listens on port 1 and reads, on 2
 * and writes without end, on 3 and 4 and takes no connection. */
#include "payload.h"

enum { RX, TX, EVENT };
enum { REQUEST = 1, RESPONSE, RST, SHUTDOWN, RW, CREDIT_UPDATE, CREDIT_REQUEST };

struct hdr {
	uint64_t src_cid, dst_cid;
	uint32_t src_port, dst_port, len;
	uint16_t type, op;
	uint32_t flags, buf_alloc, fwd_cnt;
} __attribute__((packed));

#define RX_BUF  (DATA + 0x100000u)
#define RX_LEN  0x1000u
#define SLOTS   (RING_SIZE / 2)
#define PACKETS (DATA + 0x10000u)

static struct hdr *slot(void)
{
	return (struct hdr *)(uintptr_t)(PACKETS + vsock.ring[TX].added % SLOTS * 64u);
}

/* Queues a packet; its payload is whatever lies at DATA. */
static void send(uint16_t op, uint32_t port, uint32_t host_port, uint32_t len, uint32_t buf_alloc)
{
	unsigned i = vsock.ring[TX].added % SLOTS * 2;
	struct hdr *h = slot();

	*h = (struct hdr){ 3, 2, port, host_port, len, 1, op, 0, buf_alloc, 0 };
	put(&vsock, TX, i, (uintptr_t)h, sizeof(*h), len ? D_NEXT : 0, (uint16_t)(i + 1));
	if (len)
		put(&vsock, TX, i + 1, DATA, len, 0, 0);
	publish(&vsock, TX, (uint16_t)i);
}

static void receive_buffers(unsigned nr, uint32_t len)
{
	for (uint16_t i = 0; i < nr; i++) {
		put(&vsock, RX, i, RX_BUF + i * RX_LEN, len, D_WRITE, 0);
		publish(&vsock, RX, i);
	}
	kick(&vsock, RX);
}

static struct hdr *received(void)
{
	struct ring *r = &vsock.ring[RX];
	uint16_t at = r->seen % RING_SIZE;

	if (!used(&vsock, RX))
		return 0;
	return (struct hdr *)(uintptr_t)(RX_BUF + r->used[1 + 2 * at] % RING_SIZE * RX_LEN);
}

/* A driver that behaves still gets its answer. */
static void vsock_works(void)
{
	const struct hdr *h;

	start(&vsock);
	receive_buffers(4, RX_LEN);
	send(REQUEST, 77, 1, 0, 65536);
	kick(&vsock, TX);
	h = received();
	EXPECT(h && h->op == RESPONSE && h->dst_port == 77);
	send(RST, 77, 1, 0, 0);
	kick(&vsock, TX);
	EXPECT(used(&vsock, TX) && used(&vsock, TX));
}

static void expect_broken(void)
{
	kick(&vsock, TX);
	EXPECT(broken(&vsock));
	start(&vsock);
}

/* CVE-2019-18960: lengths that the buffers do not have. */
void vsock_bounds(void)
{
	static const uint32_t lens[] = { 1, 44, 65536, 0x7fffffff, 0xfffffff0, 0xffffffff };
	const struct hdr *h;

	start(&vsock);
	for (uint32_t n = 0; n < 44; n += 11) { /* less than a header */
		put(&vsock, TX, 0, DATA, n, 0, 0);
		publish(&vsock, TX, 0);
		expect_broken();
	}
	for (uint32_t n = 1; n <= 44;
	     n += 43) { /* a receive buffer without room for a byte of payload */
		receive_buffers(1, n);
		send(CREDIT_REQUEST, 1, 1, 0, 0); /* is answered by a reset */
		expect_broken();
	}
	for (unsigned i = 0; i < 6;
	     i++) { /* says more than there is: the connection ends, no byte is read */
		start(&vsock);
		receive_buffers(4, RX_LEN);
		send(REQUEST, 5, 1, 0, 65536);
		kick(&vsock, TX);
		h = received();
		EXPECT(h && h->op == RESPONSE);
		send(RW, 5, 1, 0, 65536);
		((struct hdr *)(uintptr_t)(PACKETS + 64))->len = lens[i];
		kick(&vsock, TX);
		h = received();
		EXPECT(h && h->op == RST);
	}
	/* The header in pieces of one byte. */
	start(&vsock);
	receive_buffers(4, RX_LEN);
	*(struct hdr *)(uintptr_t)PACKETS = (struct hdr){ 3, 2, 9, 1, 0, 1, REQUEST, 0, 65536, 0 };
	for (uint16_t i = 0; i < 44; i++)
		put(&vsock, TX, i, PACKETS + i, 1, i < 43 ? D_NEXT : 0, (uint16_t)(i + 1));
	publish(&vsock, TX, 0);
	kick(&vsock, TX);
	h = received();
	EXPECT(h && h->op == RESPONSE && h->dst_port == 9);
	vsock_works();
}

/* Sends more than it may, takes less than it said, acknowledges what never was. */
void credit_lies(void)
{
	unsigned packets = 0;
	const struct hdr *h;

	start(&vsock);
	receive_buffers(16, RX_LEN);
	send(REQUEST, 6, 2, 0, 0xffffffff); /* the one that writes */
	kick(&vsock, TX);
	while (packets < 16 && received())
		packets++;
	EXPECT(packets == 16); /* all buffers full, and there it ends */
	for (unsigned i = 0; i < 8; i++) {
		send(CREDIT_UPDATE, 6, 2, 0, i & 1 ? 0xffffffff : 0);
		((struct hdr *)(uintptr_t)(PACKETS + (vsock.ring[TX].added - 1u) % SLOTS * 64))
			->fwd_cnt = any(0xffffffff);
	}
	kick(&vsock, TX);
	for (unsigned i = 0; i < 9; i++)
		EXPECT(used(&vsock, TX));
	/* To a host that does not read: beyond the credit it gave, the connection is reset. */
	start(&vsock);
	receive_buffers(8, RX_LEN);
	send(REQUEST, 7, 3, 0, 65536);
	kick(&vsock, TX);
	h = received();
	EXPECT(h && h->op == RESPONSE);
	for (unsigned i = 0; i < 24; i++) { /* 1.5 MiB, the socket and 256 KiB take less */
		send(RW, 7, 3, 65536, 65536);
		kick(&vsock, TX);
		EXPECT(used(&vsock, TX));
	}
	do
		h = received();
	while (h && h->op != RST); /* credit updates come before */
	EXPECT(h);
	vsock_works();
}

/* Gives back each buffer that has come. */
static void drain(void)
{
	struct ring *r = &vsock.ring[RX];
	uint16_t now = (uint16_t)(r->used[0] >> 16);

	if (now == r->seen)
		return;
	while (now != r->seen)
		publish(&vsock, RX,
		        (uint16_t)(r->used[1 + 2 * (r->seen++ % RING_SIZE)] % RING_SIZE));
	kick(&vsock, RX);
}

/* More connections than the table holds, to a host that takes none of them. */
void storm(void)
{
	start(&vsock);
	receive_buffers(RING_SIZE, RX_LEN);
	for (uint32_t batch = 0; batch < 50; batch++) {
		unsigned n = 200000;

		for (uint32_t i = 0; i < SLOTS; i++)
			send(REQUEST, 1 + batch * SLOTS + i, 4, 0, 65536);
		kick(&vsock, TX);
		while ((uint16_t)(vsock.ring[TX].used[0] >> 16) != vsock.ring[TX].added && --n)
			drain();
		EXPECT(n);
		if (!n)
			return;
	}
	vsock_works();
}
