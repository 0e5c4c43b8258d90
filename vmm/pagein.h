/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The working set of the first request (a snapshot's `workset` part): which pages of guest memory it
 * wrote and which it only read, in runs. At a thaw the written pages are made private in bulk before
 * the guest runs; the others are left to the page cache.
 */
#ifndef VMM_PAGEIN_H
#define VMM_PAGEIN_H

#include "core/err.h"
#include "core/gmem.h"
#include "vmm/snapshot.h"

enum pagein_class { PAGEIN_READ, PAGEIN_WRITTEN };

/*
 * Writes the pages that this process has touched of `mem` (a private mapping of the snapshot's memory)
 * as `dir`'s working set, replacing the one there. The vCPU is parked. Blocking, cold path.
 */
NODISCARD int pagein_record(const struct gmem *mem, const char *dir,
                            const uint8_t id[SNAPSHOT_ID_LEN], struct err *err);

struct pagein_stats {
	uint32_t written, read; /* pages in the working set */
	uint32_t populated;
};

/*
 * Makes the written pages present and private. A snapshot without a working set is slower, not wrong;
 * a damaged one is an error. Any thread that has `mem` to itself.
 */
NODISCARD int pagein_apply(const struct gmem *mem, int dir_fd, const uint8_t id[SNAPSHOT_ID_LEN],
                           struct pagein_stats *stats, struct err *err);

#endif
