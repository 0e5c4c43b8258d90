/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/blk_image.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((uint64_t)BLK_IMAGE_BLOCK)
#define GIB   (1ull << 30)

static struct blk_image image;

static int make_file(uint64_t size)
{
	int fd = memfd_create("image", MFD_CLOEXEC);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static void open_image(uint64_t size)
{
	struct err err = { 0 };

	cr_assert_eq(blk_image_open(&image, make_file(size), make_file(0), false, &err), 0, "%s",
	             err.msg);
}

/* How far from `off` one file reaches, and which. */
static uint64_t run(uint64_t off, uint64_t len, bool *overlay)
{
	int fd = -1;
	uint64_t n = blk_image_run(&image, off, len, &fd);

	*overlay = fd == image.overlay_fd;
	cr_assert(*overlay || fd == image.base_fd);
	return n;
}

Test(blk_image, runs)
{
	bool overlay;

	open_image(1000 * BLOCK);
	cr_assert_eq(run(5, 999 * BLOCK, &overlay), 999 * BLOCK);
	cr_assert(!overlay);
	blk_image_own(&image, 10 * BLOCK, 3 * BLOCK);
	cr_assert_eq(run(0, 1000 * BLOCK, &overlay), 10 * BLOCK);
	cr_assert(!overlay);
	cr_assert_eq(run(10 * BLOCK, 1000, &overlay), 1000);
	cr_assert(overlay);
	cr_assert_eq(run(10 * BLOCK + 512, 8 * BLOCK, &overlay), 3 * BLOCK - 512);
	cr_assert(overlay);
	cr_assert_eq(run(13 * BLOCK, BLOCK, &overlay), BLOCK);
	cr_assert(!overlay);
	/* Whole words of the bitmap at once must not step over a border. */
	blk_image_own(&image, 64 * BLOCK, 128 * BLOCK);
	cr_assert_eq(run(64 * BLOCK, 900 * BLOCK, &overlay), 128 * BLOCK);
	cr_assert(overlay);
	cr_assert_eq(run(13 * BLOCK, 900 * BLOCK, &overlay), 51 * BLOCK);
	cr_assert(!overlay);
	cr_assert_eq(run(192 * BLOCK, 808 * BLOCK, &overlay), 808 * BLOCK);
	blk_image_own(&image, 200 * BLOCK, 1);
	cr_assert_eq(run(192 * BLOCK, 808 * BLOCK, &overlay), 8 * BLOCK);
	blk_image_close(&image);
}

/* The same by asking block for block, with random ownership. */
Test(blk_image, runs_equal_a_naive_search)
{
	static bool owned[700];
	uint32_t x = 99;

	open_image(700 * BLOCK);
	for (unsigned i = 0; i < 40; i++) {
		uint64_t first, n;

		x = x * 1664525u + 1013904223u;
		first = (x >> 8) % 690;
		n = 1 + (x >> 20) % (700 - first < 90 ? 700 - first : 90);
		blk_image_own(&image, first * BLOCK, n * BLOCK);
		memset(owned + first, true, n);
		for (uint64_t at = 0; at < 700; at++) {
			uint64_t end = at + 1;
			bool overlay;

			while (end < 700 && owned[end] == owned[at])
				end++;
			cr_assert_eq(run(at * BLOCK, (700 - at) * BLOCK, &overlay),
			             (end - at) * BLOCK);
			cr_assert_eq(overlay, owned[at]);
		}
	}
	blk_image_close(&image);
}

static uint64_t gap(uint64_t off, uint64_t len, uint32_t *n)
{
	uint64_t block = UINT64_MAX;

	return blk_image_gap(&image, off, len, &block, n) ? block : UINT64_MAX;
}

Test(blk_image, gaps)
{
	uint64_t size = 10 * BLOCK + 1536;
	uint32_t n = 0;

	open_image(size);
	cr_assert_eq(gap(0, 4 * BLOCK, &n), UINT64_MAX, "whole blocks");
	cr_assert_eq(gap(512, 512, &n), 0);
	cr_assert_eq(n, BLOCK);
	cr_assert_eq(gap(3 * BLOCK, BLOCK + 512, &n), 4 * BLOCK);
	cr_assert_eq(gap(3 * BLOCK + 512, 2 * BLOCK, &n), 3 * BLOCK);
	blk_image_own(&image, 3 * BLOCK, BLOCK);
	cr_assert_eq(gap(3 * BLOCK + 512, 2 * BLOCK, &n), 5 * BLOCK, "the other end");
	blk_image_own(&image, 5 * BLOCK, 1);
	cr_assert_eq(gap(3 * BLOCK + 512, 2 * BLOCK, &n), UINT64_MAX);
	cr_assert_eq(gap(10 * BLOCK, 1536, &n), UINT64_MAX, "all of the short last block");
	cr_assert_eq(gap(10 * BLOCK + 512, 1024, &n), 10 * BLOCK);
	cr_assert_eq(n, 1536);
	blk_image_close(&image);
}

Test(blk_image, no_overlay)
{
	uint32_t n;
	int fd;

	cr_assert_eq(blk_image_open(&image, make_file(BLOCK), -1, false, NULL), 0);
	cr_assert_eq(blk_image_target(&image), image.base_fd);
	cr_assert_eq(blk_image_run(&image, 512, 1024, &fd), 1024);
	cr_assert_eq(fd, image.base_fd);
	cr_assert_eq(gap(512, 512, &n), UINT64_MAX);
	blk_image_own(&image, 0, BLOCK);
	blk_image_close(&image);
}

/* A large disk costs nothing until it is written, and its copy no more than what was written. */
Test(blk_image, large_and_sparse, .timeout = 20)
{
	uint64_t size = 64 * GIB, at = 63 * GIB + 5 * BLOCK;
	struct stat st;
	char got[6] = { 0 };
	int copy = make_file(0);

	open_image(size);
	cr_assert_eq(fstat(image.overlay_fd, &st), 0);
	cr_assert_eq(st.st_blocks, 0);
	cr_assert_eq(st.st_size, (off_t)size);
	cr_assert_eq(pwrite(image.overlay_fd, "hello", 5, (off_t)at), 5);
	blk_image_own(&image, at, 5);
	cr_assert_eq(blk_image_flatten(&image, copy, NULL), 0);
	cr_assert_eq(fstat(copy, &st), 0);
	cr_assert_eq(st.st_size, (off_t)size);
	cr_assert_leq(st.st_blocks, 8);
	cr_assert_eq(pread(copy, got, 5, (off_t)at), 5);
	cr_assert_str_eq(got, "hello");
	blk_image_close(&image);
}

/* From one kind of file system to another the kernel does not copy: then it is done by hand. */
Test(blk_image, flatten_across_file_systems)
{
	static uint8_t want[3 << 20], got[3 << 20];
	char path[] = "/tmp/thawbox-image-XXXXXX";
	int disk = mkstemp(path);
	struct err err = { 0 };
	struct stat st;

	cr_assert_geq(disk, 0);
	unlink(path);
	for (size_t i = 0; i < sizeof(want); i++)
		want[i] = (uint8_t)(i * 31 + i / 4096);
	memset(want + (1 << 20), 0, 1 << 20);
	open_image(sizeof(want));
	cr_assert_eq(pwrite(image.base_fd, want, sizeof(want), 0), (ssize_t)sizeof(want));
	memset(want + 7 * BLOCK, 'o', 2 * BLOCK);
	cr_assert_eq(pwrite(image.overlay_fd, want + 7 * BLOCK, 2 * BLOCK, 7 * BLOCK), 2 * BLOCK);
	blk_image_own(&image, 7 * BLOCK, 2 * BLOCK);
	cr_assert_eq(blk_image_flatten(&image, disk, &err), 0, "%s", err.msg);
	cr_assert_eq(pread(disk, got, sizeof(got), 0), (ssize_t)sizeof(got));
	cr_assert_eq(memcmp(got, want, sizeof(want)), 0);
	cr_assert_eq(fstat(disk, &st), 0);
	/* Zeros that were no hole have become one, but for what shares a piece with data. */
	cr_assert_lt(st.st_blocks * 512, 5 << 19);
	blk_image_close(&image);
}

Test(blk_image, flatten_without_room)
{
	struct rlimit limit = { .rlim_cur = 1 << 20, .rlim_max = 1 << 20 };
	char path[] = "/tmp/thawbox-image-XXXXXX";
	int disk = mkstemp(path);
	struct err err = { 0 };

	cr_assert_geq(disk, 0);
	unlink(path);
	open_image(4 << 20);
	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	cr_assert_eq(blk_image_flatten(&image, disk, &err), -EFBIG);
	cr_assert_neq(err.remedy[0], '\0');
	blk_image_close(&image);
}
