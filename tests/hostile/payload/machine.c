/* SPDX-License-Identifier: Apache-2.0 */
/* What is not virtio: doorbell, serial port, I/O APIC, ports, empty places, and ways to stop. */
#include "payload.h"

static void out8(uint16_t port, uint8_t value)
{
	__asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static uint8_t in8(uint16_t port)
{
	uint8_t value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

/* Every register in every phase that a guest can reach, with a mailbox that is nowhere. */
void doorbell(void)
{
	static const uint64_t page[] = { 1,           RAM,   RAM - 1, 0xd0000000,
		                         0x100000000, ~0ull, 0x1000,  0x1000 };

	EXPECT(rd32(DOORBELL) == 0x31584254);
	for (unsigned i = 0; i < sizeof(page) / sizeof(page[0]); i++) {
		wr32(DOORBELL + 4, (uint32_t)page[i]);
		wr32(DOORBELL + 8, (uint32_t)(page[i] >> 32));
	}
	for (uint32_t i = 0; i < 200; i++) { /* more pages than a mailbox has */
		wr32(DOORBELL + 4, 0x100000 + i * 4096);
		wr32(DOORBELL + 8, 0);
	}
	wr32(DOORBELL + 0x14, 0xffffffff); /* output before there is a request */
	wr32(DOORBELL + 0x18, 0xffffffff);
	wr32(DOORBELL + 0x20, 2); /* not the word for power off */
	for (uint32_t off = 0x24; off < 0x1000; off += 4)
		wr32(DOORBELL + off, 1);
	for (uint32_t off = 0; off < 0x1000; off += 4)
		if (off != 0x10)
			(void)rd32(DOORBELL + off);
	(void)*(volatile uint64_t *)(uintptr_t)(DOORBELL + 0x10); /* not a word: does not park */
	wr8(DOORBELL + 0x20, 1);
}

/* Parks, and again each time it is let go. */
void park(void)
{
	for (unsigned i = 0; i < 3; i++)
		EXPECT(rd32(DOORBELL + 0x10) == 0xffffffff);
}

void serial_flood(void)
{
	for (unsigned i = 0; i < 6000; i++) {
		wr8(SERIAL, '.');
		if (i % 16 == 0)
			wr8(SERIAL + 1 + any(7), (uint8_t)any(256) & (uint8_t)~0x90);
		if (i % 64 == 0)
			(void)rd8(SERIAL + any(8));
	}
	wr8(SERIAL + 3, 3);
	wr8(SERIAL + 4, 0);
	say("\n");
	*(volatile uint64_t *)(uintptr_t)SERIAL = ~0ull;   /* wider than the port */
	*(volatile uint32_t *)(uintptr_t)(SERIAL + 6) = 0; /* over its end */
	say("\n");
}

static void route(unsigned pin, uint32_t low, uint32_t high)
{
	wr32(IOAPIC, 0x11 + 2 * pin);
	wr32(IOAPIC + 0x10, high);
	wr32(IOAPIC, 0x10 + 2 * pin);
	wr32(IOAPIC + 0x10, low);
}

/* An edge on the first disk's pin. */
static void edge(void)
{
	start(&disk_ro);
	disk_ro.ring[0].avail[1] = 0x8000;
	kick(&disk_ro, 0);
	EXPECT(broken(&disk_ro));
}

/* Any redirection; interrupts are off, and the local APIC has not been enabled. */
void ioapic(void)
{
	for (unsigned n = 0; n < 256; n++) {
		wr32(IOAPIC, n);
		(void)rd32(IOAPIC + 0x10);
		if (n < 0x10 || n >= 0x40)
			wr32(IOAPIC + 0x10, 0xffffffff);
	}
	for (unsigned i = 0; i < 60; i++) {
		/* Fixed, lowest priority or reserved, to CPUs that there are and that there are not. */
		route(6, any(256) | (uint32_t)(any(2) | any(2) << 3 | 0) << 8 | any(2) << 11,
		      any(256) << 24);
		edge();
		route(6, 1u << 16, 0);
	}
	for (unsigned pin = 0; pin < 24; pin++)
		route(pin, 0xffffffff & ~(1u << 16) & ~(7u << 8), 0xff000000);
	wr32(IOAPIC + 0x20, 1);
	wr8(IOAPIC + 0x10, 1);
	disk_works(&disk_ro);
}

/* There is no interrupt table. */
static void send_and_wait(uint32_t mode)
{
	route(6, mode << 8, 0);
	say("sent\n"); /* before: it may be the last word */
	edge();
	for (;;)
		__asm__ volatile("pause");
}

void ioapic_nmi(void)
{
	send_and_wait(4);
}

void ioapic_init(void)
{
	send_and_wait(5);
}

void unmapped(void)
{
	for (uint64_t at = RAM; at < 0x140000000ull; at += 0x1000000 + 0x1ff4) {
		wr32(at, 0x5a5a5a5a);
		EXPECT(rd32(at) == 0xffffffff);
	}
	for (uint32_t at = 0xd0000000; at < 0xd0020000; at += 0x1000)
		for (uint32_t off = 0xff8; off < 0x1000; off++) /* over the edges of slots */
			(void)*(volatile uint64_t *)(uintptr_t)(at + off);
	(void)*(volatile uint64_t *)(uintptr_t)(0x140000000ull - 8);
}

void ports(void)
{
	for (uint32_t port = 0; port < 0x10000; port += port < 0x100 ? 1 : 251) {
		if (port == 0x64)
			continue; /* resets the machine when it hears the right word */
		out8((uint16_t)port, 0xa5);
		EXPECT(in8((uint16_t)port) == (port == 0x64 ? 0 : 0xff));
	}
	for (unsigned value = 0; value < 0xfe; value++)
		out8(0x64, (uint8_t)value);
	__asm__ volatile("outl %0, %1" ::"a"(0xfefefefe), "Nd"((uint16_t)0x64));
	{
		uint64_t from = DATA, to = DATA + 0x1000, n = 64;

		__asm__ volatile("cld; rep outsb" : "+S"(from), "+c"(n) : "d"(0x60) : "memory");
		n = 64;
		__asm__ volatile("rep insl" : "+D"(to), "+c"(n) : "d"(0x1f0) : "memory");
	}
	EXPECT(rd32(DATA + 0x1000) == 0xffffffff);
}

void triple_fault(void)
{
	__asm__ volatile("ud2");
}

void halt(void)
{
	say("halted\n");
	for (;;)
		__asm__ volatile("cli; hlt");
}

void endless(void)
{
	say("looping\n");
	for (;;)
		;
}

static void any_access(struct dev *d)
{
	static const uint32_t reg[] = { R_QUEUE_SEL, R_QUEUE_SIZE, R_QUEUE_READY,
		                        R_NOTIFY,    R_ACK,        R_DESC,
		                        R_AVAIL,     R_USED,       R_DRIVER_FEATURES };
	uint32_t value = any(3) ? any(8) : any(0xffffffff);

	if (any(4))
		wr32(d->base + reg[any(9)], value);
	else if (any(8))
		(void)rd32(d->base + any(0x400) * 4);
	else
		wr32(d->base + R_STATUS, any(256));
}

static void any_chain(struct dev *d, unsigned q)
{
	static const uint64_t base[] = { DATA, DATA, DATA, RAM - 8, 0xd0000000, ~0ull - 64, 0 };

	for (unsigned n = any(4); n; n--)
		put(d, q, any(RING_SIZE), base[any(7)] + any(64),
		    any(4) ? any(600) : any(0xffffffff), (uint16_t)any(8),
		    (uint16_t)any(RING_SIZE + 2));
	for (unsigned n = any(16); n; n--)
		wr8(DATA + any(4096), (uint8_t)any(16));
	publish(d, q, (uint16_t)any(any(20) ? RING_SIZE : 0xffff));
	kick(d, q);
}

/* Everything at once, from a seed that is told. */
void random_all(void)
{
	struct dev *devs[] = { &vsock, &disk, &disk_ro };

	for (unsigned i = 0; i < 3; i++)
		start(devs[i]);
	for (unsigned i = 0; i < 4000; i++) {
		struct dev *d = devs[any(3)];

		switch (any(8)) {
		case 0:
		case 1:
			any_access(d);
			break;
		case 2:
			if (rd32(d->base + R_STATUS) != S_RUNNING)
				start(d);
			break;
		case 3:
			/* Not NMI, INIT or SMI: those end it, and have their own scenarios. */
			route(any(24), any(256) | any(2) << 8 | any(2) << 11 | any(2) << 16,
			      any(256) << 24);
			break;
		case 4:
			wr32(DOORBELL + 4 * any(4), any(0xffffffff));
			break;
		case 5:
			wr8(SERIAL + 1 + any(7), (uint8_t)any(256) & 0x6f);
			break;
		default:
			any_chain(d, any(d->nr_queues));
			break;
		}
	}
	wr8(SERIAL + 3, 3);
	wr8(SERIAL + 4, 0);
	say("\n");
	disk_works(&disk);
	disk_works(&disk_ro);
}

/* The neighbour: answers each byte, for as long as it is let run. */
void echo(void)
{
	for (;;)
		if (rd8(SERIAL + 5) & 1)
			wr8(SERIAL, rd8(SERIAL));
}
