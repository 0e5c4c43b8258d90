/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device tree of any plan into any room: refused, or a tree that libfdt finds sound, of the length that was
 * told, with nothing written behind the room.
 */
#include "vmm/fdt.h"

#include "tests/fuzz/fuzz.h"
#include "vmm/layout.h"

#include <errno.h>
#include <libfdt.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	struct fdt_plan plan = { .nr_vcpus = fz_u8(&in) % 40, .nr_disks = fz_u8(&in) % 12 };
	size_t room = fz_u16(&in) % 0x4000;
	uint8_t *out;
	int len;

	if (fz_u8(&in) & 1) /* as hostile as an unsigned can be */
		plan.nr_disks = fz_u32(&in);
	plan.vmgenid = fz_u64(&in);
	out = malloc(room + 1); /* its end is the sanitizer's guard */
	FZ_CHECK(out);
	len = fdt_build(&plan, out, room);
	if (plan.nr_vcpus == 0 || plan.nr_disks >= LAYOUT_VIRTIO_SLOTS) {
		FZ_CHECK(len == -EINVAL);
	} else if (len < 0) {
		FZ_CHECK(len == -ENOSPC);
	} else {
		FZ_CHECK((size_t)len <= room && fdt_check_full(out, (size_t)len) == 0);
		FZ_CHECK(fdt_path_offset(out, "/cpus/cpu@0") > 0);
	}
	free(out);
	return 0;
}
