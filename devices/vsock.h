/* SPDX-License-Identifier: Apache-2.0 */
/*
 * virtio-vsock (virtio 1.2 section 5.10), stream sockets only. On the host a guest port is reached in
 * two ways: vsock_connect() ties a descriptor to it, or a program connects to the Unix socket `path`,
 * writes "CONNECT <port>\n" and reads "OK <host port>\n". A guest that connects to host port N
 * reaches the Unix socket "<path>_N". Connections do not survive a snapshot: a thawed guest that had
 * some gets a transport reset event.
 */
#ifndef DEVICES_VSOCK_H
#define DEVICES_VSOCK_H

#include "devices/throttle.h"
#include "devices/vdev.h"

#define VSOCK_GUEST_CID 3u

struct vsock;

struct vsock_config {
	const char *
		path; /* Unix socket to listen on, copied; NULL: none, and guest connections are refused */
	uint64_t guest_cid;
	/* A connection to this guest port is about to be asked for. Loop's thread, lock held. NULL: nobody wants to know. */
	void (*asked)(void *ctx, uint32_t port);
	void *asked_ctx;
};

/* Loop's thread. Errors name the path and a remedy; nothing is left behind. */
NODISCARD int vsock_open(struct vsock **vsock, const struct vsock_config *config,
                         const struct vdev_host *host, unsigned instance, struct err *err);
/* Takes over a socket that listens, or none (fd -1), where the config had no `path`. Loop's thread. */
struct vsock_unix;
NODISCARD int vsock_listen(struct vsock *vsock, struct vsock_unix *un, struct err *err);
/* Closes all connections, removes the Unix socket it made. Loop's thread or after it. NULL is allowed. */
void vsock_close(struct vsock *vsock);
struct vdev *vsock_vdev(struct vsock *vsock);

/* How vsock_connect() begins. */
enum vsock_begin {
	VSOCK_NOW,           /* ask the guest at once */
	VSOCK_ON_FIRST_BYTE, /* ask when the descriptor has something to say (or is closed: then never) */
};

/*
 * Connects `fd` (a stream socket, taken over; its flags are left as they are) to the guest's `port`;
 * bytes flow both ways until either side ends. When the guest refuses, `fd` is closed. Loop's thread,
 * lock not held. -ENOSPC when the table is full, with `fd` still the caller's.
 */
NODISCARD int vsock_connect(struct vsock *vsock, int fd, uint32_t port, enum vsock_begin begin,
                            struct err *err);
/* As above, with `n` bytes (copied, at most 64 KiB) that go to the guest before what `fd` says. */
NODISCARD int vsock_connect_with(struct vsock *vsock, int fd, uint32_t port, const void *bytes,
                                 size_t n, struct err *err);

/*
 * At most so many bytes of payload a second in each direction from now on. A direction that is out of them
 * rests, packets without payload included, until it may go on. Loop's thread.
 */
void vsock_limit(struct vsock *vsock, const struct limit *bytes, uint64_t (*now_ns)(void));

/* Since vsock_open(). Any thread. */
struct vsock_stats {
	uint64_t opened, closed; /* connections that both sides had accepted */
	uint64_t refused;        /* requests that came to nothing, in either direction */
	uint64_t resets;         /* RST packets sent */
	uint64_t bytes_to_guest, bytes_to_host;
	unsigned live; /* connections in the table now */
	struct throttle_stats to_guest, to_host;
};
void vsock_stats(struct vsock *vsock, struct vsock_stats *stats);

#endif
