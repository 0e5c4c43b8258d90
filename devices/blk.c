/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/blk.h"

#include "core/log.h"
#include "devices/blk_image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define MAX_POPS 256 /* in one turn of the loop, so that a busy guest does not keep it */

/* virtio 1.2 section 5.2.4, as far as it is offered; the rest of the space reads 0. */
struct config_space {
	uint64_t capacity; /* sectors */
	uint32_t size_max;
	uint32_t seg_max;
	uint32_t geometry;
	uint32_t blk_size; /* bytes */
	uint8_t physical_block_exp;
	uint8_t alignment_offset;
	uint16_t min_io_size; /* blocks */
	uint32_t opt_io_size;
	uint8_t writeback;
	uint8_t unused0;
	uint16_t num_queues;
	uint32_t max_discard_sectors;
	uint32_t max_discard_seg;
	uint32_t discard_sector_alignment;
	uint32_t max_write_zeroes_sectors;
	uint32_t max_write_zeroes_seg;
	uint8_t write_zeroes_may_unmap;
	uint8_t unused1[7]; /* to the end of the struct: padding would show the guest our stack */
};
_Static_assert(offsetof(struct config_space, unused1) == 57 && sizeof(struct config_space) == 64,
               "the layout is the specification's");

/* virtio 1.2 section 5.2.6 */
struct header {
	uint32_t type;
	uint32_t reserved;
	uint64_t sector;
};

struct unmap_segment {
	uint64_t sector;
	uint32_t nr_sectors;
	uint32_t flags;
};
#define UNMAP_F_UNMAP 1u

enum stage {
	STAGE_DATA,       /* the request's own read, write, punch or flush */
	STAGE_COPY_READ,  /* a partly covered block comes from the base ... */
	STAGE_COPY_WRITE, /* ... and goes to the overlay */
};

/* One request in flight. All that the guest said has been fetched and checked. */
struct request {
	struct loop_op op;
	struct blk *blk;
	struct request *next; /* free list, or the list of changes */
	uint8_t *status;      /* in guest memory */
	uint64_t off, len;    /* bytes on the disk */
	uint64_t done;        /* of len */
	uint64_t gap;         /* the block that is being copied */
	uint32_t gap_len, gap_done;
	uint32_t type;
	uint16_t head;
	bool waits; /* for an earlier change of the same blocks */
	enum stage stage;
	unsigned nr_iov;
	struct iovec gap_iov;
	struct iovec iov[BLK_MAX_SEGMENTS];  /* the data in guest memory */
	struct iovec part[BLK_MAX_SEGMENTS]; /* what the operation in flight moves of it */
	uint8_t block[BLK_IMAGE_BLOCK];
};

struct blk {
	struct vdev vdev;
	struct blk_image image; /* loop's thread */
	struct blk_state s;     /* const after open */
	char serial[BLK_ID_LEN];
	/* vdev.lock */
	struct throttle throttle;
	struct blk_stats stats;
	unsigned nr_busy;
	unsigned nr_touched;  /* requests that have been used: the others cost no memory yet */
	struct request *free; /* of those, the idle ones */
	/* Writes, discards and zeroings on an overlay, oldest first: those that overlap run in order. */
	struct request *changes;
	struct virtq_chain chain; /* the one being parsed */
	struct request request[BLK_MAX_REQUESTS];
};

/* Some of the ops get a const device. */
static struct blk *blk_of(const struct vdev *dev)
{
	return container_of((uintptr_t)dev, struct blk, vdev);
}

STATE_DESC(blk_state, BLK_STATE, "BLK ", 1, NULL)

static void on_done(struct loop_op *op, int res);

/* ---- life of a request; lock held ---- */

static void request_step(struct request *r);

static bool may_take(struct blk *blk)
{
	return blk->nr_busy < BLK_MAX_REQUESTS && vdev_is_live(&blk->vdev) &&
	       throttle_may_go(&blk->throttle);
}

static struct request *request_take(struct blk *blk)
{
	struct request *r = blk->free;

	if (r)
		blk->free = r->next;
	else
		r = &blk->request[blk->nr_touched++];
	blk->nr_busy++;
	r->op.done = on_done;
	r->blk = blk;
	r->type = UINT32_MAX;
	r->len = r->done = 0;
	r->nr_iov = 0;
	r->waits = false;
	return r;
}

