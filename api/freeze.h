/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine frozen into a snapshot's directory (docs/snapshot.md). The monitor has no file system: the files are made
 * here, with our rights, and go to it as descriptors. Written under a temporary name, synced, renamed: a crash
 * leaves the old directory or none.
 */
#ifndef API_FREEZE_H
#define API_FREEZE_H

#include "api/sandbox.h"

/*
 * Freezes the machine, which is paused and stays so, into `dir`. With `replace` one that is there is exchanged, else
 * it is -EEXIST. On error nothing is left, and the machine may be resumed. Waits at most `timeout_ms`.
 */
NODISCARD int freeze_snapshot(struct sandbox *sb, const char *dir, bool replace, int timeout_ms,
                              struct err *err);

/*
 * Writes what the machine has used since a thaw with `record` as the working set of the snapshot in `dir`; with
 * `later` it is added to the one there. A whole new file takes the old one's name.
 */
NODISCARD int freeze_workset(struct sandbox *sb, const char *dir, bool later, int timeout_ms,
                             struct err *err);

#endif
