/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/virtq.h"

#include "devices/vdev.h"

#include <errno.h>

#define DESC_LEN        16u
#define DESC_F_NEXT     1u
#define DESC_F_WRITE    2u
#define DESC_F_INDIRECT 4u

/* Both rings begin with u16 flags, u16 idx; the event index follows their last element. */
#define RING_FLAGS           0u
#define RING_IDX             2u
#define RING_HEAD            4u
#define AVAIL_ELEM           2u
#define USED_ELEM            8u
#define AVAIL_NO_INTERRUPT   1u
#define USED_NO_NOTIFY       1u
#define used_event_at(size)  (RING_HEAD + AVAIL_ELEM * (size_t)(size))
#define avail_event_at(size) (RING_HEAD + USED_ELEM * (size_t)(size))

/* virtio 1.2 section 2.7.5 */
struct desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags;
	uint16_t next;
};
_Static_assert(sizeof(struct desc) == DESC_LEN, "descriptors are copied as they lie in memory");

/* virtio 1.2 section 2.7.8 */
struct used_elem {
	uint32_t id;
	uint32_t len;
};
_Static_assert(sizeof(struct used_elem) == USED_ELEM, "elements are copied as they lie in memory");

static int virtq_state_check(void *state, uint16_t from, struct err *err)
{
	const struct virtq_state *s = state;

	(void)from; /* one version so far */
	if (s->ready > 1 || s->signalled_valid > 1 || s->size > VIRTQ_MAX_SIZE)
		return err_set(err, -EBADMSG, "queue registers out of range");
	return 0;
}
STATE_DESC(virtq_state, VIRTQ_STATE, "VIRQ", 1, virtq_state_check)

int virtq_enable(struct virtq *q, const struct gmem *mem, uint64_t features)
{
	struct virtq_state *s = &q->s;
	bool event_idx = features & (1ull << VIRTIO_F_EVENT_IDX);
	uint64_t tail = event_idx ? sizeof(uint16_t) : 0;

	if (!s->size || s->size > VIRTQ_MAX_SIZE || (s->size & (s->size - 1)))
		return -EPROTO;
	if (s->desc % 16 || s->avail % 2 || s->used % 4)
		return -EPROTO;
	if (gmem_view(mem, gpa(s->desc), DESC_LEN * (uint64_t)s->size, &q->desc) < 0 ||
	    gmem_view(mem, gpa(s->avail), used_event_at(s->size) + tail, &q->avail) < 0 ||
	    gmem_view(mem, gpa(s->used), avail_event_at(s->size) + tail, &q->used) < 0)
		return -EPROTO;
	q->mem = mem;
	q->event_idx = event_idx;
	q->indirect = features & (1ull << VIRTIO_F_INDIRECT_DESC);
	s->ready = 1;
	return 0;
}

void virtq_reset(struct virtq *q)
{
	*q = (struct virtq){ 0 };
}

static int add_segment(const struct virtq *q, const struct desc *d, struct virtq_chain *chain)
{
	unsigned nr = chain->nr_read + chain->nr_write;
	uint32_t total;

	if (nr >= q->s.size || !d->len)
		return -EPROTO;
	if (__builtin_add_overflow(chain->read_len + chain->write_len, d->len, &total) ||
	    total > VIRTQ_MAX_BYTES)
		return -EPROTO;
	if (gmem_view(q->mem, gpa(d->addr), d->len, &chain->seg[nr]) < 0)
		return -EPROTO;
	if (d->flags & DESC_F_WRITE) {
		chain->nr_write++;
		chain->write_len += d->len;
	} else if (!chain->nr_write) {
		chain->nr_read++;
		chain->read_len += d->len;
	} else {
		return -EPROTO;
	}
	return 0;
}

/* virtio 1.2 section 2.7.5.3. The table's WRITE flag has no meaning there. */
static int open_indirect(const struct virtq *q, const struct desc *d, struct gview *table)
{
	if (!q->indirect || (d->flags & DESC_F_NEXT) || !d->len || d->len % DESC_LEN)
		return -EPROTO;
	return gmem_view(q->mem, gpa(d->addr), d->len, table) < 0 ? -EPROTO : 0;
}

static int walk(const struct virtq *q, uint16_t index, struct virtq_chain *chain)
{
	struct gview table = q->desc;
	bool nested = false;
	struct desc d;
	int ret;

	/* One link more than segments: the one that leads to the indirect table. */
	for (unsigned links = 0; links <= q->s.size; links++) {
		if (gview_read(&table, (size_t)index * DESC_LEN, &d, sizeof(d)) < 0)
			return -EPROTO;
		if (d.flags & DESC_F_INDIRECT) {
			ret = nested ? -EPROTO : open_indirect(q, &d, &table);
			if (ret < 0)
				return ret;
			nested = true;
			index = 0;
			continue;
		}
		ret = add_segment(q, &d, chain);
		if (ret < 0 || !(d.flags & DESC_F_NEXT))
			return ret;
		index = d.next;
	}
	return -EPROTO;
}

int virtq_pop(struct virtq *q, struct virtq_chain *chain)
{
	uint16_t pending, head;
	int ret;

	if (!q->s.ready)
		return 0;
	pending = (uint16_t)(gview_load16(&q->avail, RING_IDX) - q->s.next_avail);
	if (!pending)
		return 0;
	if (pending > q->s.size)
		return -EPROTO;
	head = gview_load16(&q->avail,
	                    RING_HEAD + AVAIL_ELEM * (size_t)(q->s.next_avail & (q->s.size - 1)));
	chain->head = head;
	chain->nr_read = chain->nr_write = 0;
	chain->read_len = chain->write_len = 0;
	ret = walk(q, head, chain);
	if (ret < 0)
		return ret;
	q->s.next_avail++;
	return 1;
}

