/* SPDX-License-Identifier: Apache-2.0 */
/* Registers, rings and descriptors, on the disks. */
#include "payload.h"

/* A queue's size and addresses after DRIVER_OK (CVE-2026-5747): void, and the queue goes on as it was. */
void late_changes(void)
{
	static const uint32_t sizes[] = { 0, 1, 3, 256, 257, 0xffff, 0x10000, 0xffffffff };

	start(&disk);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		wr32(DISK + R_QUEUE_SEL, 0);
		wr32(DISK + R_QUEUE_SIZE, sizes[i]);
		wr32(DISK + R_DESC, (uint32_t)RAM - 16);
		wr32(DISK + R_AVAIL, 0xfffffffe);
		wr32(DISK + R_AVAIL + 4, 0xffffffff);
		wr32(DISK + R_USED, (uint32_t)RAM - 4);
		wr32(DISK + R_QUEUE_READY, i & 1);
	}
	EXPECT(rd32(DISK + R_QUEUE_READY) == 1);
	*(volatile uint64_t *)DATA = 8; /* GET_ID */
	put(&disk, 0, 0, DATA, 16, D_NEXT, 1);
	put(&disk, 0, 1, DATA + 0x1000, 21, D_WRITE, 0);
	publish(&disk, 0, 0);
	kick(&disk, 0);
	EXPECT(used(&disk, 0));
	/* Described badly before DRIVER_OK: refused at once. */
	reset(&disk);
	negotiate(&disk, F_VERSION_1);
	describe(&disk, 0);
	wr32(DISK + R_QUEUE_READY, 0);
	wr32(DISK + R_USED, (uint32_t)RAM - 4);
	wr32(DISK + R_QUEUE_READY, 1);
	EXPECT(broken(&disk));
	disk_works(&disk);
}

void queue_sel(void)
{
	static const uint32_t sel[] = { 1, 2, 3, 7, 0x80, 0xffff, 0x10000, 0x7fffffff, 0xffffffff };

	start(&disk);
	for (unsigned i = 0; i < sizeof(sel) / sizeof(sel[0]); i++) {
		wr32(DISK + R_QUEUE_SEL, sel[i]);
		EXPECT(rd32(DISK + 0x34) == 0 && rd32(DISK + R_QUEUE_READY) == 0);
		for (uint32_t reg = R_QUEUE_SIZE; reg < 0xb0; reg += 4)
			if (reg != R_STATUS)
				wr32(DISK + reg, 0xffffffff);
		kick(&disk, sel[i]);
	}
	disk_works(&disk);
}

static void expect_broken(void)
{
	publish(&disk, 0, 0);
	kick(&disk, 0);
	EXPECT(broken(&disk));
	start(&disk);
}

void loops(void)
{
	start(&disk);
	put(&disk, 0, 0, DATA, 16, D_NEXT, 0);
	expect_broken();
	put(&disk, 0, 0, DATA, 16, D_NEXT, 1);
	put(&disk, 0, 1, DATA, 16, D_NEXT, 0);
	expect_broken();
	for (uint16_t i = 0; i < RING_SIZE; i++)
		put(&disk, 0, i, DATA, 1, D_NEXT, (uint16_t)((i + 1) % RING_SIZE));
	expect_broken();
	put(&disk, 0, 0, DATA, 16, D_NEXT, RING_SIZE);
	expect_broken();
	put(&disk, 0, 0, DATA, 16, D_NEXT | D_WRITE, 1);
	put(&disk, 0, 1, DATA, 16, 0, 0); /* read behind write */
	expect_broken();
	put(&disk, 0, 0, DATA, 16, 0, 0); /* no room for a status */
	expect_broken();
	disk_works(&disk);
}

