/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/vsock_stream.h"

#include "devices/vsock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define HELD_MIN 4096u

static void close_host(struct vsock_stream *s)
{
	if (s->fd >= 0)
		vsock_close_fd(s);
	free(s->first);
	free(s->held);
	s->first = s->held = NULL;
	s->first_len = s->held_len = s->held_cap = 0;
}

void vsock_stream_free(struct vsock_stream *s)
{
	close_host(s);
	free(s);
}

/* ---- guest to host ---- */

/* Nobody will read what the guest sends: it counts as delivered, and the guest is told. */
static void lose_reader(struct vsock_stream *s)
{
	vsock_conn_forwarded(&s->conn, s->held_len);
	s->held_len = 0;
	vsock_conn_shut(&s->conn, VSOCK_SHUT_RCV);
}

/* Room for `n` more bytes after those that are held, or NULL. Credit bounds them. */
static uint8_t *held_room(struct vsock_stream *s, uint32_t n)
{
	uint32_t need = s->held_len + n;
	uint32_t cap = s->held_cap ? s->held_cap : HELD_MIN;
	uint8_t *grown;

	BUG_ON(need > VSOCK_BUF_ALLOC);
	while (cap < need)
		cap *= 2;
	if (s->held_len && s->held_off)
		memmove(s->held, s->held + s->held_off, s->held_len);
	s->held_off = 0;
	if (cap != s->held_cap) {
		grown = realloc(s->held, cap);
		if (!grown)
			return NULL;
		s->held = grown;
		s->held_cap = cap;
	}
	return s->held + s->held_len;
}

/* What the socket took of the bytes at `iov`: a full one is 0; a broken one takes everything. */
static uint32_t send_host(struct vsock_stream *s, struct iovec *iov, size_t nr, uint32_t n)
{
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = nr };
	ssize_t ret = sendmsg(s->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (ret >= 0) {
		vsock_totals(s)->bytes_to_host += (uint64_t)ret;
		s->writable = (uint32_t)ret == n;
		return (uint32_t)ret;
	}
	s->writable = false;
	if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM)
		return 0;
	s->hung = true;
	return n;
}

static void send_held(struct vsock_stream *s)
{
	while (s->held_len && s->writable && !s->hung) {
		struct iovec iov = { s->held + s->held_off, s->held_len };
		uint32_t sent = send_host(s, &iov, 1, s->held_len);

		if (s->hung)
			return; /* lose_reader() accounts for all of it */
		s->held_off += sent;
		s->held_len -= sent;
		vsock_conn_forwarded(&s->conn, sent);
	}
	if (!s->held_len) {
		free(s->held);
		s->held = NULL;
		s->held_cap = s->held_off = 0;
	}
}

static void take_data(struct vsock_stream *s, const struct virtq_chain *chain, uint32_t n)
{
	struct iovec iov[VIRTQ_MAX_SIZE];
	uint32_t sent = 0;
	uint8_t *room;
	int nr;

	if (!s->held_len && s->writable && s->fd >= 0) {
		nr = chain_read_iov(chain, VSOCK_HDR_LEN, n, iov, VIRTQ_MAX_SIZE);
		BUG_ON(nr < 0); /* the length was checked against the chain */
		sent = send_host(s, iov, (size_t)nr, n);
		vsock_conn_forwarded(&s->conn, sent);
	}
	if (sent == n)
		return;
	room = held_room(s, n - sent);
	if (!room || chain_read(chain, VSOCK_HDR_LEN + sent, room, n - sent) < 0) {
		vsock_conn_abort(&s->conn);
		return;
	}
	s->held_len += n - sent;
}

/* ---- host to guest ---- */

static bool wants_to_say(const struct vsock_stream *s)
{
	return s->first_len || (s->readable && s->fd >= 0);
}

static uint32_t say_first(struct vsock_stream *s, const struct virtq_chain *chain, uint32_t room)
{
	uint32_t n = s->first_len < room ? s->first_len : room;

	if (chain_write(chain, VSOCK_HDR_LEN, s->first + s->first_off, n) < 0)
		return 0;
	s->first_off += n;
	s->first_len -= n;
	if (!s->first_len) {
		free(s->first);
		s->first = NULL;
	}
	return n;
}

/* Reads up to `room` bytes of the socket into the chain: their number; 0: none, or none any more. */
static uint32_t say_read(struct vsock_stream *s, const struct virtq_chain *chain, uint32_t room)
{
	struct iovec iov[VIRTQ_MAX_SIZE];
	struct msghdr msg = { .msg_iov = iov };
	int nr = chain_write_iov(chain, VSOCK_HDR_LEN, room, iov, VIRTQ_MAX_SIZE);
	ssize_t n;

	BUG_ON(nr < 0); /* room is within the chain */
	msg.msg_iovlen = (size_t)nr;
	n = recvmsg(s->fd, &msg, MSG_DONTWAIT);
	if (n > 0) {
		/* A short read has emptied the socket; the next byte, or the end, is a new edge. */
		s->readable = (uint32_t)n == room || s->ending;
		return (uint32_t)n;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		s->readable = errno == EINTR;
		return 0;
	}
	s->readable = false;
	s->hung = s->hung || n < 0;
	vsock_conn_shut(&s->conn, VSOCK_SHUT_SEND);
	return 0;
}

