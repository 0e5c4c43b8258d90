/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/ioapic.h"

#include <errno.h>
#include <string.h>

/* The window: an index register and the data register it selects (82093AA section 3.1). */
#define WINDOW_SELECT 0x00u
#define WINDOW_DATA   0x10u

#define REG_ID          0x00u
#define REG_VERSION     0x01u
#define REG_ARBITRATION 0x02u
#define REG_REDIRECTION 0x10u

#define VERSION (0x20u | ((IOAPIC_PINS - 1) << 16))
/* All eight bits: Linux gives the chip an id that no CPU has, and checks that it sticks. */
#define ID_MASK 0xff000000u

/* Redirection entry. Delivery status (12) and remote IRR (14) are read-only, and 0 for edges. */
#define RTE_VECTOR    0xffull
#define RTE_MODE      (7ull << 8)
#define RTE_LOGICAL   (1ull << 11)
#define RTE_POLARITY  (1ull << 13)
#define RTE_LEVEL     (1ull << 15)
#define RTE_MASKED    (1ull << 16)
#define RTE_DEST      (0xffull << 56)
#define RTE_LOW_BITS  (RTE_VECTOR | RTE_MODE | RTE_LOGICAL | RTE_POLARITY | RTE_LEVEL | RTE_MASKED)
#define RTE_KEPT_BITS (RTE_LOW_BITS | RTE_DEST)

#define MSI_BASE    0xfee00000ull
#define MSI_LOGICAL (1ull << 2)

static int ioapic_state_check(void *state, uint16_t from, struct err *err)
{
	const struct ioapic_state *s = state;

	(void)from; /* one version so far */
	if ((s->id & ~ID_MASK) || s->select > 0xff || s->pending >> IOAPIC_PINS)
		return err_set(err, -EBADMSG, "id 0x%x, select 0x%x or pending 0x%x out of range",
		               s->id, s->select, s->pending);
	for (unsigned i = 0; i < IOAPIC_PINS; i++)
		if (s->redirection[i] & ~RTE_KEPT_BITS)
			return err_set(err, -EBADMSG, "redirection of pin %u has reserved bits", i);
	return 0;
}
STATE_DESC(ioapic_state, IOAPIC_STATE, "IOAP", 1, ioapic_state_check)

void ioapic_init(struct ioapic *apic, void (*send_msi)(void *ctx, uint64_t address, uint32_t data),
                 void *ctx)
{
	memset(apic, 0, sizeof(*apic));
	pthread_mutex_init(&apic->lock, NULL);
	apic->send_msi = send_msi;
	apic->ctx = ctx;
	for (unsigned i = 0; i < IOAPIC_PINS; i++)
		apic->s.redirection[i] = RTE_MASKED;
}

/* Sends what the pin owes, or leaves it pending while masked. Lock held. */
static void deliver(struct ioapic *apic, unsigned pin)
{
	uint64_t rte = apic->s.redirection[pin];
	uint32_t bit = 1u << pin;

	if (!(apic->s.pending & bit) || (rte & RTE_MASKED))
		return;
	apic->s.pending &= ~bit;
	apic->send_msi(apic->ctx,
	               MSI_BASE | (rte >> 56) << 12 | (rte & RTE_LOGICAL ? MSI_LOGICAL : 0),
	               (uint32_t)(rte & (RTE_VECTOR | RTE_MODE)));
}

void ioapic_edge(struct ioapic *apic, unsigned pin)
{
	if (pin >= IOAPIC_PINS)
		return;
	pthread_mutex_lock(&apic->lock);
	apic->s.pending |= 1u << pin;
	deliver(apic, pin);
	pthread_mutex_unlock(&apic->lock);
}

static uint32_t read_data(const struct ioapic *apic)
{
	uint32_t index = apic->s.select, n = index - REG_REDIRECTION;

	if (index == REG_ID || index == REG_ARBITRATION)
		return apic->s.id;
	if (index == REG_VERSION)
		return VERSION;
	if (index < REG_REDIRECTION || n / 2 >= IOAPIC_PINS)
		return 0;
	return (uint32_t)(apic->s.redirection[n / 2] >> (n % 2 ? 32 : 0));
}

static void write_data(struct ioapic *apic, uint32_t value)
{
	uint32_t index = apic->s.select, n = index - REG_REDIRECTION;
	uint64_t *rte;

	if (index == REG_ID)
		apic->s.id = value & ID_MASK;
	if (index < REG_REDIRECTION || n / 2 >= IOAPIC_PINS)
		return;
	rte = &apic->s.redirection[n / 2];
	if (n % 2)
		*rte = (*rte & RTE_LOW_BITS) | ((uint64_t)value << 32 & RTE_DEST);
	else
		*rte = (*rte & RTE_DEST) | (value & RTE_LOW_BITS);
	deliver(apic, n / 2);
}

uint32_t ioapic_read(struct ioapic *apic, uint32_t off)
{
	uint32_t value = 0;

	pthread_mutex_lock(&apic->lock);
	if (off == WINDOW_SELECT)
		value = apic->s.select;
	else if (off == WINDOW_DATA)
		value = read_data(apic);
	pthread_mutex_unlock(&apic->lock);
	return value;
}

void ioapic_write(struct ioapic *apic, uint32_t off, uint32_t value)
{
	pthread_mutex_lock(&apic->lock);
	if (off == WINDOW_SELECT)
		apic->s.select = value & 0xff;
	else if (off == WINDOW_DATA)
		write_data(apic, value);
	pthread_mutex_unlock(&apic->lock);
}
