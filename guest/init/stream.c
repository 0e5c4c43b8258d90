/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "ops.h"
#include "text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_MAX  (1u << 20)   /* bytes of one REQUEST, all its frames together */
#define OUT_FULL     (256u << 10) /* buffered output above which an operation waits */
#define OUT_LOW      (64u << 10)  /* and below which it goes on */
#define READ_CHUNK   (64u << 10)
#define MAX_STREAMS  512
#define LINGER_MS    2000
#define RETRY_ACCEPT 50 /* ms */

static struct {
	struct watch listener;
	struct timer retry;
	unsigned nr;
	struct stream *dirty;
} all = { .listener.fd = -1 };

static void watch_client(struct stream *s)
{
	uint32_t events = 0;

	if (!s->eof)
		events |= EPOLLRDHUP | (s->held ? 0 : (uint32_t)EPOLLIN);
	if (s->blocked)
		events |= EPOLLOUT;
	loop_set(&s->watch, events);
}

static void set_accepting(void)
{
	if (all.nr < MAX_STREAMS)
		loop_set(&all.listener, EPOLLIN);
	else
		loop_pause(&all.listener);
}

static void unlink_dirty(struct stream *s)
{
	for (struct stream **p = &all.dirty; *p; p = &(*p)->next_dirty) {
		if (*p == s) {
			*p = s->next_dirty;
			break;
		}
	}
	s->dirty = false;
}

static void release_op(struct stream *s)
{
	const struct stream_ops *ops = s->ops;

	s->ops = NULL;
	if (ops && ops->release)
		ops->release(s);
}

static void close_stream(struct stream *s)
{
	if (s->watch.fd < 0)
		return;
	release_op(s);
	timer_cancel(&s->linger);
	if (s->dirty)
		unlink_dirty(s);
	loop_close(&s->watch);
	buf_free(&s->request);
	buf_free(&s->out);
	loop_free_later(s);
	all.nr--;
	set_accepting();
}

static void mark_dirty(struct stream *s)
{
	if (s->dirty || s->blocked)
		return;
	s->dirty = true;
	s->next_dirty = all.dirty;
	all.dirty = s;
}

static void put_out(struct stream *s, const void *bytes, size_t n)
{
	if (buf_put(&s->out, bytes, n) < 0) {
		/* A frame with a hole would mislead the host: let it see a broken stream. */
		shutdown(s->watch.fd, SHUT_RDWR);
		buf_free(&s->out);
	}
}

void stream_send(struct stream *s, uint8_t type, const void *payload, size_t n)
{
	const uint8_t *p = payload;
	uint8_t head[FRAME_HEADER];
	size_t part;

	if (s->finished)
		return;
	do {
		part = n < FRAME_MAX ? n : FRAME_MAX;
		frame_header(head, part < n ? type | FRAME_MORE : type, (uint32_t)part);
		put_out(s, head, sizeof(head));
		put_out(s, p, part);
		p += part;
		n -= part;
	} while (n > 0);
	mark_dirty(s);
}

bool stream_full(struct stream *s)
{
	s->was_full = s->out.len >= OUT_FULL;
	return s->was_full;
}

void stream_hold(struct stream *s, bool hold)
{
	s->held = hold;
	watch_client(s);
}

void stream_result(struct stream *s, json_t *result)
{
	static const char no_memory[] = "{\"status\":\"error\",\"error\":{\"name\":\"MemoryError\","
					"\"value\":\"the agent is out of memory\"}}";
	char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;

	json_decref(result);
	s->ops = NULL;
	stream_send(s, FRAME_RESULT, text ? text : no_memory, strlen(text ? text : no_memory));
	free(text);
	s->finished = true;
	s->held = false;
	watch_client(s);
}

void stream_error(struct stream *s, const char *name, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	stream_result(s, json_pack("{s:s, s:{s:s, s:o}}", "status", "error", "error", "name", name,
	                           "value", text_json(text)));
}

static const char *name_of_errno(int err)
{
	switch (err) {
	case ENOENT:
		return "FileNotFoundError";
	case EEXIST:
		return "FileExistsError";
	case EISDIR:
		return "IsADirectoryError";
	case ENOTDIR:
		return "NotADirectoryError";
	case EACCES:
	case EPERM:
		return "PermissionError";
	case ESRCH:
		return "ProcessLookupError";
	case ECONNREFUSED:
		return "ConnectionRefusedError";
	case ECONNRESET:
	case EPIPE:
		return "ConnectionResetError";
	case ETIMEDOUT:
		return "TimeoutError";
	case ENOMEM:
		return "MemoryError";
	default:
		return "OSError";
	}
}

void stream_errno(struct stream *s, int err, const char *about)
{
	if (about)
		stream_error(s, name_of_errno(err), "[Errno %d] %s: '%s'", err, strerror(err),
		             about);
	else
		stream_error(s, name_of_errno(err), "[Errno %d] %s", err, strerror(err));
}

static void fail_protocol(struct stream *s, const char *what)
{
	release_op(s);
	stream_error(s, "ProtocolError", "%s", what);
}

static void take_request(struct stream *s)
{
	json_error_t why;
	json_t *request = json_loadb((const char *)s->request.data + s->request.head,
	                             s->request.len, JSON_REJECT_DUPLICATES, &why);

	buf_drop(&s->request, s->request.len);
	if (!json_is_object(request)) {
		fail_protocol(s, request ? "the REQUEST is not a JSON object" : why.text);
	} else if (!s->started) {
		s->started = true;
		op_start(s, request);
	} else if (s->ops && s->ops->request) {
		s->ops->request(s, request);
	} else {
		fail_protocol(s, "this operation takes one REQUEST");
	}
	json_decref(request);
}

