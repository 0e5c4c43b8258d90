/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ports of a sandbox: a request for one that is neither envd's nor the interpreter's goes to the server that
 * listens on it in the guest, as HTTP/1.1 over a connection of its own (the agent's "connect", docs/protocol.md
 * section 4), and its answer comes back as it is written. An upgrade that the server grants, as WebSocket's,
 * becomes a tunnel. Headers between two neighbours, and what only the daemon is to know, stay here.
 *
 * Memory for one: GUEST_QUEUE_BYTES and a buffer of HTTP's towards the guest; the head of the answer, one frame and
 * REPLY_QUEUE_BYTES towards the client. The answer begins when the request's body is there, or when the answer is
 * complete before that: then the rest of the body is for nobody. Loop's thread.
 */
#ifndef API_DAEMON_PORT_H
#define API_DAEMON_PORT_H

#include "api/daemon/route.h"

#define PORTS_MAX 256u /* connections of a box */

/* Of every request to such a port, at its headers. */
extern const struct route port_route;

#endif
