/* SPDX-License-Identifier: Apache-2.0 */
/* virtio-blk behind a driver, a real loop and real files; content is compared with a model in memory. */
#include "devices/blk.h"

#include "tests/unit/devices/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUEUE     256
#define SECTORS   2051u /* 1 MiB and a last block of three sectors */
#define SIZE      (SECTORS * 512u)
#define BLOCK     4096u
#define NO_STATUS 0xee

struct hdr {
	uint32_t type, reserved;
	uint64_t sector;
};

struct range {
	uint64_t sector;
	uint32_t nr, flags;
};

static struct loop loop;
static struct drv d;
static struct vdev_host host;
static struct blk *blk;
static int base = -1; /* ours: what the device has are copies of the descriptors */
static int dev_base, dev_overlay;
static uint8_t model[SIZE];

static int make_file(void)
{
	int fd = memfd_create("disk", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_geq(fd, 0);
	return fd;
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1103515245u + 12345u;
		p[i] = (uint8_t)(seed >> 16) | 1; /* never 0, so that holes show */
	}
}

static void open_device(int base_fd, int overlay_fd, bool readonly)
{
	struct blk_config config = { .base_fd = base_fd,
		                     .overlay_fd = overlay_fd,
		                     .readonly = readonly,
		                     .serial = "thawbox-disk" };
	struct err err = { 0 };

	cr_assert_eq(blk_open(&blk, &config, &host, 0, &err), 0, "%s", err.msg);
}

/* A disk with the model's content, on an overlay or not, and a driver that has come up. */
static void start(bool overlay, bool readonly)
{
	cr_assert_eq(loop_open(&loop, 64, NULL), 0);
	drv_open(&d, &loop, &host);
	base = make_file();
	fill(model, SIZE, 1);
	memset(model + 64 * BLOCK, 0, 32 * BLOCK);
	cr_assert_eq(pwrite(base, model, SIZE, 0), SIZE);
	cr_assert_eq(
		fallocate(base, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 64 * BLOCK, 32 * BLOCK),
		0);
	dev_base = dup(base);
	dev_overlay = overlay ? make_file() : -1;
	open_device(dev_base, dev_overlay, readonly);
	drv_start(&d, blk_vdev(blk), DRV_ALL_FEATURES, QUEUE);
}

static void stop(void)
{
	blk_close(blk);
	blk = NULL;
	loop_close(&loop);
	drv_close(&d);
	if (base >= 0)
		close(base);
}

TestSuite(blk, .fini = stop, .timeout = 60);

/* One request of the driver. */
struct io {
	int head;
	uint64_t hdr, data, status; /* guest-physical */
	uint32_t type;
	uint64_t sector;
	uint32_t len; /* bytes of data */
};

static struct io io_make(uint32_t type, uint64_t sector, uint32_t len)
{
	struct io io = { .type = type, .sector = sector, .len = len };
	struct hdr h = { .type = type, .sector = sector };
	uint8_t none = NO_STATUS;

	io.hdr = drv_alloc(&d, sizeof(h), 16);
	io.data = drv_alloc(&d, len + 1, 1);
	io.status = drv_alloc(&d, 1, 1);
	drv_put(&d, io.hdr, &h, sizeof(h));
	drv_put(&d, io.status, &none, 1);
	return io;
}

static bool is_in(uint32_t type)
{
	return type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
}

/* Adds it with its data in `nr` segments of uneven length. */
static void io_add(struct io *io, unsigned nr)
{
	struct drv_seg seg[VIRTQ_MAX_SIZE];
	unsigned at = 0, in = is_in(io->type);
	uint32_t off = 0;

	seg[at++] = (struct drv_seg){ io->hdr, sizeof(struct hdr) };
	for (unsigned i = 0; i < nr && io->len; i++) {
		uint32_t n = i + 1 < nr ? (io->len - off) / 3 : io->len - off;

		if (!n)
			continue;
		seg[at++] = (struct drv_seg){ io->data + off, n };
		off += n;
	}
	seg[at++] = (struct drv_seg){ io->status, 1 };
	io->head = in ? drv_add(&d, 0, seg, 1, at - 1) : drv_add(&d, 0, seg, at - 1, 1);
	cr_assert_geq(io->head, 0);
}

static bool has_used(void *ctx)
{
	(void)ctx;
	return drv_load16(&d, d.q[0].used + 2) != d.q[0].last_used;
}

/* Waits for the next used chain; its head. */
static int next_used(uint32_t *written)
{
	cr_assert_eq(loop_run_until(&loop, has_used, NULL), 0);
	return drv_used(&d, 0, written);
}

static uint8_t io_status(const struct io *io)
{
	uint8_t status;

	drv_get(&d, io->status, &status, 1);
	return status;
}

/* The whole of it: kick, wait, status. */
static uint8_t io_run(struct io *io, unsigned nr_segments)
{
	uint32_t written;

	io_add(io, nr_segments);
	drv_kick(&d, 0);
	cr_assert_eq(next_used(&written), io->head);
	if (io->type == VIRTIO_BLK_T_IN && io_status(io) == VIRTIO_BLK_S_OK)
		cr_assert_eq(written, io->len + 1);
	cr_assert_neq(io_status(io), NO_STATUS);
	return io_status(io);
}

