/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device: three queues, the table of streams, the Unix socket, and what a snapshot keeps. Work
 * for the guest is served from one list, a packet a turn for each stream, so that none starves the
 * others; what does not fit the receive queue stays where it is (in sockets, as bits of a
 * connection) until the driver adds buffers.
 */
#include "devices/vsock.h"

#include "devices/vsock_table.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QUEUE_RX, QUEUE_TX, QUEUE_EVENT, NR_QUEUES };

#define VIRTIO_ID_VSOCK       19u
#define EVENT_TRANSPORT_RESET 0u

#define TURN_PACKETS 256u /* of each direction, before others on the loop have their turn */
#define TURN_EVENTS  64
#define FIRST_MAX    (64u << 10)
#define CID_MIN      3u
#define CID_MAX      0xfffffffeu

#define VSOCK_STATE(F, A)                                                                      \
	F(1, uint64_t, guest_cid)                                                              \
	F(1, uint32_t, live) /* connections that the guest knew: they get a transport reset */ \
	F(1, uint32_t, event_due)                                                              \
	F(1, uint32_t, events_unacked)                                                         \
	F(1, uint16_t, event_base)                                                             \
	F(1, uint32_t, nr_replies)                                                             \
	A(1, uint64_t, reply_cid, VSOCK_MAX_REPLIES)                                           \
	A(1, uint32_t, reply_host_port, VSOCK_MAX_REPLIES)                                     \
	A(1, uint32_t, reply_guest_port, VSOCK_MAX_REPLIES)                                    \
	A(1, uint16_t, reply_type, VSOCK_MAX_REPLIES)
STATE_STRUCT(vsock_state, VSOCK_STATE);
const struct state_desc *vsock_state_desc(void);

struct vsock {
	struct vdev vdev;
	struct vsock_unix un; /* const after open */
	/* vdev.lock */
	struct vsock_table table;
	bool tx_stalled;     /* chains wait until there is room for replies */
	bool accept_stalled; /* programs wait until there is room for streams */
	bool event_due;
	uint16_t events_unacked, event_base;
	struct throttle to_guest, to_host;
	struct virtq_chain chain;
	/* loop's thread */
	struct loop_op poll_op;
	struct loop_event turn;
};

static struct vsock *vsock_of(struct vdev *dev)
{
	return container_of(dev, struct vsock, vdev);
}

struct vdev *vsock_vdev(struct vsock *v)
{
	return &v->vdev;
}

/* ---- to the guest ---- */

/*
 * A guest that has yet to take note of a transport reset would take new connections for old ones:
 * nothing is delivered before it has given the event's buffer back.
 */
static bool is_held(const struct vsock *v)
{
	return v->event_due || v->events_unacked;
}

/* The next chain of queue q: 1, or 0 when there is none and a kick will tell. */
static int take_chain(struct vsock *v, unsigned q, uint32_t min_read, uint32_t min_write)
{
	struct virtq *vq = &v->vdev.vq[q];
	int ret;

	if (!vdev_is_live(&v->vdev))
		return 0;
	do {
		ret = virtq_pop(vq, &v->chain);
	} while (ret == 0 && virtq_kicks_on(vq));
	if (ret == 1 && v->chain.read_len >= min_read && v->chain.write_len >= min_write)
		return 1;
	if (ret != 0)
		vdev_break(&v->vdev, "bad ring, or a buffer that is too short");
	return 0;
}

static void give_chain(struct vsock *v, unsigned q, uint32_t written)
{
	if (virtq_push(&v->vdev.vq[q], &v->chain, written) < 0)
		vdev_break(&v->vdev, "bad ring");
}

/* Writes the next packet into the chain: bytes, 0 when its stream has nothing to say, -EPROTO. */
static int send_next(struct vsock *v)
{
	struct vsock_stream *s;
	struct vsock_hdr hdr;
	int ret;

	if (v->table.nr_replies) {
		vsock_table_next_reply(&v->table, &hdr);
		ret = chain_write(&v->chain, 0, &hdr, sizeof(hdr));
		return ret < 0 ? ret : (int)sizeof(hdr);
	}
	s = vsock_table_next(&v->table);
	ret = vsock_stream_send(s, &v->chain);
	vsock_stream_settle(s);
	return ret;
}