/* Addresses at the edge of memory, in devices, wrapping; lengths that sum to anything. */
void lengths(void)
{
	static const struct {
		uint64_t addr;
		uint32_t len;
	} bad[] = {
		{ RAM - 1, 2 },
		{ RAM, 1 },
		{ RAM - 4096, 4097 },
		{ 0xd0000000, 8 },
		{ 0xfee00000, 4 },
		{ 0x100000000, 1 },
		{ ~0ull, 1 },
		{ ~0ull - 15, 16 },
		{ ~0ull, 0xffffffff },
		{ 0, 0xffffffff },
		{ DATA, 0 },
		{ 1ull << 63, 4096 },
		{ DATA, (64 << 20) + 1 },
		{ RAM - 16, 0xfffffff0 },
	};

	start(&disk);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put(&disk, 0, 0, bad[i].addr, bad[i].len, D_NEXT, 1);
		put(&disk, 0, 1, DATA, 1, D_WRITE, 0);
		expect_broken();
		put(&disk, 0, 0, DATA, 16, D_NEXT, 1);
		put(&disk, 0, 1, bad[i].addr, bad[i].len, D_WRITE, 0);
		expect_broken();
	}
	/* Sums that would wrap in 32 bits. */
	for (unsigned i = 0; i < RING_SIZE; i++)
		put(&disk, 0, i, 0, 60u << 20, i + 1 < RING_SIZE ? D_NEXT : 0, (uint16_t)(i + 1));
	expect_broken();
	disk_works(&disk);
}

void index_jumps(void)
{
	static const uint16_t jump[] = { RING_SIZE + 1, 256, 257, 0x7fff, 0x8000, 0xffff };

	start(&disk);
	for (unsigned i = 0; i < sizeof(jump) / sizeof(jump[0]); i++) {
		disk.ring[0].avail[1] = jump[i];
		kick(&disk, 0);
		EXPECT(broken(&disk));
		start(&disk);
	}
	for (uint32_t head = RING_SIZE; head < 0x10000; head = head * 2 + 1) {
		publish(&disk, 0, (uint16_t)head);
		kick(&disk, 0);
		EXPECT(broken(&disk));
		start(&disk);
	}
	disk_works(&disk);
}

void indirect(void)
{
	volatile struct desc *table = (volatile struct desc *)(DATA + 0x4000);
	static const uint32_t sizes[] = { 0, 1, 15, 17, 0x7ffffff0, 0xfffffff0, 0xffffffff };

	start(&disk);
	table[0] = (struct desc){ DATA + 0x4000, 16, D_INDIRECT, 0 };
	put(&disk, 0, 0, DATA + 0x4000, 16, D_INDIRECT, 0);
	expect_broken(); /* nested */
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		put(&disk, 0, 0, DATA + 0x4000, sizes[i], D_INDIRECT, 0);
		expect_broken();
	}
	put(&disk, 0, 0, DATA + 0x4000, 16, D_INDIRECT | D_NEXT, 1);
	expect_broken();
	put(&disk, 0, 0, RAM - 16, 32, D_INDIRECT, 0);
	expect_broken();
	for (unsigned i = 0; i < 1024; i++) /* more than a chain may have */
		table[i] = (struct desc){ DATA, 1, D_NEXT, (uint16_t)(i + 1) };
	put(&disk, 0, 0, DATA + 0x4000, 1024 * 16, D_INDIRECT, 0);
	expect_broken();
	table[0] = (struct desc){ DATA, 1, D_NEXT, 5000 };
	put(&disk, 0, 0, DATA + 0x4000, 16, D_INDIRECT, 0);
	expect_broken();
	disk_works(&disk);
}

void features(void)
{
	reset(&disk);
	negotiate(&disk, ~0ull); /* never offered */
	EXPECT(!(rd32(DISK + R_STATUS) & S_FEATURES_OK));
	reset(&disk);
	negotiate(&disk, 0); /* not VERSION_1 */
	EXPECT(!(rd32(DISK + R_STATUS) & S_FEATURES_OK));
	reset(&disk);
	for (uint32_t sel = 2; sel; sel *= 2) {
		wr32(DISK + R_DRIVER_FEATURES_SEL, sel);
		wr32(DISK + R_DRIVER_FEATURES, 0xffffffff);
	}
	/* Changed late: the ring's layout was checked without EVENT_IDX. */
	negotiate(&disk, F_VERSION_1);
	describe(&disk, 0);
	wr32(DISK + R_DRIVER_FEATURES_SEL, 0);
	wr32(DISK + R_DRIVER_FEATURES, (uint32_t)(F_EVENT_IDX | F_INDIRECT));
	wr32(DISK + R_STATUS, S_RUNNING);
	EXPECT(rd32(DISK + R_STATUS) == S_RUNNING);
	put(&disk, 0, 0, DATA, 16, D_INDIRECT, 0); /* was not negotiated */
	expect_broken();
	disk_works(&disk);
}

