/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/fdt.h"

#include "vmm/layout.h"

#include <errno.h>
#include <libfdt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define IOAPIC_PHANDLE 1u
#define LAPIC_BASE     0xfee00000ull
/* The I/O APIC's second interrupt cell is x86's own code, not the generic one: 3 is edge, rising. */
#define EDGE_RISING 3u
/* What a PC's 16550 has; Linux derives baud rates from it. */
#define UART_CLOCK_HZ 1843200u
#define VIRTIO_LEN    0x200ull
#define PAGE          0x1000ull

/* libfdt's sequential writer with a sticky error, so that the tree below reads as a tree. */
struct tree {
	void *fdt;
	int err; /* 0 or the first -FDT_ERR_* */
};

static void keep(struct tree *t, int ret)
{
	if (t->err == 0 && ret < 0)
		t->err = ret;
}

static void begin(struct tree *t, const char *name)
{
	keep(t, fdt_begin_node(t->fdt, name));
}

/* A device's node is named after its address (Devicetree Specification 2.2.1). */
static void begin_at(struct tree *t, const char *name, uint64_t addr)
{
	char node[64];

	(void)snprintf(node, sizeof(node), "%s@%llx", name, (unsigned long long)addr);
	begin(t, node);
}

static void end(struct tree *t)
{
	keep(t, fdt_end_node(t->fdt));
}

static void text(struct tree *t, const char *name, const char *value)
{
	keep(t, fdt_property(t->fdt, name, value, (int)strlen(value) + 1));
}

static void cell(struct tree *t, const char *name, uint32_t value)
{
	keep(t, fdt_property_u32(t->fdt, name, value));
}

static void flag(struct tree *t, const char *name)
{
	keep(t, fdt_property(t->fdt, name, NULL, 0));
}

static void reg(struct tree *t, uint64_t addr, uint64_t len)
{
	fdt64_t cells[2] = { cpu_to_fdt64(addr), cpu_to_fdt64(len) };

	keep(t, fdt_property(t->fdt, "reg", cells, sizeof(cells)));
}

static void interrupt(struct tree *t, uint32_t pin)
{
	fdt32_t cells[2] = { cpu_to_fdt32(pin), cpu_to_fdt32(EDGE_RISING) };

	keep(t, fdt_property(t->fdt, "interrupts", cells, sizeof(cells)));
}

static void device(struct tree *t, const char *name, const char *compatible, uint64_t addr,
                   uint64_t len, uint32_t pin)
{
	begin_at(t, name, addr);
	text(t, "compatible", compatible);
	reg(t, addr, len);
	interrupt(t, pin);
	end(t);
}

static void console_names(struct tree *t)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/serial@%llx", LAYOUT_SERIAL);
	begin(t, "chosen");
	text(t, "stdout-path", path);
	end(t);
	begin(t, "aliases");
	text(t, "serial0", path);
	end(t);
}

static void cpus(struct tree *t, unsigned nr)
{
	begin(t, "cpus");
	cell(t, "#address-cells", 1);
	cell(t, "#size-cells", 0);
	for (unsigned id = 0; id < nr; id++) {
		begin_at(t, "cpu", id);
		text(t, "device_type", "cpu");
		text(t, "compatible", "intel,x86");
		cell(t, "reg", id);
		end(t);
	}
	end(t);
}

static void interrupt_controllers(struct tree *t)
{
	begin_at(t, "lapic", LAPIC_BASE);
	text(t, "compatible", "intel,ce4100-lapic");
	reg(t, LAPIC_BASE, PAGE);
	flag(t, "intel,virtual-wire-mode");
	end(t);

	begin_at(t, "ioapic", LAYOUT_IOAPIC);
	text(t, "compatible", "intel,ce4100-ioapic");
	reg(t, LAYOUT_IOAPIC, PAGE);
	flag(t, "interrupt-controller");
	cell(t, "#interrupt-cells", 2);
	cell(t, "phandle", IOAPIC_PHANDLE);
	end(t);
}

static void serial(struct tree *t)
{
	begin_at(t, "serial", LAYOUT_SERIAL);
	text(t, "compatible", "ns16550a");
	reg(t, LAYOUT_SERIAL, 8);
	cell(t, "clock-frequency", UART_CLOCK_HZ);
	interrupt(t, LAYOUT_PIN_SERIAL);
	end(t);
}

static void machine(struct tree *t, const struct fdt_plan *plan)
{
	begin(t, "");
	cell(t, "#address-cells", 2);
	cell(t, "#size-cells", 2);
	text(t, "compatible", "thawbox");
	text(t, "model", "thawbox");
	cell(t, "interrupt-parent", IOAPIC_PHANDLE);
	console_names(t);
	cpus(t, plan->nr_vcpus);
	interrupt_controllers(t);
	serial(t);
	for (unsigned slot = 0; slot <= plan->nr_disks; slot++)
		device(t, "virtio", "virtio,mmio", LAYOUT_VIRTIO + slot * LAYOUT_VIRTIO_STEP,
		       VIRTIO_LEN, LAYOUT_PIN_VIRTIO + slot);
	if (plan->vmgenid)
		device(t, "vmgenid", "microsoft,vmgenid", plan->vmgenid, PAGE, LAYOUT_PIN_VMGENID);
	end(t);
}

int fdt_build(const struct fdt_plan *plan, void *out, size_t room)
{
	struct tree t = { .fdt = out };

	if (plan->nr_vcpus == 0 || plan->nr_disks >= LAYOUT_VIRTIO_SLOTS)
		return -EINVAL;
	if (fdt_create(out, room > INT_MAX ? INT_MAX : (int)room) < 0)
		return -ENOSPC;
	keep(&t, fdt_finish_reservemap(out));
	machine(&t, plan);
	keep(&t, fdt_finish(out));
	/* The plan is valid and the calls are in order: room is all that can be wanting. */
	return t.err < 0 ? -ENOSPC : (int)fdt_totalsize(out);
}
