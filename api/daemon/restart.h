/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a daemon that is not the end of its sandboxes (docs/e2b.md): they come to rest, one text tells all of them, and
 * the next daemon takes them over. Loop's thread.
 */
#ifndef API_DAEMON_RESTART_H
#define API_DAEMON_RESTART_H

#include "api/daemon/handover.h"

struct daemon;

/*
 * When the loop has been stopped for it (daemon->leave): what is under way may end within the grace time, then the rest
 * of it is cut, and what does not come to rest ends. Returns 0 also when a stop came meanwhile (daemon->is_stopping).
 */
NODISCARD int restart_settle(struct daemon *daemon);

/* Writes everything, with the listening socket. It must have settled; the descriptors stay the daemon's. */
NODISCARD int restart_save(const struct daemon *daemon, int listen_fd, struct handover *h,
                           struct err *err);

/* The listening socket of the daemon before, or -1. The caller's. */
int restart_take_listening(struct handover *h);
/* Takes over its sandboxes; those that cannot be are logged, and end. Frees `h`. */
void restart_adopt(struct daemon *daemon, struct handover *h);

#endif