static uint8_t run(uint32_t type, uint64_t sector, uint32_t len)
{
	struct io io = io_make(type, sector, len);

	return io_run(&io, 3);
}

static void write_ok(uint64_t sector, uint32_t nr, unsigned seed)
{
	struct io io = io_make(VIRTIO_BLK_T_OUT, sector, nr * 512);

	fill(model + sector * 512, io.len, seed);
	drv_put(&d, io.data, model + sector * 512, io.len);
	cr_assert_eq(io_run(&io, 3), VIRTIO_BLK_S_OK);
}

static uint8_t unmap(uint32_t type, uint64_t sector, uint32_t nr, uint32_t flags)
{
	struct io io = io_make(type, 0, sizeof(struct range));
	struct range r = { sector, nr, flags };

	drv_put(&d, io.data, &r, sizeof(r));
	return io_run(&io, 1);
}

/* What the guest reads, all of the disk in large requests, is the model. */
static void check_content(void)
{
	uint64_t heap = d.heap;
	static uint8_t got[SIZE];

	for (uint32_t at = 0; at < SIZE; at += 256 * 1024) {
		uint32_t n = SIZE - at < 256 * 1024 ? SIZE - at : 256 * 1024;
		struct io io = io_make(VIRTIO_BLK_T_IN, at / 512, n);

		cr_assert_eq(io_run(&io, 7), VIRTIO_BLK_S_OK);
		drv_get(&d, io.data, got + at, n);
		d.heap = heap;
	}
	for (size_t i = 0; i < SIZE; i++)
		cr_assert_eq(got[i], model[i], "byte %zu", i);
}

static void check_base_unchanged(void)
{
	static uint8_t want[SIZE], got[SIZE];

	fill(want, SIZE, 1);
	memset(want + 64 * BLOCK, 0, 32 * BLOCK);
	cr_assert_eq(pread(base, got, SIZE, 0), SIZE);
	cr_assert_eq(memcmp(got, want, SIZE), 0);
}

/* blk_flatten() gives the model. Blocks of the file that was written. */
static blkcnt_t check_flatten(void)
{
	static uint8_t got[SIZE];
	struct err err = { 0 };
	struct stat st;
	int fd = make_file();

	cr_assert(vdev_quiesce(blk_vdev(blk)));
	cr_assert_eq(blk_flatten(blk, fd, &err), 0, "%s", err.msg);
	vdev_resume(blk_vdev(blk));
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_size, SIZE);
	cr_assert_eq(pread(fd, got, SIZE, 0), SIZE);
	cr_assert_eq(memcmp(got, model, SIZE), 0);
	close(fd);
	return st.st_blocks;
}

/* ---- features and configuration ---- */

static uint32_t config32(uint32_t off)
{
	uint32_t v;

	vmmio_read(blk_vdev(blk), 0x100 + off, &v, sizeof(v));
	return v;
}

Test(blk, configuration_of_a_writable_disk)
{
	uint64_t f;

	start(false, false);
	f = drv_offered(&d);
	cr_assert_eq(drv_read(&d, 0x08), VIRTIO_ID_BLOCK);
	cr_assert(!(f & 1u << VIRTIO_BLK_F_RO));
	cr_assert(f & 1u << VIRTIO_BLK_F_FLUSH);
	cr_assert(f & 1u << VIRTIO_BLK_F_DISCARD);
	cr_assert(f & 1u << VIRTIO_BLK_F_WRITE_ZEROES);
	cr_assert_eq(config32(0), SECTORS);
	cr_assert_eq(config32(4), 0);
	cr_assert_eq(config32(12), BLK_MAX_SEGMENTS);
	cr_assert_eq(config32(20), 512);
	cr_assert_eq(config32(24) & 0xff, 3, "4 KiB physical blocks");
	cr_assert_eq(config32(36), BLK_MAX_UNMAP);
	cr_assert_eq(config32(40), 1);
	cr_assert_eq(config32(48), BLK_MAX_UNMAP);
	cr_assert_eq(config32(56), 1);
	cr_assert_eq(config32(60), 0, "beyond what is offered");
	cr_assert_eq(config32(0xfc), 0);
	cr_assert_eq(blk_size(blk), SIZE);
}

Test(blk, a_read_only_disk_refuses_changes)
{
	start(false, true);
	cr_assert(drv_offered(&d) & 1u << VIRTIO_BLK_F_RO);
	cr_assert(!(drv_offered(&d) & 1u << VIRTIO_BLK_F_DISCARD));
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 0, 512), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 0, 8, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
	check_content();
	check_base_unchanged();
}

Test(blk, identity)
{
	char id[BLK_ID_LEN + 1] = { 0 };
	struct io io;

	start(false, true);
	io = io_make(VIRTIO_BLK_T_GET_ID, 0, BLK_ID_LEN);
	cr_assert_eq(io_run(&io, 1), VIRTIO_BLK_S_OK);
	drv_get(&d, io.data, id, BLK_ID_LEN);
	cr_assert_str_eq(id, "thawbox-disk");
}

/* ---- requests ---- */

