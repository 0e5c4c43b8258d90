/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/boot_setup.h"

#include "core/own.h"
#include "vmm/fdt.h"
#include "vmm/layout.h"

#include <asm/bootparam.h>
#include <errno.h>
#include <string.h>

#define HEADER_MAGIC   0x53726448u /* "HdrS" */
#define BOOT_FLAG      0xaa55u
#define BOOT_PROTOCOL  0x020fu
#define LOADER_UNKNOWN 0xffu
#define E820_RAM       1u

#define GIB         (1ull << 30)
#define PTE_PRESENT 0x01ull
#define PTE_WRITE   0x02ull
#define PTE_LARGE   0x80ull
#define PTES        512u
#define LARGE_PAGE  (2ull << 20)

/* Segment descriptors, base 0, limit 4 GiB, accessed (Intel SDM volume 3, 3.4.5). */
#define GDT_CODE64 0x00af9b000000ffffull
#define GDT_CODE32 0x00cf9b000000ffffull
#define GDT_DATA   0x00cf93000000ffffull
#define GDT_TSS32  0x00008b0000000067ull /* busy, limit 0x67, as PVH asks for */
#define GDT_SLOTS  6u

/* Xen's public start_info.h, version 1. */
#define PVH_MAGIC 0x336ec578u
struct pvh_start_info {
	uint32_t magic;
	uint32_t version;
	uint32_t flags;
	uint32_t nr_modules;
	uint64_t modlist;
	uint64_t cmdline;
	uint64_t rsdp;
	uint64_t memmap;
	uint32_t memmap_entries;
	uint32_t reserved;
};
struct pvh_memmap_entry {
	uint64_t addr;
	uint64_t size;
	uint32_t type; /* as in e820 */
	uint32_t reserved;
};
_Static_assert(sizeof(struct pvh_start_info) == 56, "layout is fixed by Xen");
_Static_assert(sizeof(struct pvh_memmap_entry) == 24, "layout is fixed by Xen");
_Static_assert(sizeof(struct boot_params) == GMEM_PAGE, "the zero page is a page");

static unsigned add_range(struct boot_range *out, unsigned nr, uint64_t start, uint64_t end)
{
	if (start >= end)
		return nr;
	out[nr] = (struct boot_range){ .start = start, .len = end - start };
	return nr + 1;
}

unsigned boot_ram_ranges(const struct gmem *mem, uint64_t vmgenid,
                         struct boot_range out[BOOT_MAX_RANGES])
{
	unsigned nr = add_range(out, 0, 0, LAYOUT_LOW_END);

	for (unsigned i = 0; i < mem->nr_regions; i++) {
		uint64_t start = mem->region[i].gpa, end = start + mem->region[i].len;

		if (start < LAYOUT_HIGH_START)
			start = LAYOUT_HIGH_START;
		if (vmgenid >= start && vmgenid < end) {
			nr = add_range(out, nr, start, vmgenid);
			start = vmgenid + GMEM_PAGE;
		}
		nr = add_range(out, nr, start, end);
	}
	return nr;
}

/* The random seed's node, which points at the device tree's. */
static int write_setup_data(const struct gmem *mem, const struct boot_plan *plan, struct err *err)
{
	const struct fdt_plan machine = {
		.nr_vcpus = plan->nr_vcpus,
		.nr_disks = plan->nr_disks,
		.vmgenid = plan->vmgenid,
	};
	const uint64_t dtb_at = LAYOUT_SETUP_DATA + 64;
	const size_t room = LAYOUT_SETUP_DATA_MAX - 64 - sizeof(struct setup_data);
	struct setup_data seed = { .next = dtb_at,
		                   .type = SETUP_RNG_SEED,
		                   .len = sizeof(plan->rng_seed) };
	struct setup_data dtb = { .type = SETUP_DTB };
	own_free void *tree = malloc(room);
	int len, ret;

	_Static_assert(sizeof(seed) + sizeof(plan->rng_seed) <= 64, "the seed has 64 bytes");
	if (!tree)
		return err_set(err, -ENOMEM, "out of memory");
	len = fdt_build(&machine, tree, room);
	if (len < 0)
		return err_set(err, len, "the device tree of %u vCPUs and %u disks does not fit",
		               plan->nr_vcpus, plan->nr_disks);
	dtb.len = (uint32_t)len;
	ret = gmem_write(mem, gpa(LAYOUT_SETUP_DATA), &seed, sizeof(seed));
	if (ret == 0)
		ret = gmem_write(mem, gpa(LAYOUT_SETUP_DATA + sizeof(seed)), plan->rng_seed,
		                 sizeof(plan->rng_seed));
	if (ret == 0)
		ret = gmem_write(mem, gpa(dtb_at), &dtb, sizeof(dtb));
	if (ret == 0)
		ret = gmem_write(mem, gpa(dtb_at + sizeof(dtb)), tree, (size_t)len);
	return ret < 0 ? err_set(err, ret, "write setup data") : 0;
}

static int write_zero_page(const struct gmem *mem, const struct boot_plan *plan)
{
	struct boot_range ram[BOOT_MAX_RANGES];
	struct boot_params zero_page = { 0 };
	struct setup_header *h = &zero_page.hdr;

	h->boot_flag = BOOT_FLAG;
	h->header = HEADER_MAGIC;
	h->version = BOOT_PROTOCOL;
	h->type_of_loader = LOADER_UNKNOWN;
	h->loadflags = LOADED_HIGH;
	h->cmd_line_ptr = (uint32_t)LAYOUT_CMDLINE;
	h->cmdline_size = (uint32_t)strlen(plan->cmdline);
	h->setup_data = LAYOUT_SETUP_DATA;
	zero_page.e820_entries = (uint8_t)boot_ram_ranges(mem, plan->vmgenid, ram);
	for (unsigned i = 0; i < zero_page.e820_entries; i++)
		zero_page.e820_table[i] = (struct boot_e820_entry){
			.addr = ram[i].start,
			.size = ram[i].len,
			.type = E820_RAM,
		};
	return gmem_write(mem, gpa(LAYOUT_ZERO_PAGE), &zero_page, sizeof(zero_page));
}

