/* SPDX-License-Identifier: Apache-2.0 */
/*
 * virtio-blk (virtio 1.2 section 5.2): read, write, flush, get-id, discard, write-zeroes. The backing
 * is a raw file, or a raw base that nobody writes with a private block-level copy-on-write overlay
 * (an unnamed file, made in O(1)). All file I/O goes through the loop's ring, off the vCPU thread.
 * A flush of an overlay does nothing: it would not outlive this process anyway.
 */
#ifndef DEVICES_BLK_H
#define DEVICES_BLK_H

#include "devices/throttle.h"
#include "devices/vdev.h"

#define VIRTIO_ID_BLOCK 2u

/* virtio 1.2 section 5.2.3 */
#define VIRTIO_BLK_F_SEG_MAX      2
#define VIRTIO_BLK_F_RO           5
#define VIRTIO_BLK_F_BLK_SIZE     6
#define VIRTIO_BLK_F_FLUSH        9
#define VIRTIO_BLK_F_TOPOLOGY     10
#define VIRTIO_BLK_F_DISCARD      13
#define VIRTIO_BLK_F_WRITE_ZEROES 14

/* virtio 1.2 section 5.2.6 */
#define VIRTIO_BLK_T_IN           0u
#define VIRTIO_BLK_T_OUT          1u
#define VIRTIO_BLK_T_FLUSH        4u
#define VIRTIO_BLK_T_GET_ID       8u
#define VIRTIO_BLK_T_DISCARD      11u
#define VIRTIO_BLK_T_WRITE_ZEROES 13u
#define VIRTIO_BLK_S_OK           0u
#define VIRTIO_BLK_S_IOERR        1u
#define VIRTIO_BLK_S_UNSUPP       2u

#define BLK_ID_LEN       20u
#define BLK_MAX_REQUESTS 64u        /* in flight at once; further chains wait in the ring */
#define BLK_MAX_SEGMENTS 126u       /* of one request's data */
#define BLK_MAX_UNMAP    (1u << 21) /* sectors of one discard or write-zeroes */

struct blk;

struct blk_config {
	int base_fd;    /* raw image; the device takes it over */
	int overlay_fd; /* empty file for the overlay, taken over; -1: writes go to the base */
	uint64_t size;  /* bytes of the base that are the disk; 0: all of them */
	bool readonly;
	char serial[BLK_ID_LEN + 1]; /* answered to GET_ID, NUL padded */
};

#define BLK_STATE(F, A)                  \
	F(1, uint64_t, size) /* bytes */ \
	F(1, uint8_t, readonly)
STATE_STRUCT(blk_state, BLK_STATE);
const struct state_desc *blk_state_desc(void);

/* Allocates and opens; on error the descriptors still belong to the caller. */
NODISCARD int blk_open(struct blk **blk, const struct blk_config *config,
                       const struct vdev_host *host, unsigned instance, struct err *err);
/* Frees; no op may be in flight (close the loop, or quiesce, first). NULL is allowed. */
void blk_close(struct blk *blk);
struct vdev *blk_vdev(struct blk *blk);

/*
 * At most so many bytes of reads and writes, and so many requests of any kind, a second from now on. A disk
 * that is out of them takes no requests until it may. Loop's thread, as the next.
 */
void blk_limit(struct blk *blk, const struct limit *bytes, const struct limit *ops,
               uint64_t (*now_ns)(void));

/* Since blk_open(). */
struct blk_stats {
	uint64_t requests;
	uint64_t bytes_read, bytes_written; /* that the guest has asked for, or sent */
	struct throttle_stats throttle;
};
void blk_stats(struct blk *blk, struct blk_stats *stats);

/* Size in bytes, whole. */
uint64_t blk_size(const struct blk *blk);
/*
 * Writes the disk's content as the guest sees it to `fd` (empty), sparse: base with the overlay over
 * it. The device must be quiesced. Blocking; cold path. Holes of the base stay holes.
 */
NODISCARD int blk_flatten(struct blk *blk, int fd, struct err *err);

#endif