static void request_free(struct request *r)
{
	struct blk *blk = r->blk;

	r->next = blk->free;
	blk->free = r;
	blk->nr_busy--;
}

static uint64_t last_block(const struct request *r)
{
	return (r->off + r->len - 1) / BLK_IMAGE_BLOCK;
}

static bool overlaps(const struct request *a, const struct request *b)
{
	return a->off / BLK_IMAGE_BLOCK <= last_block(b) &&
	       b->off / BLK_IMAGE_BLOCK <= last_block(a);
}

static bool must_wait(const struct request *r)
{
	for (const struct request *o = r->blk->changes; o != r; o = o->next)
		if (overlaps(o, r))
			return true;
	return false;
}

static bool is_change(const struct request *r)
{
	return r->type == VIRTIO_BLK_T_OUT || r->type == VIRTIO_BLK_T_DISCARD ||
	       r->type == VIRTIO_BLK_T_WRITE_ZEROES;
}

static void change_begin(struct request *r)
{
	struct request **link = &r->blk->changes;

	while (*link)
		link = &(*link)->next;
	r->next = NULL;
	*link = r;
	r->waits = must_wait(r);
}

static void change_end(struct request *r)
{
	struct request **link = &r->blk->changes;

	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	for (struct request *o = r->blk->changes; o; o = o->next) {
		if (o->waits && !must_wait(o)) {
			o->waits = false;
			request_step(o);
		}
	}
}

/* Gives a chain back to the driver, unless the device was broken meanwhile. */
static void chain_return(struct blk *blk, uint16_t head, uint8_t *status_at, uint8_t status,
                         uint32_t written)
{
	if (!vdev_is_live(&blk->vdev))
		return;
	*(volatile uint8_t *)status_at = status;
	if (virtq_push_head(&blk->vdev.vq[0], head, written) < 0)
		vdev_break(&blk->vdev, "used ring");
	else
		vdev_signal_queue(&blk->vdev, 0);
}

static void request_end(struct request *r, uint8_t status)
{
	struct blk *blk = r->blk;
	bool has_data = r->type == VIRTIO_BLK_T_IN && status == VIRTIO_BLK_S_OK;

	chain_return(blk, r->head, r->status, status, (has_data ? (uint32_t)r->len : 0) + 1);
	if (blk->image.owned && is_change(r))
		change_end(r);
	request_free(r);
}

static void request_fail(struct request *r, int error)
{
	bool unsupported = error == -EOPNOTSUPP && r->type != VIRTIO_BLK_T_IN;

	/* The guest's kernel knows what to do without: it writes zeroes itself. */
	if (!unsupported)
		log_guest("blk%u: request type %u of %llu bytes at %llu: %s", r->blk->vdev.instance,
		          r->type, (unsigned long long)r->len, (unsigned long long)r->off,
		          strerror(-error));
	request_end(r, unsupported ? VIRTIO_BLK_S_UNSUPP : VIRTIO_BLK_S_IOERR);
}

/* ---- steps of a request: each starts one operation, or ends it; lock held ---- */

/* [off, off + n) of the request's data as r->part. */
static unsigned slice(struct request *r, uint64_t off, uint64_t n)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < r->nr_iov && n; i++) {
		size_t len = r->iov[i].iov_len, take;

		if (off >= len) {
			off -= len;
			continue;
		}
		take = len - off < n ? len - off : n;
		r->part[nr++] = (struct iovec){ (uint8_t *)r->iov[i].iov_base + off, take };
		off = 0;
		n -= take;
	}
	return nr;
}

static void step_read(struct request *r)
{
	uint64_t at = r->off + r->done, n;
	int fd;

	n = blk_image_run(&r->blk->image, at, r->len - r->done, &fd);
	loop_readv(r->blk->vdev.host.loop, &r->op, fd, r->part, slice(r, r->done, n), at);
}

