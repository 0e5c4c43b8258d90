/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/vmm/test_boot_image.h"
#include "vmm/boot_setup.h"

#include <errno.h>
#include <libfdt.h>

#define TOP ((uint64_t)IMAGE_MIB << 20)

static struct gmem mem;
static struct boot_plan plan;

static void setup(void)
{
	plan = (struct boot_plan){
		.kernel = "k",
		.cmdline = "console=ttyS0 quiet",
		.nr_vcpus = 2,
		.nr_disks = 1,
		.vmgenid = TOP - GMEM_PAGE,
	};
	for (unsigned i = 0; i < sizeof(plan.rng_seed); i++)
		plan.rng_seed[i] = (uint8_t)(i + 1);
	cr_assert_eq(gmem_open(&mem, TOP, LAYOUT_HOLE_START, LAYOUT_HOLE_END, -1), 0);
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(boot_setup, .init = setup, .fini = teardown);

static void read_at(uint64_t addr, void *dst, size_t n)
{
	cr_assert_eq(gmem_read(&mem, gpa(addr), dst, n), 0, "%#llx", (unsigned long long)addr);
}

static struct boot_regs set_up(enum boot_entry entry, uint64_t end)
{
	struct boot_regs regs = { .entry = entry, .rip = IMAGE_TEXT };
	struct err err = { 0 };

	cr_assert_eq(boot_setup(&mem, &plan, end, &regs, &err), 0, "%s", err.msg);
	return regs;
}

static void is_range(struct boot_range r, uint64_t start, uint64_t end)
{
	cr_assert_eq(r.start, start, "%#llx", (unsigned long long)r.start);
	cr_assert_eq(r.start + r.len, end, "%#llx", (unsigned long long)(r.start + r.len));
}

Test(boot_setup, ram_leaves_out_generation_id)
{
	struct boot_range r[BOOT_MAX_RANGES];

	cr_assert_eq(boot_ram_ranges(&mem, TOP - GMEM_PAGE, r), 2u);
	is_range(r[0], 0, 0xa0000);
	is_range(r[1], 0x100000, TOP - GMEM_PAGE);
	cr_assert_eq(boot_ram_ranges(&mem, 0x2000000, r), 3u);
	is_range(r[1], 0x100000, 0x2000000);
	is_range(r[2], 0x2001000, TOP);
	cr_assert_eq(boot_ram_ranges(&mem, 0, r), 2u);
	is_range(r[1], 0x100000, TOP);
	cr_assert_eq(boot_ram_ranges(&mem, 0x100000, r), 2u);
	is_range(r[1], 0x101000, TOP);
}

Test(boot_setup, ram_goes_on_above_the_hole)
{
	struct boot_range r[BOOT_MAX_RANGES];
	struct gmem big;

	cr_assert_eq(gmem_open(&big, 5ull << 30, LAYOUT_HOLE_START, LAYOUT_HOLE_END, -1), 0);
	cr_assert_eq(boot_ram_ranges(&big, 0, r), 3u);
	is_range(r[1], 0x100000, LAYOUT_HOLE_START);
	is_range(r[2], LAYOUT_HOLE_END, LAYOUT_HOLE_END + (5ull << 30) - LAYOUT_HOLE_START);
	gmem_close(&big);
}

Test(boot_setup, zero_page_says_what_linux_reads)
{
	struct boot_regs regs = set_up(BOOT_LINUX64, IMAGE_DATA);
	struct boot_params zp;
	char cmdline[64];

	cr_assert_eq(regs.rsi, LAYOUT_ZERO_PAGE);
	read_at(regs.rsi, &zp, sizeof(zp));
	cr_assert_eq(zp.hdr.boot_flag, 0xaa55);
	cr_assert_eq(memcmp(&zp.hdr.header, "HdrS", 4), 0);
	cr_assert_eq(zp.hdr.version, 0x020f);
	cr_assert_eq(zp.hdr.type_of_loader, 0xff);
	cr_assert_eq(zp.hdr.loadflags, 1);
	cr_assert_eq(zp.hdr.cmdline_size, strlen(plan.cmdline));
	cr_assert_eq(zp.hdr.ramdisk_image, 0u);
	cr_assert_eq(zp.e820_entries, 2);
	cr_assert_eq(zp.e820_table[0].addr, 0u);
	cr_assert_eq(zp.e820_table[0].size, 0xa0000u);
	cr_assert_eq(zp.e820_table[1].addr, 0x100000u);
	cr_assert_eq(zp.e820_table[1].size, TOP - GMEM_PAGE - 0x100000);
	cr_assert_eq(zp.e820_table[1].type, 1u);
	read_at(zp.hdr.cmd_line_ptr, cmdline, sizeof(cmdline));
	cr_assert_str_eq(cmdline, plan.cmdline);
}

Test(boot_setup, setup_data_is_seed_then_device_tree)
{
	static _Alignas(8) uint8_t tree[LAYOUT_SETUP_DATA_MAX];
	uint8_t seed[sizeof(plan.rng_seed)];
	struct boot_params zp;
	struct setup_data sd;

	(void)set_up(BOOT_LINUX64, IMAGE_DATA);
	read_at(LAYOUT_ZERO_PAGE, &zp, sizeof(zp));
	read_at(zp.hdr.setup_data, &sd, sizeof(sd));
	cr_assert_eq(sd.type, 9u);
	cr_assert_eq(sd.len, sizeof(seed));
	read_at(zp.hdr.setup_data + sizeof(sd), seed, sizeof(seed));
	cr_assert_arr_eq(seed, plan.rng_seed, sizeof(seed));
	cr_assert_eq(sd.next % 8, 0u);
	read_at(sd.next, &sd, sizeof(sd));
	cr_assert_eq(sd.type, 2u);
	cr_assert_eq(sd.next, 0u);
	read_at(LAYOUT_SETUP_DATA + 64 + sizeof(sd), tree, sd.len);
	cr_assert_eq(fdt_check_full(tree, sd.len), 0);
	cr_assert_geq(fdt_path_offset(tree, "/cpus/cpu@1"), 0);
	cr_assert_geq(fdt_path_offset(tree, "/virtio@d0002000"), 0);
	cr_assert_geq(fdt_path_offset(tree, "/vmgenid@3fff000"), 0);
}

/* Walks the tables as the CPU does, for a 2 MiB page. */
static uint64_t translate(uint64_t cr3, uint64_t va)
{
	uint64_t e, table = cr3;

	for (int shift = 39; shift >= 21; shift -= 9) {
		read_at(table + (va >> shift & 511) * 8, &e, sizeof(e));
		if (!(e & 1))
			return UINT64_MAX;
		cr_assert(e & 2, "not writable");
		table = e & 0x000ffffffffff000ull;
	}
	cr_assert(e & 0x80, "not a large page");
	return (table & ~0x1fffffull) | (va & 0x1fffff);
}

Test(boot_setup, page_tables_map_one_gib_or_the_kernel)
{
	struct boot_regs regs = set_up(BOOT_LINUX64, IMAGE_DATA);

	cr_assert_eq(translate(regs.cr3, 0), 0u);
	cr_assert_eq(translate(regs.cr3, 0x7123), 0x7123u);
	cr_assert_eq(translate(regs.cr3, 0x3fffffff), 0x3fffffffu);
	cr_assert_eq(translate(regs.cr3, 0x40000000), UINT64_MAX);
	cr_assert_eq(translate(regs.cr3, 1ull << 39), UINT64_MAX);
	regs = set_up(BOOT_LINUX64, 0x40000001);
	cr_assert_eq(translate(regs.cr3, 0x40000000), 0x40000000u);
	cr_assert_eq(translate(regs.cr3, 0x80000000), UINT64_MAX);
	regs = set_up(BOOT_LINUX64, LAYOUT_HOLE_START);
	cr_assert_eq(translate(regs.cr3, LAYOUT_HOLE_START - 1), LAYOUT_HOLE_START - 1);
}

Test(boot_setup, gdt_has_the_entrys_code_segment)
{
	struct boot_regs regs = set_up(BOOT_LINUX64, IMAGE_DATA);
	uint64_t gdt[6];

	cr_assert_eq(regs.gdt_limit, sizeof(gdt) - 1);
	read_at(regs.gdt, gdt, sizeof(gdt));
	cr_assert_eq(gdt[0], 0u);
	cr_assert_eq(gdt[BOOT_SEL_CODE / 8], 0x00af9b000000ffffu);
	cr_assert_eq(gdt[BOOT_SEL_DATA / 8], 0x00cf93000000ffffu);
	regs = set_up(BOOT_PVH, IMAGE_DATA);
	read_at(regs.gdt, gdt, sizeof(gdt));
	cr_assert_eq(gdt[BOOT_SEL_CODE / 8], 0x00cf9b000000ffffu);
	cr_assert_eq(gdt[BOOT_SEL_TSS / 8], 0x00008b0000000067u);
}

Test(boot_setup, pvh_start_info_has_command_line_and_memory_map)
{
	struct boot_regs regs = set_up(BOOT_PVH, IMAGE_DATA);
	uint32_t head[4], count, type;
	uint64_t ptr[4], range[2];
	char cmdline[64];

	cr_assert_eq(regs.rbx, LAYOUT_PVH_INFO);
	read_at(regs.rbx, head, sizeof(head));
	cr_assert_eq(head[0], 0x336ec578u);
	cr_assert_eq(head[1], 1u);
	cr_assert_eq(head[3], 0u, "modules");
	read_at(regs.rbx + 16, ptr, sizeof(ptr)); /* modlist, cmdline, rsdp, memmap */
	read_at(ptr[1], cmdline, sizeof(cmdline));
	cr_assert_str_eq(cmdline, plan.cmdline);
	cr_assert_eq(ptr[2], 0u);
	read_at(regs.rbx + 48, &count, sizeof(count));
	cr_assert_eq(count, 2u);
	read_at(ptr[3], range, sizeof(range));
	read_at(ptr[3] + 16, &type, sizeof(type));
	cr_assert_eq(range[0], 0u);
	cr_assert_eq(range[1], 0xa0000u);
	cr_assert_eq(type, 1u);
	read_at(ptr[3] + 24, range, sizeof(range));
	cr_assert_eq(range[0], 0x100000u);
	cr_assert_eq(range[1], TOP - GMEM_PAGE - 0x100000);
}

Test(boot_setup, device_tree_of_any_size_fits_or_is_refused)
{
	struct boot_regs regs = { .entry = BOOT_LINUX64 };
	struct err err = { 0 };

	plan.nr_vcpus = 400;
	cr_assert_eq(boot_setup(&mem, &plan, IMAGE_DATA, &regs, &err), 0, "%s", err.msg);
	plan.nr_vcpus = 100000;
	cr_assert_eq(boot_setup(&mem, &plan, IMAGE_DATA, &regs, &err), -ENOSPC);
	cr_assert_not_null(strstr(err.msg, "100000 vCPUs"));
}