static int write_table(const struct gmem *mem, uint64_t at, const uint64_t table[PTES])
{
	return gmem_write(mem, gpa(at), table, PTES * sizeof(table[0]));
}

/* Identity map by 2 MiB pages, as far as the kernel goes and at least 1 GiB. */
static int write_page_tables(const struct gmem *mem, uint64_t kernel_end)
{
	const uint64_t pdpt_at = LAYOUT_PAGE_TABLE + GMEM_PAGE, pd_at = pdpt_at + GMEM_PAGE;
	unsigned nr_pds = kernel_end <= GIB ? 1 : (unsigned)((kernel_end + GIB - 1) / GIB);
	uint64_t pml4[PTES] = { pdpt_at | PTE_PRESENT | PTE_WRITE }, pdpt[PTES] = { 0 };
	int ret = write_table(mem, LAYOUT_PAGE_TABLE, pml4);

	BUG_ON(nr_pds > LAYOUT_PAGE_TABLE_PDS); /* the kernel ends below the hole */
	for (uint64_t i = 0; i < nr_pds && ret == 0; i++) {
		uint64_t pd[PTES], addr = i * GIB;

		for (unsigned k = 0; k < PTES; k++, addr += LARGE_PAGE)
			pd[k] = addr | PTE_PRESENT | PTE_WRITE | PTE_LARGE;
		pdpt[i] = (pd_at + i * GMEM_PAGE) | PTE_PRESENT | PTE_WRITE;
		ret = write_table(mem, pd_at + i * GMEM_PAGE, pd);
	}
	return ret < 0 ? ret : write_table(mem, pdpt_at, pdpt);
}

static int write_gdt(const struct gmem *mem, struct boot_regs *regs)
{
	const uint64_t gdt[GDT_SLOTS] = {
		[BOOT_SEL_CODE / 8] = regs->entry == BOOT_PVH ? GDT_CODE32 : GDT_CODE64,
		[BOOT_SEL_DATA / 8] = GDT_DATA,
		[BOOT_SEL_TSS / 8] = GDT_TSS32, /* two slots: valid as a 64-bit one as well */
	};

	regs->gdt = LAYOUT_GDT;
	regs->gdt_limit = sizeof(gdt) - 1;
	return gmem_write(mem, gpa(LAYOUT_GDT), gdt, sizeof(gdt));
}

static int write_start_info(const struct gmem *mem, const struct boot_plan *plan)
{
	struct pvh_start_info info = {
		.magic = PVH_MAGIC,
		.version = 1,
		.cmdline = LAYOUT_CMDLINE,
		.memmap = LAYOUT_PVH_INFO + sizeof(info),
	};
	struct pvh_memmap_entry map[BOOT_MAX_RANGES] = { 0 };
	struct boot_range ram[BOOT_MAX_RANGES];
	int ret;

	_Static_assert(sizeof(info) + sizeof(map) <= GMEM_PAGE, "start info has one page");
	info.memmap_entries = boot_ram_ranges(mem, plan->vmgenid, ram);
	for (unsigned i = 0; i < info.memmap_entries; i++)
		map[i] = (struct pvh_memmap_entry){ ram[i].start, ram[i].len, E820_RAM, 0 };
	ret = gmem_write(mem, gpa(LAYOUT_PVH_INFO), &info, sizeof(info));
	return ret < 0 ? ret
	               : gmem_write(mem, gpa(info.memmap), map,
	                            info.memmap_entries * sizeof(map[0]));
}

static int setup_linux64(const struct gmem *mem, const struct boot_plan *plan, uint64_t kernel_end,
                         struct boot_regs *regs, struct err *err)
{
	int ret = write_setup_data(mem, plan, err);

	if (ret < 0)
		return ret;
	ret = write_zero_page(mem, plan);
	if (ret == 0)
		ret = write_page_tables(mem, kernel_end);
	regs->rsi = LAYOUT_ZERO_PAGE;
	regs->cr3 = LAYOUT_PAGE_TABLE;
	return ret < 0 ? err_set(err, ret, "write boot structures") : 0;
}

static int setup_pvh(const struct gmem *mem, const struct boot_plan *plan, struct boot_regs *regs,
                     struct err *err)
{
	int ret = write_start_info(mem, plan);

	regs->rbx = LAYOUT_PVH_INFO;
	return ret < 0 ? err_set(err, ret, "write PVH start info") : 0;
}

int boot_setup(const struct gmem *mem, const struct boot_plan *plan, uint64_t kernel_end,
               struct boot_regs *regs, struct err *err)
{
	int ret = regs->entry == BOOT_PVH ? setup_pvh(mem, plan, regs, err)
	                                  : setup_linux64(mem, plan, kernel_end, regs, err);

	if (ret < 0)
		return ret;
	ret = gmem_write(mem, gpa(LAYOUT_CMDLINE), plan->cmdline, strlen(plan->cmdline) + 1);
	if (ret == 0)
		ret = write_gdt(mem, regs);
	return ret < 0 ? err_set(err, ret, "write command line") : 0;
}
