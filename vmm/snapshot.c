/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/snapshot.h"

#include "core/own.h"
#include "core/zero.h"
#include "vmm/boot_elf.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC_LEN 8u
#define STATE_MAX (4u << 20)
#define PROBE_LEN (64u << 10)
#define REBUILD   "build it again: thawbox template build --force NAME"

/* The last page of memory and disk parts. */
struct trailer {
	char magic[MAGIC_LEN];
	uint8_t id[SNAPSHOT_ID_LEN];
	uint8_t zero[GMEM_PAGE - MAGIC_LEN - SNAPSHOT_ID_LEN];
};
_Static_assert(sizeof(struct trailer) == GMEM_PAGE, "one page");

static int check_head(void *state, uint16_t from, struct err *err)
{
	const struct snapshot_head *h = state;

	(void)from;
	if (h->nr_vcpus < 1 || h->nr_vcpus > SNAPSHOT_MAX_VCPUS ||
	    h->nr_disks > SNAPSHOT_MAX_DISKS || h->memory_size % GMEM_PAGE ||
	    h->memory_size < (1u << 20) || h->memory_size > (1ull << 40))
		return err_set(err, -EBADMSG,
		               "%u vCPUs, %u disks, %llu bytes of memory are not possible",
		               h->nr_vcpus, h->nr_disks, (unsigned long long)h->memory_size);
	return 0;
}
static STATE_DESC(snapshot_head, SNAPSHOT_HEAD, "HEAD", 1, check_head);

static int check_disk(void *state, uint16_t from, struct err *err)
{
	struct snapshot_disk *d = state;

	(void)from;
	if (d->path[SNAPSHOT_PATH_MAX - 1] || (d->readonly && !d->path[0]))
		return err_set(err, -EBADMSG, "no path of a read-only image");
	return 0;
}
static STATE_DESC(snapshot_disk, SNAPSHOT_DISK, "DISK", 1, check_disk);

void snapshot_disk_name(unsigned n, char out[16])
{
	(void)(n ? snprintf(out, 16, "disk%u", n) : snprintf(out, 16, "disk"));
}

int snapshot_open_part(int dir_fd, const char *name)
{
	struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
		                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS };
	int fd = (int)syscall(SYS_openat2, dir_fd, name, &how, sizeof(how));

	return fd < 0 ? -errno : fd;
}

static int read_state(struct snapshot *snap, struct err *err)
{
	own_fd int fd = snapshot_open_part(snap->dir_fd, "state");
	struct stat st;
	int ret;

	if (fd < 0)
		return err_set(err, fd, "state: %s", strerror(-fd));
	if (fstat(fd, &st) < 0)
		return err_set(err, -errno, "state: %s", strerror(errno));
	if (st.st_size < (off_t)MAGIC_LEN || st.st_size > (off_t)STATE_MAX)
		return err_set(err, -EBADMSG, "state: %lld bytes are not a snapshot's",
		               (long long)st.st_size);
	snap->state.p = malloc((size_t)st.st_size);
	if (!snap->state.p)
		return err_set(err, -ENOMEM, "state: out of memory");
	ret = boot_pread(fd, snap->state.p, (size_t)st.st_size, 0);
	if (ret < 0)
		return err_set(err, ret, "state: %s", strerror(-ret));
	snap->state.len = (size_t)st.st_size;
	if (memcmp(snap->state.p, SNAPSHOT_MAGIC, MAGIC_LEN) != 0)
		return err_set(err, -EBADMSG, "state: not a snapshot of this format (want %s)",
		               SNAPSHOT_MAGIC);
	snap->state.pos = MAGIC_LEN;
	return 0;
}

static int check_host(const struct snapshot *snap, struct err *err)
{
	char here[CPU_FINGERPRINT_MAX];

	cpu_fingerprint(here);
	if (strncmp(here, (const char *)snap->head.fingerprint, sizeof(here)) == 0)
		return 0;
	err_set(err, -ENOTSUP, "made on another CPU or kind of KVM (%.95s), this is %s",
	        (const char *)snap->head.fingerprint, here);
	return err_remedy(err, "a snapshot runs only on the CPU model it was made on; %s", REBUILD);
}

