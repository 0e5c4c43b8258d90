/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/pagein.h"

#include "core/own.h"
#include "vmm/boot_elf.h"
#include "vmm/guestpages.h"

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
#define TAKE     4u   /* runs that a thread takes at once */
#define PROBES   16u  /* pages that tell whether the cache is cold */
#define FEW      64u  /* pages in the cache that do not spoil a recording */
#define WINDOW   8u   /* pages, by address: KVM maps so many ahead of a fault (PTE_PREFETCH_NUM) */
#define WORTH    3u /* of a window: so many are used, and the others are worth a copy of 2.5 us each */

/* Documentation/admin-guide/mm/pagemap.rst */
#define PM_PRESENT (1ull << 63)
#define PM_FILE    (1ull << 61) /* page of a file: not (yet) private */

#define PAGEIN_HEAD(F, A)                   \
	A(1, uint8_t, id, SNAPSHOT_ID_LEN)  \
	F(1, uint32_t, nr_runs)             \
	F(1, uint32_t, written) /* pages */ \
	F(1, uint32_t, read)                \
	F(2, uint32_t, near)                \
	F(3, uint32_t, large)               \
	F(4, uint32_t, later)
STATE_STRUCT(pagein_head, PAGEIN_HEAD);
static STATE_DESC(pagein_head, PAGEIN_HEAD, "WSET", 1, NULL);

struct recording {
	const struct gmem *mem;
	uint8_t *use; /* of each page: enum use */
	struct pagein_run *runs;
	size_t nr, cap;
	struct pagein_head head;
	/* A window of the walk. */
	uint64_t window;
	unsigned nr_window, nr_used;
	uint64_t in_window[WINDOW];
	const struct pagein *before; /* the working set to add to, or NULL */
};

enum use { UNUSED, TABLE, USED_TABLE, USED_READ, USED_NEAR, USED_WRITTEN, LARGE, USED_LATER };

/* Takes the file out of the page cache; each page that is read then comes alone. True: few are left. */
static bool empty_cache(const struct gmem_region *r, int fd)
{
	const size_t nr = r->len / GMEM_PAGE;
	own_free unsigned char *resident = malloc(nr);
	size_t left = 0;

	if (!resident ||
	    posix_fadvise(fd, (off_t)r->file_off, (off_t)r->len, POSIX_FADV_DONTNEED) ||
	    madvise(r->hva, r->len, MADV_RANDOM) || mincore(r->hva, r->len, resident))
		return false;
	for (size_t i = 0; i < nr; i++)
		left += resident[i] & 1;
	return left <= FEW;
}

int pagein_watch(struct pagein_watch *watch, const struct gmem *mem, int fd, uint64_t cr3)
{
	watch->cr3 = cr3;
	watch->empty = true;
	for (unsigned i = 0; i < mem->nr_regions; i++)
		watch->empty = empty_cache(&mem->region[i], fd) && watch->empty;
	return guestpages_forget(mem, cr3);
}

/* Its place in the snapshot's memory file, in pages; false outside of memory. */
static bool page_number(const struct gmem *mem, uint64_t addr, uint64_t *page)
{
	for (unsigned i = 0; i < mem->nr_regions; i++) {
		const struct gmem_region *r = &mem->region[i];

		if (addr >= r->gpa && addr - r->gpa < r->len) {
			*page = (r->file_off + addr - r->gpa) / GMEM_PAGE;
			return true;
		}
	}
	return false;
}

/* What was written to tables was written by pagein_watch(), or for its sake. */
static void on_table(void *ctx, uint64_t addr, bool accessed)
{
	struct recording *rec = ctx;
	uint64_t page;

	if (page_number(rec->mem, addr, &page))
		rec->use[page] = accessed ? USED_TABLE : TABLE;
}

static void on_page(void *ctx, uint64_t addr, uint64_t va, bool accessed, bool writable)
{
	struct recording *rec = ctx;
	uint64_t page;

	(void)va;
	if (accessed && page_number(rec->mem, addr, &page) && rec->use[page] == UNUSED)
		rec->use[page] = writable ? USED_NEAR : USED_READ;
}

