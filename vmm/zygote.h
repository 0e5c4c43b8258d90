/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The zygote: a small process of one thread that has a snapshot open, parsed and /dev/kvm at hand, and forks
 * monitors that need neither exec nor any of that. It runs no guest and holds nothing of a user.
 *
 * Its lines (docs/protocol.md section 1): `open` names the snapshot, `spawn` brings a monitor's control
 * socket, and optionally a descriptor for its log, and is answered by the child's pid. The child is the
 * sibling of the zygote (CLONE_PARENT): whoever started the zygote reaps it.
 */
#ifndef VMM_ZYGOTE_H
#define VMM_ZYGOTE_H

#include "core/err.h"

/*
 * Serves the stream socket `fd` (taken over) until `quit` or its end. Returns 0, or -errno; in a child, what
 * ctl_serve() returned.
 */
NODISCARD int zygote_serve(int fd);

#endif