static void serve_rx(struct vsock *v)
{
	unsigned budget = TURN_PACKETS;
	bool have = false;

	if (!vdev_may_pop(&v->vdev) || is_held(v))
		return;
	while (v->table.nr_replies || !TAILQ_EMPTY(&v->table.ready)) {
		int n;

		if (!budget--) {
			loop_post(v->vdev.host.loop, &v->turn);
			break;
		}
		if (!throttle_may_go(&v->to_guest))
			break;
		if (!have && !take_chain(v, QUEUE_RX, 0, VSOCK_HDR_LEN + 1))
			break;
		have = true;
		n = send_next(v);
		if (n == 0)
			continue;
		give_chain(v, QUEUE_RX, n < 0 ? 0 : (uint32_t)n);
		throttle_pay(&v->to_guest, n < 0 ? 0 : (uint32_t)n - VSOCK_HDR_LEN);
		have = false;
	}
	if (have)
		virtq_unpop(&v->vdev.vq[QUEUE_RX]);
	vdev_signal_queue(&v->vdev, QUEUE_RX);
	if (v->tx_stalled && vsock_table_can_reply(&v->table)) {
		v->tx_stalled = false;
		vdev_kick(&v->vdev, QUEUE_TX);
	}
}

/* The guest has handled an event when it has added a buffer in its place. */
static void note_acks(struct vsock *v)
{
	struct virtq *vq = &v->vdev.vq[QUEUE_EVENT];
	uint16_t added;

	while (v->events_unacked) {
		added = virtq_added(vq);
		if ((uint16_t)(added - v->event_base) >= v->events_unacked)
			v->events_unacked = 0;
		else if (!virtq_kicks_at(vq, added))
			break;
	}
}

/* virtio 1.2 section 5.10.6.7 */
static void serve_event(struct vsock *v)
{
	const uint32_t id = EVENT_TRANSPORT_RESET;

	if (!vdev_may_pop(&v->vdev))
		return;
	if (v->event_due && take_chain(v, QUEUE_EVENT, 0, sizeof(id))) {
		if (!v->events_unacked++)
			v->event_base = virtq_added(&v->vdev.vq[QUEUE_EVENT]);
		v->event_due = false;
		if (chain_write(&v->chain, 0, &id, sizeof(id)) < 0)
			vdev_break(&v->vdev, "event buffer");
		give_chain(v, QUEUE_EVENT, sizeof(id));
		vdev_signal_queue(&v->vdev, QUEUE_EVENT);
	}
	note_acks(v);
}

/* ---- from the guest ---- */

static void refuse(struct vsock *v, const struct vsock_hdr *hdr)
{
	struct vsock_reply reply = { hdr->dst_cid, hdr->dst_port, hdr->src_port, hdr->type };

	v->table.stats.refused += hdr->op == VSOCK_OP_REQUEST;
	if (hdr->op != VSOCK_OP_RST)
		BUG_ON(!vsock_table_reply(&v->table, &reply)); /* serve_tx() has seen to it */
}

static void guest_connects(struct vsock *v, const struct vsock_hdr *hdr)
{
	struct vsock_stream *s = NULL;
	int fd = -ENOENT;

	if (v->un.fd >= 0)
		fd = vsock_unix_connect(v->un.path, hdr->dst_port);
	if (fd >= 0 && vsock_table_add(&v->table, fd, VSOCK_LIVE, &s) < 0)
		close(fd);
	if (!s) {
		refuse(v, hdr);
		return;
	}
	vsock_conn_accept(&s->conn, v->table.guest_cid, hdr);
	s->opened = true;
	v->table.stats.opened++;
	vsock_table_list(s);
	vsock_stream_settle(s);
}

static void recv_packet(struct vsock *v)
{
	struct vsock_stream *s;
	struct vsock_hdr hdr;

	if (chain_read(&v->chain, 0, &hdr, sizeof(hdr)) < 0)
		return; /* take_chain() has checked the length */
	if (hdr.type != VSOCK_TYPE_STREAM || hdr.dst_cid != VSOCK_HOST_CID ||
	    hdr.src_cid != v->table.guest_cid) {
		refuse(v, &hdr);
		return;
	}
	/* Less payload than it says: no operation that a connection knows, so that it ends. */
	if (hdr.len > v->chain.read_len - VSOCK_HDR_LEN)
		hdr.op = 0;
	s = vsock_table_find(&v->table, hdr.dst_port, hdr.src_port);
	if (s)
		vsock_stream_recv(s, &hdr, &v->chain);
	else if (hdr.op == VSOCK_OP_REQUEST)
		guest_connects(v, &hdr);
	else
		refuse(v, &hdr);
}