void status_games(void)
{
	reset(&disk);
	wr32(DISK + R_STATUS, S_DRIVER_OK); /* before everything */
	EXPECT(!(rd32(DISK + R_STATUS) & S_DRIVER_OK));
	kick(&disk, 0);
	for (unsigned i = 0; i < 200; i++) {
		wr32(DISK + R_STATUS, any(4) ? any(256) : 0);
		if (i % 8 == 0) {
			describe(&disk, 0);
			publish(&disk, 0, (uint16_t)any(RING_SIZE));
		}
		kick(&disk, any(4));
	}
	/* Resets with work in flight. */
	for (unsigned i = 0; i < 50; i++) {
		start(&disk);
		*(volatile uint64_t *)DATA = 0;
		put(&disk, 0, 0, DATA, 16, D_NEXT, 1);
		put(&disk, 0, 1, DATA + 0x1000, 513, D_WRITE, 0);
		publish(&disk, 0, 0);
		kick(&disk, 0);
		wr32(DISK + R_STATUS, 0);
		kick(&disk, 0);
	}
	disk_works(&disk);
}

void config_space(void)
{
	uint64_t sum = 0;

	for (uint32_t off = 0; off < 0x1000; off += 4) {
		sum += rd32(DISK + off);
		sum += *(volatile uint16_t *)(uintptr_t)(DISK + off + 1);
		if (off >= R_CONFIG)
			*(volatile uint64_t *)(uintptr_t)(DISK + off) = ~0ull;
		if (off % 64 == 0)
			sum += *(volatile uint64_t *)(uintptr_t)(VSOCK + off + 0xfc);
	}
	EXPECT(sum != 0);
	wr32(NO_SLOT + R_STATUS, 15);
	EXPECT(rd32(NO_SLOT) == 0xffffffff);
	disk_works(&disk);
}

/* A guest that breaks its device all the time fills nobody's log. */
void break_storm(void)
{
	for (unsigned i = 0; i < 400; i++) {
		start(&disk);
		disk.ring[0].avail[1] = 0x8000;
		kick(&disk, 0);
		EXPECT(broken(&disk));
	}
	disk_works(&disk);
}

/* What the device has checked must be what it uses: all of it changes under its feet. */
void race(void)
{
	volatile struct desc *data = &disk.ring[0].desc[1];
	volatile uint64_t *head = (volatile uint64_t *)DATA;

	start(&disk);
	for (unsigned round = 0; round < 300; round++) {
		head[0] = 0;
		head[1] = 0;
		put(&disk, 0, 0, DATA, 16, D_NEXT, 1);
		put(&disk, 0, 1, DATA + 0x1000, 512, D_NEXT | D_WRITE, 2);
		put(&disk, 0, 2, DATA + 0x100, 1, D_WRITE, 0);
		publish(&disk, 0, 0);
		kick(&disk, 0);
		for (unsigned i = any(60); i; i--) {
			data->len = i & 1 ? 0xffffffff : 512;
			data->addr = i & 1 ? RAM - 8 : DATA + 0x1000;
			data->next = i & 1 ? RING_SIZE : 2;
			head[0] = i & 1;
			head[1] = i & 1 ? ~0ull : 0;
		}
		if (rd32(DISK + R_STATUS) != S_RUNNING)
			start(&disk);
		while ((uint16_t)(disk.ring[0].used[0] >> 16) != disk.ring[0].added)
			if (rd32(DISK + R_STATUS) != S_RUNNING)
				start(&disk);
	}
	disk_works(&disk);
}

/* Requests beyond the disk, and writes to one that is read-only. */
void sectors(void)
{
	static const uint64_t at[] = { 0,          63,         64,         65,   1ull << 32,
		                       1ull << 54, 1ull << 55, 1ull << 63, ~0ull };
	static const uint32_t type[] = { 0, 1, 11, 13, 4, 8, 2, 0xffffffff };
	struct dev *d = &disk_ro;

	start(d);
	for (unsigned i = 0; i < 9; i++) {
		for (unsigned t = 0; t < 8; t++) {
			volatile uint64_t *head = (volatile uint64_t *)DATA;

			head[0] = type[t];
			head[1] = at[i];
			head[2] = at[i]; /* of a discard */
			head[3] = i % 2 ? 0xffffffffu : 1;
			put(d, 0, 0, DATA, type[t] == 1 ? 16 + 512 : 32, D_NEXT, 1);
			put(d, 0, 1, DATA + 0x1000, type[t] ? 1 : 513, D_WRITE, 0);
			publish(d, 0, 0);
			kick(d, 0);
			EXPECT(used(d, 0));
		}
	}
	disk_works(&disk_ro);
}
