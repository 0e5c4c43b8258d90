/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/blk_image.h"

#include "core/own.h"
#include "core/zero.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BITS       64u
#define COPY_BYTES (1u << 16)

static int check_base(int fd, bool written, uint64_t *size, struct err *err)
{
	off_t end = lseek(fd, 0, SEEK_END);
	int flags = fcntl(fd, F_GETFL);

	if (end < 0 || flags < 0)
		return err_set(err, -errno, "disk: %s", strerror(errno));
	if (end == 0 || end % BLK_SECTOR) {
		err_set(err, -EINVAL, "disk: %lld bytes are not a whole number of sectors",
		        (long long)end);
		err_remedy(err, "round the image's size up: truncate -s %%%u IMAGE", BLK_SECTOR);
		return -EINVAL;
	}
	if (written && (flags & O_ACCMODE) == O_RDONLY) {
		err_set(err, -EACCES, "disk: the image is not open for writing");
		err_remedy(err, "make it readonly, or give it an overlay");
		return -EACCES;
	}
	*size = (uint64_t)end;
	return 0;
}

static int open_overlay(struct blk_image *image, struct err *err)
{
	uint64_t words = (image->size - 1) / BLK_IMAGE_BLOCK / BITS + 1;
	int flags = fcntl(image->overlay_fd, F_GETFL);
	struct stat st;

	if (flags < 0 || fstat(image->overlay_fd, &st) < 0)
		return err_set(err, -errno, "disk overlay: %s", strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_size != 0 || (flags & O_ACCMODE) != O_RDWR)
		return err_set(err, -EINVAL,
		               "disk overlay: not an empty file open for both "
		               "reading and writing");
	/* Untouched pages of it cost nothing: so large an allocation is fresh zeroed memory. */
	image->owned = calloc(words, sizeof(*image->owned));
	if (!image->owned)
		return err_set(err, -ENOMEM, "disk overlay: out of memory");
	if (ftruncate(image->overlay_fd, (off_t)image->size) < 0) {
		free(image->owned);
		return err_set(err, -errno, "disk overlay: %s", strerror(errno));
	}
	return 0;
}

int blk_image_open(struct blk_image *image, int base_fd, int overlay_fd, bool readonly,
                   struct err *err)
{
	int ret;

	*image = (struct blk_image){ .base_fd = base_fd, .overlay_fd = overlay_fd };
	ret = check_base(base_fd, !readonly && overlay_fd < 0, &image->size, err);
	if (ret == 0 && overlay_fd >= 0)
		ret = open_overlay(image, err);
	return ret;
}

void blk_image_close(struct blk_image *image)
{
	close(image->base_fd);
	if (image->overlay_fd >= 0)
		close(image->overlay_fd);
	free(image->owned);
}

int blk_image_target(const struct blk_image *image)
{
	return image->overlay_fd >= 0 ? image->overlay_fd : image->base_fd;
}

static bool is_owned(const struct blk_image *image, uint64_t block)
{
	return image->owned[block / BITS] >> (block % BITS) & 1;
}

uint64_t blk_image_run(const struct blk_image *image, uint64_t off, uint64_t len, int *fd)
{
	uint64_t block = off / BLK_IMAGE_BLOCK, last = (off + len - 1) / BLK_IMAGE_BLOCK, end;
	bool owned;

	if (!image->owned) {
		*fd = image->base_fd;
		return len;
	}
	owned = is_owned(image, block);
	*fd = owned ? image->overlay_fd : image->base_fd;
	do {
		/* A word of equal bits at once: most disks are nearly untouched. */
		if (block % BITS == 0 && image->owned[block / BITS] == (owned ? ~0ull : 0))
			block += BITS;
		else
			block++;
	} while (block <= last && is_owned(image, block) == owned);
	end = block * BLK_IMAGE_BLOCK;
	return end < off + len ? end - off : len;
}

