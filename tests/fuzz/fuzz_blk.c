/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk behind a hostile driver, and behind an honest one. Whatever the driver does, a read-only image and
 * the base under an overlay stay as they were, and nothing is touched behind the disk's end. The honest driver's
 * requests, several in flight, must leave the content that a plain model has.
 */
#include "devices/blk.h"

#include "tests/fuzz/driver.h"

#define DISK       (32u << 10)
#define TAIL       4096u /* of the file, behind the disk */
#define SECTORS    (DISK / 512u)
#define SLOTS      3u /* requests of the honest driver in flight */
#define SLOT_DESCS 5u
#define SLOT_DATA  0x4000u
#define MAX_NR     (SLOT_DATA / 512u)

enum { F_OVERLAY = 1, F_READONLY = 2, F_HONEST = 4 };

static struct driver drv;
static uint8_t origin[DISK + TAIL], model[DISK], seen[DISK + TAIL];

struct honest {
	unsigned busy;
	bool fails[SLOTS];
	uint8_t flags;
};

static struct blk *open_disk(uint8_t flags, int *keep)
{
	struct vdev_host host = dr_host(&drv);
	struct blk_config config = {
		.base_fd = fz_file(origin, sizeof(origin)),
		.overlay_fd = flags & F_OVERLAY ? fz_file("", 0) : -1,
		.size = DISK,
		.readonly = flags & F_READONLY,
		.serial = "fuzz",
	};
	struct blk *blk = NULL;
	struct err err;

	*keep = fcntl(config.base_fd, F_DUPFD_CLOEXEC, 3);
	FZ_CHECK(*keep >= 0 && blk_open(&blk, &config, &host, 1, &err) == 0);
	return blk;
}

/* ---- the honest driver ---- */

static uint64_t slot_head(unsigned slot)
{
	return DR_DATA + slot * 0x100u;
}

static uint64_t slot_data(unsigned slot)
{
	return 2 * DR_DATA + slot * SLOT_DATA;
}

/* All requests in flight end, with the status that the model foresaw. */
static void honest_wait(struct honest *h)
{
	uint16_t used;

	dr_turn(&drv); /* a device that is asked to come to rest takes nothing new */
	dr_settle(&drv);
	vdev_resume(drv.dev);
	for (unsigned i = 0; i < h->busy; i++) {
		uint8_t status;

		FZ_CHECK(gmem_read(&drv.mem, gpa(slot_head(i) + 0x80), &status, 1) == 0);
		FZ_CHECK(status == (h->fails[i] ? VIRTIO_BLK_S_IOERR : VIRTIO_BLK_S_OK));
	}
	FZ_CHECK(gmem_read(&drv.mem, gpa(DR_USED + 2), &used, 2) == 0 && used == drv.added[0]);
	h->busy = 0;
}

/* A discard on an overlay is done for whole blocks. */
static void model_discard(uint64_t off, uint64_t len, uint8_t flags)
{
	uint64_t end = off + len;

	if (flags & F_OVERLAY) {
		off = (off + 4095) / 4096 * 4096;
		end -= end == DISK ? 0 : end % 4096;
	}
	if (off < end)
		memset(model + off, 0, end - off);
}

static bool model_apply(uint32_t type, uint64_t sector, uint32_t nr, unsigned slot, uint8_t flags)
{
	uint64_t off = sector * 512, len = nr * 512ull;

	if (sector > SECTORS || nr > SECTORS - sector)
		return false;
	if (type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_FLUSH)
		return true;
	if (flags & F_READONLY)
		return false;
	if (type == VIRTIO_BLK_T_OUT)
		FZ_CHECK(gmem_read(&drv.mem, gpa(slot_data(slot)), model + off, len) == 0);
	else if (type == VIRTIO_BLK_T_WRITE_ZEROES)
		memset(model + off, 0, len);
	else
		model_discard(off, len, flags);
	return true;
}

/* The chain: header, data in up to three pieces, status. */
static void honest_chain(struct fz_in *in, unsigned slot, uint32_t type, uint32_t bytes)
{
	uint16_t d = (uint16_t)(slot * SLOT_DESCS), n = 0;
	uint16_t write = type == VIRTIO_BLK_T_IN ? 2 : 0;
	uint64_t at = slot_data(slot);

	dr_desc(&drv, DR_DESC, d, slot_head(slot), 16, 1, d + 1);
	while (bytes) {
		uint32_t take = n < 2 ? 1 + fz_u16(in) % bytes : bytes;

		n++;
		dr_desc(&drv, DR_DESC, d + n, at, take, (uint16_t)(1 | write), d + n + 1);
		at += take;
		bytes -= take;
	}
	dr_desc(&drv, DR_DESC, d + n + 1u, slot_head(slot) + 0x80, 1, 2, 0);
	dr_publish(&drv, 0, d);
	dr_write(&drv, 0x50, 0);
}