Test(blk, raw_write_and_read)
{
	start(false, false);
	write_ok(0, 1, 2);
	write_ok(7, 30, 3);
	write_ok(SECTORS - 3, 3, 4);
	check_content();
	check_flatten();
	cr_assert_eq(run(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
}

Test(blk, overlay_keeps_the_base)
{
	start(true, false);
	write_ok(0, 1, 2);             /* first sector of a block */
	write_ok(8 + 7, 1, 3);         /* last one */
	write_ok(16, 8, 4);            /* a whole block */
	write_ok(29, 22, 5);           /* partial, whole, partial */
	write_ok(SECTORS - 1, 1, 6);   /* part of the short block at the end */
	write_ok(SECTORS - 11, 11, 7); /* and all of it */
	write_ok(64 * 8 + 3, 2, 8);    /* over a hole of the base */
	check_content();
	check_base_unchanged();
	check_flatten();
	cr_assert_eq(run(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
}

Test(blk, flatten_stays_sparse)
{
	blkcnt_t all;

	start(true, false);
	all = check_flatten();
	cr_assert_leq(all, (SIZE - 32 * BLOCK) / 512 + 8, "the base's hole has been filled");
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 128 * 8, 64 * 8, 1), VIRTIO_BLK_S_OK);
	memset(model + 128 * BLOCK, 0, 64 * BLOCK);
	cr_assert_leq(check_flatten(), all - 64 * 8, "zeroed blocks are holes");
}

static void zeroes_and_discard(bool overlay)
{
	start(overlay, false);
	write_ok(100, 40, 9);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 101, 3, 0), VIRTIO_BLK_S_OK);
	memset(model + 101 * 512, 0, 3 * 512);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 203, 50, 1), VIRTIO_BLK_S_OK);
	memset(model + 203 * 512, 0, 50 * 512);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, SECTORS - 2, 2, 1), VIRTIO_BLK_S_OK);
	memset(model + (SECTORS - 2) * 512, 0, 2 * 512);
	check_content();
	/* Aligned discards read back as zeroes here; the specification leaves it open. */
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 800, 80, 0), VIRTIO_BLK_S_OK);
	memset(model + 800 * 512, 0, 80 * 512);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 2048, 3, 0), VIRTIO_BLK_S_OK);
	memset(model + 2048 * 512, 0, 3 * 512);
	check_content();
	check_flatten();
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 0, 0, 0), VIRTIO_BLK_S_OK);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, SECTORS, 1, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, UINT64_MAX, 1, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 0, UINT32_MAX, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 2), VIRTIO_BLK_S_UNSUPP);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 0, 8, 1), VIRTIO_BLK_S_UNSUPP);
	cr_assert_eq(run(VIRTIO_BLK_T_DISCARD, 0, 32), VIRTIO_BLK_S_IOERR, "two segments");
	cr_assert_eq(run(VIRTIO_BLK_T_DISCARD, 0, 8), VIRTIO_BLK_S_IOERR);
	check_content();
}

Test(blk, zeroes_and_discard_raw)
{
	zeroes_and_discard(false);
}

Test(blk, zeroes_and_discard_overlay)
{
	zeroes_and_discard(true);
	check_base_unchanged();
}

/* More than the configuration space allows, on a disk that is large enough for it. */
Test(blk, the_longest_discard)
{
	int disk = make_file();

	cr_assert_eq(loop_open(&loop, 64, NULL), 0);
	drv_open(&d, &loop, &host);
	cr_assert_eq(ftruncate(disk, 8ll << 30), 0);
	open_device(disk, make_file(), false);
	drv_start(&d, blk_vdev(blk), DRV_ALL_FEATURES, QUEUE);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 8, BLK_MAX_UNMAP + 1, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 8, BLK_MAX_UNMAP, 0), VIRTIO_BLK_S_OK);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, (8ull << 30) / 512 - 8, BLOCK), VIRTIO_BLK_S_OK);
}

/* A discard that covers no whole block of an overlay changes nothing. */
Test(blk, small_discard_is_a_hint)
{
	start(true, false);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 1, 7, 0), VIRTIO_BLK_S_OK);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 9, 6, 0), VIRTIO_BLK_S_OK);
	cr_assert_eq(unmap(VIRTIO_BLK_T_DISCARD, 9, 14, 0), VIRTIO_BLK_S_OK);
	check_content();
}

Test(blk, bounds_and_lengths)
{
	start(true, false);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, SECTORS, 512), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, SECTORS - 1, 1024), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, SECTORS - 1, 1024), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, UINT64_MAX, 512), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, UINT64_MAX / 512, 512), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 1ull << 55, 512), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 0, 511), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 0, 513), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 0, 0), VIRTIO_BLK_S_OK);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, SECTORS, 0), VIRTIO_BLK_S_OK);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, SECTORS - 1, 512), VIRTIO_BLK_S_OK);
	cr_assert_eq(run(99, 0, 512), VIRTIO_BLK_S_UNSUPP);
	cr_assert_eq(run(UINT32_MAX, 0, 512), VIRTIO_BLK_S_UNSUPP);
	check_content();
	cr_assert(vdev_is_live(blk_vdev(blk)));
}

/* ---- hostile chains ---- */

static int add_raw(const struct drv_seg *seg, unsigned nr_read, unsigned nr_write)
{
	int head = drv_add(&d, 0, seg, nr_read, nr_write);

	cr_assert_geq(head, 0);
	drv_write(&d, 0x50, 0);
	return head;
}

