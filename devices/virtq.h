/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split virtqueue, the device's side (virtio 1.2 section 2.7), with INDIRECT_DESC and EVENT_IDX. All
 * that the driver writes is hostile: indices, links and lengths are bounded, each field is fetched
 * once, and a broken ring is -EPROTO, for which the caller has vdev_break(). Called with the
 * device's lock held.
 */
#ifndef DEVICES_VIRTQ_H
#define DEVICES_VIRTQ_H

#include "core/gmem.h"
#include "core/state.h"

#define VIRTQ_MAX_SIZE  256         /* entries; also the longest chain */
#define VIRTQ_MAX_BYTES (64u << 20) /* of one chain, all segments */

/* The queue's registers and positions: host copies, what a snapshot keeps. */
#define VIRTQ_STATE(F, A)                                                        \
	F(1, uint16_t, size) /* as set by the driver */                          \
	F(1, uint8_t, ready)                                                     \
	F(1, uint64_t, desc) /* guest-physical addresses of the three parts */   \
	F(1, uint64_t, avail)                                                    \
	F(1, uint64_t, used)                                                     \
	F(1, uint16_t, next_avail) /* position of the next chain to take */      \
	F(1, uint16_t, next_used)  /* position of the next used element */       \
	F(1, uint16_t, signalled)  /* next_used when the driver was last told */ \
	F(1, uint8_t, signalled_valid)
STATE_STRUCT(virtq_state, VIRTQ_STATE);
const struct state_desc *virtq_state_desc(void);

struct virtq {
	struct virtq_state s;
	const struct gmem *mem;
	bool event_idx;                 /* negotiated */
	bool indirect;                  /* negotiated */
	struct gview desc, avail, used; /* valid while s.ready */
};

/* One descriptor chain: segments the device reads, then segments it writes. */
struct virtq_chain {
	uint16_t head;
	uint16_t nr_read, nr_write;
	uint32_t read_len, write_len; /* bytes */
	struct gview seg[VIRTQ_MAX_SIZE];
};

/*
 * Checks the registers in q->s (power-of-two size up to VIRTQ_MAX_SIZE, alignment, all three parts
 * in RAM) and makes the queue usable; also run on a restored state. -EPROTO when the driver's values
 * are not allowed.
 */
NODISCARD int virtq_enable(struct virtq *q, const struct gmem *mem, uint64_t features);
/* Back to the state after reset. */
void virtq_reset(struct virtq *q);

/* Takes the next chain: 1, 0 when there is none, -EPROTO for a broken ring. Never blocks. */
NODISCARD int virtq_pop(struct virtq *q, struct virtq_chain *chain);
/* Gives the last popped chain back unused (it will be popped again). */
void virtq_unpop(struct virtq *q);
/* Returns a chain to the driver; `written` bytes of its write part are valid. */
NODISCARD int virtq_push(struct virtq *q, const struct virtq_chain *chain, uint32_t written);
/* As virtq_push, when only the head (from a pop) has been kept. */
NODISCARD int virtq_push_head(struct virtq *q, uint16_t head, uint32_t written);
/* True when the driver wants an interrupt for what was pushed since the last time this was asked. */
bool virtq_should_irq(struct virtq *q);
/* Asks the driver (not) to kick. virtq_kicks_on returns true when a chain came in between: look again. */
void virtq_kicks_off(struct virtq *q);
bool virtq_kicks_on(struct virtq *q);
/*
 * The driver's index: how many chains it has ever added, modulo 2^16 (0 while not ready). And a kick
 * asked for when it adds the one at `position` (with EVENT_IDX; else any): true when it has already.
 */
uint16_t virtq_added(const struct virtq *q);
bool virtq_kicks_at(struct virtq *q, uint16_t position);

/* Bytes of the read part, of the write part; offsets count within that part. -EPROTO when outside. */
NODISCARD int chain_read(const struct virtq_chain *chain, uint32_t off, void *dst, uint32_t n);
NODISCARD int chain_write(const struct virtq_chain *chain, uint32_t off, const void *src,
                          uint32_t n);
/* [off, off + n) of the read (or write) part as iovecs: their number, or -EPROTO when outside or over `max`. */
NODISCARD int chain_read_iov(const struct virtq_chain *chain, uint32_t off, uint32_t n,
                             struct iovec *iov, int max);
NODISCARD int chain_write_iov(const struct virtq_chain *chain, uint32_t off, uint32_t n,
                              struct iovec *iov, int max);

#endif
