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
	static int dir = -1;
	const struct pagein_watch watch = { 0 };
	struct pagein set;
	struct err err = { 0 };
	uint8_t *file = malloc(n + 1);
	uint32_t pages = 0;

	if (dir < 0) {
		fz_mem_open(&mem);
		FZ_CHECK((dir = open(fz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
	}
	FZ_CHECK(file);
	memcpy(file, data, n);
	if (n >= HEADER + sizeof(id))
		memcpy(file + HEADER, id, sizeof(id));
	fz_mend(file, n);
	fz_put(dir, "workset", file, n);
	free(file);
	if (pagein_open(&set, dir, id, &err) < 0 || pagein_begin(&set, &mem, &err) < 0) {
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
	/* A recording adds to it, which writes a file: not each time. */
	if (n % 8 == 0 && pagein_record(&mem, &watch, true, fz_dir(), id, &err) < 0)
		FZ_CHECK(err.code < 0 && err.msg[0]);
	return 0;
}
