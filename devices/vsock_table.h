/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All streams of a device: found by their ports, listed when they have something for the guest, bounded
 * in number. And the RSTs that answer packets of no stream. Called with the device's lock held.
 */
#ifndef DEVICES_VSOCK_TABLE_H
#define DEVICES_VSOCK_TABLE_H

#include "devices/vsock.h"
#include "devices/vsock_stream.h"

#define VSOCK_MAX_STREAMS 1024u
#define VSOCK_NR_BUCKETS  256u
#define VSOCK_MAX_REPLIES 64u
#define VSOCK_PORT_MIN    0x40000000u /* host ports of connections that the host begins */

/* A RST to a packet that belongs to no stream. */
struct vsock_reply {
	uint64_t host_cid;
	uint32_t host_port, guest_port;
	uint16_t type;
};

TAILQ_HEAD(vsock_stream_list, vsock_stream);

struct vsock_table {
	int epoll_fd; /* owned; data.ptr is the stream */
	uint64_t guest_cid;
	struct vsock_stream_list all;    /* oldest first */
	struct vsock_stream_list ready;  /* something for the guest; in turn */
	struct vsock_stream_list buried; /* to be freed */
	struct vsock_stream *bucket[VSOCK_NR_BUCKETS];
	unsigned nr_streams;
	uint32_t next_port;
	struct vsock_reply reply[VSOCK_MAX_REPLIES]; /* a ring */
	unsigned reply_head, nr_replies;
	struct vsock_stats stats;
	void (*asked)(void *ctx, uint32_t port); /* of struct vsock_config */
	void *asked_ctx;
};

NODISCARD int vsock_table_open(struct vsock_table *table, uint64_t guest_cid, struct err *err);
/* Frees all streams. Idempotent; safe after a failed open. */
void vsock_table_close(struct vsock_table *table);

/*
 * A stream that takes `fd` over and is watched. -ENOSPC when the table is full, or -errno; `fd` is
 * then still the caller's.
 */
NODISCARD int vsock_table_add(struct vsock_table *table, int fd, enum vsock_phase phase,
                              struct vsock_stream **stream);
/* False when the table is full, and no stream in it gives way to another. */
bool vsock_table_has_room(const struct vsock_table *table);
/* The stream of these ports, or NULL. */
struct vsock_stream *vsock_table_find(const struct vsock_table *table, uint32_t host_port,
                                      uint32_t guest_port);
/* Makes the stream one that vsock_table_find() knows, by the ports of its connection. */
void vsock_table_list(struct vsock_stream *stream);
/* The stream that is next to say something to the guest, taken off the list; NULL: none. */
struct vsock_stream *vsock_table_next(struct vsock_table *table);
/* The guest knows of the stream. */
bool vsock_table_is_known(const struct vsock_stream *stream);
/* Closes the streams that the guest knows of, and forgets the replies: its driver starts anew. */
void vsock_table_reset(struct vsock_table *table);
/* Frees what has been buried: true when there was something. */
bool vsock_table_free_buried(struct vsock_table *table);

/* True when one packet of the guest can be handled, whatever its answers are. */
bool vsock_table_can_reply(const struct vsock_table *table);
/* False when the ring is full. */
NODISCARD bool vsock_table_reply(struct vsock_table *table, const struct vsock_reply *reply);
/* The oldest reply as a packet; there must be one. */
void vsock_table_next_reply(struct vsock_table *table, struct vsock_hdr *hdr);

#endif