static void serve_tx(struct vsock *v)
{
	unsigned budget = TURN_PACKETS;

	virtq_kicks_off(&v->vdev.vq[QUEUE_TX]);
	while (vdev_may_pop(&v->vdev)) {
		if (!vsock_table_can_reply(&v->table)) {
			v->tx_stalled = true;
			break;
		}
		if (!budget--) {
			vdev_kick(&v->vdev, QUEUE_TX);
			break;
		}
		if (!throttle_may_go(&v->to_host) || !take_chain(v, QUEUE_TX, VSOCK_HDR_LEN, 0))
			break;
		throttle_pay(&v->to_host, v->chain.read_len - VSOCK_HDR_LEN);
		recv_packet(v);
		give_chain(v, QUEUE_TX, 0);
	}
	vdev_signal_queue(&v->vdev, QUEUE_TX);
}

/* ---- the host's programs ---- */

static void arm_poll(struct vsock *v)
{
	loop_poll(v->vdev.host.loop, &v->poll_op, v->table.epoll_fd, POLLIN);
}

static void accept_programs(struct vsock *v)
{
	struct vsock_stream *s;

	for (;;) {
		int fd;

		v->accept_stalled = !vsock_table_has_room(&v->table);
		if (v->accept_stalled)
			return;
		fd = accept4(v->un.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			/* Without descriptors or memory: again when a stream has ended. */
			v->accept_stalled = errno != EAGAIN;
			return;
		}
		if (vsock_table_add(&v->table, fd, VSOCK_GREETING, &s) < 0)
			close(fd);
	}
}

/* Ends every piece of work on the loop's thread: what is due goes to the guest, what is over is freed. */
static void finish(struct vsock *v)
{
	serve_rx(v);
	if (vsock_table_free_buried(&v->table) && v->accept_stalled) {
		accept_programs(v);
		serve_rx(v);
	}
}

static void on_sockets(struct loop_op *op, int res)
{
	struct vsock *v = container_of(op, struct vsock, poll_op);
	struct epoll_event events[TURN_EVENTS];
	int nr;

	if (res == -ECANCELED)
		return;
	pthread_mutex_lock(&v->vdev.lock);
	nr = epoll_wait(v->table.epoll_fd, events, TURN_EVENTS, 0);
	for (int i = 0; i < nr; i++) {
		if (events[i].data.ptr)
			vsock_stream_host_event(events[i].data.ptr, events[i].events);
		else
			accept_programs(v);
	}
	finish(v);
	arm_poll(v); /* is ready at once when there are more */
	pthread_mutex_unlock(&v->vdev.lock);
}

static void on_turn(struct loop_event *event)
{
	struct vsock *v = container_of(event, struct vsock, turn);

	pthread_mutex_lock(&v->vdev.lock);
	finish(v);
	pthread_mutex_unlock(&v->vdev.lock);
}

/* ---- the device ---- */

static uint64_t vsock_features(const struct vdev *dev)
{
	(void)dev; /* none: stream sockets only (virtio 1.2 section 5.10.3) */
	return 0;
}

static void vsock_config_read(struct vdev *dev, uint32_t off, void *dst, uint32_t n)
{
	const uint64_t cid = vsock_of(dev)->table.guest_cid;

	if (off < sizeof(cid))
		memcpy(dst, (const uint8_t *)&cid + off,
		       n < sizeof(cid) - off ? n : sizeof(cid) - off);
}

static void vsock_resume(struct vdev *dev)
{
	struct vsock *v = vsock_of(dev);

	serve_event(v);
	serve_tx(v);
	finish(v);
}

/* On a vCPU thread: the loop has the rest of it. */
static void vsock_activate(struct vdev *dev)
{
	vdev_kick(dev, QUEUE_RX);
	vdev_kick(dev, QUEUE_TX);
}

static void vsock_kick(struct vdev *dev, unsigned q)
{
	struct vsock *v = vsock_of(dev);

	if (q == QUEUE_TX)
		serve_tx(v);
	else if (q == QUEUE_EVENT)
		serve_event(v);
	finish(v);
}

/* What the guest has not heard of yet waits for its next driver. */
static void vsock_reset(struct vdev *dev)
{
	struct vsock *v = vsock_of(dev);

	vsock_table_reset(&v->table);
	v->tx_stalled = false;
	v->event_due = false;
	v->events_unacked = 0;
	loop_post(dev->host.loop, &v->turn); /* frees what was closed */
}

static bool vsock_quiesce(struct vdev *dev)
{
	(void)dev; /* no operation in flight ever touches guest memory */
	return true;
}

/* ---- snapshots ---- */

