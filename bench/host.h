/* SPDX-License-Identifier: Apache-2.0 */
/* What a measurement depends on besides the program: the host's description and its page cache. Any thread. */
#ifndef BENCH_HOST_H
#define BENCH_HOST_H

#include "core/compiler.h"
#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

/* Writes "CPU, n CPUs, kernel, KVM kind, load" into `line`. What cannot be learned is "unknown". */
void host_line(char *line, size_t size);

/*
 * Drops what the page cache holds of the regular files in `dir`, and, as root, the whole clean page cache
 * (/proc/sys/vm/drop_caches). Then asks mincore(2) whether the files really left it: -EBUSY when more than
 * 1 % of them is still there. Blocks for as long as the kernel takes.
 */
NODISCARD int host_cache_drop(const char *dir, struct err *err);

/* Bytes of the files in `dir` that the page cache holds, and their size without holes in *total. */
NODISCARD int host_cache_resident(const char *dir, uint64_t *resident, uint64_t *total,
                                  struct err *err);

#endif