static void expect_error(const struct io *io, const struct drv_seg *seg, unsigned nr_read,
                         unsigned nr_write)
{
	int head = add_raw(seg, nr_read, nr_write);
	uint32_t written;

	cr_assert_eq(next_used(&written), head);
	cr_assert_eq(written, 1);
	cr_assert_eq(io_status(io), VIRTIO_BLK_S_IOERR);
}

Test(blk, short_headers)
{
	struct drv_seg seg[3];
	struct io io;

	start(false, false);
	io = io_make(VIRTIO_BLK_T_IN, 0, 512);
	seg[0] = (struct drv_seg){ io.hdr, 15 };
	seg[1] = (struct drv_seg){ io.status, 1 };
	expect_error(&io, seg, 1, 1);
	seg[0] = (struct drv_seg){ io.status, 1 };
	expect_error(&io, seg, 0, 1);
	check_content();
}

/* The specification binds no segment borders: a header may come in pieces, its data beside it. */
Test(blk, header_in_pieces)
{
	struct drv_seg seg[3];
	struct io io;
	uint8_t got[512], status;

	start(false, false);
	io = io_make(VIRTIO_BLK_T_IN, 5, 513);
	seg[0] = (struct drv_seg){ io.hdr, 3 };
	seg[1] = (struct drv_seg){ io.hdr + 3, 13 };
	seg[2] = (struct drv_seg){ io.data, 513 }; /* with the status at its end */
	cr_assert_eq(add_raw(seg, 2, 1), next_used(NULL));
	drv_get(&d, io.data, got, 512);
	drv_get(&d, io.data + 512, &status, 1);
	cr_assert_eq(status, VIRTIO_BLK_S_OK);
	cr_assert_eq(memcmp(got, model + 5 * 512, 512), 0);
}

static bool is_broken(void *ctx)
{
	(void)ctx;
	return drv_read(&d, 0x70) & VIRTIO_STATUS_NEEDS_RESET;
}

Test(blk, no_room_for_the_status_breaks_the_device)
{
	struct drv_seg seg;
	struct io io;

	start(false, false);
	io = io_make(VIRTIO_BLK_T_OUT, 0, 512);
	seg = (struct drv_seg){ io.hdr, 16 };
	add_raw(&seg, 1, 0);
	cr_assert_eq(loop_run_until(&loop, is_broken, NULL), 0);
	cr_assert(drv_isr(&d) & 2);
}

static bool is_reset(void *ctx)
{
	(void)ctx;
	return drv_read(&d, 0x70) == 0;
}

/* What is in flight ends without touching the ring, and after a reset all is well. */
Test(blk, a_broken_device_is_reset)
{
	struct io io;
	struct drv_seg bad;

	start(true, false);
	io = io_make(VIRTIO_BLK_T_IN, 0, 64 * 1024);
	io_add(&io, 3);
	bad = (struct drv_seg){ 1ull << 40, 16 };
	add_raw(&bad, 1, 0);
	cr_assert_eq(loop_run_until(&loop, is_broken, NULL), 0);
	drv_write(&d, 0x70, 0);
	cr_assert_eq(loop_run_until(&loop, is_reset, NULL), 0);
	cr_assert(!has_used(NULL));
	drv_start(&d, blk_vdev(blk), DRV_ALL_FEATURES, QUEUE);
	write_ok(3, 9, 2);
	check_content();
}

/* More segments than SEG_MAX: refused, not cut. */
Test(blk, too_many_segments)
{
	struct drv_seg seg[BLK_MAX_SEGMENTS + 3];
	uint64_t table;
	struct io io;

	start(false, false);
	io = io_make(VIRTIO_BLK_T_IN, 0, 512 * (BLK_MAX_SEGMENTS + 1));
	table = drv_alloc(&d, 16 * ARRAY_LEN(seg), 16);
	seg[0] = (struct drv_seg){ io.hdr, 16 };
	for (unsigned i = 0; i <= BLK_MAX_SEGMENTS; i++)
		seg[1 + i] = (struct drv_seg){ io.data + 512 * i, 512 };
	seg[BLK_MAX_SEGMENTS + 2] = (struct drv_seg){ io.status, 1 };
	io.head = drv_add_indirect(&d, 0, table, seg, 1, BLK_MAX_SEGMENTS + 2);
	drv_kick(&d, 0);
	cr_assert_eq(next_used(NULL), io.head);
	cr_assert_eq(io_status(&io), VIRTIO_BLK_S_IOERR);
	/* One less is what the device has promised. */
	seg[BLK_MAX_SEGMENTS + 1] = seg[BLK_MAX_SEGMENTS + 2];
	io.head = drv_add_indirect(&d, 0, table, seg, 1, BLK_MAX_SEGMENTS + 1);
	drv_kick(&d, 0);
	cr_assert_eq(next_used(NULL), io.head);
	cr_assert_eq(io_status(&io), VIRTIO_BLK_S_OK);
}

/* ---- many at once, against the model ---- */

#define SLOTS   80u /* more than the device takes at once */
#define MAX_LEN (40u * 512)
#define NR_OPS  6000

struct slot {
	struct io io;
	bool busy;
};

