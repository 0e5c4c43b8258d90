/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page tables of a hostile guest: the input places entries that point anywhere, also at tables again. The walk
 * tells only of tables in memory and of pages below the lower half's end; forgetting and touching change the accessed
 * flags of present entries and nothing else.
 */
#include "vmm/guestpages.h"

#include "tests/fuzz/fuzz.h"

#include <errno.h>

#define TABLES   10u
#define ACCESSED (1ull << 5)
#define MAX_ADDS 64

static struct gmem mem;
static uint64_t before[TABLES * GMEM_PAGE / 8];

static void on_table(void *ctx, uint64_t addr, bool accessed)
{
	struct gview view;

	(void)ctx;
	(void)accessed;
	FZ_CHECK(gmem_view(&mem, gpa(addr), GMEM_PAGE, &view) == 0);
}

static void on_page(void *ctx, uint64_t addr, uint64_t va, bool accessed, bool writable)
{
	uint64_t *last = ctx;

	(void)accessed;
	(void)writable;
	FZ_CHECK(addr % GMEM_PAGE == 0 && addr < 1ull << 52 && va >> 47 == 0 && va >= *last);
	*last = va;
}

static void on_large(void *ctx, uint64_t addr, bool writable)
{
	(void)ctx;
	(void)writable;
	FZ_CHECK(addr % GUESTPAGES_LARGE == 0);
}

/* One entry: few in each table, as a loop through full ones takes a walk to its bound of tables each time. */
static void add_entry(struct fz_in *in)
{
	unsigned table = fz_u8(in) % TABLES, slot = fz_u16(in) % 512;
	uint8_t kind = fz_u8(in);
	uint64_t to = kind & 0x80 ? fz_gpa(in) : (uint64_t)(fz_u8(in) % TABLES) * GMEM_PAGE;
	uint64_t entry = (to & 0x000ffffffffff000ull) | (kind & 1) | (kind & 2) |
	                 (kind & 4 ? ACCESSED : 0) | (kind & 8 ? 1u << 7 : 0) |
	                 (kind & 0x10 ? 1ull << 63 : 0);

	memcpy(mem.region[0].hva + table * GMEM_PAGE + slot * 8, &entry, sizeof(entry));
}

/* `set`: the accessed flags may have been set, else cleared. */
static void check_changes(bool set)
{
	const uint64_t *now = (const uint64_t *)(const void *)mem.region[0].hva;

	for (size_t i = 0; i < ARRAY_LEN(before); i++) {
		if (now[i] == before[i])
			continue;
		FZ_CHECK((now[i] ^ before[i]) == ACCESSED && (before[i] & 1));
		FZ_CHECK(!!(now[i] & ACCESSED) == set);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	uint64_t cr3 = fz_u16(&in), last = 0;
	const struct guestpages_visit visit = { on_table, on_page, on_large, &last };
	int ret;

	if (!mem.size)
		fz_mem_open(&mem);
	memset(mem.region[0].hva, 0, sizeof(before)); /* nothing writes the rest */
	cr3 = cr3 & 0x8000 ? fz_gpa(&in) : cr3 % TABLES * GMEM_PAGE | (cr3 & 0xfff);
	for (int i = 0; in.n && i < MAX_ADDS; i++)
		add_entry(&in);
	memcpy(before, mem.region[0].hva, sizeof(before));
	ret = guestpages_walk(&mem, cr3, &visit);
	FZ_CHECK(ret == 0 || ret == -ELOOP);
	FZ_CHECK(memcmp(before, mem.region[0].hva, sizeof(before)) == 0);
	ret = guestpages_forget(&mem, cr3);
	FZ_CHECK(ret == 0 || ret == -ELOOP);
	check_changes(false);
	memcpy(before, mem.region[0].hva, sizeof(before));
	ret = guestpages_touch(&mem, cr3);
	FZ_CHECK(ret == 0 || ret == -ELOOP);
	check_changes(true);
	return 0;
}
