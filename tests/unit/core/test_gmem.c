/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gmem.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB        (1ull << 20)
#define HOLE_START (4 * MIB)
#define HOLE_END   (4096 * MIB)

static struct gmem mem;

/* 4 MiB below the hole, 2 MiB above it. */
static void setup(void)
{
	cr_assert_eq(gmem_open(&mem, 6 * MIB, HOLE_START, HOLE_END, -1), 0);
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(gmem, .init = setup, .fini = teardown);

Test(gmem, layout)
{
	cr_assert_eq(mem.nr_regions, 2);
	cr_assert_eq(mem.size, 6 * MIB);
	cr_assert_eq(mem.region[0].gpa, 0);
	cr_assert_eq(mem.region[0].len, 4 * MIB);
	cr_assert_eq(mem.region[1].gpa, HOLE_END);
	cr_assert_eq(mem.region[1].len, 2 * MIB);
	cr_assert_eq(mem.region[1].file_off, 4 * MIB);
}

Test(gmem, sizes)
{
	struct gmem m;

	cr_assert_eq(gmem_open(&m, MIB, HOLE_START, HOLE_END, -1), 0);
	cr_assert_eq(m.nr_regions, 1);
	cr_assert_eq(m.region[0].len, MIB);
	gmem_close(&m);
	gmem_close(&m);
	cr_assert_eq(gmem_open(&m, HOLE_START, HOLE_START, HOLE_END, -1), 0);
	cr_assert_eq(m.nr_regions, 1);
	gmem_close(&m);
	cr_assert_eq(gmem_open(&m, MIB - 4096, HOLE_START, HOLE_END, -1), -EINVAL);
	cr_assert_eq(gmem_open(&m, MIB + 1, HOLE_START, HOLE_END, -1), -EINVAL);
	cr_assert_eq(gmem_open(&m, MIB, HOLE_START + 1, HOLE_END, -1), -EINVAL);
	cr_assert_eq(gmem_open(&m, MIB, HOLE_END, HOLE_START, -1), -EINVAL);
	cr_assert_eq(gmem_open(&m, 1ull << 60, HOLE_START, HOLE_END, -1), -ENOMEM);
	cr_assert_eq(m.nr_regions, 0);
}

/* The first byte, the last, and one too many, at each border. */
Test(gmem, bounds)
{
	static const struct {
		uint64_t addr, len;
		int want;
	} c[] = {
		{ 0, 1, 0 },
		{ 0, HOLE_START, 0 },
		{ 0, HOLE_START + 1, -EFAULT },
		{ HOLE_START - 1, 1, 0 },
		{ HOLE_START - 1, 2, -EFAULT },
		{ HOLE_START - 8, 16, -EFAULT },
		{ HOLE_START, 1, -EFAULT },
		{ HOLE_START, 0, -EFAULT },
		{ HOLE_START - 1, 0, 0 },
		{ HOLE_END - 1, 1, -EFAULT },
		{ HOLE_END - 1, 2, -EFAULT },
		{ HOLE_END, 2 * MIB, 0 },
		{ HOLE_END, 2 * MIB + 1, -EFAULT },
		{ HOLE_END + 2 * MIB - 1, 1, 0 },
		{ HOLE_END + 2 * MIB, 1, -EFAULT },
		{ UINT64_MAX, 1, -EFAULT },
		{ 0, UINT64_MAX, -EFAULT },
		{ 1, UINT64_MAX, -EFAULT },
		{ HOLE_END + 5, UINT64_MAX - 4, -EFAULT },
		{ UINT64_MAX - 4095, 4096, -EFAULT },
	};

	for (size_t i = 0; i < ARRAY_LEN(c); i++) {
		struct gview view = { .len = 99 };

		cr_assert_eq(gmem_view(&mem, gpa(c[i].addr), c[i].len, &view), c[i].want,
		             "case %zu", i);
		cr_assert_eq(view.len, c[i].want ? 0 : c[i].len);
	}
}

Test(gmem, copies)
{
	uint8_t out[300], in[300] = { 0 };
	struct gview view;
	struct iovec iov;

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 3);
	cr_assert_eq(gmem_write(&mem, gpa(HOLE_END + 1000), out, sizeof(out)), 0);
	cr_assert_eq(gmem_read(&mem, gpa(HOLE_END + 1000), in, sizeof(in)), 0);
	cr_assert_eq(memcmp(in, out, sizeof(in)), 0);
	cr_assert_eq(mem.region[1].hva[1000 + 7], out[7]);
	cr_assert_eq(gmem_write(&mem, gpa(HOLE_START - 100), out, 200), -EFAULT);
	cr_assert_eq(gmem_read(&mem, gpa(HOLE_START - 100), in, 100), 0);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(in[i], 0, "nothing of a refused write");
	cr_assert_eq(gmem_view(&mem, gpa(HOLE_END + 1000), 300, &view), 0);
	cr_assert_eq(gview_read(&view, 290, in, 10), 0);
	cr_assert_eq(memcmp(in, out + 290, 10), 0);
	cr_assert_eq(gview_read(&view, 291, in, 10), -EFAULT);
	cr_assert_eq(gview_write(&view, 300, in, 1), -EFAULT);
	cr_assert_eq(gview_write(&view, 300, in, 0), 0);
	cr_assert_eq(gview_read(&view, SIZE_MAX, in, 2), -EFAULT);
	cr_assert_eq(gview_iov(&view, 100, 200, &iov), 0);
	cr_assert_eq(memcmp(iov.iov_base, out + 100, 200), 0);
	cr_assert_eq(gview_iov(&view, 100, 201, &iov), -EFAULT);
}

Test(gmem, indices)
{
	struct gview view;
	uint8_t bytes[2];

	cr_assert_eq(gmem_view(&mem, gpa(4096), 8, &view), 0);
	gview_store16(&view, 6, 0x1234);
	cr_assert_eq(gview_load16(&view, 6), 0x1234);
	cr_assert_eq(gmem_read(&mem, gpa(4096 + 6), bytes, 2), 0);
	cr_assert_eq(bytes[0], 0x34, "little endian");
}

Test(gmem, an_index_outside_is_a_bug_of_ours, .signal = SIGILL)
{
	struct gview view;

	cr_assert_eq(gmem_view(&mem, gpa(4096), 8, &view), 0);
	gview_load16(&view, 7);
}

/* Memory of a snapshot: both regions come from the file, and no write goes back to it. */
Test(gmem, file_backed_and_private)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);
	struct gmem m;
	char c;

	cr_assert_eq(ftruncate(fd, 6 * MIB), 0);
	cr_assert_eq(pwrite(fd, "a", 1, 100), 1);
	cr_assert_eq(pwrite(fd, "b", 1, 4 * MIB + 100), 1);
	cr_assert_eq(gmem_open(&m, 6 * MIB, HOLE_START, HOLE_END, fd), 0);
	cr_assert_eq(gmem_read(&m, gpa(100), &c, 1), 0);
	cr_assert_eq(c, 'a');
	cr_assert_eq(gmem_read(&m, gpa(HOLE_END + 100), &c, 1), 0);
	cr_assert_eq(c, 'b');
	cr_assert_eq(gmem_write(&m, gpa(100), "z", 1), 0);
	cr_assert_eq(pread(fd, &c, 1, 100), 1);
	cr_assert_eq(c, 'a');
	gmem_close(&m);
	cr_assert_eq(gmem_open(&m, MIB, HOLE_START, HOLE_END, 9999), -EBADF);
	cr_assert_eq(m.nr_regions, 0);
}
