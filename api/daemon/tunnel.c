/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/tunnel.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#define READ_BYTES (32u << 10)

static void watch_client(struct tunnel *t)
{
	if (!t->client_ended && !t->in_op.busy && guest_has_room(t->guest))
		loop_poll(t->loop, &t->in_op, t->fd, POLLIN);
}

/* Sends what the client takes. False: it is gone, or all is over. */
static bool flush(struct tunnel *t)
{
	while (t->out.pos < t->out.len) {
		ssize_t n = send(t->fd, t->out.p + t->out.pos, t->out.len - t->out.pos,
		                 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			return false;
		if (n < 0)
			break;
		t->out.pos += (size_t)n;
		t->bytes_out += (uint64_t)n;
	}
	if (t->out.pos < t->out.len && !t->out_op.busy)
		loop_poll(t->loop, &t->out_op, t->fd, POLLOUT);
	if (t->out.pos == t->out.len) {
		t->out.pos = t->out.len = 0;
		if (t->guest_ended && !t->is_shut) {
			(void)shutdown(t->fd, SHUT_WR);
			t->is_shut = true;
		}
	}
	return !(t->is_shut && t->client_ended);
}

static void on_out(struct loop_op *op, int res)
{
	struct tunnel *t = container_of(op, struct tunnel, out_op);

	if (res == -ECANCELED)
		return;
	if (!flush(t)) {
		t->over(t);
		return;
	}
	if (t->out.len - t->out.pos < TUNNEL_BYTES / 2)
		guest_resume(t->guest);
}

void tunnel_from_client(struct tunnel *t, const void *data, size_t len)
{
	t->bytes_in += len;
	guest_send(t->guest, FRAME_DATA, data, len);
}

static void on_in(struct loop_op *op, int res)
{
	struct tunnel *t = container_of(op, struct tunnel, in_op);
	uint8_t data[READ_BYTES];
	ssize_t n;

	if (res == -ECANCELED)
		return;
	n = recv(t->fd, data, sizeof(data), MSG_DONTWAIT);
	if (n > 0) {
		tunnel_from_client(t, data, (size_t)n);
	} else if (!n) {
		t->client_ended = true;
		guest_send(t->guest, FRAME_END, NULL, 0);
	}
	if ((n < 0 && errno != EAGAIN && errno != EINTR) || (t->client_ended && t->is_shut))
		t->over(t);
	else
		watch_client(t);
}

void tunnel_open(struct tunnel *t, struct loop *loop, struct guest_stream *guest, int fd,
                 void (*over)(struct tunnel *))
{
	*t = (struct tunnel){ .loop = loop,
		              .guest = guest,
		              .fd = fd,
		              .in_op = { .done = on_in },
		              .out_op = { .done = on_out },
		              .over = over };
	watch_client(t);
}

void tunnel_close(struct tunnel *t)
{
	if (!t->loop)
		return;
	(void)loop_reap(t->loop, &t->in_op);
	(void)loop_reap(t->loop, &t->out_op);
	bytes_free(&t->out);
	t->loop = NULL;
}

bool tunnel_from_guest(struct tunnel *t, const void *data, size_t len)
{
	if (t->is_websocket)
		websocket_feed(&t->ws, data, len);
	if (bytes_append(&t->out, data, len) || !flush(t))
		return false;
	if (t->out.len - t->out.pos >= TUNNEL_BYTES)
		guest_pause(t->guest);
	return true;
}

bool tunnel_guest_ended(struct tunnel *t)
{
	t->guest_ended = true;
	return flush(t);
}

void tunnel_guest_drained(struct tunnel *t)
{
	watch_client(t);
}

void tunnel_leave(struct tunnel *t)
{
	if (t->guest_ended || t->out.pos < t->out.len) /* it would come behind what never comes */
		return;
	if (t->is_websocket && websocket_is_between(&t->ws))
		(void)!send(t->fd, WEBSOCKET_RESTART, sizeof(WEBSOCKET_RESTART) - 1,
		            MSG_DONTWAIT | MSG_NOSIGNAL);
	(void)shutdown(t->fd, SHUT_WR);
}