static struct slot slot[SLOTS];

/* xorshift: the same sequence each time */
static uint32_t rnd(uint32_t below)
{
	static uint32_t x = 2463534242u;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return x % below;
}

static bool changes(uint32_t type)
{
	return type != VIRTIO_BLK_T_IN;
}

/* Overlapping sectors in flight have no defined result; overlapping blocks must. */
static bool clashes(uint32_t type, uint64_t sector, uint32_t nr)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		const struct io *o = &slot[i].io;

		if (slot[i].busy && (changes(type) || changes(o->type)) &&
		    sector < o->sector + o->len / 512 && o->sector < sector + nr)
			return true;
	}
	return false;
}

static void model_zero(bool discard, bool overlay, uint64_t sector, uint32_t nr)
{
	uint64_t from = sector * 512, to = from + nr * 512;

	if (discard && overlay) { /* whole blocks only */
		from = (from + BLOCK - 1) / BLOCK * BLOCK;
		to = to == SIZE ? to : to / BLOCK * BLOCK;
	}
	if (from < to)
		memset(model + from, 0, to - from);
}

/* Prepares the slot's request and what the model says of it. False: it would clash. */
static bool random_io(struct slot *s, bool overlay, unsigned seed)
{
	static const uint32_t types[] = { VIRTIO_BLK_T_IN,           VIRTIO_BLK_T_IN,
		                          VIRTIO_BLK_T_OUT,          VIRTIO_BLK_T_OUT,
		                          VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_T_DISCARD };
	uint32_t type = types[rnd(ARRAY_LEN(types))];
	uint32_t nr = 1 + rnd(rnd(3) ? 6 : MAX_LEN / 512);
	/* Half of them crowd into a few blocks. */
	uint64_t sector = rnd(2) ? rnd(64) : rnd(SECTORS - nr + 1);
	struct hdr h = { .type = type, .sector = sector };
	uint8_t none = NO_STATUS;

	if (clashes(type, sector, nr))
		return false;
	s->io.type = type;
	s->io.sector = sector;
	s->io.len = nr * 512;
	drv_put(&d, s->io.hdr, &h, sizeof(h));
	drv_put(&d, s->io.status, &none, 1);
	if (type == VIRTIO_BLK_T_OUT) {
		fill(model + sector * 512, s->io.len, seed);
		drv_put(&d, s->io.data, model + sector * 512, s->io.len);
	} else if (type != VIRTIO_BLK_T_IN) {
		struct range r = { sector, nr, 0 };

		model_zero(type == VIRTIO_BLK_T_DISCARD, overlay, sector, nr);
		drv_put(&d, s->io.data, &r, sizeof(r));
	}
	return true;
}

static void slot_add(struct slot *s)
{
	uint32_t len = s->io.len;

	if (s->io.type == VIRTIO_BLK_T_WRITE_ZEROES || s->io.type == VIRTIO_BLK_T_DISCARD)
		s->io.len = sizeof(struct range);
	io_add(&s->io, 1);
	s->io.len = len;
	s->busy = true;
}

static void slot_end(int head)
{
	static uint8_t got[MAX_LEN];

	for (unsigned i = 0; i < SLOTS; i++) {
		struct io *io = &slot[i].io;

		if (!slot[i].busy || io->head != head)
			continue;
		cr_assert_eq(io_status(io), VIRTIO_BLK_S_OK);
		slot[i].busy = false;
		if (io->type != VIRTIO_BLK_T_IN)
			return;
		drv_get(&d, io->data, got, io->len);
		cr_assert_eq(memcmp(got, model + io->sector * 512, io->len), 0,
		             "sector %llu, %u bytes", (unsigned long long)io->sector, io->len);
		return;
	}
	cr_assert_fail("a chain that nobody has sent");
}

static void random_operations(bool overlay)
{
	unsigned nr_busy = 0, started = 0, peak = 0;

	start(overlay, false);
	for (unsigned i = 0; i < SLOTS; i++)
		slot[i] = (struct slot){ .io = io_make(VIRTIO_BLK_T_IN, 0, MAX_LEN) };
	while (started < NR_OPS || nr_busy) {
		for (unsigned i = 0; i < SLOTS && started < NR_OPS; i++) {
			if (slot[i].busy || !random_io(&slot[i], overlay, started + 1))
				continue;
			slot_add(&slot[i]);
			started++;
			nr_busy++;
		}
		if (nr_busy > peak)
			peak = nr_busy;
		drv_kick(&d, 0);
		slot_end(next_used(NULL));
		nr_busy--;
		while (rnd(4) && has_used(NULL)) {
			slot_end(drv_used(&d, 0, NULL));
			nr_busy--;
		}
	}
	cr_assert_gt(peak, BLK_MAX_REQUESTS / 2);
	cr_assert(vdev_is_live(blk_vdev(blk)));
	check_content();
	check_flatten();
}

Test(blk, random_operations_raw)
{
	random_operations(false);
}

Test(blk, random_operations_overlay)
{
	random_operations(true);
	check_base_unchanged();
}

