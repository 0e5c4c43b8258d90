/* SPDX-License-Identifier: Apache-2.0 */
/* The working set: what was written is found, and is private and present after it was applied. */
#include "vmm/pagein.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 2048u

static char dir[64];
static int file, dir_fd;
static const uint8_t id[SNAPSHOT_ID_LEN] = { 1, 2, 3 };

static void setup(void)
{
	uint8_t page[GMEM_PAGE];

	snprintf(dir, sizeof(dir), "/tmp/thawbox-test-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	dir_fd = open(dir, O_RDONLY | O_DIRECTORY);
	file = openat(dir_fd, "memory", O_RDWR | O_CREAT, 0600);
	for (unsigned i = 0; i < PAGES; i++) {
		memset(page, (int)(i | 1), sizeof(page));
		cr_assert_eq(pwrite(file, page, sizeof(page), (off_t)i * GMEM_PAGE),
		             (ssize_t)sizeof(page));
	}
}

static void teardown(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(pagein, .init = setup, .fini = teardown);

static void open_mem(struct gmem *mem)
{
	cr_assert_eq(gmem_open(mem, PAGES * GMEM_PAGE, 0xd0000000, 0x100000000, file), 0);
}

static unsigned private_pages(const struct gmem *mem)
{
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	unsigned n = 0;

	for (unsigned i = 0; i < PAGES; i++) {
		uint64_t entry;

		cr_assert_eq(pread(pagemap, &entry, 8,
		                   (off_t)(((uintptr_t)mem->region[0].hva / GMEM_PAGE + i) * 8)),
		             8);
		n += (entry >> 63 & 1) && !(entry >> 61 & 1);
	}
	close(pagemap);
	return n;
}

/* As a client does it: a whole new file takes the old one's name. */
static int write_set(const struct gmem *mem, struct pagein_watch watch, bool later,
                     const uint8_t *of, struct err *err)
{
	int before = later ? openat(dir_fd, "workset", O_RDONLY) : -1;
	int fd = openat(dir_fd, "new", O_WRONLY | O_CREAT | O_TRUNC, 0600), ret;

	watch.pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	ret = pagein_record(mem, &watch, before, fd, of, err);
	if (ret == 0)
		cr_assert_eq(renameat(dir_fd, "new", dir_fd, "workset"), 0);
	close(watch.pagemap_fd);
	close(fd);
	if (later)
		close(before);
	return ret;
}

static void record(void)
{
	struct err err = { 0 };
	struct gmem mem;
	uint8_t byte;

	open_mem(&mem);
	for (unsigned i = 10; i < 20; i++)
		cr_assert_eq(gmem_write(&mem, gpa(i * GMEM_PAGE + 5), "w", 1), 0);
	cr_assert_eq(gmem_write(&mem, gpa(1000 * GMEM_PAGE), "w", 1), 0);
	cr_assert_eq(gmem_read(&mem, gpa(500 * GMEM_PAGE), &byte, 1), 0);
	cr_assert_eq(write_set(&mem, (struct pagein_watch){ 0 }, false, id, &err), 0, "%s",
	             err.msg);
	gmem_close(&mem);
}

Test(pagein, written_pages_come_in_private_with_the_template_content)
{
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;
	uint8_t byte;

	record();
	open_mem(&mem);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_populate(&set, &mem, &err), 0, "%s", err.msg);
	cr_assert_eq(set.written, 11u);
	cr_assert_eq(set.populated, 11u);
	cr_assert_eq(set.read + set.near, 0u);
	cr_assert_eq(set.nr_runs, 2u);
	cr_assert_eq(private_pages(&mem), 11u);
	cr_assert_eq(gmem_read(&mem, gpa(10 * GMEM_PAGE + 5), &byte, 1), 0);
	cr_assert_eq(byte, 10 | 1, "the page has the recording's content, not the template's");
	pagein_close(&set);
	gmem_close(&mem);
}

Test(pagein, none_is_slow_and_not_wrong)
{
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;

	open_mem(&mem);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_populate(&set, &mem, &err), 0);
	cr_assert_eq(set.populated, 0u);
	pagein_close(&set);
	gmem_close(&mem);
}

