/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking a bzImage on the host (Documentation/arch/x86/boot.rst: header fields payload_offset and
 * payload_length, protocol 2.08): its own decompressor would run in the guest, and interpreted. The
 * payload's magic decides which program does it: gzip, xz, lzma, lz4, zstd, bzip2, lzop.
 */
#ifndef VMM_BOOT_BZIMAGE_H
#define VMM_BOOT_BZIMAGE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* True when `fd` (borrowed) begins as a Linux boot sector does. Blocking; any thread. */
bool boot_bzimage_probe(int fd, uint64_t size);

/*
 * Unpacks the vmlinux inside `fd` (borrowed; `size` bytes) into memory: a descriptor that the caller
 * owns, with the content's length in *out_size. At most `max` bytes. -ENOEXEC (damaged, or a format
 * without payload), -EFBIG, -ENOENT (the host lacks the program: the remedy names it) or -errno.
 * Blocking; starts a process; before the monitor is jailed.
 */
NODISCARD int boot_bzimage_unpack(int fd, uint64_t size, uint64_t max, uint64_t *out_size,
                                  struct err *err);

#endif