/* What the guest may write is not mapped in one piece for long: the first copied page breaks it. */
static void on_large(void *ctx, uint64_t addr, bool writable)
{
	struct recording *rec = ctx;
	uint64_t page;

	if (!writable && page_number(rec->mem, addr, &page) &&
	    page_number(rec->mem, addr + GUESTPAGES_LARGE - GMEM_PAGE, &page))
		memset(rec->use + page + 1 - GUESTPAGES_LARGE / GMEM_PAGE, LARGE,
		       GUESTPAGES_LARGE / GMEM_PAGE);
}

/*
 * KVM maps a window ahead from its first page to the first that is not private: one page that is not ends it,
 * so a window that is much used is made private as a whole.
 */
static void close_window(struct recording *rec)
{
	for (unsigned i = 0; rec->nr_used >= WORTH && i < rec->nr_window; i++)
		if (rec->use[rec->in_window[i]] <= USED_NEAR)
			rec->use[rec->in_window[i]] = USED_NEAR;
	rec->nr_window = rec->nr_used = 0;
}

static void on_window(void *ctx, uint64_t addr, uint64_t va, bool accessed, bool writable)
{
	struct recording *rec = ctx;
	uint64_t page;

	(void)accessed, (void)writable;
	if (va / GMEM_PAGE / WINDOW != rec->window)
		close_window(rec);
	rec->window = va / GMEM_PAGE / WINDOW;
	if (!page_number(rec->mem, addr, &page))
		return;
	rec->in_window[rec->nr_window++ % WINDOW] = page;
	rec->nr_used += rec->use[page] >= USED_READ;
}

/*
 * By the host's page tables: private pages were written. Those of the file, if it was not in the page cache, were
 * touched by somebody: KVM and the monitor read the guest's kernel structures, which are in no table of user space.
 */
static void look_up(uint8_t *use, uint64_t entry, bool was_empty)
{
	if (!(entry & PM_PRESENT) || *use == TABLE || *use == USED_TABLE || *use == LARGE)
		return;
	if (!(entry & PM_FILE))
		*use = USED_WRITTEN;
	else if (*use == UNUSED && was_empty)
		*use = USED_READ;
}

static int look_up_region(struct recording *rec, int pagemap, const struct gmem_region *r,
                          bool was_empty)
{
	uint64_t entry[BATCH];
	uint8_t *use = rec->use + r->file_off / GMEM_PAGE;

	for (uint64_t page = 0, nr = r->len / GMEM_PAGE; page < nr;) {
		uint64_t first = (uintptr_t)r->hva / GMEM_PAGE + page;
		ssize_t n = pread(pagemap, entry, sizeof(entry), (off_t)(first * sizeof(entry[0])));

		if (n < (ssize_t)sizeof(entry[0]))
			return n < 0 ? -errno : -EIO;
		for (size_t i = 0; i < (size_t)n / sizeof(entry[0]) && page < nr; i++, page++)
			look_up(&use[page], entry[i], was_empty);
	}
	return 0;
}

