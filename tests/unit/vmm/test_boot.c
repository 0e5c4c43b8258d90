/* SPDX-License-Identifier: Apache-2.0 */
#include "core/own.h"
#include "tests/unit/vmm/test_boot_image.h"
#include "vmm/boot.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct image im;
static struct gmem mem;
static struct boot_plan plan;

static void setup(void)
{
	image_init(&im);
	plan = (struct boot_plan){ .cmdline = "quiet", .nr_vcpus = 1, .nr_disks = 1 };
	cr_assert_eq(gmem_open(&mem, IMAGE_MIB << 20, LAYOUT_HOLE_START, LAYOUT_HOLE_END, -1), 0);
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(boot, .init = setup, .fini = teardown);

static int load_path(const char *path, struct boot_regs *regs, struct err *err)
{
	own_fd int fd = boot_open(path, mem.size, &plan.kernel_size, err);

	plan.kernel = path;
	plan.kernel_fd = fd;
	return fd < 0 ? fd : boot_load(&mem, &plan, regs, err);
}

static int load_bytes(const void *bytes, size_t n, struct boot_regs *regs, struct err *err)
{
	char path[64];
	own_fd int fd = image_file(bytes, n, path);

	(void)fd; /* the path is its name */
	*err = (struct err){ 0 };
	return load_path(path, regs, err);
}

/* Nothing but zeros where kernel and boot structures go. */
static void is_untouched(void)
{
	static uint8_t got[2 << 20], zero[2 << 20];
	const uint64_t at[] = { 0, IMAGE_TEXT };

	for (unsigned i = 0; i < ARRAY_LEN(at); i++) {
		cr_assert_eq(gmem_read(&mem, gpa(at[i]), got, sizeof(got)), 0);
		cr_assert_eq(memcmp(got, zero, sizeof(got)), 0, "memory at %#llx was changed",
		             (unsigned long long)at[i]);
	}
}

static void refused(int code, const char *word)
{
	struct boot_regs regs;
	struct err err;
	int ret = load_bytes(&im, sizeof(im), &regs, &err);

	cr_assert_eq(ret, code, "%d (%s), want %d", ret, err.msg, code);
	cr_assert_not_null(strstr(err.msg, word), "\"%s\" does not speak of %s", err.msg, word);
	is_untouched();
}

static void enters(enum boot_entry entry, uint64_t rip)
{
	struct boot_regs regs;
	struct err err;

	cr_assert_eq(load_bytes(&im, sizeof(im), &regs, &err), 0, "%s", err.msg);
	cr_assert_eq(regs.entry, entry);
	cr_assert_eq(regs.rip, rip);
	cr_assert_eq(regs.rsi, entry == BOOT_LINUX64 ? LAYOUT_ZERO_PAGE : 0);
	cr_assert_eq(regs.rbx, entry == BOOT_PVH ? LAYOUT_PVH_INFO : 0);
}

Test(boot, loads_an_elf)
{
	uint8_t got[IMAGE_SEG_LEN];

	image_note_linux(&im);
	enters(BOOT_LINUX64, IMAGE_TEXT + 0x123);
	cr_assert_eq(gmem_read(&mem, gpa(IMAGE_DATA), got, sizeof(got)), 0);
	cr_assert_arr_eq(got, im.data, sizeof(got));
}

Test(boot, linux_with_both_entries_gets_the_64_bit_one)
{
	image_note_pvh(&im);
	image_note_linux(&im);
	enters(BOOT_LINUX64, IMAGE_TEXT + 0x123);
}

Test(boot, other_kernels_get_pvh)
{
	image_note_pvh(&im);
	enters(BOOT_PVH, IMAGE_PVH);
}

Test(boot, linux_without_a_physical_entry_gets_pvh)
{
	image_note_pvh(&im);
	image_note_linux(&im);
	im.eh.e_entry = 0xffffffff81000123ull;
	enters(BOOT_PVH, IMAGE_PVH);
}

Test(boot, a_kernel_without_notes_gets_the_64_bit_entry)
{
	enters(BOOT_LINUX64, IMAGE_TEXT + 0x123);
}

Test(boot, refuses_a_kernel_without_entry)
{
	im.eh.e_entry = IMAGE_DATA;
	refused(-ENOEXEC, "no usable entry");
	image_init(&im);
	im.eh.e_entry = 0;
	im.ph[0].p_flags = PF_R;
	image_note_pvh(&im);
	refused(-ENOEXEC, "no usable entry");
}

Test(boot, loads_the_elf_inside_a_bzimage)
{
	static uint8_t file[65536];
	char path[64], shell[128];
	own_fd int fd = image_file(&im, sizeof(im), path);
	struct boot_regs regs;
	struct err err;
	size_t n;
	FILE *p;

	(void)snprintf(shell, sizeof(shell), "gzip -n </proc/%d/fd/%d", getpid(), fd);
	p = popen(shell, "r");
	n = fread(file + BZIMAGE_SETUP + BZIMAGE_PAYLOAD, 1, 60000, p);
	cr_assert_eq(pclose(p), 0);
	image_bzimage(file, (uint32_t)n);
	cr_assert_eq(load_bytes(file, BZIMAGE_SETUP + BZIMAGE_PAYLOAD + n, &regs, &err), 0, "%s",
	             err.msg);
	cr_assert_eq(regs.rip, IMAGE_TEXT + 0x123);
}

Test(boot, refuses_other_files_with_path_and_remedy)
{
	struct boot_regs regs;
	struct err err;

	cr_assert_eq(load_bytes("#!/bin/sh\n", 10, &regs, &err), -ENOEXEC);
	cr_assert_not_null(strstr(err.msg, "kernel /proc/self/fd/"));
	cr_assert_not_null(strstr(err.msg, "neither an ELF"));
	cr_assert_not_null(strstr(err.remedy, "vmlinux"));
	cr_assert_eq(load_bytes("", 0, &regs, &err), -ENOEXEC);
	cr_assert_eq(load_path("/nonexistent/vmlinux", &regs, &err), -ENOENT);
	cr_assert_eq(load_path("/", &regs, &err), -ENOEXEC);
	is_untouched();
}

Test(boot, a_fifo_does_not_hang, .timeout = 10)
{
	char path[64];
	struct boot_regs regs;
	struct err err;

	(void)snprintf(path, sizeof(path), "/tmp/thawbox-test-%d.fifo", getpid());
	cr_assert_eq(mkfifo(path, 0600), 0);
	cr_assert_eq(load_path(path, &regs, &err), -ENOEXEC);
	cr_assert_eq(unlink(path), 0);
}

Test(boot, refuses_bad_elves_before_anything_changes)
{
	im.ph[1].p_paddr = LAYOUT_CMDLINE;
	refused(-ENOEXEC, "boot structures");
	image_init(&im);
	im.ph[1].p_memsz = 1ull << 31;
	refused(-ENOMEM, "64 MiB");
	image_init(&im);
	im.ph[1].p_paddr = IMAGE_TEXT;
	refused(-ENOEXEC, "overlap");
}

Test(boot, refuses_bad_plans)
{
	char *cmdline = malloc(LAYOUT_CMDLINE_MAX + 1);

	memset(cmdline, 'x', LAYOUT_CMDLINE_MAX);
	cmdline[LAYOUT_CMDLINE_MAX] = '\0';
	plan.cmdline = cmdline;
	refused(-EINVAL, "command line of 2048");
	cmdline[LAYOUT_CMDLINE_MAX - 1] = '\0';
	enters(BOOT_LINUX64, IMAGE_TEXT + 0x123);
	teardown();
	setup();
	plan.nr_vcpus = 0;
	refused(-EINVAL, "vCPU");
	plan.nr_vcpus = 1;
	plan.nr_disks = LAYOUT_VIRTIO_SLOTS;
	refused(-EINVAL, "8 disks");
	plan.nr_disks = 1;
	plan.vmgenid = 0x2000800;
	refused(-EINVAL, "generation id");
	plan.vmgenid = LAYOUT_ZERO_PAGE;
	refused(-EINVAL, "generation id");
	free(cmdline);
}
