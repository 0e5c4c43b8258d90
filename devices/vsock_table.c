/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/vsock_table.h"

#include "core/random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int vsock_table_open(struct vsock_table *t, uint64_t guest_cid, struct err *err)
{
	int ret;

	*t = (struct vsock_table){ .guest_cid = guest_cid };
	TAILQ_INIT(&t->all);
	TAILQ_INIT(&t->ready);
	TAILQ_INIT(&t->buried);
	t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (t->epoll_fd < 0)
		return err_set(err, -errno, "vsock: epoll: %s", strerror(errno));
	/* A guest that was thawed may hold ports of an earlier life: a random start keeps us from them. */
	ret = random_fill(&t->next_port, sizeof(t->next_port), err);
	if (ret < 0)
		(void)err_wrap(err, "vsock");
	return ret;
}

void vsock_table_close(struct vsock_table *t)
{
	struct vsock_stream *s;

	while ((s = TAILQ_FIRST(&t->all)))
		vsock_bury(s);
	vsock_table_free_buried(t);
	if (t->epoll_fd >= 0)
		close(t->epoll_fd);
	t->epoll_fd = -1;
}

/* ---- by ports ---- */

static unsigned hash(uint32_t host_port, uint32_t guest_port)
{
	return (host_port * 0x9e3779b1u ^ guest_port * 0x85ebca6bu) >> 24;
}
_Static_assert(VSOCK_NR_BUCKETS == 1u << (32 - 24), "the hash is the top bits");

struct vsock_stream *vsock_table_find(const struct vsock_table *t, uint32_t host_port,
                                      uint32_t guest_port)
{
	struct vsock_stream *s = t->bucket[hash(host_port, guest_port)];

	while (s && (s->conn.host_port != host_port || s->conn.guest_port != guest_port))
		s = s->hash_next;
	return s;
}

void vsock_table_list(struct vsock_stream *s)
{
	struct vsock_stream **bucket =
		&s->table->bucket[hash(s->conn.host_port, s->conn.guest_port)];

	s->hash_next = *bucket;
	*bucket = s;
	s->is_listed = true;
	s->phase = VSOCK_LIVE;
}

static void unlist(struct vsock_stream *s)
{
	struct vsock_stream **link = &s->table->bucket[hash(s->conn.host_port, s->conn.guest_port)];

	if (!s->is_listed)
		return;
	while (*link != s)
		link = &(*link)->hash_next;
	*link = s->hash_next;
	s->is_listed = false;
}

static uint32_t take_port(struct vsock_table *t, uint32_t guest_port)
{
	uint32_t port;

	do {
		port = VSOCK_PORT_MIN | (t->next_port++ & (VSOCK_PORT_MIN - 1));
	} while (vsock_table_find(t, port, guest_port));
	return port;
}

void vsock_ask_guest(struct vsock_stream *s, uint32_t port)
{
	vsock_conn_request(&s->conn, s->table->guest_cid, take_port(s->table, port), port);
	s->greeted = s->phase == VSOCK_GREETING;
	vsock_table_list(s);
	if (s->table->asked)
		s->table->asked(s->table->asked_ctx, port);
	vsock_stream_settle(s);
}

/* ---- in turn ---- */

static void unready(struct vsock_stream *s)
{
	if (s->is_ready)
		TAILQ_REMOVE(&s->table->ready, s, ready);
	s->is_ready = false;
}

void vsock_want_guest(struct vsock_stream *s)
{
	if (!s->is_ready)
		TAILQ_INSERT_TAIL(&s->table->ready, s, ready);
	s->is_ready = true;
}

struct vsock_stream *vsock_table_next(struct vsock_table *t)
{
	struct vsock_stream *s = TAILQ_FIRST(&t->ready);

	if (s)
		unready(s);
	return s;
}

/* ---- coming and going ---- */

struct vsock_stats *vsock_totals(struct vsock_stream *s)
{
	return &s->table->stats;
}