static int add_page(struct recording *rec, uint64_t addr, enum pagein_class class)
{
	struct pagein_run *last = rec->nr ? &rec->runs[rec->nr - 1] : NULL;

	if (last && last->class == class &&
	    last->gpa + (uint64_t)last->nr_pages * GMEM_PAGE == addr) {
		last->nr_pages++;
		return 0;
	}
	if (rec->nr == rec->cap || !rec->runs) {
		size_t cap = rec->cap ? rec->cap * 2 : 1024;
		struct pagein_run *grown = realloc(rec->runs, cap * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		rec->runs = grown;
		rec->cap = cap;
	}
	rec->runs[rec->nr++] = (struct pagein_run){ .gpa = addr, .nr_pages = 1, .class = class };
	return 0;
}

static int add_region(struct recording *rec, const struct gmem_region *r)
{
	const uint8_t *use = rec->use + r->file_off / GMEM_PAGE;
	int ret = 0;

	for (uint64_t page = 0; ret == 0 && page < r->len / GMEM_PAGE; page++) {
		uint64_t addr = r->gpa + page * GMEM_PAGE;

		if (use[page] == USED_WRITTEN) {
			rec->head.written++;
			ret = add_page(rec, addr, PAGEIN_WRITTEN);
		} else if (use[page] == USED_NEAR) {
			rec->head.near++;
			ret = add_page(rec, addr, PAGEIN_NEAR);
		} else if (use[page] == USED_READ || use[page] == USED_TABLE) {
			rec->head.read++;
			ret = add_page(rec, addr, PAGEIN_READ);
		} else if (use[page] == LARGE) {
			rec->head.large++;
			ret = add_page(rec, addr, PAGEIN_LARGE);
		} else if (use[page] == USED_LATER) {
			rec->head.later++;
			ret = add_page(rec, addr, PAGEIN_LATER);
		}
	}
	return ret;
}

/* What was there before stays what it was; what came in private since is for later, the rest forgotten. */
static void add_to(struct recording *rec, const struct pagein *before)
{
	static const uint8_t use_of[] = { [PAGEIN_READ] = USED_READ,
		                          [PAGEIN_WRITTEN] = USED_WRITTEN,
		                          [PAGEIN_NEAR] = USED_NEAR,
		                          [PAGEIN_LARGE] = LARGE,
		                          [PAGEIN_LATER] = USED_LATER };
	const uint64_t nr = rec->mem->size / GMEM_PAGE;
	uint64_t page;

	for (uint64_t i = 0; i < nr; i++)
		rec->use[i] = rec->use[i] == USED_WRITTEN || rec->use[i] == USED_NEAR ? USED_LATER
		                                                                      : UNUSED;
	for (uint32_t i = 0; before->runs && i < before->nr_runs; i++)
		if (page_number(rec->mem, before->runs[i].gpa, &page))
			memset(rec->use + page, use_of[before->runs[i].class],
			       before->runs[i].nr_pages);
}

static int gather(struct recording *rec, const struct pagein_watch *watch)
{
	const struct guestpages_visit uses = { on_table, on_page, on_large, rec };
	const struct guestpages_visit windows = { .page = on_window, .ctx = rec };
	int ret = 0;

	rec->use = calloc(rec->mem->size / GMEM_PAGE, 1);
	if (!rec->use)
		return -ENOMEM;
	if (ret == 0 && watch->cr3)
		ret = guestpages_walk(rec->mem, watch->cr3, &uses);
	for (unsigned i = 0; ret == 0 && i < rec->mem->nr_regions; i++)
		ret = look_up_region(rec, watch->pagemap_fd, &rec->mem->region[i], watch->empty);
	if (ret == 0 && watch->cr3)
		ret = guestpages_walk(rec->mem, watch->cr3, &windows);
	close_window(rec);
	if (ret == 0 && rec->before)
		add_to(rec, rec->before);
	for (unsigned i = 0; ret == 0 && i < rec->mem->nr_regions; i++)
		ret = add_region(rec, &rec->mem->region[i]);
	if (ret == 0 && (rec->nr == 0 || rec->nr > MAX_RUNS))
		ret = -ENODATA;
	return ret;
}

static int write_workset(struct recording *rec, int fd)
{
	struct state_buf buf = { 0 };
	int ret;

	rec->head.nr_runs = (uint32_t)rec->nr;
	state_put(&buf, pagein_head_desc(), 0, &rec->head);
	state_put_raw(&buf, "RUNS", 0, rec->runs, rec->nr * sizeof(rec->runs[0]));
	ret = buf.err;
	if (ret == 0 && (write(fd, buf.p, buf.len) != (ssize_t)buf.len || fsync(fd) < 0))
		ret = errno ? -errno : -EIO;
	state_buf_free(&buf);
	return ret;
}

static int run_iov(const struct gmem *mem, const struct pagein_run *run, struct iovec *iov)
{
	size_t len = (size_t)run->nr_pages * GMEM_PAGE;
	struct gview view;

	if (run->gpa % GMEM_PAGE || run->nr_pages == 0 || run->class > PAGEIN_LATER ||
	    gmem_view(mem, gpa(run->gpa), len, &view) < 0)
		return -EBADMSG;
	return gview_iov(&view, 0, len, iov);
}

/* -EBADMSG when a run lies outside of memory. */
static int check_runs(const struct pagein *set, const struct gmem *mem, struct err *err)
{
	struct iovec iov;

	for (uint32_t i = 0; i < set->nr_runs; i++)
		if (run_iov(mem, &set->runs[i], &iov) < 0)
			return err_set(err, -EBADMSG, "workset: a run outside the guest's memory");
	return 0;
}

int pagein_record(const struct gmem *mem, const struct pagein_watch *watch, int before_fd, int fd,
                  const uint8_t id[SNAPSHOT_ID_LEN], struct err *err)
{
	struct recording rec = { .mem = mem };
	struct pagein before = { 0 };
	int ret = 0;

	if (before_fd >= 0) {
		ret = pagein_read(&before, before_fd, id, err);
		if (ret == 0)
			ret = check_runs(&before, mem, err);
		if (ret < 0) {
			pagein_close(&before);
			return ret;
		}
		rec.before = &before;
	}
	ret = gather(&rec, watch);
	memcpy(rec.head.id, id, SNAPSHOT_ID_LEN);
	if (ret == 0)
		ret = write_workset(&rec, fd);
	free(rec.use);
	free(rec.runs);
	pagein_close(&before);
	return ret < 0 ? err_set(err, ret, "workset: %s", strerror(-ret)) : 0;
}

static int read_workset(int fd, struct state_buf *buf, struct err *err)
{
	struct stat st;
	int ret;

	if (fstat(fd, &st) < 0)
		return err_set(err, -errno, "workset: %s", strerror(errno));
	if (st.st_size > FILE_MAX)
		return err_set(err, -EBADMSG, "workset: %lld bytes are too many",
		               (long long)st.st_size);
	buf->p = malloc((size_t)st.st_size + 1);
	if (!buf->p)
		return err_set(err, -ENOMEM, "workset: out of memory");
	buf->len = (size_t)st.st_size;
	ret = boot_pread(fd, buf->p, buf->len, 0);
	return ret < 0 ? err_set(err, ret, "workset: %s", strerror(-ret)) : 0;
}

static int parse(struct pagein *set, struct state_buf *buf, const uint8_t id[SNAPSHOT_ID_LEN],
                 struct err *err)
{
	struct pagein_head head = { 0 };
	int ret = state_get(buf, pagein_head_desc(), 0, &head, err);

	if (ret < 0)
		return err_wrap(err, "workset");
	if (memcmp(head.id, id, SNAPSHOT_ID_LEN) != 0)
		return err_set(err, -EBADMSG, "workset: of another snapshot than `state`");
	if (head.nr_runs == 0 || head.nr_runs > MAX_RUNS)
		return err_set(err, -EBADMSG, "workset: %u runs are not possible", head.nr_runs);
	set->runs = calloc(head.nr_runs, sizeof(*set->runs));
	if (!set->runs)
		return err_set(err, -ENOMEM, "workset: out of memory");
	ret = state_get_raw(buf, "RUNS", 0, set->runs, head.nr_runs * sizeof(*set->runs), err);
	if (ret < 0)
		return ret;
	set->nr_runs = head.nr_runs;
	set->written = head.written;
	set->near = head.near;
	set->large = head.large;
	set->later = head.later;
	set->read = head.read;
	return 0;
}

/*
 * mincore(2) would tell, but only to those who may write the file; of others it is said to be there. A file that
 * cannot be asked counts as cached.
 */
static bool is_cached(int fd, uint64_t page)
{
	char byte;
	struct iovec iov = { &byte, 1 };

	return preadv2(fd, &iov, 1, (off_t)(page * GMEM_PAGE), RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

/* Looks at some pages: asking for all would cost a hot thaw more than it could gain. */
static bool is_cold(const struct pagein *set, const struct gmem *mem, int fd)
{
	uint32_t step = set->nr_runs / PROBES + 1;
	uint64_t page;

	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* a look brings no neighbours along */
	for (uint32_t i = 0; i < set->nr_runs; i += step) {
		uint32_t at = i;

		/* Those for later may never have been asked for. */
		while (at < set->nr_runs && set->runs[at].class == PAGEIN_LATER)
			at++;
		if (at < set->nr_runs && page_number(mem, set->runs[at].gpa, &page) &&
		    !is_cached(fd, page))
			return true;
	}
	return false;
}

int pagein_read(struct pagein *set, int fd, const uint8_t id[SNAPSHOT_ID_LEN], struct err *err)
{
	struct state_buf buf = { 0 };
	int ret;

	*set = (struct pagein){ 0 };
	ret = read_workset(fd, &buf, err);
	if (ret == 0)
		ret = parse(set, &buf, id, err);
	state_buf_free(&buf);
	return ret;
}

int pagein_open(struct pagein *set, int dir_fd, const uint8_t id[SNAPSHOT_ID_LEN], struct err *err)
{
	own_fd int fd = snapshot_open_part(dir_fd, "workset");

	*set = (struct pagein){ 0 };
	if (fd < 0)
		return fd == -ENOENT ? 0 : err_set(err, fd, "workset: %s", strerror(-fd));
	return pagein_read(set, fd, id, err);
}

/* Before anything of it is touched. */
static void begin_cold(struct pagein *set, const struct gmem *mem)
{
	struct iovec iov;

	/* What nobody could foresee is read alone: read-ahead would bring megabytes for each such page. */
	for (unsigned i = 0; i < mem->nr_regions; i++)
		(void)madvise(mem->region[i].hva, mem->region[i].len, MADV_RANDOM);
	for (uint32_t i = 0; i < set->nr_runs; i++) {
		bool large = set->runs[i].class == PAGEIN_LARGE;

		if (set->runs[i].class != PAGEIN_LATER && run_iov(mem, &set->runs[i], &iov) == 0)
			(void)madvise(iov.iov_base, iov.iov_len,
			              large ? MADV_HUGEPAGE : MADV_WILLNEED);
	}
}

int pagein_begin(struct pagein *set, const struct gmem *mem, int fd, struct err *err)
{
	int ret = check_runs(set, mem, err);

	if (ret < 0)
		return ret;
	set->cold = is_cold(set, mem, fd);
	if (set->cold)
		begin_cold(set, mem);
	return 0;
}

/* How a run is made present; 0: it is left to the page cache. */
static int advice(const struct pagein *set, enum pagein_class class)
{
	switch (class) {
	case PAGEIN_WRITTEN:
		return MADV_POPULATE_WRITE;
	case PAGEIN_NEAR:
		return set->sparing ? 0 : MADV_POPULATE_WRITE;
	case PAGEIN_LARGE:
		return set->cold ? MADV_POPULATE_READ : 0;
	default:
		return 0;
	}
}

int pagein_populate(struct pagein *set, const struct gmem *mem, struct err *err)
{
	struct iovec iov;
	uint32_t from;

	while ((from = atomic_fetch_add(&set->next, TAKE)) < set->nr_runs) {
		for (uint32_t i = from; i < from + TAKE && i < set->nr_runs; i++) {
			const struct pagein_run *run = &set->runs[i];
			int how = advice(set, run->class);

			if (!how || run_iov(mem, run, &iov) < 0)
				continue;
			if (madvise(iov.iov_base, iov.iov_len, how) < 0)
				return err_set(err, -errno, "workset: populate: %s",
				               strerror(errno));
			if (how == MADV_POPULATE_WRITE)
				atomic_fetch_add(&set->populated, run->nr_pages);
		}
	}
	return 0;
}

bool pagein_later(struct pagein *set, const struct gmem *mem, unsigned max)
{
	struct iovec iov;

	for (unsigned done = 0; done < max; set->next_later++) {
		const struct pagein_run *run = &set->runs[set->next_later];

		if (set->next_later >= set->nr_runs)
			return false;
		if (run->class != PAGEIN_LATER || run_iov(mem, run, &iov) < 0)
			continue;
		if (madvise(iov.iov_base, iov.iov_len, MADV_POPULATE_WRITE) < 0)
			return false; /* no memory: the guest will meet that by itself */
		done += run->nr_pages;
		set->later_done += run->nr_pages;
	}
	return true;
}

void pagein_close(struct pagein *set)
{
	free(set->runs);
	set->runs = NULL;
	set->nr_runs = 0;
}