/* Different sectors of one block, all in flight at once: none may bring back the base's content. */
Test(blk, writes_to_one_block_at_once)
{
	struct io io[8];

	start(true, false);
	for (unsigned block = 0; block < 50; block++) {
		uint64_t heap = d.heap;

		for (unsigned i = 0; i < 8; i++) {
			io[i] = io_make(VIRTIO_BLK_T_OUT, block * 8 + i, 512);
			fill(model + io[i].sector * 512, 512, block * 8 + i + 77);
			drv_put(&d, io[i].data, model + io[i].sector * 512, 512);
			io_add(&io[i], 1);
		}
		drv_kick(&d, 0);
		for (unsigned i = 0; i < 8; i++)
			next_used(NULL);
		for (unsigned i = 0; i < 8; i++)
			cr_assert_eq(io_status(&io[i]), VIRTIO_BLK_S_OK);
		d.heap = heap;
	}
	check_content();
	check_base_unchanged();
}

/* The same sectors in flight several times: on an overlay they end in the order of the ring. */
Test(blk, overlapping_changes_keep_their_order)
{
	struct io io[30];

	start(true, false);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++) {
		uint64_t sector = 40 + rnd(20);
		uint32_t len = (1 + rnd(20)) * 512;

		io[i] = io_make(VIRTIO_BLK_T_OUT, sector, len);
		fill(model + sector * 512, len, i + 1000);
		drv_put(&d, io[i].data, model + sector * 512, len);
		io_add(&io[i], 2);
	}
	drv_kick(&d, 0);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++)
		next_used(NULL);
	check_content();
}

/* ---- the host's errors are the guest's I/O errors, and no more ---- */

Test(blk, a_file_that_was_cut)
{
	start(false, true);
	cr_assert_eq(ftruncate(base, 5 * BLOCK + 100), 0);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 0, 5 * BLOCK), VIRTIO_BLK_S_OK);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 32, 2 * BLOCK), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 400, BLOCK), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 0, BLOCK), VIRTIO_BLK_S_OK);
	cr_assert(vdev_is_live(blk_vdev(blk)));
}

static void replace(int fd, const char *path, int flags)
{
	int other = open(path, flags | O_CLOEXEC);

	cr_assert_geq(other, 0);
	cr_assert_geq(dup2(other, fd), 0);
	close(other);
}

/* /dev/full: no space for a write, and fdatasync() is refused, which shows that a flush gets there. */
Test(blk, a_full_file_system)
{
	start(false, false);
	cr_assert_eq(run(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
	replace(dev_base, "/dev/full", O_RDWR);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 0, 4 * BLOCK), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_IOERR);
	cr_assert_neq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 0), VIRTIO_BLK_S_OK);
	cr_assert_geq(dup2(base, dev_base), 0);
	check_content();
}

Test(blk, a_read_only_descriptor)
{
	start(false, false);
	replace(dev_base, "/dev/zero", O_RDONLY);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 0, BLOCK), VIRTIO_BLK_S_IOERR);
	cr_assert_geq(dup2(base, dev_base), 0);
	check_content();
}

/* A write that fails on the overlay leaves the blocks to the base. */
Test(blk, a_failing_overlay)
{
	start(true, false);
	write_ok(80, 20, 5);
	cr_assert_eq(fcntl(dev_overlay, F_ADD_SEALS, F_SEAL_WRITE), 0);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 0, 2 * BLOCK), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(run(VIRTIO_BLK_T_OUT, 33, 512), VIRTIO_BLK_S_IOERR);
	cr_assert_eq(unmap(VIRTIO_BLK_T_WRITE_ZEROES, 200, 16, 1), VIRTIO_BLK_S_IOERR);
	check_content();
	check_flatten();
}

/* A failed change lets the ones that waited for it go on. */
Test(blk, waiting_changes_outlive_a_failure)
{
	struct io io[3];

	start(true, false);
	cr_assert_eq(fcntl(dev_overlay, F_ADD_SEALS, F_SEAL_WRITE), 0);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++) {
		io[i] = io_make(VIRTIO_BLK_T_OUT, 8, 1024);
		io_add(&io[i], 1);
	}
	drv_kick(&d, 0);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++)
		next_used(NULL);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++)
		cr_assert_eq(io_status(&io[i]), VIRTIO_BLK_S_IOERR);
	cr_assert(vdev_quiesce(blk_vdev(blk)));
	vdev_resume(blk_vdev(blk));
}

/* ---- freeze and thaw ---- */

static bool is_quiet(void *ctx)
{
	(void)ctx;
	return vdev_quiesce(blk_vdev(blk));
}

static bool once(void *ctx)
{
	return (*(int *)ctx)++ > 0;
}

static void turn(void)
{
	int turns = 0;

	loop_post(&loop, &blk_vdev(blk)->kick_event);
	cr_assert_eq(loop_run_until(&loop, once, &turns), 0);
}

/* A paused device takes nothing, and goes on without a kick. */
Test(blk, pause_and_resume)
{
	struct io io[10];

	start(true, false);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++) {
		io[i] = io_make(VIRTIO_BLK_T_IN, i * 8, BLOCK);
		io_add(&io[i], 2);
	}
	drv_kick(&d, 0);
	cr_assert(vdev_quiesce(blk_vdev(blk)), "nothing has been taken yet");
	turn();
	turn();
	cr_assert(!has_used(NULL));
	vdev_resume(blk_vdev(blk));
	for (unsigned i = 0; i < ARRAY_LEN(io); i++)
		next_used(NULL);
	check_content();
}