static void honest_request(struct fz_in *in, struct honest *h)
{
	static const uint32_t types[] = { VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_DISCARD,
		                          VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_T_FLUSH };
	uint8_t kind = fz_u8(in), fill = fz_u8(in);
	struct {
		uint32_t type, reserved;
		uint64_t sector;
	} head = { types[kind % ARRAY_LEN(types)], 0, fz_u8(in) % (SECTORS + 2) };
	bool moves = head.type == VIRTIO_BLK_T_IN || head.type == VIRTIO_BLK_T_OUT;
	uint32_t nr = moves ? fz_u8(in) % (MAX_NR + 1) : fz_u8(in) % (SECTORS + 2);
	struct {
		uint64_t sector;
		uint32_t nr, flags;
	} seg = { head.sector, nr, 0 };
	unsigned slot = h->busy;
	uint8_t data[SLOT_DATA];

	if (head.type == VIRTIO_BLK_T_FLUSH)
		head.sector = nr = 0;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(fill + i / 512 + 1);
	if (!moves)
		memcpy(data, &seg, sizeof(seg));
	FZ_CHECK(gmem_write(&drv.mem, gpa(slot_data(slot)), data, sizeof(data)) == 0);
	FZ_CHECK(gmem_write(&drv.mem, gpa(slot_head(slot)), &head, sizeof(head)) == 0);
	FZ_CHECK(gmem_write(&drv.mem, gpa(slot_head(slot) + 0x80), "\xff", 1) == 0);
	h->fails[slot] = !model_apply(head.type, head.sector, nr, slot, h->flags);
	honest_chain(in, slot, head.type,
	             moves                             ? nr * 512
	             : head.type == VIRTIO_BLK_T_FLUSH ? 0
	                                               : (uint32_t)sizeof(seg));
	h->busy++;
	/* Only an overlay puts changes that overlap in order. */
	if (h->busy == SLOTS || !(h->flags & F_OVERLAY) || (kind & 0x80))
		honest_wait(h);
	else if (kind & 0x40)
		dr_turn(&drv);
}

/* ---- the whole ---- */

static void check_disk(struct blk *blk, int base, uint8_t flags)
{
	int flat = fz_file("", 0);
	struct err err;

	FZ_CHECK(blk_flatten(blk, flat, &err) == 0);
	FZ_CHECK(pread(flat, seen, sizeof(seen), 0) == DISK);
	FZ_CHECK(!(flags & F_HONEST) || memcmp(seen, model, DISK) == 0);
	(void)close(flat);
	FZ_CHECK(pread(base, seen, sizeof(seen), 0) == (ssize_t)sizeof(seen));
	FZ_CHECK(memcmp(seen + DISK, origin + DISK, TAIL) == 0);
	if (flags & (F_OVERLAY | F_READONLY))
		FZ_CHECK(memcmp(seen, origin, DISK) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	struct honest h = { .flags = fz_u8(&in) };
	uint8_t start = fz_u8(&in);
	static struct blk *other[4]; /* one of each kind that loads what another has saved */
	struct blk *blk;
	int base;

	for (size_t i = 0; i < sizeof(origin); i++)
		origin[i] = (uint8_t)(i / 512 * 7 + 1);
	memcpy(model, origin, DISK);
	if (!other[h.flags & 3]) {
		other[h.flags & 3] = open_disk(h.flags, &base);
		(void)close(base);
	}
	blk = open_disk(h.flags, &base);
	dr_start(&drv, blk_vdev(blk), h.flags & F_HONEST ? start & 3 : start);
	for (int ops = 0; in.n && ops < 256; ops++) {
		if (h.flags & F_HONEST)
			honest_request(&in, &h);
		else
			dr_do(&drv, &in, fz_u8(&in) % DR_NR_OPS);
	}
	if (h.flags & F_HONEST)
		honest_wait(&h);
	dr_settle(&drv);
	dr_check(&drv);
	check_disk(blk, base, h.flags);
	dr_check_state(&drv, blk_vdev(other[h.flags & 3]));
	blk_close(blk);
	(void)close(base);
	return 0;
}
