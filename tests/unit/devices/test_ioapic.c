/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/ioapic.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct ioapic apic;
static struct {
	unsigned nr;
	uint64_t address;
	uint32_t data;
} msi;

static void on_msi(void *ctx, uint64_t address, uint32_t data)
{
	cr_assert_eq(ctx, &msi);
	msi.nr++;
	msi.address = address;
	msi.data = data;
}

static void setup(void)
{
	memset(&msi, 0, sizeof(msi));
	ioapic_init(&apic, on_msi, &msi);
}

TestSuite(ioapic, .init = setup);

static uint32_t get(uint32_t index)
{
	ioapic_write(&apic, 0x00, index);
	cr_assert_eq(ioapic_read(&apic, 0x00), index);
	return ioapic_read(&apic, 0x10);
}

static void set(uint32_t index, uint32_t value)
{
	ioapic_write(&apic, 0x00, index);
	ioapic_write(&apic, 0x10, value);
}

Test(ioapic, what_linux_reads_first)
{
	cr_assert_eq(get(1), 0x00170020, "version 0x20, 24 pins");
	cr_assert_eq(get(0), 0);
	set(0, 0xff000000);
	cr_assert_eq(get(0), 0xff000000, "the id sticks");
	set(0, 0xffffffff);
	cr_assert_eq(get(0), 0xff000000);
	set(1, 0);
	cr_assert_eq(get(1), 0x00170020, "read-only");
	for (unsigned pin = 0; pin < IOAPIC_PINS; pin++) {
		cr_assert_eq(get(0x10 + 2 * pin), 0x10000, "masked at reset");
		cr_assert_eq(get(0x11 + 2 * pin), 0);
	}
}

Test(ioapic, entries_keep_what_is_writable)
{
	set(0x10 + 2 * 5, 0xffffffff);
	set(0x11 + 2 * 5, 0xffffffff);
	cr_assert_eq(get(0x10 + 2 * 5), 0x1afff, "delivery status and remote IRR are read-only");
	cr_assert_eq(get(0x11 + 2 * 5), 0xff000000);
	set(0x10 + 2 * 5, 0x31);
	cr_assert_eq(get(0x11 + 2 * 5), 0xff000000, "the halves are independent");
}

Test(ioapic, edge_to_message)
{
	set(0x11 + 2 * 4, 3u << 24);
	set(0x10 + 2 * 4, 0x31);
	ioapic_edge(&apic, 4);
	cr_assert_eq(msi.nr, 1);
	cr_assert_eq(msi.address, 0xfee03000);
	cr_assert_eq(msi.data, 0x31);
	ioapic_edge(&apic, 5);
	cr_assert_eq(msi.nr, 1, "another pin is masked");
	/* Logical destination 0x81, lowest priority. */
	set(0x11 + 2 * 4, 0x81u << 24);
	set(0x10 + 2 * 4, 0x0922);
	ioapic_edge(&apic, 4);
	cr_assert_eq(msi.nr, 2);
	cr_assert_eq(msi.address, 0xfee81004);
	cr_assert_eq(msi.data, 0x0122);
	/* A level entry is served as an edge: nobody would end it. */
	set(0x10 + 2 * 4, 0xa040);
	ioapic_edge(&apic, 4);
	cr_assert_eq(msi.data, 0x40);
	cr_assert_eq(msi.address, 0xfee81000);
}

Test(ioapic, masked_edges_come_once_at_the_unmask)
{
	ioapic_edge(&apic, 6);
	ioapic_edge(&apic, 6);
	cr_assert_eq(msi.nr, 0);
	set(0x11 + 2 * 6, 1u << 24);
	cr_assert_eq(msi.nr, 0);
	set(0x10 + 2 * 6, 0x10055);
	cr_assert_eq(msi.nr, 0);
	set(0x10 + 2 * 6, 0x55);
	cr_assert_eq(msi.nr, 1);
	cr_assert_eq(msi.address, 0xfee01000);
	cr_assert_eq(msi.data, 0x55);
	set(0x10 + 2 * 6, 0x10055);
	set(0x10 + 2 * 6, 0x55);
	cr_assert_eq(msi.nr, 1);
}

Test(ioapic, outside)
{
	for (uint32_t index = 0x40; index < 0x100; index++) {
		set(index, 0xffffffff);
		cr_assert_eq(get(index), 0);
	}
	set(3, 0xffffffff);
	cr_assert_eq(get(3), 0);
	ioapic_write(&apic, 0x40, 0x55); /* EOI, of a later version */
	ioapic_write(&apic, 0xffc, 1);
	cr_assert_eq(ioapic_read(&apic, 0x20), 0);
	ioapic_edge(&apic, IOAPIC_PINS);
	ioapic_edge(&apic, UINT32_MAX);
	ioapic_write(&apic, 0x00, 0xffffff01);
	cr_assert_eq(ioapic_read(&apic, 0x00), 1);
	cr_assert_eq(msi.nr, 0);
	cr_assert_eq(apic.s.pending, 0);
}

Test(ioapic, state)
{
	struct state_buf buf = { 0 };
	struct ioapic other;
	struct ioapic_state bad;
	struct err err = { 0 };

	set(0x11 + 2 * 7, 2u << 24);
	set(0x10 + 2 * 7, 0x10066);
	ioapic_edge(&apic, 7);
	state_put(&buf, ioapic_state_desc(), 0, &apic.s);
	ioapic_init(&other, on_msi, &msi);
	cr_assert_eq(state_get(&buf, ioapic_state_desc(), 0, &other.s, &err), 0);
	ioapic_write(&other, 0x00, 0x10 + 2 * 7);
	ioapic_write(&other, 0x10, 0x66);
	cr_assert_eq(msi.nr, 1, "the pending edge travels along");
	cr_assert_eq(msi.address, 0xfee02000);
	bad = apic.s;
	bad.pending = 1u << 24;
	buf.len = buf.pos = 0;
	state_put(&buf, ioapic_state_desc(), 0, &bad);
	cr_assert_eq(state_get(&buf, ioapic_state_desc(), 0, &other.s, &err), -EBADMSG);
	bad = apic.s;
	bad.redirection[3] = 1ull << 40;
	buf.len = buf.pos = 0;
	state_put(&buf, ioapic_state_desc(), 0, &bad);
	cr_assert_eq(state_get(&buf, ioapic_state_desc(), 0, &other.s, &err), -EBADMSG);
	cr_assert(strstr(err.msg, "pin 3"), "%s", err.msg);
	state_buf_free(&buf);
}
