/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/pagein.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RUNS (1u << 20)
#define FILE_MAX (64u << 20)
#define BATCH    512u /* pagemap entries read at once */

/* Documentation/admin-guide/mm/pagemap.rst */
#define PM_PRESENT (1ull << 63)
#define PM_FILE    (1ull << 61) /* page of a file: not (yet) private */

#define PAGEIN_HEAD(F, A)                   \
	A(1, uint8_t, id, SNAPSHOT_ID_LEN)  \
	F(1, uint32_t, nr_runs)             \
	F(1, uint32_t, written) /* pages */ \
	F(1, uint32_t, read)
STATE_STRUCT(pagein_head, PAGEIN_HEAD);
static STATE_DESC(pagein_head, PAGEIN_HEAD, "WSET", 1, NULL);

struct run {
	uint64_t gpa; /* bytes */
	uint32_t nr_pages;
	uint32_t class; /* enum pagein_class */
};

struct recording {
	struct run *runs;
	size_t nr, cap;
	struct pagein_head head;
};

static int add_page(struct recording *rec, uint64_t addr, enum pagein_class class)
{
	struct run *last = rec->nr ? &rec->runs[rec->nr - 1] : NULL;

	*(class == PAGEIN_WRITTEN ? &rec->head.written : &rec->head.read) += 1;
	if (last && last->class == class &&
	    last->gpa + (uint64_t)last->nr_pages * GMEM_PAGE == addr) {
		last->nr_pages++;
		return 0;
	}
	if (rec->nr == rec->cap) {
		size_t cap = rec->cap ? rec->cap * 2 : 1024;
		struct run *grown = realloc(rec->runs, cap * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		rec->runs = grown;
		rec->cap = cap;
	}
	rec->runs[rec->nr++] = (struct run){ .gpa = addr, .nr_pages = 1, .class = class };
	return 0;
}

static int record_region(struct recording *rec, int pagemap, const struct gmem_region *r)
{
	uint64_t entry[BATCH];
	int ret = 0;

	for (uint64_t off = 0; off < r->len;) {
		uint64_t first = ((uintptr_t)r->hva + off) / GMEM_PAGE;
		ssize_t n = pread(pagemap, entry, sizeof(entry), (off_t)(first * sizeof(entry[0])));

		if (n < (ssize_t)sizeof(entry[0]))
			return n < 0 ? -errno : -EIO;
		for (size_t i = 0; i < (size_t)n / sizeof(entry[0]) && off < r->len;
		     i++, off += GMEM_PAGE) {
			if (!(entry[i] & PM_PRESENT))
				continue;
			ret = add_page(rec, r->gpa + off,
			               entry[i] & PM_FILE ? PAGEIN_READ : PAGEIN_WRITTEN);
			if (ret < 0)
				return ret;
		}
	}
	return 0;
}

/* A whole new file takes the old one's name. */
static int replace_file(int dir_fd, const char *name, const struct state_buf *buf)
{
	own_fd int fd = -1;
	char tmp[64];
	int ret;

	(void)snprintf(tmp, sizeof(tmp), "%s.tmp-%d", name, getpid());
	fd = openat(dir_fd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	ret = write(fd, buf->p, buf->len) == (ssize_t)buf->len && fsync(fd) == 0 &&
	                      renameat(dir_fd, tmp, dir_fd, name) == 0
	              ? 0
	              : -errno;
	if (ret < 0)
		(void)unlinkat(dir_fd, tmp, 0);
	return ret;
}

int pagein_record(const struct gmem *mem, const char *dir, const uint8_t id[SNAPSHOT_ID_LEN],
                  struct err *err)
{
	own_fd int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	own_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	struct recording rec = { 0 };
	struct state_buf buf = { 0 };
	int ret = dir_fd < 0 || pagemap < 0 ? -errno : 0;

	memcpy(rec.head.id, id, SNAPSHOT_ID_LEN);
	for (unsigned i = 0; ret == 0 && i < mem->nr_regions; i++)
		ret = record_region(&rec, pagemap, &mem->region[i]);
	if (ret == 0 && (rec.nr == 0 || rec.nr > MAX_RUNS))
		ret = -ENODATA;
	if (ret == 0) {
		rec.head.nr_runs = (uint32_t)rec.nr;
		state_put(&buf, pagein_head_desc(), 0, &rec.head);
		state_put_raw(&buf, "RUNS", 0, rec.runs, rec.nr * sizeof(rec.runs[0]));
		ret = buf.err ? buf.err : replace_file(dir_fd, "workset", &buf);
	}
	free(rec.runs);
	state_buf_free(&buf);
	return ret < 0 ? err_set(err, ret, "%s/workset: %s", dir, strerror(-ret)) : 0;
}

static int read_workset(int fd, struct state_buf *buf, struct err *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_set(err, -errno, "workset: %s", strerror(errno));
	if (st.st_size > FILE_MAX)
		return err_set(err, -EBADMSG, "workset: %lld bytes are too many",
		               (long long)st.st_size);
	buf->p = malloc((size_t)st.st_size + 1);
	if (!buf->p)
		return err_set(err, -ENOMEM, "workset: out of memory");
	buf->len = (size_t)st.st_size;
	if (pread(fd, buf->p, buf->len, 0) != (ssize_t)buf->len)
		return err_set(err, -EIO, "workset: read failed");
	return 0;
}

static int populate(const struct gmem *mem, const struct run *run, struct pagein_stats *stats,
                    struct err *err)
{
	struct gview view;
	struct iovec iov;
	size_t len = (size_t)run->nr_pages * GMEM_PAGE;

	if (run->gpa % GMEM_PAGE || run->nr_pages == 0 ||
	    gmem_view(mem, gpa(run->gpa), len, &view) < 0 || gview_iov(&view, 0, len, &iov) < 0)
		return err_set(err, -EBADMSG, "workset: a run outside the guest's memory");
	if (run->class != PAGEIN_WRITTEN)
		return 0;
	if (madvise(iov.iov_base, iov.iov_len, MADV_POPULATE_WRITE) < 0)
		return err_set(err, -errno, "workset: populate: %s", strerror(errno));
	stats->populated += run->nr_pages;
	return 0;
}

static int apply(const struct gmem *mem, struct state_buf *buf, const uint8_t id[SNAPSHOT_ID_LEN],
                 struct pagein_stats *stats, struct err *err)
{
	struct pagein_head head = { 0 };
	own_free struct run *runs = NULL;
	int ret = state_get(buf, pagein_head_desc(), 0, &head, err);

	if (ret < 0)
		return err_wrap(err, "workset");
	if (memcmp(head.id, id, SNAPSHOT_ID_LEN) != 0)
		return err_set(err, -EBADMSG, "workset: of another snapshot than `state`");
	if (head.nr_runs == 0 || head.nr_runs > MAX_RUNS)
		return err_set(err, -EBADMSG, "workset: %u runs are not possible", head.nr_runs);
	runs = calloc(head.nr_runs, sizeof(*runs));
	if (!runs)
		return err_set(err, -ENOMEM, "workset: out of memory");
	ret = state_get_raw(buf, "RUNS", 0, runs, head.nr_runs * sizeof(*runs), err);
	stats->written = head.written;
	stats->read = head.read;
	for (uint32_t i = 0; ret == 0 && i < head.nr_runs; i++)
		ret = populate(mem, &runs[i], stats, err);
	return ret;
}

int pagein_apply(const struct gmem *mem, int dir_fd, const uint8_t id[SNAPSHOT_ID_LEN],
                 struct pagein_stats *stats, struct err *err)
{
	own_fd int fd = openat(dir_fd, "workset", O_RDONLY | O_CLOEXEC);
	struct state_buf buf = { 0 };
	int ret;

	*stats = (struct pagein_stats){ 0 };
	if (fd < 0)
		return errno == ENOENT ? 0 : err_set(err, -errno, "workset: %s", strerror(errno));
	ret = read_workset(fd, &buf, err);
	if (ret == 0)
		ret = apply(mem, &buf, id, stats, err);
	state_buf_free(&buf);
	return ret;
}