static int vsock_state_check(void *state, uint16_t from, struct err *err)
{
	const struct vsock_state *s = state;

	(void)from; /* one version so far */
	if (s->guest_cid < CID_MIN || s->guest_cid > CID_MAX || s->event_due > 1 ||
	    s->events_unacked > VIRTQ_MAX_SIZE || s->nr_replies > VSOCK_MAX_REPLIES)
		return err_set(err, -EBADMSG, "values out of range");
	return 0;
}
STATE_DESC(vsock_state, VSOCK_STATE, "VSCK", 1, vsock_state_check)

static void save_reply(struct vsock_state *state, const struct vsock_reply *reply)
{
	uint32_t i = state->nr_replies;

	if (i == VSOCK_MAX_REPLIES) /* the guest's connect() then ends by its own timeout */
		return;
	state->reply_cid[i] = reply->host_cid;
	state->reply_host_port[i] = reply->host_port;
	state->reply_guest_port[i] = reply->guest_port;
	state->reply_type[i] = reply->type;
	state->nr_replies++;
}

/*
 * The connections themselves stay with this monitor. A thawed guest learns of the loss by a transport
 * reset, which only ends what it holds for connected: requests that are still to be answered get a RST.
 */
static void vsock_save(struct vdev *dev, struct state_buf *buf)
{
	struct vsock *v = vsock_of(dev);
	const struct vsock_table *t = &v->table;
	struct vsock_state state = {
		.guest_cid = t->guest_cid,
		.event_due = v->event_due,
		.events_unacked = v->events_unacked,
		.event_base = v->event_base,
	};
	struct vsock_stream *s;

	for (unsigned i = 0; i < t->nr_replies; i++)
		save_reply(&state, &t->reply[(t->reply_head + i) % VSOCK_MAX_REPLIES]);
	TAILQ_FOREACH(s, &t->all, all)
	{
		struct vsock_reply reply = { VSOCK_HOST_CID, s->conn.host_port, s->conn.guest_port,
			                     VSOCK_TYPE_STREAM };

		if (!vsock_table_is_known(s))
			continue;
		if (vsock_conn_owes_answer(&s->conn))
			save_reply(&state, &reply);
		else
			state.live++;
	}
	state_put(buf, vsock_state_desc(), (uint16_t)dev->instance, &state);
}

static int vsock_load(struct vdev *dev, struct state_buf *buf, struct err *err)
{
	struct vsock *v = vsock_of(dev);
	struct vsock_table *t = &v->table;
	struct vsock_state state;
	struct vsock_stream *s;
	int ret;

	memset(&state, 0, sizeof(state));
	ret = state_get(buf, vsock_state_desc(), (uint16_t)dev->instance, &state, err);
	if (ret < 0)
		return ret;
	t->guest_cid = state.guest_cid;
	TAILQ_FOREACH(s, &t->all, all)
	{
		s->conn.guest_cid = state.guest_cid;
	}
	t->reply_head = 0;
	t->nr_replies = state.nr_replies;
	for (uint32_t i = 0; i < state.nr_replies; i++)
		t->reply[i] =
			(struct vsock_reply){ state.reply_cid[i], state.reply_host_port[i],
			                      state.reply_guest_port[i], state.reply_type[i] };
	v->event_due = state.event_due || state.live;
	v->events_unacked = (uint16_t)state.events_unacked;
	v->event_base = state.event_base;
	return 0;
}

static const struct vdev_ops vsock_ops = {
	.name = "vsock",
	.virtio_id = VIRTIO_ID_VSOCK,
	.nr_queues = NR_QUEUES,
	.features = vsock_features,
	.config_read = vsock_config_read,
	.activate = vsock_activate,
	.kick = vsock_kick,
	.reset = vsock_reset,
	.quiesce = vsock_quiesce,
	.resume = vsock_resume,
	.save = vsock_save,
	.load = vsock_load,
};

/* ---- open, connect, close ---- */

int vsock_listen(struct vsock *v, struct vsock_unix *un, struct err *err)
{
	struct epoll_event want = { .events = EPOLLIN | EPOLLET }; /* data.ptr NULL: no stream */

	if (un->fd < 0)
		return 0;
	v->un = *un;
	*un = (struct vsock_unix){ .fd = -1 };
	if (epoll_ctl(v->table.epoll_fd, EPOLL_CTL_ADD, v->un.fd, &want) < 0)
		return err_set(err, -errno, "vsock: epoll: %s", strerror(errno));
	return 0;
}

