/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page cache's copy of a snapshot's memory. Monitors map it, and so each other's sandboxes share it.
 */
#ifndef API_PAGECACHE_H
#define API_PAGECACHE_H

#include "core/err.h"

/*
 * Reads the file at `path` anew, in folios of 2 MiB where the file system has them: what a guest maps as one
 * large page the host then maps as one, too, and a fault brings all of it. Pages that somebody has mapped stay
 * as they are. Blocking: as long as reading the file takes.
 */
NODISCARD int pagecache_settle(const char *path, struct err *err);

#endif
