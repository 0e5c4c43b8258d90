/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes between a client's socket, which was HTTP's, and a connection in a guest, both ways; each way ends by
 * itself. Held: of each way at most TUNNEL_BYTES and one read, as who is ahead has to wait. Loop's thread.
 */
#ifndef API_DAEMON_TUNNEL_H
#define API_DAEMON_TUNNEL_H

#include "api/daemon/machine.h"
#include "api/daemon/websocket.h"

#define TUNNEL_BYTES GUEST_QUEUE_BYTES

struct tunnel {
	struct loop *loop;
	struct guest_stream *guest; /* its owner's, who hands on what it says */
	int fd;                     /* the client's; not ours to close */
	struct bytes out;           /* for the client */
	bool client_ended, guest_ended, is_shut;
	bool is_websocket;            /* set by the owner before anything is said */
	struct websocket ws;          /* what the guest says, if it is one */
	uint64_t bytes_in, bytes_out; /* of the client; to it */
	struct loop_op in_op, out_op;
	/* Both ways have ended, or the client is gone: the owner closes the tunnel. */
	void (*over)(struct tunnel *t);
};

void tunnel_open(struct tunnel *t, struct loop *loop, struct guest_stream *guest, int fd,
                 void (*over)(struct tunnel *));
/* Idempotent; also on a zeroed one. */
void tunnel_close(struct tunnel *t);

/* The client said this before. */
void tunnel_from_client(struct tunnel *t, const void *data, size_t len);
/* The guest says something; its way has ended; it takes more again. False: the tunnel is over. */
NODISCARD bool tunnel_from_guest(struct tunnel *t, const void *data, size_t len);
NODISCARD bool tunnel_guest_ended(struct tunnel *t);
void tunnel_guest_drained(struct tunnel *t);

/* The daemon is replaced: a client of a WebSocket is told to connect again, if that is possible between two frames. */
void tunnel_leave(struct tunnel *t);

#endif
