/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device tree that describes the machine to Linux (there is no ACPI, MP table or PCI): CPUs, local
 * APIC, I/O APIC, serial port, virtio-mmio slots, VM generation id. Bindings: Devicetree
 * Specification 0.4; the x86 parts as arch/x86/kernel/devicetree.c reads them (docs/boot.md).
 */
#ifndef VMM_FDT_H
#define VMM_FDT_H

#include "core/compiler.h"

#include <stddef.h>
#include <stdint.h>

struct fdt_plan {
	unsigned nr_vcpus; /* local APIC ids 0.. */
	unsigned nr_disks; /* virtio slots 1.. */
	uint64_t vmgenid;  /* guest-physical page, not RAM in the e820 map; 0: no such device */
};

/*
 * Writes the flattened tree to `out` (borrowed, 8-byte aligned, `room` bytes). Pure; any thread.
 * Returns its length in bytes, -ENOSPC when `room` is too small, or -EINVAL for a machine that the
 * layout cannot hold (no vCPU, more disks than slots).
 */
NODISCARD int fdt_build(const struct fdt_plan *plan, void *out, size_t room);

#endif
