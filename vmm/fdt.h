/* SPDX-License-Identifier: Apache-2.0 */
/* The device tree that describes the machine to Linux (there is no ACPI, MP table or PCI). */
#ifndef VMM_FDT_H
#define VMM_FDT_H

#include "core/compiler.h"

#include <stddef.h>
#include <stdint.h>

struct fdt_plan {
	unsigned nr_vcpus;
	unsigned nr_disks; /* virtio slots 1.. */
	uint64_t vmgenid;  /* guest-physical page, not RAM in the e820 map */
};

/* Writes the flattened tree to `out`: its length in bytes, or -ENOSPC when `room` is too small. */
NODISCARD int fdt_build(const struct fdt_plan *plan, void *out, size_t room);

#endif
