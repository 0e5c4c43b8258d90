/* SPDX-License-Identifier: Apache-2.0 */
#include "api/pagecache.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FOLIO ((off_t)2 << 20)

/* The parts of the file that hold data, whole folios at a time. */
static int populate(int fd, char *map, off_t size)
{
	off_t from = 0, to = 0;

	while ((from = lseek(fd, to, SEEK_DATA)) >= 0) {
		to = lseek(fd, from, SEEK_HOLE);
		if (to < 0)
			return -errno;
		from &= ~(FOLIO - 1);
		to = (to + FOLIO - 1) & ~(FOLIO - 1);
		to = to < size ? to : size;
		if (madvise(map + from, (size_t)(to - from), MADV_POPULATE_READ) < 0)
			return -errno;
		if (to == size)
			return 0;
	}
	return errno == ENXIO ? 0 : -errno; /* ENXIO: no data after that */
}

int pagecache_settle(const char *path, struct err *err)
{
	own_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *map;
	int rc;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(err, -errno, "%s: %s", path, strerror(errno));
	(void)posix_fadvise(fd, 0, 0,
	                    POSIX_FADV_DONTNEED); /* what stays is only in smaller folios */
	if (!st.st_size)
		return 0;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return err_set(err, -errno, "map %s: %s", path, strerror(errno));
	(void)madvise(map, (size_t)st.st_size, MADV_HUGEPAGE); /* kernels without: small folios */
	rc = populate(fd, map, st.st_size);
	munmap(map, (size_t)st.st_size);
	return rc ? err_set(err, rc, "read %s: %s", path, strerror(-rc)) : 0;
}