Test(blk, quiesce_ends_what_is_in_flight)
{
	struct io io[20];
	unsigned ended = 0;

	start(true, false);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++) {
		io[i] = io_make(VIRTIO_BLK_T_OUT, i * 3, 512);
		fill(model + i * 3 * 512, 512, i + 5);
		drv_put(&d, io[i].data, model + i * 3 * 512, 512);
		io_add(&io[i], 1);
	}
	drv_kick(&d, 0);
	turn();
	cr_assert_eq(loop_run_until(&loop, is_quiet, NULL), 0);
	while (drv_used(&d, 0, NULL) >= 0)
		ended++;
	cr_assert_eq(ended, ARRAY_LEN(io));
	check_flatten();
	check_content();
}

/* Chains that were in the ring at the freeze are served after the thaw, though nobody kicks. */
Test(blk, thaw_with_requests_in_the_ring)
{
	struct state_buf buf = { 0 };
	struct err err = { 0 };
	struct blk *old;
	struct io io[5];
	int disk;

	start(true, false);
	write_ok(3, 20, 8);
	for (unsigned i = 0; i < ARRAY_LEN(io); i++) {
		io[i] = io_make(VIRTIO_BLK_T_IN, i * 8, BLOCK);
		io_add(&io[i], 1);
	}
	drv_kick(&d, 0);
	cr_assert(vdev_quiesce(blk_vdev(blk)));
	vdev_save(blk_vdev(blk), &buf);
	cr_assert_eq(buf.err, 0);
	disk = make_file();
	cr_assert_eq(blk_flatten(blk, disk, &err), 0);
	old = blk;
	open_device(disk, make_file(), false);
	d.dev = blk_vdev(blk);
	cr_assert_eq(vdev_load(blk_vdev(blk), &buf, &err), 0, "%s", err.msg);
	vdev_resume(blk_vdev(blk));
	for (unsigned i = 0; i < ARRAY_LEN(io); i++) {
		uint8_t got[BLOCK];

		next_used(NULL);
		drv_get(&d, io[i].data, got, BLOCK);
		cr_assert_eq(memcmp(got, model + i * BLOCK, BLOCK), 0);
	}
	write_ok(5, 30, 9);
	check_content();
	blk_close(old);
	state_buf_free(&buf);
}

Test(blk, a_snapshot_of_another_disk_is_refused)
{
	struct state_buf buf = { 0 };
	struct err err = { 0 };
	struct blk *old;
	int disk = make_file();

	start(true, false);
	cr_assert(vdev_quiesce(blk_vdev(blk)));
	vdev_save(blk_vdev(blk), &buf);
	cr_assert_eq(ftruncate(disk, SIZE + 512), 0);
	old = blk;
	open_device(disk, make_file(), false);
	cr_assert_eq(vdev_load(blk_vdev(blk), &buf, &err), -EINVAL);
	cr_assert(strstr(err.msg, "1050112 bytes"), "%s", err.msg);
	cr_assert_neq(err.remedy[0], '\0');
	blk_close(old);
	state_buf_free(&buf);
}

/* ---- opening ---- */

static void expect_refusal(int base_fd, int overlay_fd, bool readonly, int code)
{
	struct blk_config config = { .base_fd = base_fd,
		                     .overlay_fd = overlay_fd,
		                     .readonly = readonly };
	struct err err = { 0 };

	cr_assert_eq(blk_open(&blk, &config, &host, 0, &err), code, "%s", err.msg);
	cr_assert_neq(err.msg[0], '\0');
	cr_assert_null(blk);
	cr_assert_geq(fcntl(base_fd, F_GETFD), 0, "the descriptor is still the caller's");
}

Test(blk, bad_images)
{
	char path[] = "/tmp/thawbox-blk-XXXXXX";
	int file = mkstemp(path), rdonly = open(path, O_RDONLY | O_CLOEXEC), over = make_file();

	cr_assert_geq(rdonly, 0);
	unlink(path);
	cr_assert_eq(loop_open(&loop, 8, NULL), 0);
	drv_open(&d, &loop, &host);
	expect_refusal(file, -1, false, -EINVAL); /* empty */
	cr_assert_eq(ftruncate(file, 1000), 0);
	expect_refusal(file, -1, false, -EINVAL);
	cr_assert_eq(ftruncate(file, 1024), 0);
	expect_refusal(rdonly, -1, false, -EACCES);
	cr_assert_eq(pwrite(over, "x", 1, 0), 1);
	expect_refusal(rdonly, over, false, -EINVAL);
	expect_refusal(rdonly, rdonly, false, -EINVAL);
	cr_assert_eq(ftruncate(over, 0), 0);
	open_device(rdonly, over, false);
	cr_assert_eq(blk_size(blk), 1024);
	close(file);
}

Test(blk, close_of_nothing)
{
	blk_close(NULL);
}

/* ---- rate limits ---- */

static uint64_t test_now;

static uint64_t test_clock(void)
{
	return test_now;
}

static void hold(uint64_t bytes, uint64_t ops, uint64_t burst)
{
	const struct limit b = { .rate = bytes, .burst = burst },
			   o = { .rate = ops, .burst = burst };

	test_now = 1;
	blk_limit(blk, &b, &o, test_clock);
}