int vsock_open(struct vsock **vsock, const struct vsock_config *config,
               const struct vdev_host *host, unsigned instance, struct err *err)
{
	struct vsock_unix un = { .fd = -1 };
	struct vsock *v;
	int ret;

	*vsock = NULL;
	if (config->guest_cid < CID_MIN || config->guest_cid > CID_MAX) {
		err_set(err, -EINVAL, "vsock: guest CID %llu",
		        (unsigned long long)config->guest_cid);
		return err_remedy(err, "use 3 to 4294967294");
	}
	v = calloc(1, sizeof(*v));
	if (!v)
		return err_set(err, -ENOMEM, "vsock: out of memory");
	vdev_init(&v->vdev, &vsock_ops, host, instance);
	throttle_init(&v->to_guest, &v->vdev, QUEUE_RX);
	throttle_init(&v->to_host, &v->vdev, QUEUE_TX);
	v->un.fd = -1;
	v->poll_op.done = on_sockets;
	v->turn.fire = on_turn;
	ret = vsock_table_open(&v->table, config->guest_cid, err);
	v->table.asked = config->asked;
	v->table.asked_ctx = config->asked_ctx;
	if (ret == 0 && config->path)
		ret = vsock_unix_listen(&un, config->path, err);
	if (ret == 0)
		ret = vsock_listen(v, &un, err);
	if (ret < 0) {
		vsock_close(v);
		return ret;
	}
	arm_poll(v);
	*vsock = v;
	return 0;
}

void vsock_close(struct vsock *v)
{
	if (!v)
		return;
	if (v->vdev.host.loop->open) {
		loop_reap(v->vdev.host.loop, &v->poll_op);
		loop_unpost(v->vdev.host.loop, &v->turn);
	}
	throttle_close(&v->to_guest);
	throttle_close(&v->to_host);
	vsock_table_close(&v->table);
	vsock_unix_close(&v->un);
	vdev_close(&v->vdev);
	free(v);
}

/* Lock held. */
static int add_stream(struct vsock *v, int fd, uint32_t port, enum vsock_begin begin,
                      const void *bytes, size_t n, struct err *err)
{
	uint8_t *first = n ? malloc(n) : NULL;
	struct vsock_stream *s;
	int ret;

	if (n && !first)
		return err_set(err, -ENOMEM, "vsock: out of memory");
	ret = vsock_table_add(&v->table, fd, VSOCK_SILENT, &s);
	if (ret < 0) {
		free(first);
		err_set(err, ret, "vsock: connect to guest port %u: %s", port,
		        ret == -ENOSPC ? "too many connections" : strerror(-ret));
		return ret == -ENOSPC ? err_remedy(err, "close some of the %u", VSOCK_MAX_STREAMS)
		                      : ret;
	}
	if (n)
		memcpy(first, bytes, n);
	s->first = first;
	s->first_len = (uint32_t)n;
	s->conn.guest_port = port;
	if (begin == VSOCK_NOW)
		vsock_ask_guest(s, port);
	finish(v);
	return 0;
}

int vsock_connect(struct vsock *v, int fd, uint32_t port, enum vsock_begin begin, struct err *err)
{
	int ret;

	pthread_mutex_lock(&v->vdev.lock);
	ret = add_stream(v, fd, port, begin, NULL, 0, err);
	pthread_mutex_unlock(&v->vdev.lock);
	return ret;
}

int vsock_connect_with(struct vsock *v, int fd, uint32_t port, const void *bytes, size_t n,
                       struct err *err)
{
	int ret;

	if (n > FIRST_MAX)
		return err_set(err, -EMSGSIZE, "vsock: %zu first bytes, at most %u", n, FIRST_MAX);
	pthread_mutex_lock(&v->vdev.lock);
	ret = add_stream(v, fd, port, VSOCK_NOW, bytes, n, err);
	pthread_mutex_unlock(&v->vdev.lock);
	return ret;
}

void vsock_stats(struct vsock *v, struct vsock_stats *stats)
{
	pthread_mutex_lock(&v->vdev.lock);
	*stats = v->table.stats;
	stats->live = v->table.nr_streams;
	stats->to_guest = v->to_guest.stats;
	stats->to_host = v->to_host.stats;
	pthread_mutex_unlock(&v->vdev.lock);
}

void vsock_limit(struct vsock *v, const struct limit *bytes, uint64_t (*now_ns)(void))
{
	pthread_mutex_lock(&v->vdev.lock);
	throttle_set(&v->to_guest, bytes, NULL, now_ns);
	throttle_set(&v->to_host, bytes, NULL, now_ns);
	pthread_mutex_unlock(&v->vdev.lock);
}