/* The file of `size` bytes and the id's page, or an error that names the part. */
static int check_part(int fd, const char *name, uint64_t size, const uint8_t *id, struct err *err)
{
	struct trailer last;
	struct stat st;
	int ret;

	if (fstat(fd, &st) < 0)
		return err_set(err, -errno, "%s: %s", name, strerror(errno));
	if ((uint64_t)st.st_size != size + sizeof(last))
		return err_set(err, -EBADMSG,
		               "%s: %lld bytes, want %llu: the file is cut or of another snapshot",
		               name, (long long)st.st_size,
		               (unsigned long long)(size + sizeof(last)));
	ret = boot_pread(fd, &last, MAGIC_LEN + SNAPSHOT_ID_LEN, size);
	if (ret < 0)
		return err_set(err, ret, "%s: %s", name, strerror(-ret));
	if (memcmp(last.magic, SNAPSHOT_MAGIC, MAGIC_LEN) != 0)
		return err_set(err, -EBADMSG, "%s: damaged (no id at its end)", name);
	if (memcmp(last.id, id, SNAPSHOT_ID_LEN) != 0)
		return err_set(err, -EBADMSG, "%s: of another snapshot than `state`", name);
	return 0;
}

int snapshot_probe(int fd, struct snapshot_disk *disk, struct err *err)
{
	own_free uint8_t *buf = malloc(PROBE_LEN);
	struct stat st;
	size_t n;
	int ret;

	if (!buf || fstat(fd, &st) < 0)
		return err_set(err, -errno, "%s: %s", (const char *)disk->path, strerror(errno));
	n = st.st_size < (off_t)PROBE_LEN ? (size_t)st.st_size : PROBE_LEN;
	ret = boot_pread(fd, buf, n, 0);
	if (ret < 0)
		return err_set(err, ret, "%s: %s", (const char *)disk->path, strerror(-ret));
	disk->size = (uint64_t)st.st_size;
	disk->probe = state_crc(buf, n);
	return 0;
}

static int open_image(struct snapshot *snap, unsigned n, struct err *err)
{
	const char *path = (const char *)snap->disk[n].path;
	struct snapshot_disk now = snap->disk[n];
	int ret;

	snap->disk_fd[n] = openat(snap->dir_fd, path, O_RDONLY | O_CLOEXEC);
	if (snap->disk_fd[n] < 0) {
		err_set(err, -errno, "disk image %s: %s", path, strerror(errno));
		return err_remedy(err, "the snapshot needs the image it was made with; %s",
		                  REBUILD);
	}
	ret = snapshot_probe(snap->disk_fd[n], &now, err);
	if (ret < 0)
		return ret;
	if (now.size != snap->disk[n].size || now.probe != snap->disk[n].probe) {
		err_set(err, -EBADMSG, "disk image %s: not the one this snapshot was made with",
		        path);
		return err_remedy(err, "%s", REBUILD);
	}
	return 0;
}

static int open_disks(struct snapshot *snap, struct err *err)
{
	int ret = 0;

	for (unsigned i = 0; ret == 0 && i < snap->head.nr_disks; i++) {
		char name[16];

		if (snap->disk[i].readonly) {
			ret = open_image(snap, i, err);
			continue;
		}
		snapshot_disk_name(i, name);
		snap->disk_fd[i] = ret = snapshot_open_part(snap->dir_fd, name);
		if (ret < 0)
			return err_set(err, ret, "%s: %s", name, strerror(-ret));
		ret = check_part(snap->disk_fd[i], name, snap->disk[i].size, snap->head.id, err);
	}
	return ret;
}

static int open_parts(struct snapshot *snap, struct err *err)
{
	int ret = read_state(snap, err);

	if (ret < 0)
		return ret;
	ret = state_get(&snap->state, snapshot_head_desc(), 0, &snap->head, err);
	for (unsigned i = 0; ret == 0 && i < snap->head.nr_disks; i++)
		ret = state_get(&snap->state, snapshot_disk_desc(), (uint16_t)i, &snap->disk[i],
		                err);
	if (ret < 0)
		return err_wrap(err, "state");
	ret = check_host(snap, err);
	if (ret < 0)
		return ret;
	snap->memory_fd = ret = snapshot_open_part(snap->dir_fd, "memory");
	if (ret < 0)
		return err_set(err, ret, "memory: %s", strerror(-ret));
	ret = check_part(snap->memory_fd, "memory", snap->head.memory_size, snap->head.id, err);
	return ret < 0 ? ret : open_disks(snap, err);
}

