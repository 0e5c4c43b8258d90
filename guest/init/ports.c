/* SPDX-License-Identifier: Apache-2.0 */
#include "ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_CHUNK (64u << 10)
#define CONNECT_MS 10000 /* a server whose queue of connections is full */

struct port {
	struct stream *s;
	struct watch sock;
	struct timer timer;
	struct buf input; /* that the server has not taken yet */
	uint16_t number;
	bool is_open, is_v6;
	bool input_ended, output_ended; /* the host's END; the server's */
	bool is_shut;                   /* its end was passed on to the server */
};

static void release(struct port *p)
{
	timer_cancel(&p->timer);
	loop_close(&p->sock);
	buf_free(&p->input);
	loop_free_later(p);
}

static void on_release(struct stream *s)
{
	release(s->op);
}

static void fail(struct port *p, int err)
{
	stream_errno(p->s, err, NULL);
	release(p);
}

/* Both halves have ended: so has the operation. */
static bool finish(struct port *p)
{
	if (!p->is_shut || !p->output_ended)
		return false;
	stream_result(p->s, json_pack("{s:s}", "status", "ok"));
	release(p);
	return true;
}

/* Waits for what can be gone on with. */
static void watch(struct port *p, bool wants_out)
{
	uint32_t events = wants_out ? (uint32_t)EPOLLOUT : 0;

	if (!p->output_ended && !stream_full(p->s))
		events |= EPOLLIN;
	if (events)
		loop_set(&p->sock, events);
	else
		loop_pause(&p->sock);
}

/* Gives the server what it takes, and then its end. 0 or -errno. */
static int push(struct port *p)
{
	ssize_t n;

	while (p->input.len > 0) {
		n = send(p->sock.fd, p->input.data + p->input.head, p->input.len,
		         MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			buf_drop(&p->input, (size_t)n);
	}
	if (p->input.len == 0 && p->input_ended && !p->is_shut) {
		(void)shutdown(p->sock.fd, SHUT_WR);
		p->is_shut = true;
	}
	return 0;
}

/* Passes on what the server says, as long as the host takes it. 0 or -errno. */
static int pull(struct port *p)
{
	static uint8_t chunk[READ_CHUNK];
	ssize_t n;

	if (p->output_ended || stream_full(p->s))
		return 0;
	n = recv(p->sock.fd, chunk, sizeof(chunk), MSG_DONTWAIT);
	if (n > 0) {
		stream_send(p->s, FRAME_DATA, chunk, (size_t)n);
	} else if (n == 0) {
		p->output_ended = true;
		stream_send(p->s, FRAME_END, NULL, 0);
	} else if (errno != EAGAIN && errno != EINTR) {
		return -errno;
	}
	return 0;
}

/* After anything: both ways, then what is waited for. */
static void go_on(struct port *p, bool can_read)
{
	int r = push(p);

	if (r <
	    0) { /* it has closed: what it is sent goes nowhere, but it may have said something */
		buf_drop(&p->input, p->input.len);
		p->is_shut = true;
	}
	r = can_read || r < 0 ? pull(p) : 0;
	if (r < 0) {
		fail(p, -r);
		return;
	}
	if (finish(p))
		return;
	watch(p, p->input.len > 0);
	if (p->s->held != (p->input.len > 0))
		stream_hold(p->s, p->input.len > 0);
}

/* --- opening ---------------------------------------------------------------------------------- */

static int start_connect(struct port *p)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET,
		                  .sin_port = htons(p->number),
		                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
		                   .sin6_port = htons(p->number),
		                   .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	const void *addr = p->is_v6 ? (const void *)&v6 : &v4;
	socklen_t len = p->is_v6 ? sizeof(v6) : sizeof(v4);
	int on = 1;

	loop_close(&p->sock);
	p->sock.fd = socket(p->is_v6 ? AF_INET6 : AF_INET,
	                    SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->sock.fd < 0)
		return -errno;
	(void)setsockopt(p->sock.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(p->sock.fd, addr, len) < 0 && errno != EINPROGRESS)
		return -errno;
	return loop_set(&p->sock, EPOLLOUT);
}

/* A server may listen on ::1 alone, and the guest's kernel have no IPv6 at all. */
static int try_both(struct port *p)
{
	int r = start_connect(p);

	if (r < 0 && p->is_v6)
		return -ECONNREFUSED;
	if (r != -ECONNREFUSED)
		return r;
	p->is_v6 = true;
	return try_both(p);
}

static void on_connected(struct port *p)
{
	int err = 0;
	socklen_t len = sizeof(err);

	(void)getsockopt(p->sock.fd, SOL_SOCKET, SO_ERROR, &err, &len);
	if (err == ECONNREFUSED && !p->is_v6) {
		p->is_v6 = true;
		err = -try_both(p);
		if (err == 0)
			return;
	}
	if (err != 0) {
		fail(p, err);
		return;
	}
	p->is_open = true;
	timer_cancel(&p->timer);
	stream_send(p->s, FRAME_EVENT, "{\"event\":\"started\"}", 19);
	go_on(p, false);
}

static void on_sock(struct watch *w, uint32_t events)
{
	struct port *p = (struct port *)((char *)w - offsetof(struct port, sock));

	if (!p->is_open)
		on_connected(p);
	else
		go_on(p, (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0);
}

static void on_timer(struct timer *t)
{
	fail((struct port *)((char *)t - offsetof(struct port, timer)), ETIMEDOUT);
}

static void on_data(struct stream *s, const uint8_t *bytes, size_t n)
{
	struct port *p = s->op;

	if (p->is_shut)
		return; /* the server has closed its half */
	if (buf_put(&p->input, bytes, n) < 0)
		fail(p, ENOMEM);
	else if (p->is_open)
		go_on(p, false);
	else
		stream_hold(s, true); /* at most what was read at once is kept */
}

static void on_end(struct stream *s)
{
	struct port *p = s->op;

	p->input_ended = true;
	if (p->is_open)
		go_on(p, false);
}

static void on_drained(struct stream *s)
{
	struct port *p = s->op;

	if (p->is_open)
		go_on(p, true);
}

static const struct stream_ops port_ops = {
	.data = on_data, .end = on_end, .drained = on_drained, .release = on_release
};

void ports_connect(struct stream *s, const json_t *request)
{
	json_int_t number = json_integer_value(json_object_get(request, "port"));
	struct port *p;
	int r;

	if (number < 1 || number > 65535) {
		stream_error(s, "ValueError", "\"port\" must be 1 to 65535");
		return;
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		stream_errno(s, ENOMEM, NULL);
		return;
	}
	*p = (struct port){ .s = s,
		            .sock = { .fd = -1, .ready = on_sock },
		            .timer.fire = on_timer,
		            .number = (uint16_t)number };
	r = try_both(p);
	if (r < 0) {
		fail(p, -r);
		return;
	}
	s->op = p;
	s->ops = &port_ops;
	timer_set(&p->timer, CONNECT_MS);
}
