/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One virtio-vsock stream connection as a state machine (virtio 1.2 sections 5.10.6.3 to 5.10.6.6): no
 * descriptors, no queues, no memory of its own. Packets of the guest go in by vsock_conn_recv(),
 * what has to be said to the guest comes out by vsock_conn_next() and vsock_conn_data(). Credit is
 * kept in both directions. Any error of the guest ends the connection with one RST.
 * Called with the device's lock held.
 */
#ifndef DEVICES_VSOCK_CONN_H
#define DEVICES_VSOCK_CONN_H

#include "core/compiler.h"

#include <stdbool.h>
#include <stdint.h>

#define VSOCK_HOST_CID 2u

/* Bytes that a guest may send ahead of the host's reader, for each connection. */
#define VSOCK_BUF_ALLOC (256u << 10)
/* Bytes of payload in one packet. */
#define VSOCK_MAX_PAYLOAD (64u << 10)

/* virtio 1.2 section 5.10.6; as it lies in memory, little endian */
struct vsock_hdr {
	uint64_t src_cid, dst_cid;
	uint32_t src_port, dst_port;
	uint32_t len;
	uint16_t type, op;
	uint32_t flags;
	uint32_t buf_alloc, fwd_cnt;
} __attribute__((packed));

#define VSOCK_HDR_LEN 44u
_Static_assert(sizeof(struct vsock_hdr) == VSOCK_HDR_LEN,
               "headers are copied as they lie in memory");

#define VSOCK_TYPE_STREAM 1u

enum vsock_op {
	VSOCK_OP_REQUEST = 1,
	VSOCK_OP_RESPONSE = 2,
	VSOCK_OP_RST = 3,
	VSOCK_OP_SHUTDOWN = 4,
	VSOCK_OP_RW = 5,
	VSOCK_OP_CREDIT_UPDATE = 6,
	VSOCK_OP_CREDIT_REQUEST = 7,
};

/* Flags of SHUTDOWN: its sender takes no more, sends no more. */
#define VSOCK_SHUT_RCV  1u
#define VSOCK_SHUT_SEND 2u
#define VSOCK_SHUT_BOTH (VSOCK_SHUT_RCV | VSOCK_SHUT_SEND)

enum vsock_conn_state {
	VSOCK_CONN_REQUESTED, /* the host asks; see vsock_conn_is_known() */
	VSOCK_CONN_OPEN,
	VSOCK_CONN_DEAD, /* reset by the guest, or the RST that says so to it is the last packet */
};

struct vsock_conn {
	uint64_t guest_cid;
	uint32_t host_port, guest_port;
	enum vsock_conn_state state;
	uint8_t pending;    /* bit (1 << op) for each packet that is due */
	uint8_t host_shut;  /* VSOCK_SHUT_*: what the host's side has ended */
	uint8_t guest_shut; /* ... what the guest has ended */
	bool credit_asked;  /* no second CREDIT_REQUEST before there is credit again */
	uint32_t peer_alloc, peer_fwd, tx_cnt;
	uint32_t rx_cnt, fwd_cnt, fwd_told;
};

/* What a packet of the guest was. */
enum vsock_event {
	VSOCK_EVENT_NONE, /* accounted for; credit or guest_shut may have changed */
	VSOCK_EVENT_OPEN, /* the guest has accepted */
	VSOCK_EVENT_DATA, /* hdr->len bytes of payload are to be taken, within the credit given */
	VSOCK_EVENT_DEAD, /* the connection has ended, and does not answer any more */
};

/* The host asks the guest: REQUEST is due. Ports are host_port at CID 2, guest_port at guest_cid. */
void vsock_conn_request(struct vsock_conn *conn, uint64_t guest_cid, uint32_t host_port,
                        uint32_t guest_port);
/* The guest has asked by `hdr` (a REQUEST), and the host's side is there: RESPONSE is due. */
void vsock_conn_accept(struct vsock_conn *conn, uint64_t guest_cid, const struct vsock_hdr *hdr);

/* Takes in one packet of this connection; the caller has matched ports, CIDs and type. */
NODISCARD enum vsock_event vsock_conn_recv(struct vsock_conn *conn, const struct vsock_hdr *hdr);

/* Bytes of payload that may go to the guest now: 0 without credit or when it takes no more. */
uint32_t vsock_conn_room(const struct vsock_conn *conn);
/* The host has something to say and vsock_conn_room() is 0: asks for credit, once. */
void vsock_conn_want_room(struct vsock_conn *conn);
/* Header of a packet with `n` bytes, not more than the room; they count as sent. */
void vsock_conn_data(struct vsock_conn *conn, uint32_t n, struct vsock_hdr *hdr);

/* True when a packet without payload is due. */
bool vsock_conn_has_next(const struct vsock_conn *conn);
/* That packet, which counts as sent: false when there is none. */
bool vsock_conn_next(struct vsock_conn *conn, struct vsock_hdr *hdr);

/* `n` bytes of the guest have reached the host's reader (or will never have to). */
void vsock_conn_forwarded(struct vsock_conn *conn, uint32_t n);
/* The host's side sends no more, takes no more (VSOCK_SHUT_*). */
void vsock_conn_shut(struct vsock_conn *conn, uint8_t flags);
/* The host's side is gone before the guest has answered, or for no good reason: RST, if it knows. */
void vsock_conn_abort(struct vsock_conn *conn);

/* The guest has heard of this connection: it must not be forgotten without a word. */
bool vsock_conn_is_known(const struct vsock_conn *conn);
/* ... and still waits for the answer to its REQUEST. */
bool vsock_conn_owes_answer(const struct vsock_conn *conn);

#endif
