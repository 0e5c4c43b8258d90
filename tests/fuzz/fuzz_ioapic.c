/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O APIC against a model of what matters: an edge on an unmasked pin is one message with that pin's vector
 * and mode at once; on a masked pin it is one message later, and never lost. Only MSI addresses are sent.
 */
#include "devices/ioapic.h"

#include "tests/fuzz/fuzz.h"

static struct ioapic apic;
static uint64_t rte[IOAPIC_PINS];
static uint32_t owed; /* the model's pending edges */
static unsigned messages;

static void on_message(void *ctx, uint64_t address, uint32_t data)
{
	(void)ctx;
	FZ_CHECK((address & ~0xff004ull) == 0xfee00000u && !(data & ~0x7ffu));
	messages++;
}

static void expect(unsigned pin)
{
	if (!(owed >> pin & 1) || (rte[pin] >> 16 & 1)) {
		FZ_CHECK(messages == 0);
		return;
	}
	owed &= ~(1u << pin);
	FZ_CHECK(messages == 1);
	messages = 0;
}

static void write_window(struct fz_in *in)
{
	uint32_t select = fz_u8(in), value = fz_u32(in), n = select - 0x10;

	ioapic_write(&apic, 0x00, select | (value & 0xff00));
	FZ_CHECK(ioapic_read(&apic, 0x00) == select);
	ioapic_write(&apic, 0x10, value);
	if (select < 0x10 || n / 2 >= IOAPIC_PINS) {
		FZ_CHECK(messages == 0);
		return;
	}
	if (n % 2)
		rte[n / 2] = (uint32_t)rte[n / 2] | (uint64_t)(value & 0xff000000u) << 32;
	else
		rte[n / 2] = (rte[n / 2] & 0xffull << 56) | (value & 0x1afffu);
	FZ_CHECK(ioapic_read(&apic, 0x10) == (uint32_t)(rte[n / 2] >> (n % 2 ? 32 : 0)));
	expect(n / 2);
}

static void save_and_load(void)
{
	struct state_buf buf = { 0 };
	struct ioapic_state s = { 0 };
	struct err err;

	state_put(&buf, ioapic_state_desc(), 0, &apic.s);
	FZ_CHECK(state_get(&buf, ioapic_state_desc(), 0, &s, &err) == 0);
	FZ_CHECK(memcmp(&s, &apic.s, sizeof(s)) == 0);
	state_buf_free(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };

	ioapic_init(&apic, on_message, NULL);
	owed = messages = 0;
	for (unsigned i = 0; i < IOAPIC_PINS; i++)
		rte[i] = 1u << 16;
	while (in.n) {
		uint8_t op = fz_u8(&in), pin = fz_u8(&in) % (IOAPIC_PINS + 4);

		if (op % 4 == 0) {
			owed |= pin < IOAPIC_PINS ? 1u << pin : 0;
			ioapic_edge(&apic, pin);
			if (pin < IOAPIC_PINS)
				expect(pin);
		} else if (op % 4 == 1) {
			write_window(&in);
		} else if (op % 4 == 2) {
			(void)ioapic_read(&apic, fz_u16(&in)); /* any offset */
		} else {
			uint32_t off = fz_u16(&in);

			if (off != 0x10) /* that one is modelled above */
				ioapic_write(&apic, off, fz_u32(&in));
		}
		FZ_CHECK(apic.s.pending == owed);
	}
	save_and_load();
	pthread_mutex_destroy(&apic.lock);
	return 0;
}
