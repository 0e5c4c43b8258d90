/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel finds in low memory at its first instruction: memory map, command line, device tree
 * and random seed, page tables, GDT. For the 64-bit entry by Documentation/arch/x86/{boot,zero-page}.rst,
 * for PVH by Xen's public arch-x86/hvm/start_info.h. Pure functions on guest memory; before the
 * machine runs; any thread.
 */
#ifndef VMM_BOOT_SETUP_H
#define VMM_BOOT_SETUP_H

#include "core/err.h"
#include "core/gmem.h"
#include "vmm/boot.h"

#define BOOT_MAX_RANGES 8u

struct boot_range {
	uint64_t start; /* guest-physical */
	uint64_t len;   /* bytes */
};

/*
 * The RAM that the kernel may use: all of `mem` without 640 KiB..1 MiB and without the page at
 * `vmgenid` (0: none). Returns the count.
 */
unsigned boot_ram_ranges(const struct gmem *mem, uint64_t vmgenid,
                         struct boot_range out[BOOT_MAX_RANGES]);

/*
 * Writes the structures for regs->entry and fills the other registers, except rip. `kernel_end`:
 * guest-physical, page tables map at least so far. 0, or -ENOSPC when the device tree does not fit;
 * `plan` has been checked.
 */
NODISCARD int boot_setup(const struct gmem *mem, const struct boot_plan *plan, uint64_t kernel_end,
                         struct boot_regs *regs, struct err *err);

#endif