/* Out of the epoll set first: the open file may live on in another process. */
void vsock_close_fd(struct vsock_stream *s)
{
	epoll_ctl(s->table->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
	close(s->fd);
	s->fd = -1;
}

/* Freed later: whoever has called us may still look at it. */
void vsock_bury(struct vsock_stream *s)
{
	struct vsock_table *t = s->table;

	if (s->phase == VSOCK_BURIED)
		return;
	unlist(s);
	unready(s);
	TAILQ_REMOVE(&t->all, s, all);
	TAILQ_INSERT_TAIL(&t->buried, s, all);
	s->phase = VSOCK_BURIED;
	t->nr_streams--;
	t->stats.closed += s->opened;
}

bool vsock_table_free_buried(struct vsock_table *t)
{
	bool any = !TAILQ_EMPTY(&t->buried);
	struct vsock_stream *s;

	while ((s = TAILQ_FIRST(&t->buried))) {
		TAILQ_REMOVE(&t->buried, s, all);
		vsock_stream_free(s);
	}
	return any;
}

bool vsock_table_is_known(const struct vsock_stream *s)
{
	return s->is_listed && vsock_conn_is_known(&s->conn);
}

void vsock_table_reset(struct vsock_table *t)
{
	struct vsock_stream *s = TAILQ_FIRST(&t->all), *next;

	for (; s; s = next) {
		next = TAILQ_NEXT(s, all);
		if (vsock_table_is_known(s))
			vsock_bury(s);
	}
	t->nr_replies = 0;
}

/* The oldest stream that only waits for a guest that does not close its end; NULL: none, or no reply fits. */
static struct vsock_stream *weakest(const struct vsock_table *t)
{
	struct vsock_stream *s;

	if (t->nr_replies == VSOCK_MAX_REPLIES)
		return NULL;
	TAILQ_FOREACH(s, &t->all, all)
	{
		if (s->phase == VSOCK_LIVE && s->fd < 0)
			return s;
	}
	return NULL;
}

bool vsock_table_has_room(const struct vsock_table *t)
{
	return t->nr_streams < VSOCK_MAX_STREAMS || weakest(t);
}

static bool make_room(struct vsock_table *t)
{
	struct vsock_stream *s = t->nr_streams < VSOCK_MAX_STREAMS ? NULL : weakest(t);

	if (s) {
		struct vsock_reply reply = { VSOCK_HOST_CID, s->conn.host_port, s->conn.guest_port,
			                     VSOCK_TYPE_STREAM };

		BUG_ON(!vsock_table_reply(t, &reply)); /* weakest() has looked */
		vsock_bury(s);
	}
	return t->nr_streams < VSOCK_MAX_STREAMS;
}

int vsock_table_add(struct vsock_table *t, int fd, enum vsock_phase phase,
                    struct vsock_stream **stream)
{
	struct epoll_event want = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
	struct vsock_stream *s;

	*stream = NULL;
	if (!make_room(t))
		return -ENOSPC;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	want.data.ptr = s;
	if (epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &want) < 0) {
		int ret = -errno;

		free(s);
		return ret;
	}
	s->table = t;
	s->fd = fd;
	s->phase = phase;
	s->writable = true;
	TAILQ_INSERT_TAIL(&t->all, s, all);
	t->nr_streams++;
	*stream = s;
	return 0;
}

/* ---- replies ---- */

/* One for the packet, one for a stream that gives way to what it begins. */
bool vsock_table_can_reply(const struct vsock_table *t)
{
	return t->nr_replies + 2 <= VSOCK_MAX_REPLIES;
}

bool vsock_table_reply(struct vsock_table *t, const struct vsock_reply *reply)
{
	if (t->nr_replies == VSOCK_MAX_REPLIES)
		return false;
	t->reply[(t->reply_head + t->nr_replies++) % VSOCK_MAX_REPLIES] = *reply;
	return true;
}

void vsock_table_next_reply(struct vsock_table *t, struct vsock_hdr *hdr)
{
	const struct vsock_reply *reply = &t->reply[t->reply_head];

	BUG_ON(!t->nr_replies);
	*hdr = (struct vsock_hdr){
		.src_cid = reply->host_cid,
		.dst_cid = t->guest_cid,
		.src_port = reply->host_port,
		.dst_port = reply->guest_port,
		.type = reply->type,
		.op = VSOCK_OP_RST,
	};
	t->reply_head = (t->reply_head + 1) % VSOCK_MAX_REPLIES;
	t->nr_replies--;
	t->stats.resets++;
}
