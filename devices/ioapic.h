/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small I/O APIC (Intel 82093AA register layout, 24 pins, version 0x20) for edges only: a rising
 * edge on an unmasked pin becomes one message-signalled interrupt. No EOI, no level, no remote IRR.
 */
#ifndef DEVICES_IOAPIC_H
#define DEVICES_IOAPIC_H

#include "core/state.h"

#include <pthread.h>

#define IOAPIC_PINS 24u
#define IOAPIC_LEN  0x1000u

#define IOAPIC_STATE(F, A)                                         \
	F(1, uint32_t, id)                                         \
	F(1, uint32_t, select)                                     \
	F(1, uint32_t, pending) /* edges that came while masked */ \
	A(1, uint64_t, redirection, IOAPIC_PINS)
STATE_STRUCT(ioapic_state, IOAPIC_STATE);
const struct state_desc *ioapic_state_desc(void);

/* Saved and loaded as `s` with state_put/state_get while the machine is paused. */
struct ioapic {
	pthread_mutex_t lock;
	struct ioapic_state s; /* lock */
	/* Sends the message (x86 MSI format); called with the lock held; must not call back. */
	void (*send_msi)(void *ctx, uint64_t address, uint32_t data);
	void *ctx;
};

void ioapic_init(struct ioapic *apic, void (*send_msi)(void *ctx, uint64_t address, uint32_t data),
                 void *ctx);
/* Raises an edge. Pins outside are ignored. Any thread. */
void ioapic_edge(struct ioapic *apic, unsigned pin);
/* One guest access (32 bits, at offsets 0x00 and 0x10). vCPU thread. */
uint32_t ioapic_read(struct ioapic *apic, uint32_t off);
void ioapic_write(struct ioapic *apic, uint32_t off, uint32_t value);

#endif