static void on_request(struct stream *s, const struct frame_piece *piece)
{
	if (s->request.len + piece->len > REQUEST_MAX) {
		fail_protocol(s, "a REQUEST must not be longer than 1 MiB; send content as DATA");
		return;
	}
	if (buf_put(&s->request, piece->data, piece->len) < 0) {
		release_op(s);
		stream_errno(s, ENOMEM, NULL);
		return;
	}
	s->in_request = !piece->end || piece->more;
	if (!s->in_request)
		take_request(s);
}

static void on_piece(struct stream *s, const struct frame_piece *piece)
{
	if (piece->type == FRAME_REQUEST)
		on_request(s, piece);
	else if (s->in_request)
		fail_protocol(s, "another frame within a REQUEST");
	else if (!s->started || s->ended)
		fail_protocol(s, s->ended ? "a frame after END" : "a stream begins with a REQUEST");
	else if (piece->type == FRAME_DATA && s->ops && s->ops->data)
		s->ops->data(s, piece->data, piece->len);
	else if (piece->type == FRAME_END && piece->len == 0) {
		s->ended = true;
		if (s->ops && s->ops->end)
			s->ops->end(s);
	} else
		fail_protocol(s, "a frame that this operation does not take");
}

static void feed(struct stream *s, const uint8_t *in, size_t n)
{
	struct frame_piece piece;
	size_t used;
	int r = 0;

	/* After the RESULT the rest is read only so that closing does not reset the stream. */
	while (!s->finished && (r = frame_parse(&s->parser, in, n, &used, &piece)) > 0) {
		in += used;
		n -= used;
		on_piece(s, &piece);
	}
	if (r < 0)
		fail_protocol(s, "a frame longer than 1 MiB");
}

static void on_eof(struct stream *s)
{
	bool awaits_data = s->ops && s->ops->data && !s->ended;

	s->eof = true;
	/* Closed before its END, nobody is there for the result any more; else the client may have
	 * shut down its sending half only, and a hang-up tells when it has gone. */
	if (s->shut || awaits_data || (!s->ops && !s->finished))
		close_stream(s);
	else
		watch_client(s);
}

static void on_client(struct watch *w, uint32_t events)
{
	struct stream *s = (struct stream *)w; /* `watch` is the first member */
	static uint8_t chunk[READ_CHUNK];
	ssize_t n;

	if (events & EPOLLOUT) {
		s->blocked = false;
		mark_dirty(s);
		watch_client(s);
	}
	/* With RDHUP no more than the socket holds will come: take it, or the end is not seen. */
	if (!s->eof && ((events & EPOLLRDHUP) || ((events & EPOLLIN) && !s->held))) {
		n = recv(s->watch.fd, chunk, sizeof(chunk), MSG_DONTWAIT);
		if (n > 0)
			feed(s, chunk, (size_t)n);
		else if (n == 0)
			on_eof(s);
		else if (errno != EAGAIN && errno != EINTR)
			close_stream(s);
	} else if (events & (EPOLLHUP | EPOLLERR)) {
		close_stream(s);
	}
}

static void on_linger(struct timer *t)
{
	close_stream((struct stream *)((char *)t - offsetof(struct stream, linger)));
}

static void after_flush(struct stream *s)
{
	if (s->out.len == 0 && s->finished && !s->shut) {
		s->shut = true;
		shutdown(s->watch.fd, SHUT_WR);
		if (s->eof)
			close_stream(s);
		else
			timer_set(&s->linger, LINGER_MS);
	} else if (s->was_full && s->out.len <= OUT_LOW) {
		s->was_full = false;
		if (s->ops && s->ops->drained)
			s->ops->drained(s);
	}
}

static void flush(struct stream *s)
{
	ssize_t n;

	while (s->out.len > 0) {
		n = send(s->watch.fd, s->out.data + s->out.head, s->out.len,
		         MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			s->blocked = true;
			watch_client(s);
			break;
		}
		if (n < 0) {
			close_stream(s);
			return;
		}
		buf_drop(&s->out, (size_t)n);
	}
	after_flush(s);
}

bool stream_flush_all(void)
{
	struct stream *s, *list = all.dirty;

	all.dirty = NULL; /* what gets dirty from here on is for the next call: no stream starves */
	while ((s = list)) {
		list = s->next_dirty;
		s->dirty = false;
		flush(s);
	}
	return all.dirty != NULL;
}

static void on_connection(struct watch *w, uint32_t events)
{
	struct stream *s;
	int fd;

	(void)events;
	fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
			/* Out of descriptors or memory: the listener stays ready, so do not spin. */
			loop_pause(w);
			timer_set(&all.retry, RETRY_ACCEPT);
		}
		return;
	}
	s = calloc(1, sizeof(*s));
	if (!s) {
		close(fd);
		return;
	}
	s->watch.fd = fd;
	s->watch.ready = on_client;
	s->linger.fire = on_linger;
	all.nr++;
	watch_client(s);
	set_accepting();
}

static void on_retry(struct timer *t)
{
	(void)t;
	set_accepting();
}

int stream_listen(int fd)
{
	all.listener.fd = fd;
	all.listener.ready = on_connection;
	all.retry.fire = on_retry;
	return loop_set(&all.listener, EPOLLIN);
}
