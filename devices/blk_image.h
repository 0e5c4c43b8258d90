/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies under a block device: a raw file, or a raw base that nobody writes with a private
 * overlay. The overlay is a sparse file of the same size; a bit for each block says that the block's
 * content is there and no longer in the base. Ownership only grows. No I/O here but open, close and
 * flatten; the caller serializes.
 */
#ifndef DEVICES_BLK_IMAGE_H
#define DEVICES_BLK_IMAGE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define BLK_IMAGE_BLOCK 4096u /* bytes */
#define BLK_SECTOR      512u  /* bytes; a size is a multiple of it */

struct blk_image {
	int base_fd;
	int overlay_fd; /* -1: none */
	uint64_t size;  /* bytes */
	uint64_t *owned;
};

/*
 * Checks both descriptors and takes them over; on error they still belong to the caller, and the
 * overlay is as it was. `overlay_fd` -1: no overlay. O(1): the overlay stays a hole.
 */
NODISCARD int blk_image_open(struct blk_image *image, int base_fd, int overlay_fd, bool readonly,
                             struct err *err);
/* Closes the descriptors. Once after an open that succeeded. */
void blk_image_close(struct blk_image *image);

/* The file that writes go to. */
int blk_image_target(const struct blk_image *image);
/* How many bytes of [off, off + len) lie in one file, which is *fd. len is not 0. */
uint64_t blk_image_run(const struct blk_image *image, uint64_t off, uint64_t len, int *fd);
/*
 * True when a write of [off, off + len) covers a block only in part that the overlay does not own:
 * its *n bytes at *block must be copied from the base, and owned, first.
 */
bool blk_image_gap(const struct blk_image *image, uint64_t off, uint64_t len, uint64_t *block,
                   uint32_t *n);
/* The overlay has all blocks that [off, off + len) touches. Nothing to do without an overlay. */
void blk_image_own(struct blk_image *image, uint64_t off, uint64_t len);

/* Copies the content to the empty file `fd`; what is a hole stays one. Blocking. */
NODISCARD int blk_image_flatten(const struct blk_image *image, int fd, struct err *err);

#endif