static void step_copy(struct request *r)
{
	struct blk *blk = r->blk;
	uint64_t at = r->gap + r->gap_done;

	r->gap_iov = (struct iovec){ r->block + r->gap_done, r->gap_len - r->gap_done };
	if (r->stage == STAGE_COPY_READ)
		loop_readv(blk->vdev.host.loop, &r->op, blk->image.base_fd, &r->gap_iov, 1, at);
	else
		loop_writev(blk->vdev.host.loop, &r->op, blk->image.overlay_fd, &r->gap_iov, 1, at);
}

static void step_change(struct request *r)
{
	struct loop *loop = r->blk->vdev.host.loop;
	int fd = blk_image_target(&r->blk->image);

	if (blk_image_gap(&r->blk->image, r->off, r->len, &r->gap, &r->gap_len)) {
		r->stage = STAGE_COPY_READ;
		r->gap_done = 0;
		step_copy(r);
	} else if (r->type == VIRTIO_BLK_T_OUT) {
		loop_writev(loop, &r->op, fd, r->part, slice(r, r->done, r->len - r->done),
		            r->off + r->done);
	} else {
		loop_fallocate(loop, &r->op, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, r->off,
		               r->len);
	}
}

static void request_step(struct request *r)
{
	r->stage = STAGE_DATA;
	if (r->done == r->len && r->type != VIRTIO_BLK_T_FLUSH)
		request_end(r, VIRTIO_BLK_S_OK);
	else if (r->type == VIRTIO_BLK_T_IN)
		step_read(r);
	else if (r->type == VIRTIO_BLK_T_FLUSH)
		loop_fdatasync(r->blk->vdev.host.loop, &r->op, r->blk->image.base_fd);
	else
		step_change(r);
}

static void copied(struct request *r, uint32_t n)
{
	r->gap_done += n;
	if (r->gap_done < r->gap_len) {
		step_copy(r);
	} else if (r->stage == STAGE_COPY_READ) {
		r->stage = STAGE_COPY_WRITE;
		r->gap_done = 0;
		step_copy(r);
	} else {
		blk_image_own(&r->blk->image, r->gap, r->gap_len);
		request_step(r);
	}
}

/* The request's own operation has moved `n` bytes; punch and flush answer 0 for all. */
static void moved(struct request *r, uint32_t n)
{
	bool moves = r->type == VIRTIO_BLK_T_IN || r->type == VIRTIO_BLK_T_OUT;

	if (!moves) {
		if (r->type != VIRTIO_BLK_T_FLUSH)
			blk_image_own(&r->blk->image, r->off, r->len);
		request_end(r, VIRTIO_BLK_S_OK);
		return;
	}
	r->done += n;
	/* Only whole: until then a block that was not owned is still the base's. */
	if (r->done == r->len && r->type == VIRTIO_BLK_T_OUT)
		blk_image_own(&r->blk->image, r->off, r->len);
	request_step(r);
}

static void serve(struct blk *blk);

static void on_done(struct loop_op *op, int res)
{
	struct request *r = container_of(op, struct request, op);
	struct blk *blk = r->blk;
	bool whole = r->type == VIRTIO_BLK_T_FLUSH || r->type == VIRTIO_BLK_T_DISCARD ||
	             r->type == VIRTIO_BLK_T_WRITE_ZEROES;

	pthread_mutex_lock(&blk->vdev.lock);
	/* 0 bytes moved: the file has been cut under us. */
	if (res == 0 && (r->stage != STAGE_DATA || !whole))
		res = -EIO;
	if (res == -EINTR && r->stage == STAGE_DATA)
		request_step(r);
	else if (res == -EINTR)
		step_copy(r);
	else if (res < 0)
		request_fail(r, res);
	else if (r->stage == STAGE_DATA)
		moved(r, (uint32_t)res);
	else
		copied(r, (uint32_t)res);
	if (vdev_may_pop(&blk->vdev))
		serve(blk);
	pthread_mutex_unlock(&blk->vdev.lock);
}

/* ---- parsing; lock held ---- */

static bool in_disk(const struct blk *blk, uint64_t sector, uint64_t nr_sectors)
{
	uint64_t capacity = blk->s.size / BLK_SECTOR;

	return sector <= capacity && nr_sectors <= capacity - sector;
}