/* The bytes of a block: the disk's last one may be short. */
static uint32_t block_len(const struct blk_image *image, uint64_t block_off)
{
	uint64_t left = image->size - block_off;

	return left < BLK_IMAGE_BLOCK ? (uint32_t)left : BLK_IMAGE_BLOCK;
}

static bool is_gap(const struct blk_image *image, uint64_t off, uint64_t len, uint64_t block_off)
{
	bool whole = off <= block_off && off + len >= block_off + block_len(image, block_off);

	return !whole && !is_owned(image, block_off / BLK_IMAGE_BLOCK);
}

bool blk_image_gap(const struct blk_image *image, uint64_t off, uint64_t len, uint64_t *block,
                   uint32_t *n)
{
	uint64_t first = off - off % BLK_IMAGE_BLOCK;
	uint64_t last = off + len - 1 - (off + len - 1) % BLK_IMAGE_BLOCK;

	if (!image->owned)
		return false;
	if (is_gap(image, off, len, first))
		*block = first;
	else if (is_gap(image, off, len, last))
		*block = last;
	else
		return false;
	*n = block_len(image, *block);
	return true;
}

void blk_image_own(struct blk_image *image, uint64_t off, uint64_t len)
{
	if (!image->owned || !len)
		return;
	for (uint64_t b = off / BLK_IMAGE_BLOCK; b <= (off + len - 1) / BLK_IMAGE_BLOCK; b++)
		image->owned[b / BITS] |= 1ull << (b % BITS);
}

/*
 * By hand, where the kernel cannot copy between the two file systems. There the source often knows of
 * no holes (9p, FUSE), and its zeros would fill the disk: what is zero stays a hole of the new file.
 */
static int copy_bytes(int from, int to, off_t off, size_t len)
{
	own_free char *buf = malloc(COPY_BYTES);

	if (!buf)
		return -ENOMEM;
	while (len) {
		ssize_t n = pread(from, buf, len < COPY_BYTES ? len : COPY_BYTES, off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO; /* the file has been cut under us */
		for (ssize_t done = is_zero(buf, (size_t)n) ? n : 0; done < n;) {
			ssize_t put = pwrite(to, buf + done, (size_t)(n - done), off + done);

			if (put < 0 && errno == EINTR)
				continue;
			if (put < 0)
				return -errno;
			done += put;
		}
		off += n;
		len -= (size_t)n;
	}
	return 0;
}

static int copy_data(int from, int to, off_t off, size_t len)
{
	while (len) {
		loff_t in = off, out = off;
		ssize_t n = copy_file_range(from, &in, to, &out, len, 0);

		if (n <= 0)
			return copy_bytes(from, to, off, len);
		off += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Copies what is data in [off, end) of `from`. */
static int copy_sparse(int from, int to, off_t off, off_t end)
{
	while (off < end) {
		off_t data = lseek(from, off, SEEK_DATA), hole;
		int ret;

		if (data < 0 && errno == ENXIO) /* a hole up to the end of the file */
			return 0;
		if (data < 0)
			data = off; /* not a file that knows of holes */
		if (data >= end)
			return 0;
		hole = lseek(from, data, SEEK_HOLE);
		if (hole <= data || hole > end)
			hole = end;
		ret = copy_data(from, to, data, (size_t)(hole - data));
		if (ret < 0)
			return ret;
		off = hole;
	}
	return 0;
}

int blk_image_flatten(const struct blk_image *image, int fd, struct err *err)
{
	int ret = ftruncate(fd, (off_t)image->size) < 0 ? -errno : 0;
	uint64_t off = 0;

	while (ret == 0 && off < image->size) {
		int from;
		uint64_t n = blk_image_run(image, off, image->size - off, &from);

		ret = copy_sparse(from, fd, (off_t)off, (off_t)(off + n));
		off += n;
	}
	if (ret < 0)
		err_set(err, ret, "writing the disk: %s", strerror(-ret));
	if (ret == -ENOSPC || ret == -EFBIG)
		err_remedy(err, "the snapshot's folder needs up to %llu MiB for the disk",
		           (unsigned long long)(image->size >> 20) + 1);
	return ret;
}
