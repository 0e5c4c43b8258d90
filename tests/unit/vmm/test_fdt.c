/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/fdt.h"
#include "vmm/layout.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <libfdt.h>
#include <stdio.h>
#include <string.h>

static _Alignas(8) uint8_t blob[65536];

static const struct fdt_plan plan = { .nr_vcpus = 3, .nr_disks = 2, .vmgenid = 0x1fff000 };

static int node(const char *path)
{
	int off = fdt_path_offset(blob, path);

	cr_assert_geq(off, 0, "%s: %s", path, fdt_strerror(off));
	return off;
}

static const void *prop(int off, const char *name, int want_len)
{
	int len;
	const void *p = fdt_getprop(blob, off, name, &len);

	cr_assert_not_null(p, "no property %s", name);
	cr_assert_eq(len, want_len, "%s has %d bytes", name, len);
	return p;
}

static void has_cell(int off, const char *name, uint32_t want)
{
	cr_assert_eq(fdt32_ld(prop(off, name, 4)), want, "%s", name);
}

static void has_text(int off, const char *name, const char *want)
{
	cr_assert_str_eq(prop(off, name, (int)strlen(want) + 1), want);
}

static void is_device(const char *path, const char *compatible, uint64_t addr, uint64_t len,
                      uint32_t pin)
{
	int off = node(path);
	const fdt64_t *reg = prop(off, "reg", 16);
	const fdt32_t *irq = prop(off, "interrupts", 8);

	has_text(off, "compatible", compatible);
	cr_assert_eq(fdt64_ld(&reg[0]), addr);
	cr_assert_eq(fdt64_ld(&reg[1]), len);
	cr_assert_eq(fdt32_ld(&irq[0]), pin);
	cr_assert_eq(fdt32_ld(&irq[1]), 3u, "3 is edge rising on x86");
}

static int children(const char *path)
{
	int n = 0, off;

	fdt_for_each_subnode(off, blob, node(path)) n++;
	return n;
}

Test(fdt, describes_machine)
{
	int len = fdt_build(&plan, blob, sizeof(blob)), root;

	cr_assert_gt(len, 0);
	cr_assert_eq(fdt_check_full(blob, (size_t)len), 0);
	root = node("/");
	has_cell(root, "#address-cells", 2);
	has_cell(root, "#size-cells", 2);
	has_text(root, "compatible", "thawbox");
	has_cell(root, "interrupt-parent", fdt_get_phandle(blob, node("/ioapic@fec00000")));
	has_text(node("/chosen"), "stdout-path", "/serial@d0000000");
	has_text(node("/aliases"), "serial0", "/serial@d0000000");
	cr_assert_eq(children("/"), 10, "chosen, aliases, cpus, 2 APICs, serial, 3 slots, vmgenid");
}

Test(fdt, describes_cpus)
{
	cr_assert_gt(fdt_build(&plan, blob, sizeof(blob)), 0);
	has_cell(node("/cpus"), "#address-cells", 1);
	has_cell(node("/cpus"), "#size-cells", 0);
	cr_assert_eq(children("/cpus"), 3);
	for (uint32_t id = 0; id < 3; id++) {
		char path[32];

		(void)snprintf(path, sizeof(path), "/cpus/cpu@%u", id);
		has_text(node(path), "device_type", "cpu");
		has_text(node(path), "compatible", "intel,x86");
		has_cell(node(path), "reg", id);
	}
}

Test(fdt, describes_interrupt_controllers)
{
	int ioapic, lapic;

	cr_assert_gt(fdt_build(&plan, blob, sizeof(blob)), 0);
	ioapic = node("/ioapic@fec00000");
	has_text(ioapic, "compatible", "intel,ce4100-ioapic");
	has_cell(ioapic, "#interrupt-cells", 2);
	(void)prop(ioapic, "interrupt-controller", 0);
	cr_assert_eq(fdt64_ld(prop(ioapic, "reg", 16)), LAYOUT_IOAPIC);
	lapic = node("/lapic@fee00000");
	has_text(lapic, "compatible", "intel,ce4100-lapic");
	cr_assert_eq(fdt64_ld(prop(lapic, "reg", 16)), 0xfee00000u);
	(void)prop(lapic, "intel,virtual-wire-mode", 0);
}

Test(fdt, describes_devices)
{
	cr_assert_gt(fdt_build(&plan, blob, sizeof(blob)), 0);
	is_device("/serial@d0000000", "ns16550a", LAYOUT_SERIAL, 8, LAYOUT_PIN_SERIAL);
	has_cell(node("/serial@d0000000"), "clock-frequency", 1843200);
	is_device("/virtio@d0001000", "virtio,mmio", LAYOUT_VIRTIO, 0x200, LAYOUT_PIN_VIRTIO);
	is_device("/virtio@d0002000", "virtio,mmio", LAYOUT_VIRTIO + LAYOUT_VIRTIO_STEP, 0x200,
	          LAYOUT_PIN_VIRTIO + 1);
	is_device("/virtio@d0003000", "virtio,mmio", LAYOUT_VIRTIO + 2 * LAYOUT_VIRTIO_STEP, 0x200,
	          LAYOUT_PIN_VIRTIO + 2);
	is_device("/vmgenid@1fff000", "microsoft,vmgenid", 0x1fff000, 0x1000, LAYOUT_PIN_VMGENID);
}

Test(fdt, leaves_out_absent_generation_id)
{
	const struct fdt_plan bare = { .nr_vcpus = 1 };

	cr_assert_gt(fdt_build(&bare, blob, sizeof(blob)), 0);
	cr_assert_eq(children("/"), 7);
}

Test(fdt, refuses_too_little_room_of_any_size)
{
	int len = fdt_build(&plan, blob, sizeof(blob));

	/* The writer needs a header's slack beyond the final length, never less than the length. */
	for (size_t room = 0; room < (size_t)len; room += 4)
		cr_assert_eq(fdt_build(&plan, blob, room), -ENOSPC, "room %zu", room);
}

Test(fdt, refuses_machines_beyond_layout)
{
	const struct fdt_plan no_cpu = { .nr_disks = 1 };
	const struct fdt_plan disks = { .nr_vcpus = 1, .nr_disks = LAYOUT_VIRTIO_SLOTS };

	cr_assert_eq(fdt_build(&no_cpu, blob, sizeof(blob)), -EINVAL);
	cr_assert_eq(fdt_build(&disks, blob, sizeof(blob)), -EINVAL);
}