Test(pagein, of_another_snapshot)
{
	const uint8_t other[SNAPSHOT_ID_LEN] = { 9 };
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;

	record();
	open_mem(&mem);
	cr_assert_eq(pagein_open(&set, dir_fd, other, &err), -EBADMSG);
	pagein_close(&set);
	gmem_close(&mem);
}

Test(pagein, runs_outside_memory_are_refused)
{
	struct pagein set;
	struct err err = { 0 };
	struct gmem small;

	record();
	cr_assert_eq(gmem_open(&small, 256 * GMEM_PAGE, 0xd0000000, 0x100000000, file), 0);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &small, file, &err), -EBADMSG, "%s", err.msg);
	pagein_close(&set);
	gmem_close(&small);
}

Test(pagein, every_flipped_byte_is_refused)
{
	struct pagein set;
	struct gmem mem;
	int fd;
	off_t len;

	record();
	open_mem(&mem);
	fd = openat(dir_fd, "workset", O_RDWR);
	len = lseek(fd, 0, SEEK_END);
	for (off_t at = 0; at < len; at++) {
		struct err err = { 0 };
		uint8_t old, bad;

		cr_assert_eq(pread(fd, &old, 1, at), 1);
		bad = old ^ 0x40;
		cr_assert_eq(pwrite(fd, &bad, 1, at), 1);
		cr_assert_eq(pagein_open(&set, dir_fd, id, &err), -EBADMSG, "byte %lld",
		             (long long)at);
		pagein_close(&set);
		cr_assert_eq(pwrite(fd, &old, 1, at), 1);
	}
	gmem_close(&mem);
}

/* One table chain in pages 0 to 3, which maps pages 10 to 13. */
static void put_tables(const struct gmem *mem)
{
	static const uint64_t zero[GMEM_PAGE / 8];

	for (uint64_t i = 0; i < 4; i++)
		cr_assert_eq(gmem_write(mem, gpa(i * GMEM_PAGE), zero, sizeof(zero)), 0);
	for (uint64_t i = 0; i < 3; i++) {
		const uint64_t table = (i + 1) * GMEM_PAGE | 3;

		cr_assert_eq(gmem_write(mem, gpa(i * GMEM_PAGE), &table, 8), 0);
	}
	for (uint64_t i = 0; i < 4; i++) {
		const uint64_t page = (10 + i) * GMEM_PAGE | 0x21 | (i < 3 ? 2 : 0);

		cr_assert_eq(gmem_write(mem, gpa(3 * GMEM_PAGE + i * 8), &page, 8), 0);
	}
}

/* Records a guest that writes page 10 and reads 11, and 13 where it may only read; 12 is let alone. */
static void record_use(bool reads_13)
{
	const uint8_t used = 0x23, only_read = 0x21;
	struct pagein_watch watch;
	struct err err = { 0 };
	struct gmem mem;

	open_mem(&mem);
	put_tables(&mem);
	cr_assert_eq(pagein_watch(&watch, &mem, file, 0x18),
	             0); /* CR3 with flags: the table is in page 0 */
	watch.empty = false;
	cr_assert_eq(gmem_write(&mem, gpa(10 * GMEM_PAGE), "w", 1), 0);
	cr_assert_eq(gmem_write(&mem, gpa(3 * GMEM_PAGE), &used, 1), 0);
	cr_assert_eq(gmem_write(&mem, gpa(3 * GMEM_PAGE + 8), &used, 1), 0);
	if (reads_13)
		cr_assert_eq(gmem_write(&mem, gpa(3 * GMEM_PAGE + 24), &only_read, 1), 0);
	cr_assert_eq(write_set(&mem, watch, false, id, &err), 0, "%s", err.msg);
	gmem_close(&mem);
}

static void check_use(unsigned near, unsigned read)
{
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;

	open_mem(&mem);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert_eq(set.written, 1u);
	cr_assert_eq(set.near, near);
	cr_assert_eq(set.read, read);
	cr_assert_eq(pagein_populate(&set, &mem, &err), 0);
	cr_assert_eq(set.populated, 1 + near);
	cr_assert_eq(private_pages(&mem), 1 + near);
	pagein_close(&set);
	gmem_close(&mem);
}

