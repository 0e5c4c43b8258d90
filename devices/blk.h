/* SPDX-License-Identifier: Apache-2.0 */
/*
 * virtio-blk (virtio 1.2 section 5.2): read, write, flush, get-id, discard, write-zeroes. The backing
 * is a raw file, or a raw base that nobody writes with a private block-level copy-on-write overlay
 * (an unnamed file, made in O(1)). All file I/O goes through the loop's ring, off the vCPU thread.
 */
#ifndef DEVICES_BLK_H
#define DEVICES_BLK_H

#include "devices/vdev.h"

struct blk;

struct blk_config {
	int base_fd;    /* raw image; the device takes it over */
	int overlay_fd; /* empty file for the overlay, taken over; -1: writes go to the base */
	bool readonly;
	char serial[21]; /* answered to GET_ID, NUL padded */
};

/* Allocates and opens; on error the descriptors still belong to the caller. */
NODISCARD int blk_open(struct blk **blk, const struct blk_config *config,
                       const struct vdev_host *host, unsigned instance, struct err *err);
/* Frees; no op may be in flight (close the loop, or quiesce, first). NULL is allowed. */
void blk_close(struct blk *blk);
struct vdev *blk_vdev(struct blk *blk);

/* Size in bytes, whole. */
uint64_t blk_size(const struct blk *blk);
/*
 * Writes the disk's content as the guest sees it to `fd` (empty), sparse: base with the overlay over
 * it. The device must be quiesced. Blocking; cold path. Holes of the base stay holes.
 */
NODISCARD int blk_flatten(struct blk *blk, int fd, struct err *err);

#endif
