/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a Linux kernel: ELF vmlinux or bzImage at the 64-bit entry of the boot protocol
 * (Documentation/arch/x86/boot.rst), or an ELF kernel by PVH where it has that note and no 64-bit
 * Linux entry is wanted. The kernel file is untrusted input: every header field is checked against
 * the file's size and the guest's RAM before a byte is copied.
 */
#ifndef VMM_BOOT_H
#define VMM_BOOT_H

#include "core/err.h"
#include "core/gmem.h"

struct boot_plan {
	const char *kernel;  /* path */
	const char *cmdline; /* whole */
	unsigned nr_vcpus;
	unsigned nr_disks;
	uint8_t rng_seed[32]; /* fresh for each boot */
	uint64_t vmgenid;     /* guest-physical address of the page left out of the e820 map */
};

enum boot_entry { BOOT_LINUX64, BOOT_PVH };

/* What the boot vCPU's registers must be. */
struct boot_regs {
	enum boot_entry entry;
	uint64_t rip;
	uint64_t rsi; /* zero page (BOOT_LINUX64) */
	uint64_t rbx; /* start info (BOOT_PVH) */
	uint64_t cr3; /* page tables (BOOT_LINUX64) */
	uint64_t gdt;
	uint16_t gdt_limit;
};

/*
 * Puts kernel, command line, zero page (or PVH start info), e820 map, device tree, page tables and GDT
 * into guest memory. A bzImage is unpacked on the host (gzip, xz, lzma, lz4, zstd, bzip2 by the
 * programs of those names where the host has them), for a decompressor that the guest would run is slow. Before any VM runs; blocking.
 */
NODISCARD int boot_load(const struct gmem *mem, const struct boot_plan *plan,
                        struct boot_regs *regs, struct err *err);

#endif