/* The range and the segments of a read or write. */
static uint8_t parse_data(struct request *r, const struct virtq_chain *chain, uint64_t sector)
{
	bool in = r->type == VIRTIO_BLK_T_IN;
	uint32_t len =
		in ? chain->write_len - 1 : chain->read_len - (uint32_t)sizeof(struct header);
	int nr;

	if (!in && r->blk->s.readonly)
		return VIRTIO_BLK_S_IOERR;
	if (len % BLK_SECTOR || !in_disk(r->blk, sector, len / BLK_SECTOR))
		return VIRTIO_BLK_S_IOERR;
	nr = in ? chain_write_iov(chain, 0, len, r->iov, BLK_MAX_SEGMENTS)
	        : chain_read_iov(chain, sizeof(struct header), len, r->iov, BLK_MAX_SEGMENTS);
	if (nr < 0)
		return VIRTIO_BLK_S_IOERR;
	r->nr_iov = (unsigned)nr;
	r->off = sector * BLK_SECTOR;
	r->len = len;
	return VIRTIO_BLK_S_OK;
}

/* A discard is a hint: on an overlay only whole blocks are worth the work. */
static void shrink_to_blocks(struct request *r)
{
	uint64_t end = r->off + r->len;
	uint64_t first = (r->off + BLK_IMAGE_BLOCK - 1) / BLK_IMAGE_BLOCK * BLK_IMAGE_BLOCK;

	if (end < r->blk->s.size)
		end -= end % BLK_IMAGE_BLOCK;
	r->len = first < end ? end - first : 0;
	r->off = first;
}

/* Discard and write-zeroes: one segment (virtio 1.2 section 5.2.6.2). */
static uint8_t parse_unmap(struct request *r, const struct virtq_chain *chain)
{
	bool discard = r->type == VIRTIO_BLK_T_DISCARD;
	struct unmap_segment seg;

	if (r->blk->s.readonly || chain->read_len != sizeof(struct header) + sizeof(seg) ||
	    chain_read(chain, sizeof(struct header), &seg, sizeof(seg)) < 0)
		return VIRTIO_BLK_S_IOERR;
	if ((seg.flags & ~UNMAP_F_UNMAP) || (discard && seg.flags))
		return VIRTIO_BLK_S_UNSUPP;
	if (seg.nr_sectors > BLK_MAX_UNMAP || !in_disk(r->blk, seg.sector, seg.nr_sectors))
		return VIRTIO_BLK_S_IOERR;
	r->off = seg.sector * BLK_SECTOR;
	r->len = (uint64_t)seg.nr_sectors * BLK_SECTOR;
	if (discard && r->blk->image.owned)
		shrink_to_blocks(r);
	return VIRTIO_BLK_S_OK;
}

static uint8_t parse(struct request *r, const struct virtq_chain *chain)
{
	struct header h;

	if (chain_read(chain, 0, &h, sizeof(h)) < 0)
		return VIRTIO_BLK_S_IOERR;
	r->type = h.type;
	switch (h.type) {
	case VIRTIO_BLK_T_IN:
	case VIRTIO_BLK_T_OUT:
		return parse_data(r, chain, h.sector);
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		return parse_unmap(r, chain);
	case VIRTIO_BLK_T_FLUSH:
	case VIRTIO_BLK_T_GET_ID:
		return VIRTIO_BLK_S_OK;
	default:
		return VIRTIO_BLK_S_UNSUPP;
	}
}

static uint8_t answer_id(const struct blk *blk)
{
	uint32_t room = blk->chain.write_len - 1;
	int ret = chain_write(&blk->chain, 0, blk->serial, room < BLK_ID_LEN ? room : BLK_ID_LEN);

	return (uint8_t)(ret < 0 ? VIRTIO_BLK_S_IOERR : VIRTIO_BLK_S_OK);
}

/*
 * True when there is nothing to do for the disk. A flush makes durable what has been completed before
 * it came: that is in the file, and fdatasync() follows. An overlay does not outlive this process.
 */
static bool ends_at_once(const struct request *r)
{
	if (r->type == VIRTIO_BLK_T_FLUSH)
		return r->blk->s.readonly || r->blk->image.owned;
	return r->len == 0;
}