int snapshot_open(struct snapshot *snap, const char *dir, struct err *err)
{
	int ret;

	*snap = (struct snapshot){ .dir_fd = -1, .memory_fd = -1 };
	for (unsigned i = 0; i < SNAPSHOT_MAX_DISKS; i++)
		snap->disk_fd[i] = -1;
	snap->dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (snap->dir_fd < 0) {
		err_set(err, -errno, "snapshot %s: %s", dir, strerror(errno));
		return err_remedy(err, "make it first: thawbox template build code-interpreter");
	}
	ret = open_parts(snap, err);
	if (ret < 0) {
		snapshot_close(snap);
		err_wrap(err, "snapshot %s", dir);
		if (err->code != -ENOENT) /* a part that is missing is no path to check */
			err_hint(err);
		return err_remedy(err, "%s", REBUILD);
	}
	return 0;
}

void snapshot_close(struct snapshot *snap)
{
	own_close_fd(&snap->dir_fd);
	own_close_fd(&snap->memory_fd);
	snap->dir_fd = snap->memory_fd = -1;
	for (unsigned i = 0; i < SNAPSHOT_MAX_DISKS; i++) {
		own_close_fd(&snap->disk_fd[i]);
		snap->disk_fd[i] = -1;
	}
	state_buf_free(&snap->state);
}

void snapshot_put_head(struct state_buf *buf, const struct snapshot_head *head,
                       const struct snapshot_disk *disk)
{
	state_put_bytes(buf, SNAPSHOT_MAGIC, MAGIC_LEN);
	state_put(buf, snapshot_head_desc(), 0, head);
	for (unsigned i = 0; i < head->nr_disks; i++)
		state_put(buf, snapshot_disk_desc(), (uint16_t)i, &disk[i]);
}

int snapshot_part(const struct snapshot_out *out, const char *name, struct err *err)
{
	for (unsigned i = 0; i < out->nr; i++)
		if (strcmp(out->name[i], name) == 0)
			return out->fd[i];
	return err_set(err, -EINVAL, "no descriptor came for the part %s", name);
}

static int write_all(int fd, const void *data, size_t n, uint64_t off)
{
	const uint8_t *p = data;

	while (n) {
		ssize_t k = pwrite(fd, p, n, (off_t)off);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return k < 0 ? -errno : -EIO;
		p += k;
		n -= (size_t)k;
		off += (uint64_t)k;
	}
	return 0;
}

static int sync_file(int fd)
{
	int ret;

	do {
		ret = fsync(fd);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : 0;
}

static int failed(const char *name, int ret, struct err *err)
{
	err_set(err, ret, "%s: %s", name, strerror(-ret));
	return ret; /* err_hint() has the remedy */
}

int snapshot_put(const struct snapshot_out *out, const char *name, const void *data, size_t n,
                 struct err *err)
{
	int fd = snapshot_part(out, name, err);
	int ret;

	if (fd < 0)
		return fd;
	ret = write_all(fd, data, n, 0);
	if (ret == 0)
		ret = sync_file(fd);
	return ret < 0 ? failed(name, ret, err) : 0;
}

/* Writes the pages that hold something, a run at a time. */
static int put_region(int fd, const struct gmem_region *r)
{
	uint64_t start = 0, off;
	int ret = 0;

	for (off = 0; ret == 0 && off < r->len; off += GMEM_PAGE) {
		if (!is_zero(r->hva + off, GMEM_PAGE))
			continue;
		if (off > start)
			ret = write_all(fd, r->hva + start, off - start, r->file_off + start);
		start = off + GMEM_PAGE;
	}
	if (ret == 0 && off > start)
		ret = write_all(fd, r->hva + start, off - start, r->file_off + start);
	return ret;
}

int snapshot_seal(int fd, uint64_t size, const uint8_t id[SNAPSHOT_ID_LEN], struct err *err)
{
	struct trailer last = { .magic = SNAPSHOT_MAGIC };
	int ret;

	memcpy(last.id, id, SNAPSHOT_ID_LEN);
	ret = write_all(fd, &last, sizeof(last), size);
	if (ret == 0)
		ret = sync_file(fd);
	return ret < 0 ? failed("snapshot", ret, err) : 0;
}

int snapshot_put_memory(const struct snapshot_out *out, const struct gmem *mem,
                        const uint8_t id[SNAPSHOT_ID_LEN], struct err *err)
{
	int fd = snapshot_part(out, "memory", err);
	int ret = 0;

	if (fd < 0)
		return fd;
	for (unsigned i = 0; ret == 0 && i < mem->nr_regions; i++)
		ret = put_region(fd, &mem->region[i]);
	return ret < 0 ? failed("memory", ret, err) : snapshot_seal(fd, mem->size, id, err);
}