int vsock_stream_send(struct vsock_stream *s, const struct virtq_chain *chain)
{
	uint32_t room = vsock_conn_room(&s->conn), n = 0;
	struct vsock_hdr hdr;

	if (room > chain->write_len - VSOCK_HDR_LEN)
		room = chain->write_len - VSOCK_HDR_LEN;
	if (!vsock_conn_next(&s->conn, &hdr)) {
		if (room && s->first_len)
			n = say_first(s, chain, room);
		else if (room && wants_to_say(s))
			n = say_read(s, chain, room);
		if (n)
			vsock_conn_data(&s->conn, n, &hdr);
		else if (!vsock_conn_next(&s->conn, &hdr))
			return 0;
	}
	vsock_totals(s)->bytes_to_guest += n;
	vsock_totals(s)->resets += hdr.op == VSOCK_OP_RST;
	if (chain_write(chain, 0, &hdr, sizeof(hdr)) < 0)
		return -EPROTO;
	return (int)(VSOCK_HDR_LEN + n);
}

/* ---- both ---- */

void vsock_stream_settle(struct vsock_stream *s)
{
	struct vsock_conn *c = &s->conn;
	bool to_guest_over, to_host_over;

	if (s->phase != VSOCK_LIVE)
		return;
	if (s->hung && c->state == VSOCK_CONN_OPEN)
		lose_reader(s);
	to_guest_over = (c->host_shut & VSOCK_SHUT_SEND) || (c->guest_shut & VSOCK_SHUT_RCV);
	to_host_over = (c->host_shut & VSOCK_SHUT_RCV) ||
	               ((c->guest_shut & VSOCK_SHUT_SEND) && !s->held_len);
	if (c->state == VSOCK_CONN_DEAD) {
		/* The guest may close as soon as it has sent: the host's reader still gets it all. */
		if (!s->held_len || s->hung)
			close_host(s);
		if (s->fd < 0 && !vsock_conn_has_next(c)) {
			vsock_bury(s);
			return;
		}
	} else if (s->fd >= 0 && to_guest_over && to_host_over) {
		vsock_conn_shut(c, VSOCK_SHUT_BOTH);
		close_host(s);
	} else if (s->fd >= 0) {
		if (to_host_over && !s->shut_wr)
			s->shut_wr = shutdown(s->fd, SHUT_WR) == 0;
		if ((c->guest_shut & VSOCK_SHUT_RCV) && !s->shut_rd)
			s->shut_rd = shutdown(s->fd, SHUT_RD) == 0;
	}
	if (wants_to_say(s) && !to_guest_over && !vsock_conn_room(c))
		vsock_conn_want_room(c);
	if (vsock_conn_has_next(c) || (wants_to_say(s) && vsock_conn_room(c)))
		vsock_want_guest(s);
}

static void on_open(struct vsock_stream *s)
{
	char line[16];
	int n;

	s->opened = true;
	vsock_totals(s)->opened++;
	s->readable = true; /* it may have spoken first; the read will tell */
	if (!s->greeted)
		return;
	n = snprintf(line, sizeof(line), "OK %u\n", s->conn.host_port);
	/* The first bytes on an empty socket: they fit, or the peer is gone. */
	if (send(s->fd, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
		s->hung = true;
}

void vsock_stream_recv(struct vsock_stream *s, const struct vsock_hdr *hdr,
                       const struct virtq_chain *chain)
{
	bool asked = s->conn.state == VSOCK_CONN_REQUESTED;

	switch (vsock_conn_recv(&s->conn, hdr)) {
	case VSOCK_EVENT_OPEN:
		on_open(s);
		break;
	case VSOCK_EVENT_DATA:
		take_data(s, chain, hdr->len);
		break;
	case VSOCK_EVENT_DEAD:
		vsock_totals(s)->refused += asked;
		break;
	case VSOCK_EVENT_NONE:
		break;
	}
	vsock_stream_settle(s);
}

/* The end of a program that is still waiting for the guest: true when it has left nothing to say. */
static bool left_nothing(const struct vsock_stream *s)
{
	char byte;

	return !s->first_len && recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

/* Takes no byte beyond the newline: those are for the guest. */
static void read_greeting(struct vsock_stream *s)
{
	char *at = s->line + s->line_len, *newline;
	ssize_t n = recv(s->fd, at, sizeof(s->line) - s->line_len, MSG_PEEK | MSG_DONTWAIT);
	uint32_t port;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	newline = n > 0 ? memchr(at, '\n', (size_t)n) : NULL;
	if (newline)
		n = newline - at + 1;
	if (n <= 0 || recv(s->fd, at, (size_t)n, MSG_DONTWAIT) != n) {
		vsock_bury(s);
		return;
	}
	s->line_len = (uint8_t)(s->line_len + n);
	if (newline && vsock_unix_parse(s->line, s->line_len - 1u, &port) == 0)
		vsock_ask_guest(s, port);
	else if (newline || s->line_len == sizeof(s->line))
		vsock_bury(s);
}

static void await_byte(struct vsock_stream *s)
{
	char byte;
	ssize_t n = recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n > 0)
		vsock_ask_guest(s, s->conn.guest_port);
	else if (n == 0 || errno != EAGAIN)
		vsock_bury(s);
}

static void serve_host(struct vsock_stream *s)
{
	if (s->conn.state == VSOCK_CONN_REQUESTED && s->hung && left_nothing(s)) {
		vsock_totals(s)->refused++;
		vsock_conn_abort(&s->conn);
	}
	if (s->fd >= 0)
		send_held(s);
	vsock_stream_settle(s);
}

void vsock_stream_host_event(struct vsock_stream *s, uint32_t events)
{
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		s->readable = true;
	if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		s->writable = true;
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		s->ending = true;
	if (events & (EPOLLHUP | EPOLLERR))
		s->hung = true;
	switch (s->phase) {
	case VSOCK_GREETING:
		read_greeting(s);
		break;
	case VSOCK_SILENT:
		await_byte(s);
		break;
	case VSOCK_LIVE:
		serve_host(s);
		break;
	case VSOCK_BURIED:
		break;
	}
}
