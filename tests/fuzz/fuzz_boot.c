/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile kernel file: whatever it is, loading says yes or why not, and entry and code lie in RAM.
 * No unpacking program is found, so that a bzImage is followed as far as our own code goes.
 */
#include "tests/fuzz/fuzz.h"
#include "vmm/boot.h"
#include "vmm/layout.h"

#define MEMORY (32ull << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct gmem mem;
	char path[64];
	struct boot_plan plan = {
		.kernel = path, .cmdline = "quiet", .nr_vcpus = 1, .vmgenid = MEMORY - GMEM_PAGE
	};
	struct boot_regs regs = { 0 };
	struct err err = { 0 };
	struct gview view;
	int fd;

	if (!mem.nr_regions &&
	    (setenv("PATH", "/nonexistent", 1) < 0 ||
	     gmem_open(&mem, MEMORY, LAYOUT_HOLE_START, LAYOUT_HOLE_END, -1) < 0))
		abort();
	fd = memfd_create("kernel", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, n) != (ssize_t)n)
		abort();
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	plan.kernel_fd = boot_open(path, MEMORY, &plan.kernel_size, &err);
	if (plan.kernel_fd < 0 || boot_load(&mem, &plan, &regs, &err) < 0) {
		if (err.code >= 0 || !err.msg[0] || !err.remedy[0])
			abort();
	} else if (gmem_view(&mem, gpa(regs.rip), 1, &view) < 0 || regs.rip < LAYOUT_HIGH_START) {
		abort();
	}
	(void)close(plan.kernel_fd);
	(void)close(fd);
	return 0;
}
