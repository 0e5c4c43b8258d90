/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a kernel: an ELF vmlinux, or the one inside a bzImage, at the 64-bit entry of Linux's boot
 * protocol (Documentation/arch/x86/boot.rst), or any ELF kernel by its PVH note (Xen's public
 * start_info.h). The kernel file is untrusted input: every header field is checked against the
 * file's size and the guest's RAM before a byte is copied. Rules of choice: docs/boot.md.
 */
#ifndef VMM_BOOT_H
#define VMM_BOOT_H

#include "core/err.h"
#include "core/gmem.h"

struct boot_plan {
	const char *kernel; /* path, for words alone */
	int kernel_fd;      /* of boot_open(), with its size */
	uint64_t kernel_size;
	const char *cmdline; /* whole; at most LAYOUT_CMDLINE_MAX - 1 bytes */
	unsigned nr_vcpus;
	unsigned nr_disks;
	uint8_t rng_seed[32]; /* fresh for each boot */
	uint64_t vmgenid;     /* guest-physical page left out of the e820 map; 0: no such device */
};

enum boot_entry { BOOT_LINUX64, BOOT_PVH };

/* Selectors into the GDT at boot_regs.gdt: flat segments, base 0, limit 4 GiB. */
#define BOOT_SEL_CODE 0x10u /* 64-bit code, or 32-bit for BOOT_PVH */
#define BOOT_SEL_DATA 0x18u
#define BOOT_SEL_TSS  0x20u /* busy, base 0, limit 0x67 */

/* What the boot vCPU's registers must be. */
struct boot_regs {
	enum boot_entry entry;
	uint64_t rip;
	uint64_t rsi; /* zero page (BOOT_LINUX64) */
	uint64_t rbx; /* start info (BOOT_PVH: 32-bit protected mode without paging) */
	uint64_t cr3; /* page tables (BOOT_LINUX64) */
	uint64_t gdt;
	uint16_t gdt_limit;
};

/*
 * Opens the kernel at `path`: an ELF file of *size bytes, which the caller owns. A bzImage is unpacked on the host by
 * a program (boot_bzimage.h), to at most `max` bytes. -ENOEXEC (not such a kernel), -ENOENT, or another -errno,
 * with a remedy. Blocking.
 */
NODISCARD int boot_open(const char *path, uint64_t max, uint64_t *size, struct err *err);

/*
 * Puts kernel, command line, zero page with e820 map, random seed and device tree (or PVH start
 * info), page tables and GDT into guest memory, which must be zeroed, and fills `regs`. Everything
 * is borrowed for the call. Returns 0; -ENOEXEC (not such a kernel), -ENOMEM (the guest is too small), -EINVAL
 * (plan), or another -errno, with a remedy. On a bad file or plan guest memory is untouched. Blocking; any
 * thread; before the machine runs.
 */
NODISCARD int boot_load(const struct gmem *mem, const struct boot_plan *plan,
                        struct boot_regs *regs, struct err *err);

#endif