/* A discard moves no bytes; what is refused is an operation all the same. */
static void count(const struct request *r, bool accepted)
{
	struct blk_stats *stats = &r->blk->stats;
	bool reads = r->type == VIRTIO_BLK_T_IN, writes = r->type == VIRTIO_BLK_T_OUT;
	uint32_t bytes = accepted && (reads || writes) ? (uint32_t)r->len : 0;

	stats->requests++;
	if (reads)
		stats->bytes_read += bytes;
	else
		stats->bytes_written += bytes;
	throttle_pay(&r->blk->throttle, bytes);
}

static void request_begin(struct request *r, const struct virtq_chain *chain, uint8_t *status_at)
{
	struct blk *blk = r->blk;
	uint32_t written = 1; /* the status */
	uint8_t status = parse(r, chain);

	count(r, status == VIRTIO_BLK_S_OK);
	if (status == VIRTIO_BLK_S_OK && r->type == VIRTIO_BLK_T_GET_ID) {
		status = answer_id(blk);
		written = chain->write_len;
	}
	if (status != VIRTIO_BLK_S_OK || ends_at_once(r)) {
		chain_return(blk, chain->head, status_at, status, written);
		request_free(r);
		return;
	}
	r->head = chain->head;
	r->status = status_at;
	if (blk->image.owned && is_change(r))
		change_begin(r);
	if (!r->waits)
		request_step(r);
}

/* The popped chain. Its last writable byte is the status (virtio 1.2 section 5.2.6). */
static void chain_begin(struct blk *blk)
{
	const struct virtq_chain *chain = &blk->chain;
	struct iovec last;

	if (!chain->write_len || chain_write_iov(chain, chain->write_len - 1, 1, &last, 1) < 0)
		vdev_break(&blk->vdev, "a request without room for its status");
	else
		request_begin(request_take(blk), chain, last.iov_base);
}

/* Takes chains while there is room for them. The device must be allowed to. */
static void serve(struct blk *blk)
{
	struct virtq *q = &blk->vdev.vq[0];
	unsigned pops = 0;

	do {
		virtq_kicks_off(q);
		while (may_take(blk)) {
			int ret;

			if (pops++ == MAX_POPS) {
				vdev_kick(&blk->vdev, 0);
				return;
			}
			ret = virtq_pop(q, &blk->chain);
			if (ret < 0)
				vdev_break(&blk->vdev, "request ring");
			if (ret <= 0)
				break;
			chain_begin(blk);
		}
		/* Without room, or tokens, the driver need not kick: the next end, or the timer, looks here. */
	} while (may_take(blk) && virtq_kicks_on(q));
}

/* ---- the device ---- */

static uint64_t blk_features(const struct vdev *dev)
{
	const struct blk *blk = blk_of(dev);
	uint64_t f = 1u << VIRTIO_BLK_F_SEG_MAX | 1u << VIRTIO_BLK_F_BLK_SIZE |
	             1u << VIRTIO_BLK_F_FLUSH | 1u << VIRTIO_BLK_F_TOPOLOGY;

	if (blk->s.readonly)
		return f | 1u << VIRTIO_BLK_F_RO;
	return f | 1u << VIRTIO_BLK_F_DISCARD | 1u << VIRTIO_BLK_F_WRITE_ZEROES;
}

static void blk_config_read(struct vdev *dev, uint32_t off, void *dst, uint32_t n)
{
	/* 512-byte blocks for any file system; 4 KiB ones preferred, which spares copying. */
	struct config_space c = {
		.capacity = blk_of(dev)->s.size / BLK_SECTOR,
		.seg_max = BLK_MAX_SEGMENTS,
		.blk_size = BLK_SECTOR,
		.physical_block_exp = 3,
		.min_io_size = BLK_IMAGE_BLOCK / BLK_SECTOR,
		.max_discard_sectors = BLK_MAX_UNMAP,
		.max_discard_seg = 1,
		.discard_sector_alignment = BLK_IMAGE_BLOCK / BLK_SECTOR,
		.max_write_zeroes_sectors = BLK_MAX_UNMAP,
		.max_write_zeroes_seg = 1,
		.write_zeroes_may_unmap = 1,
	};

	memset(dst, 0, n);
	if (off < sizeof(c))
		memcpy(dst, (const uint8_t *)&c + off,
		       n < sizeof(c) - off ? n : (uint32_t)sizeof(c) - off);
}

