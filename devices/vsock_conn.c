/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/vsock_conn.h"

#define DUE(op) ((uint8_t)(1u << (op)))

void vsock_conn_request(struct vsock_conn *conn, uint64_t guest_cid, uint32_t host_port,
                        uint32_t guest_port)
{
	*conn = (struct vsock_conn){
		.guest_cid = guest_cid,
		.host_port = host_port,
		.guest_port = guest_port,
		.state = VSOCK_CONN_REQUESTED,
		.pending = DUE(VSOCK_OP_REQUEST),
	};
}

static void take_credit(struct vsock_conn *conn, const struct vsock_hdr *hdr)
{
	conn->peer_alloc = hdr->buf_alloc;
	conn->peer_fwd = hdr->fwd_cnt;
	if (vsock_conn_room(conn))
		conn->credit_asked = false;
}

void vsock_conn_accept(struct vsock_conn *conn, uint64_t guest_cid, const struct vsock_hdr *hdr)
{
	*conn = (struct vsock_conn){
		.guest_cid = guest_cid,
		.host_port = hdr->dst_port,
		.guest_port = hdr->src_port,
		.state = VSOCK_CONN_OPEN,
		.pending = DUE(VSOCK_OP_RESPONSE),
	};
	take_credit(conn, hdr);
}

static enum vsock_event die(struct vsock_conn *conn, uint8_t last)
{
	conn->state = VSOCK_CONN_DEAD;
	conn->pending = last;
	return VSOCK_EVENT_DEAD;
}

static enum vsock_event recv_response(struct vsock_conn *conn)
{
	if (conn->state != VSOCK_CONN_REQUESTED || !vsock_conn_is_known(conn))
		return die(conn, DUE(VSOCK_OP_RST));
	conn->state = VSOCK_CONN_OPEN;
	return VSOCK_EVENT_OPEN;
}

/* A connection that both sides could only read from, or that the guest has closed, ends with RST. */
static enum vsock_event recv_shutdown(struct vsock_conn *conn, uint32_t flags)
{
	conn->guest_shut |= (uint8_t)(flags & VSOCK_SHUT_BOTH);
	if (conn->guest_shut == VSOCK_SHUT_BOTH)
		return die(conn, DUE(VSOCK_OP_RST));
	return VSOCK_EVENT_NONE;
}

static enum vsock_event recv_data(struct vsock_conn *conn, uint32_t len)
{
	uint32_t held = conn->rx_cnt - conn->fwd_cnt;

	if ((conn->guest_shut & VSOCK_SHUT_SEND) || len > VSOCK_BUF_ALLOC - held)
		return die(conn, DUE(VSOCK_OP_RST));
	conn->rx_cnt += len;
	if (!(conn->host_shut & VSOCK_SHUT_RCV))
		return len ? VSOCK_EVENT_DATA : VSOCK_EVENT_NONE;
	/* It was under way when the guest was told. */
	vsock_conn_forwarded(conn, len);
	return VSOCK_EVENT_NONE;
}

enum vsock_event vsock_conn_recv(struct vsock_conn *conn, const struct vsock_hdr *hdr)
{
	if (conn->state == VSOCK_CONN_DEAD)
		return hdr->op == VSOCK_OP_RST ? die(conn, 0) : VSOCK_EVENT_DEAD;
	if (hdr->op == VSOCK_OP_RST)
		return die(conn, 0);
	take_credit(conn, hdr);
	if (hdr->op == VSOCK_OP_RESPONSE)
		return recv_response(conn);
	if (conn->state != VSOCK_CONN_OPEN)
		return die(conn, DUE(VSOCK_OP_RST));
	switch (hdr->op) {
	case VSOCK_OP_SHUTDOWN:
		return recv_shutdown(conn, hdr->flags);
	case VSOCK_OP_RW:
		return recv_data(conn, hdr->len);
	case VSOCK_OP_CREDIT_REQUEST:
		conn->pending |= DUE(VSOCK_OP_CREDIT_UPDATE);
		return VSOCK_EVENT_NONE;
	case VSOCK_OP_CREDIT_UPDATE:
		return VSOCK_EVENT_NONE;
	default: /* a second REQUEST, an operation that does not exist */
		return die(conn, DUE(VSOCK_OP_RST));
	}
}

