/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection with its two ends: the state machine towards the guest, a socket towards the host.
 * Bytes go from the socket straight into the guest's receive chains, and from its transmit chains
 * straight to the socket; only what the host's reader does not take yet is kept, at most
 * VSOCK_BUF_ALLOC bytes. Readiness comes as edges (epoll), kept as flags until a call says EAGAIN.
 * Called with the device's lock held.
 */
#ifndef DEVICES_VSOCK_STREAM_H
#define DEVICES_VSOCK_STREAM_H

#include "devices/virtq.h"
#include "devices/vsock_conn.h"
#include "devices/vsock_unix.h"

#include <sys/queue.h>

struct vsock_table;

enum vsock_phase {
	VSOCK_GREETING, /* the host's program has not said which port it wants */
	VSOCK_SILENT,   /* ... has not said its first byte, and the guest is not asked before */
	VSOCK_LIVE,     /* conn counts */
	VSOCK_BURIED,   /* closed, freed when the present event has been served */
};

struct vsock_stream {
	struct vsock_table *table;
	struct vsock_conn conn;
	enum vsock_phase phase;
	int fd;        /* owned; -1: closed, and the guest's RST is awaited */
	bool greeted;  /* came over the Unix socket: "OK <port>" is due when the guest accepts */
	bool readable; /* until a read says EAGAIN */
	bool writable; /* until a write says EAGAIN */
	bool ending;   /* the peer sends no more: reads go on until 0 */
	bool hung;     /* the peer is gone: what is written is lost */
	bool shut_wr, shut_rd;
	bool opened; /* was, at some time */
	bool is_listed, is_ready;
	uint8_t line_len;
	char line[VSOCK_LINE_MAX];
	uint8_t *first; /* owned; goes to the guest before what fd says */
	uint32_t first_len, first_off;
	uint8_t *held; /* owned; of the guest, for fd */
	uint32_t held_off, held_len, held_cap;
	struct vsock_stream *hash_next;
	TAILQ_ENTRY(vsock_stream) all, ready;
};

/* The table's side (vsock_table.c). */
struct vsock_stats *vsock_totals(struct vsock_stream *stream);
/* The stream has (or may have) something for the guest. */
void vsock_want_guest(struct vsock_stream *stream);
/* The host's program has named its port, or said its first byte: asks the guest. */
void vsock_ask_guest(struct vsock_stream *stream, uint32_t port);
/* Closes the stream's socket, which is there. */
void vsock_close_fd(struct vsock_stream *stream);
/* Nothing of the stream is left: out of the table, freed when the present event has been served. */
void vsock_bury(struct vsock_stream *stream);

/* epoll(7) `events` of its socket. */
void vsock_stream_host_event(struct vsock_stream *stream, uint32_t events);
/* One packet of the guest, with its payload in the chain's read part after the header. */
void vsock_stream_recv(struct vsock_stream *stream, const struct vsock_hdr *hdr,
                       const struct virtq_chain *chain);
/* Fills a receive chain with one packet: bytes written, 0 when there is nothing to say, or -EPROTO. */
NODISCARD int vsock_stream_send(struct vsock_stream *stream, const struct virtq_chain *chain);
/* Draws the consequences of what has changed: shuts, closes, buries, or lists it as ready. */
void vsock_stream_settle(struct vsock_stream *stream);
/* Frees it and closes its descriptor, without a word to the guest. */
void vsock_stream_free(struct vsock_stream *stream);

#endif
