/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forged working set: the input is the file, with its checksums and id made right. It is refused, or all that it
 * brings in lies in guest memory; what was there stays as it was.
 */
#include "vmm/pagein.h"

#include "tests/fuzz/fuzz.h"

#define HEADER 16u

static const uint8_t id[SNAPSHOT_ID_LEN] = { 0xf0, 0x22 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct gmem mem;
	static struct pagein_watch watch;
	static int dir = -1, memory, recorded;
	struct pagein set;
	struct err err = { 0 };
	uint8_t *file = malloc(n + 1);
	uint32_t pages = 0;

	if (dir < 0) {
		fz_mem_open(&mem);
		FZ_CHECK((dir = open(fz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
		FZ_CHECK((memory = memfd_create("memory", MFD_CLOEXEC)) >= 0);
		FZ_CHECK(ftruncate(memory, FZ_LOW + FZ_HIGH) == 0);
		FZ_CHECK((recorded = memfd_create("workset", MFD_CLOEXEC)) >= 0);
		FZ_CHECK((watch.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) >=
		         0);
	}
	FZ_CHECK(file);
	memcpy(file, data, n);
	if (n >= HEADER + sizeof(id))
		memcpy(file + HEADER, id, sizeof(id));
	fz_mend(file, n);
	fz_put(dir, "workset", file, n);
	free(file);
	if (pagein_open(&set, dir, id, &err) < 0 || pagein_begin(&set, &mem, memory, &err) < 0) {
		FZ_CHECK(err.code < 0 && err.msg[0]);
		pagein_close(&set);
		return 0;
	}
	for (uint32_t i = 0; i < set.nr_runs; i++)
		pages += set.runs[i].nr_pages;
	FZ_CHECK(pagein_populate(&set, &mem, &err) == 0);
	while (pagein_later(&set, &mem, 4))
		;
	FZ_CHECK(atomic_load(&set.populated) + set.later_done <= pages);
	pagein_close(&set);
	/* A recording adds to it, which syncs a file: not each time. */
	if (n % 8 == 0) {
		int before = openat(dir, "workset", O_RDONLY | O_CLOEXEC);

		FZ_CHECK(before >= 0 && ftruncate(recorded, 0) == 0 &&
		         lseek(recorded, 0, SEEK_SET) == 0);
		if (pagein_record(&mem, &watch, before, recorded, id, &err) < 0)
			FZ_CHECK(err.code < 0 && err.msg[0]);
		close(before);
	}
	return 0;
}
