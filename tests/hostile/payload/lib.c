/* SPDX-License-Identifier: Apache-2.0 */
#include "payload.h"

#define WAIT_USED   3000000u
#define WAIT_STATUS 300000u

static struct ring rings[3][3];
struct dev vsock = { VSOCK, 3, rings[0] };
struct dev disk_ro = { DISK_RO, 1, rings[1] };
struct dev disk = { DISK, 1, rings[2] };
uint64_t seed;

void say(const char *text)
{
	while (*text)
		wr8(SERIAL, (uint8_t)*text++);
}

void say_number(uint64_t n)
{
	char text[24];
	unsigned i = sizeof(text) - 1;

	text[i] = '\0';
	do
		text[--i] = (char)('0' + n % 10);
	while (n /= 10);
	say(text + i);
}

void fail(const char *file, unsigned line)
{
	say("failed: ");
	say(file);
	say(":");
	say_number(line);
	say("\n");
}

/* xorshift64 */
uint32_t any(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16) % below;
}

void reset(struct dev *d)
{
	unsigned n = WAIT_STATUS;

	wr32(d->base + R_STATUS, 0);
	while (rd32(d->base + R_STATUS) && --n)
		;
	EXPECT(n);
	for (unsigned q = 0; q < d->nr_queues; q++) {
		d->ring[q].added = d->ring[q].seen = 0;
		d->ring[q].avail[0] = d->ring[q].avail[1] = 0;
		d->ring[q].used[0] = 0;
	}
}

void negotiate(struct dev *d, uint64_t features)
{
	wr32(d->base + R_STATUS, S_DRIVER);
	for (unsigned half = 0; half < 2; half++) {
		wr32(d->base + R_DRIVER_FEATURES_SEL, half);
		wr32(d->base + R_DRIVER_FEATURES, (uint32_t)(features >> (32 * half)));
	}
	wr32(d->base + R_STATUS, S_DRIVER | S_FEATURES_OK);
}

void describe(struct dev *d, unsigned q)
{
	wr32(d->base + R_QUEUE_SEL, q);
	wr32(d->base + R_QUEUE_SIZE, RING_SIZE);
	wr32(d->base + R_DESC, (uint32_t)(uintptr_t)d->ring[q].desc);
	wr32(d->base + R_DESC + 4, 0);
	wr32(d->base + R_AVAIL, (uint32_t)(uintptr_t)d->ring[q].avail);
	wr32(d->base + R_AVAIL + 4, 0);
	wr32(d->base + R_USED, (uint32_t)(uintptr_t)d->ring[q].used);
	wr32(d->base + R_USED + 4, 0);
	wr32(d->base + R_QUEUE_READY, 1);
}

void start(struct dev *d)
{
	reset(d);
	negotiate(d, F_VERSION_1 | F_INDIRECT);
	for (unsigned q = 0; q < d->nr_queues; q++)
		describe(d, q);
	wr32(d->base + R_STATUS, S_RUNNING);
	EXPECT(rd32(d->base + R_STATUS) == S_RUNNING);
}

void put(struct dev *d, unsigned q, unsigned i, uint64_t addr, uint32_t len, uint16_t flags,
         uint16_t next)
{
	volatile struct desc *desc = &d->ring[q].desc[i];

	desc->addr = addr;
	desc->len = len;
	desc->flags = flags;
	desc->next = next;
}

void publish(struct dev *d, unsigned q, uint16_t head)
{
	struct ring *r = &d->ring[q];

	r->avail[2 + r->added % RING_SIZE] = head;
	r->avail[1] = ++r->added;
}

void kick(struct dev *d, unsigned q)
{
	wr32(d->base + R_NOTIFY, q);
}

bool used(struct dev *d, unsigned q)
{
	struct ring *r = &d->ring[q];

	for (unsigned n = WAIT_USED; n; n--) {
		if ((uint16_t)(r->used[0] >> 16) != r->seen) {
			r->seen++;
			return true;
		}
	}
	return false;
}

bool broken(struct dev *d)
{
	for (unsigned n = WAIT_STATUS; n; n--)
		if (rd32(d->base + R_STATUS) & S_BROKEN)
			return true;
	return false;
}

static void read_sector(struct dev *d, uint64_t sector, uint8_t want_status)
{
	volatile uint64_t *head = (volatile uint64_t *)DATA;

	head[0] = 0; /* IN */
	head[1] = sector;
	wr8(DATA + 0x100, 0xff);
	put(d, 0, 0, DATA, 16, D_NEXT, 1);
	put(d, 0, 1, DATA + 0x1000, 512, D_NEXT | D_WRITE, 2);
	put(d, 0, 2, DATA + 0x100, 1, D_WRITE, 0);
	publish(d, 0, 0);
	kick(d, 0);
	EXPECT(used(d, 0));
	EXPECT(rd8(DATA + 0x100) == want_status);
}

/* The image's sector n is filled with n + 1: tests/hostile/conftest.py. */
void disk_works(struct dev *d)
{
	start(d);
	read_sector(d, 3, 0);
	EXPECT(rd8(DATA + 0x1000) == 4 && rd8(DATA + 0x11ff) == 4);
	read_sector(d, 1ull << 40, 1);
	reset(d);
}
