/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading an ELF64 kernel (System V gABI chapter 5; notes as in Xen's public elfnote.h). The file is
 * untrusted and may change while it is read: headers are copied once, then checked; a file that got
 * shorter is an error, never a fault. Blocking; any thread; before the machine runs.
 */
#ifndef VMM_BOOT_ELF_H
#define VMM_BOOT_ELF_H

#include "core/err.h"
#include "core/gmem.h"

#include <stdbool.h>
#include <stdint.h>

#define BOOT_ELF_MAX_SEGMENTS 32u

struct boot_segment {
	uint64_t gpa; /* p_paddr */
	uint64_t mem_len;
	uint64_t file_off;
	uint64_t file_len; /* at most mem_len; the rest is zero */
	bool exec;
};

struct boot_elf {
	struct boot_segment segment[BOOT_ELF_MAX_SEGMENTS];
	unsigned nr_segments;
	uint64_t end;       /* guest-physical, after the highest segment */
	uint64_t entry;     /* e_entry */
	uint64_t pvh_entry; /* XEN_ELFNOTE_PHYS32_ENTRY; 0: no such note */
	bool is_linux;      /* has a note owned by "Linux" (every kernel since 4.18) */
};

/*
 * Reads `n` bytes at `off` of `fd` (borrowed). 0, -ENODATA when the file ends before, or -errno.
 */
NODISCARD int boot_pread(int fd, void *buf, size_t n, uint64_t off);

/*
 * Reads and checks the headers of the ELF in `fd` (borrowed), `size` bytes. 0, -ENOEXEC (not a kernel
 * that can be loaded; `err` names the field) or -errno. On error `elf` is undefined.
 */
NODISCARD int boot_elf_read(int fd, uint64_t size, struct boot_elf *elf, struct err *err);

/* True when `addr` (guest-physical) lies in the file's part of an executable segment. */
bool boot_elf_is_code(const struct boot_elf *elf, uint64_t addr);

/*
 * 0 when every segment lies in RAM above 1 MiB and below the device hole, beside `vmgenid`'s page (0:
 * none) and the other segments. -ENOEXEC, or -ENOMEM when the guest is too small.
 */
NODISCARD int boot_elf_fit(const struct boot_elf *elf, const struct gmem *mem, uint64_t vmgenid,
                           struct err *err);

/*
 * Reads the segments into guest memory, which must be zeroed and checked by boot_elf_fit(). 0 or
 * -errno; on error part of the segments may be there.
 */
NODISCARD int boot_elf_load(const struct boot_elf *elf, int fd, const struct gmem *mem,
                            struct err *err);

#endif
