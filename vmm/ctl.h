/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket (docs/protocol.md section 1): lines of JSON in, one answer a line out, events in
 * between. It is the monitor's whole interface; when it is closed, the monitor ends.
 */
#ifndef VMM_CTL_H
#define VMM_CTL_H

#include "core/err.h"

struct thaw_source;

/*
 * Serves the stream socket `fd` (taken over) until `quit`, its end, SIGTERM, or a machine that could
 * not be started. Returns 0, or -errno after such a failure, which has been answered. `source` (taken over;
 * NULL: none) is what it thaws unless a command names another. `start_ns`: CLOCK_MONOTONIC when the process
 * began.
 */
NODISCARD int ctl_serve(int fd, struct thaw_source *source, unsigned long long start_ns);

/* Listens on the Unix socket `path` and takes the first connection. The path is removed again. */
NODISCARD int ctl_accept(const char *path, struct err *err);

#endif