static unsigned nr_used(void)
{
	return (uint16_t)(drv_load16(&d, d.q[0].used + 2) - d.q[0].last_used);
}

static bool is_idle(void *ctx)
{
	(void)ctx;
	return vdev_quiesce(blk_vdev(blk));
}

/* Lets the loop come to rest; nothing is taken meanwhile, as at a freeze. */
static void drain(void)
{
	cr_assert_eq(loop_run_until(&loop, is_idle, NULL), 0);
}

Test(blk, operations_beyond_the_limit_wait_in_the_ring)
{
	struct io io[8];
	struct blk_stats stats;

	start(true, false);
	hold(0, 1000, 3);
	for (int i = 0; i < 8; i++) {
		io[i] = io_make(VIRTIO_BLK_T_IN, (uint64_t)i * 8, 4096);
		io_add(&io[i], 1);
	}
	drv_kick(&d, 0);
	for (int i = 0; i < 3; i++)
		cr_assert_geq(next_used(NULL), 0);
	drain();
	vdev_resume(blk_vdev(blk));
	drain();
	cr_assert_eq(nr_used(), 0, "the clock stands still");
	for (int i = 3; i < 8; i++) { /* one each millisecond, taken when the timer looks */
		test_now += 1000000;
		vdev_resume(blk_vdev(blk));
		cr_assert_geq(next_used(NULL), 0);
		drain();
		cr_assert_eq(nr_used(), 0);
	}
	for (int i = 0; i < 8; i++)
		cr_assert_eq(io_status(&io[i]), VIRTIO_BLK_S_OK);
	blk_stats(blk, &stats);
	cr_assert_eq(stats.requests, 8);
	cr_assert_eq(stats.bytes_read, 8 * 4096);
	cr_assert_geq(stats.throttle.waits, 5);
	cr_assert_eq(stats.throttle.waited_ns, 5 * 1000000);
}

Test(blk, the_timer_goes_on_by_itself)
{
	/* Once the clock has moved, no kick is needed. */
	struct io a, b;

	start(true, false);
	hold(0, 1000, 1);
	a = io_make(VIRTIO_BLK_T_IN, 0, 512);
	b = io_make(VIRTIO_BLK_T_IN, 1, 512);
	io_add(&a, 1);
	io_add(&b, 1);
	drv_kick(&d, 0);
	cr_assert_eq(next_used(NULL), a.head);
	test_now += 1000000;
	cr_assert_eq(next_used(NULL), b.head);
}

Test(blk, a_request_larger_than_the_burst_passes)
{
	start(true, false);
	hold(1000000, 0, 4096);
	write_ok(0, 256, 9);
	test_now += 200000000;
	write_ok(256, 256, 10);
	test_now += 200000000;
	hold(0, 0, 0);
	check_content();
	check_base_unchanged();
}

Test(blk, what_is_held_back_survives_a_freeze)
{
	struct state_buf buf = { 0 };
	struct err err = { 0 };
	struct vdev *dev;
	struct io first, second;

	start(true, false);
	hold(0, 1, 1);
	first = io_make(VIRTIO_BLK_T_IN, 0, 512);
	second = io_make(VIRTIO_BLK_T_IN, 3, 512);
	io_add(&first, 1);
	io_add(&second, 1);
	drv_kick(&d, 0);
	cr_assert_eq(next_used(NULL), first.head);
	drain();
	cr_assert_eq(io_status(&second), NO_STATUS);
	vdev_save(blk_vdev(blk), &buf);
	blk_close(blk);

	open_device(dup(base), make_file(), false);
	dev = d.dev = blk_vdev(blk);
	cr_assert_eq(vdev_load(dev, &buf, &err), 0, "%s", err.msg);
	state_buf_free(&buf);
	vdev_resume(dev);
	cr_assert_eq(next_used(NULL), second.head, "without a kick");
	cr_assert_eq(io_status(&second), VIRTIO_BLK_S_OK);
}

static bool was_reset(void *ctx)
{
	(void)ctx;
	return drv_read(&d, 0x70) == 0;
}

Test(blk, reset_while_held_back)
{
	struct io io;

	start(true, false);
	hold(0, 1000, 1);
	for (int i = 0; i < 3; i++) {
		io = io_make(VIRTIO_BLK_T_IN, 0, 512);
		io_add(&io, 1);
	}
	drv_kick(&d, 0);
	cr_assert_geq(next_used(NULL), 0);
	drv_write(&d, 0x70, 0);
	cr_assert_eq(loop_run_until(&loop, was_reset, NULL), 0);
	cr_assert_eq(nr_used(), 0, "forgotten");
	drv_start(&d, blk_vdev(blk), DRV_ALL_FEATURES, QUEUE);
	test_now += 1000000;
	cr_assert_eq(run(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
}

Test(blk, closed_while_held_back)
{
	struct io io;

	start(true, false);
	hold(0, 1, 1);
	for (int i = 0; i < 2; i++) {
		io = io_make(VIRTIO_BLK_T_IN, 0, 512);
		io_add(&io, 1);
	}
	drv_kick(&d, 0);
	cr_assert_geq(next_used(NULL), 0);
	drain();
}