void virtq_unpop(struct virtq *q)
{
	q->s.next_avail--;
}

int virtq_push_head(struct virtq *q, uint16_t head, uint32_t written)
{
	struct used_elem elem = { .id = head, .len = written };
	size_t slot = q->s.next_used & (q->s.size - 1u);

	if (!q->s.ready || head >= q->s.size ||
	    gview_write(&q->used, RING_HEAD + USED_ELEM * slot, &elem, sizeof(elem)) < 0)
		return -EPROTO;
	q->s.next_used++;
	gview_store16(&q->used, RING_IDX, q->s.next_used);
	return 0;
}

int virtq_push(struct virtq *q, const struct virtq_chain *chain, uint32_t written)
{
	return virtq_push_head(q, chain->head, written);
}

/* What we stored must be seen before what the driver stores is read, and the other way round. */
static void full_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/*
 * virtio 1.2 sections 2.7.7.1 and 2.7.10. The driver is interrupted when its used_event lies in what
 * was pushed since the last time; after a restore nobody knows that time, so it always is.
 */
bool virtq_should_irq(struct virtq *q)
{
	uint16_t old = q->s.signalled, now = q->s.next_used;
	bool known = q->s.signalled_valid;
	uint16_t event;

	if (!q->s.ready || old == now)
		return false;
	full_barrier();
	q->s.signalled = now;
	q->s.signalled_valid = 1;
	if (!q->event_idx)
		return !(gview_load16(&q->avail, RING_FLAGS) & AVAIL_NO_INTERRUPT);
	event = gview_load16(&q->avail, used_event_at(q->s.size));
	return !known || (uint16_t)(now - event - 1) < (uint16_t)(now - old);
}

/* With EVENT_IDX an avail_event that the driver has passed already keeps it quiet. */
void virtq_kicks_off(struct virtq *q)
{
	if (q->s.ready && !q->event_idx)
		gview_store16(&q->used, RING_FLAGS, USED_NO_NOTIFY);
}

uint16_t virtq_added(const struct virtq *q)
{
	return q->s.ready ? gview_load16(&q->avail, RING_IDX) : 0;
}

bool virtq_kicks_at(struct virtq *q, uint16_t position)
{
	if (!q->s.ready)
		return false;
	if (q->event_idx)
		gview_store16(&q->used, avail_event_at(q->s.size), position);
	else
		gview_store16(&q->used, RING_FLAGS, 0);
	full_barrier();
	return virtq_added(q) != position;
}

bool virtq_kicks_on(struct virtq *q)
{
	return virtq_kicks_at(q, q->s.next_avail);
}

static int part_iov(const struct gview *seg, unsigned nr, uint32_t off, uint32_t n,
                    struct iovec *iov, int max)
{
	int used = 0;

	for (unsigned i = 0; i < nr && n; i++) {
		size_t take;

		if (off >= seg[i].len) {
			off -= (uint32_t)seg[i].len;
			continue;
		}
		take = seg[i].len - off;
		if (take > n)
			take = n;
		if (used == max || gview_iov(&seg[i], off, take, &iov[used]) < 0)
			return -EPROTO;
		used++;
		off = 0;
		n -= (uint32_t)take;
	}
	return n ? -EPROTO : used;
}

static bool in_part(uint32_t part, uint32_t off, uint32_t n)
{
	return off <= part && n <= part - off;
}

int chain_read_iov(const struct virtq_chain *chain, uint32_t off, uint32_t n, struct iovec *iov,
                   int max)
{
	if (!in_part(chain->read_len, off, n))
		return -EPROTO;
	return part_iov(chain->seg, chain->nr_read, off, n, iov, max);
}

int chain_write_iov(const struct virtq_chain *chain, uint32_t off, uint32_t n, struct iovec *iov,
                    int max)
{
	if (!in_part(chain->write_len, off, n))
		return -EPROTO;
	return part_iov(chain->seg + chain->nr_read, chain->nr_write, off, n, iov, max);
}

/* Out of the segments into `dst`, or without it into them from `src`. The bounds have been checked. */
static int part_copy(const struct gview *seg, uint32_t off, uint8_t *dst, const uint8_t *src,
                     uint32_t n)
{
	for (uint32_t done = 0; done < n; seg++) {
		uint32_t len = (uint32_t)seg->len, take;
		int ret;

		if (off >= len) {
			off -= len;
			continue;
		}
		take = len - off < n - done ? len - off : n - done;
		ret = dst ? gview_read(seg, off, dst + done, take)
		          : gview_write(seg, off, src + done, take);
		if (ret < 0)
			return -EPROTO;
		done += take;
		off = 0;
	}
	return 0;
}

int chain_read(const struct virtq_chain *chain, uint32_t off, void *dst, uint32_t n)
{
	if (!in_part(chain->read_len, off, n))
		return -EPROTO;
	return part_copy(chain->seg, off, dst, NULL, n);
}

int chain_write(const struct virtq_chain *chain, uint32_t off, const void *src, uint32_t n)
{
	if (!in_part(chain->write_len, off, n))
		return -EPROTO;
	return part_copy(chain->seg + chain->nr_read, off, NULL, src, n);
}