static void blk_activate(struct vdev *dev)
{
	(void)dev; /* the driver kicks */
}

static void blk_kick(struct vdev *dev, unsigned q)
{
	(void)q; /* there is one */
	serve(blk_of(dev));
}

static void blk_reset(struct vdev *dev)
{
	BUG_ON(blk_of(dev)->nr_busy);
}

/* Also after a thaw, with what was in the ring before the freeze: no kick comes for that. */
static void blk_resume(struct vdev *dev)
{
	serve(blk_of(dev));
}

static bool blk_quiesce(struct vdev *dev)
{
	return blk_of(dev)->nr_busy == 0;
}

static void blk_save(struct vdev *dev, struct state_buf *buf)
{
	state_put(buf, blk_state_desc(), (uint16_t)dev->instance, &blk_of(dev)->s);
}

static int blk_load(struct vdev *dev, struct state_buf *buf, struct err *err)
{
	const struct blk *blk = blk_of(dev);
	struct blk_state s = { 0 };
	int ret = state_get(buf, blk_state_desc(), (uint16_t)dev->instance, &s, err);

	if (ret < 0)
		return ret;
	if (s.size == blk->s.size && s.readonly == blk->s.readonly)
		return 0;
	err_set(err, -EINVAL, "the disk has %llu bytes%s, the snapshot was made with %llu bytes%s",
	        (unsigned long long)blk->s.size, blk->s.readonly ? ", read-only" : "",
	        (unsigned long long)s.size, s.readonly ? ", read-only" : "");
	err_remedy(err, "use the disk that belongs to the snapshot");
	return -EINVAL;
}

static const struct vdev_ops blk_ops = {
	.name = "blk",
	.virtio_id = VIRTIO_ID_BLOCK,
	.nr_queues = 1,
	.features = blk_features,
	.config_read = blk_config_read,
	.activate = blk_activate,
	.kick = blk_kick,
	.reset = blk_reset,
	.quiesce = blk_quiesce,
	.resume = blk_resume,
	.save = blk_save,
	.load = blk_load,
};

int blk_open(struct blk **blk, const struct blk_config *config, const struct vdev_host *host,
             unsigned instance, struct err *err)
{
	struct blk *b = calloc(1, sizeof(*b));
	int ret;

	if (!b)
		return err_set(err, -ENOMEM, "disk %u: out of memory", instance);
	ret = blk_image_open(&b->image, config->base_fd, config->overlay_fd, config->readonly, err);
	if (ret < 0) {
		free(b);
		err_wrap(err, "disk %u", instance);
		return ret;
	}
	if (config->size && config->size < b->image.size)
		b->image.size = config->size;
	b->s = (struct blk_state){ .size = b->image.size, .readonly = config->readonly };
	memcpy(b->serial, config->serial, BLK_ID_LEN);
	vdev_init(&b->vdev, &blk_ops, host, instance);
	throttle_init(&b->throttle, &b->vdev, 0);
	*blk = b;
	return 0;
}

void blk_close(struct blk *blk)
{
	if (!blk)
		return;
	throttle_close(&blk->throttle);
	vdev_close(&blk->vdev);
	blk_image_close(&blk->image);
	free(blk);
}

struct vdev *blk_vdev(struct blk *blk)
{
	return &blk->vdev;
}

void blk_limit(struct blk *blk, const struct limit *bytes, const struct limit *ops,
               uint64_t (*now_ns)(void))
{
	pthread_mutex_lock(&blk->vdev.lock);
	throttle_set(&blk->throttle, bytes, ops, now_ns);
	pthread_mutex_unlock(&blk->vdev.lock);
}

void blk_stats(struct blk *blk, struct blk_stats *stats)
{
	pthread_mutex_lock(&blk->vdev.lock);
	*stats = blk->stats;
	stats->throttle = blk->throttle.stats;
	pthread_mutex_unlock(&blk->vdev.lock);
}

uint64_t blk_size(const struct blk *blk)
{
	return blk->s.size;
}

int blk_flatten(struct blk *blk, int fd, struct err *err)
{
	BUG_ON(blk->nr_busy);
	return blk_image_flatten(&blk->image, fd, err);
}
