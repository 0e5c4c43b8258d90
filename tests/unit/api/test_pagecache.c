/* SPDX-License-Identifier: Apache-2.0 */
#include "api/pagecache.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE  4096
#define PAGES 2000 /* a size that is no multiple of 2 MiB */

static char path[64];
static int fd;

static void setup(void)
{
	(void)snprintf(path, sizeof(path), "/var/tmp/thawbox-pagecache-XXXXXX");
	fd = mkstemp(path);
	cr_assert_geq(fd, 0);
}

static void teardown(void)
{
	close(fd);
	unlink(path);
}

TestSuite(pagecache, .init = setup, .fini = teardown, .timeout = 60);

static void put(unsigned page, unsigned char value)
{
	unsigned char bytes[PAGE];

	memset(bytes, value, sizeof(bytes));
	cr_assert_eq(pwrite(fd, bytes, PAGE, (off_t)page * PAGE), PAGE);
}

static bool is_cached(unsigned page)
{
	unsigned char seen = 0;
	void *map = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);

	cr_assert_neq(map, MAP_FAILED);
	cr_assert_eq(mincore((char *)map + (size_t)page * PAGE, PAGE, &seen), 0);
	munmap(map, (size_t)PAGES * PAGE);
	return seen & 1;
}

Test(pagecache, all_data_is_read_and_stays_what_it_was)
{
	struct err err = { 0 };
	unsigned char byte = 0;

	cr_assert_eq(ftruncate(fd, (off_t)PAGES * PAGE), 0);
	put(3, 'a');
	put(1000, 'b');
	put(PAGES - 1, 'c');
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	cr_assert_eq(pagecache_settle(path, &err), 0, "%s", err.msg);
	cr_assert(is_cached(3) && is_cached(1000) && is_cached(PAGES - 1));
	cr_assert_eq(pread(fd, &byte, 1, 1000 * (off_t)PAGE), 1);
	cr_assert_eq(byte, 'b');
}

Test(pagecache, empty_and_sparse_files)
{
	struct err err = { 0 };

	cr_assert_eq(pagecache_settle(path, &err), 0, "%s", err.msg);
	cr_assert_eq(ftruncate(fd, (off_t)PAGES * PAGE), 0);
	cr_assert_eq(pagecache_settle(path, &err), 0, "%s", err.msg);
}

Test(pagecache, missing_file_is_named)
{
	struct err err = { 0 };

	cr_assert_eq(pagecache_settle("/nonexistent/memory", &err), -ENOENT);
	cr_assert_not_null(strstr(err.msg, "/nonexistent/memory"));
}