uint32_t vsock_conn_room(const struct vsock_conn *conn)
{
	uint32_t in_flight = conn->tx_cnt - conn->peer_fwd;
	uint32_t room;

	if (conn->state != VSOCK_CONN_OPEN || (conn->host_shut & VSOCK_SHUT_SEND) ||
	    (conn->guest_shut & VSOCK_SHUT_RCV) || conn->peer_alloc <= in_flight)
		return 0;
	room = conn->peer_alloc - in_flight;
	return room < VSOCK_MAX_PAYLOAD ? room : VSOCK_MAX_PAYLOAD;
}

void vsock_conn_want_room(struct vsock_conn *conn)
{
	if (conn->state != VSOCK_CONN_OPEN || conn->credit_asked)
		return;
	conn->credit_asked = true;
	conn->pending |= DUE(VSOCK_OP_CREDIT_REQUEST);
}

/* Every packet tells the guest how far its bytes have come (section 5.10.6.3). */
static void fill(struct vsock_conn *conn, enum vsock_op op, uint32_t len, struct vsock_hdr *hdr)
{
	*hdr = (struct vsock_hdr){
		.src_cid = VSOCK_HOST_CID,
		.dst_cid = conn->guest_cid,
		.src_port = conn->host_port,
		.dst_port = conn->guest_port,
		.len = len,
		.type = VSOCK_TYPE_STREAM,
		.op = (uint16_t)op,
		.buf_alloc = VSOCK_BUF_ALLOC,
		.fwd_cnt = conn->fwd_cnt,
	};
	conn->fwd_told = conn->fwd_cnt;
	conn->pending &= (uint8_t) ~(DUE(op) | DUE(VSOCK_OP_CREDIT_UPDATE));
}

void vsock_conn_data(struct vsock_conn *conn, uint32_t n, struct vsock_hdr *hdr)
{
	BUG_ON(n > vsock_conn_room(conn));
	fill(conn, VSOCK_OP_RW, n, hdr);
	conn->tx_cnt += n;
}

bool vsock_conn_has_next(const struct vsock_conn *conn)
{
	return conn->pending;
}

bool vsock_conn_next(struct vsock_conn *conn, struct vsock_hdr *hdr)
{
	static const enum vsock_op order[] = {
		VSOCK_OP_REQUEST,  VSOCK_OP_RESPONSE,      VSOCK_OP_CREDIT_REQUEST,
		VSOCK_OP_SHUTDOWN, VSOCK_OP_CREDIT_UPDATE, VSOCK_OP_RST,
	};

	for (unsigned i = 0; i < ARRAY_LEN(order); i++) {
		if (!(conn->pending & DUE(order[i])))
			continue;
		fill(conn, order[i], 0, hdr);
		if (order[i] == VSOCK_OP_SHUTDOWN)
			hdr->flags = conn->host_shut;
		return true;
	}
	return false;
}

/* An update is worth a packet once the guest could not send half a buffer any more. */
void vsock_conn_forwarded(struct vsock_conn *conn, uint32_t n)
{
	conn->fwd_cnt += n;
	if (conn->state == VSOCK_CONN_OPEN && conn->fwd_cnt != conn->fwd_told &&
	    conn->rx_cnt - conn->fwd_told > VSOCK_BUF_ALLOC / 2)
		conn->pending |= DUE(VSOCK_OP_CREDIT_UPDATE);
}

void vsock_conn_shut(struct vsock_conn *conn, uint8_t flags)
{
	if (conn->state != VSOCK_CONN_OPEN || (conn->host_shut & flags) == flags)
		return;
	conn->host_shut |= flags;
	conn->pending |= DUE(VSOCK_OP_SHUTDOWN);
}

void vsock_conn_abort(struct vsock_conn *conn)
{
	if (conn->state == VSOCK_CONN_DEAD)
		return;
	die(conn, vsock_conn_is_known(conn) ? DUE(VSOCK_OP_RST) : 0);
}

bool vsock_conn_is_known(const struct vsock_conn *conn)
{
	return conn->pending != DUE(VSOCK_OP_REQUEST) &&
	       (conn->state != VSOCK_CONN_DEAD || conn->pending);
}

bool vsock_conn_owes_answer(const struct vsock_conn *conn)
{
	return conn->pending & DUE(VSOCK_OP_RESPONSE);
}