Test(pagein, pages_that_are_read_and_could_be_written_come_in_too)
{
	record_use(false);
	check_use(1, 4); /* read: the tables */
}

Test(pagein, window_of_which_much_is_used_comes_in_as_a_whole)
{
	record_use(true);
	check_use(3, 4);
}

/* A second recording adds what it wrote and the first did not; that waits until it is asked for. */
Test(pagein, what_later_cells_write_is_kept_apart)
{
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;

	record(); /* 10 to 19, and 1000 */
	open_mem(&mem);
	for (unsigned i = 15; i < 40; i++)
		cr_assert_eq(gmem_write(&mem, gpa(i * GMEM_PAGE), "w", 1), 0);
	cr_assert_eq(write_set(&mem, (struct pagein_watch){ 0 }, true, id, &err), 0, "%s", err.msg);
	gmem_close(&mem);

	open_mem(&mem);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_populate(&set, &mem, &err), 0);
	cr_assert_eq(private_pages(&mem), 11u);
	cr_assert_eq(set.later, 20u);
	cr_assert(pagein_later(&set, &mem, 1));
	cr_assert_not(pagein_later(&set, &mem, 1), "there was one run");
	cr_assert_eq(set.later_done, 20u);
	cr_assert_eq(private_pages(&mem), 31u);
	pagein_close(&set);
	gmem_close(&mem);
}

Test(pagein, nothing_can_be_added_to_another_snapshots_set)
{
	const uint8_t other[SNAPSHOT_ID_LEN] = { 9 };
	struct err err = { 0 };
	struct gmem mem;

	record();
	open_mem(&mem);
	cr_assert_eq(gmem_write(&mem, gpa(GMEM_PAGE), "w", 1), 0);
	cr_assert_eq(write_set(&mem, (struct pagein_watch){ 0 }, true, other, &err), -EBADMSG);
	gmem_close(&mem);
}

Test(pagein, cold_files_are_noticed)
{
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;

	record();
	open_mem(&mem);
	cr_assert_eq(fsync(file), 0);
	sync(); /* a page that is just being looked at by the kernel stays */
	cr_assert_eq(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert(set.cold);
	cr_assert_eq(pagein_populate(&set, &mem, &err), 0);
	cr_assert_eq(set.populated, 11u);
	pagein_close(&set);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert_not(set.cold);
	pagein_close(&set);
	gmem_close(&mem);
}

/* As KVM reads the guest's kernel: in no table of user space. */
Test(pagein, what_the_host_reads_is_found_when_the_cache_was_empty)
{
	struct pagein_watch watch;
	struct pagein set;
	struct err err = { 0 };
	struct gmem mem;
	uint8_t byte;

	cr_assert_eq(fsync(file), 0);
	open_mem(&mem);
	cr_assert_eq(pagein_watch(&watch, &mem, file, PAGES * (uint64_t)GMEM_PAGE), 0);
	cr_assert_eq(gmem_read(&mem, gpa(700 * GMEM_PAGE), &byte, 1), 0);
	cr_assert_eq(gmem_write(&mem, gpa(900 * GMEM_PAGE), "w", 1), 0);
	cr_assert_eq(write_set(&mem, watch, false, id, &err), 0, "%s", err.msg);
	gmem_close(&mem);
	open_mem(&mem);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), 0, "%s", err.msg);
	cr_assert_eq(pagein_begin(&set, &mem, file, &err), 0, "%s", err.msg);
	cr_assert_eq(set.written, 1u);
	if (watch.empty) /* not on a file system in memory */
		cr_assert_eq(set.read, 1u, "%u", set.read);
	pagein_close(&set);
	gmem_close(&mem);
}

/* A link in a snapshot's folder would let its author have any file of the host read. */
Test(pagein, a_link_is_no_part)
{
	struct pagein set;
	struct err err = { 0 };

	record();
	cr_assert_eq(renameat(dir_fd, "workset", dir_fd, "real"), 0);
	cr_assert_eq(symlinkat("real", dir_fd, "workset"), 0);
	cr_assert_eq(pagein_open(&set, dir_fd, id, &err), -ELOOP, "%s", err.msg);
}
