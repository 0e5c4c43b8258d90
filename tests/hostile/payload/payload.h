/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile guest kernel of our own: no Linux, no interrupts, a few thousand instructions (guest ring 0 is interpreted
 * on software KVM). It drives the devices of vmm/layout.h in ways that a driver would not, says on the serial port
 * what it found, and powers the machine off.
 */
#ifndef TESTS_HOSTILE_PAYLOAD_H
#define TESTS_HOSTILE_PAYLOAD_H

#include <stdbool.h>
#include <stdint.h>

#define SERIAL   0xd0000000u
#define VSOCK    0xd0001000u
#define DISK_RO  0xd0002000u
#define DISK     0xd0003000u
#define NO_SLOT  0xd0004000u
#define DOORBELL 0xd000f000u
#define IOAPIC   0xfec00000u
#define RAM      (64ull << 20) /* of the machine; the last page is the generation id's */

/* virtio over MMIO */
#define R_DRIVER_FEATURES     0x20u
#define R_DRIVER_FEATURES_SEL 0x24u
#define R_QUEUE_SEL           0x30u
#define R_QUEUE_SIZE          0x38u
#define R_QUEUE_READY         0x44u
#define R_NOTIFY              0x50u
#define R_ISR                 0x60u
#define R_ACK                 0x64u
#define R_STATUS              0x70u
#define R_DESC                0x80u
#define R_AVAIL               0x90u
#define R_USED                0xa0u
#define R_CONFIG              0x100u

#define S_DRIVER      3u /* with ACKNOWLEDGE */
#define S_DRIVER_OK   4u
#define S_FEATURES_OK 8u
#define S_RUNNING     15u
#define S_BROKEN      64u

#define F_INDIRECT  (1ull << 28)
#define F_EVENT_IDX (1ull << 29)
#define F_VERSION_1 (1ull << 32)

#define D_NEXT     1u
#define D_WRITE    2u
#define D_INDIRECT 4u

#define RING_SIZE 64u
#define DATA      0x800000u /* what descriptors name; a MiB of it is zero at the start */

struct desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags, next;
};

struct ring {
	volatile struct desc desc[RING_SIZE];
	volatile uint16_t avail[4 + RING_SIZE]; /* flags, index, ring */
	volatile uint32_t used[2 + 2 * RING_SIZE];
	uint16_t added, seen;
} __attribute__((aligned(64)));

struct dev {
	uint32_t base;
	unsigned nr_queues;
	struct ring *ring;
};

extern struct dev vsock, disk, disk_ro;

static inline uint32_t rd32(uint64_t at)
{
	return *(volatile uint32_t *)at;
}

static inline void wr32(uint64_t at, uint32_t value)
{
	*(volatile uint32_t *)at = value;
}

static inline void wr8(uint64_t at, uint8_t value)
{
	*(volatile uint8_t *)at = value;
}

static inline uint8_t rd8(uint64_t at)
{
	return *(volatile uint8_t *)at;
}

/* lib.c */
void say(const char *text);
void say_number(uint64_t n);
/* The scenario has failed: says where. */
void fail(const char *file, unsigned line);
#define EXPECT(cond)                              \
	do {                                      \
		if (!(cond))                      \
			fail(__FILE__, __LINE__); \
	} while (0)
extern uint64_t seed;
uint32_t any(uint32_t below);

void reset(struct dev *d);
void negotiate(struct dev *d, uint64_t features);
void describe(struct dev *d, unsigned q);
void start(struct dev *d);
void put(struct dev *d, unsigned q, unsigned i, uint64_t addr, uint32_t len, uint16_t flags,
         uint16_t next);
void publish(struct dev *d, unsigned q, uint16_t head);
void kick(struct dev *d, unsigned q);
/* A chain has come back; false: not in a long time. */
bool used(struct dev *d, unsigned q);
/* The device has asked for a reset. */
bool broken(struct dev *d);
/* After whatever was done, a driver that behaves is served. */
void disk_works(struct dev *d);

/* Scenarios, by file. */
void late_changes(void), queue_sel(void), loops(void), lengths(void), index_jumps(void),
	indirect(void), features(void), status_games(void), config_space(void), break_storm(void),
	race(void), sectors(void);
void vsock_bounds(void), credit_lies(void), storm(void);
void doorbell(void), park(void), serial_flood(void), ioapic(void), ioapic_nmi(void),
	ioapic_init(void), unmapped(void), ports(void), triple_fault(void), halt(void),
	endless(void), random_all(void), echo(void);

#endif
