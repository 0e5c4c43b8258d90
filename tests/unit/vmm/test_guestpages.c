/* SPDX-License-Identifier: Apache-2.0 */
/* Guest page tables, good and hostile. */
#include "vmm/guestpages.h"

#include <criterion/criterion.h>
#include <errno.h>

#define PAGES 512u
#define P     1ull
#define W     2ull
#define A     0x20ull
#define LARGE 0x80ull

static struct gmem mem;

static void setup(void)
{
	cr_assert_eq(gmem_open(&mem, PAGES * GMEM_PAGE, 0xd0000000, 0x100000000, -1), 0);
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(guestpages, .init = setup, .fini = teardown);

static void entry(unsigned table, unsigned i, unsigned page, uint64_t flags)
{
	uint64_t e = (uint64_t)page * GMEM_PAGE | flags;

	cr_assert_eq(gmem_write(&mem, gpa((uint64_t)table * GMEM_PAGE + i * 8), &e, 8), 0);
}

static uint64_t read_entry(unsigned table, unsigned i)
{
	uint64_t e = 0;

	cr_assert_eq(gmem_read(&mem, gpa((uint64_t)table * GMEM_PAGE + i * 8), &e, 8), 0);
	return e;
}

/* Tables in pages 1 (top) to 4; a second chain that is read-only at level 2 in 5 and 6. */
static void make_tables(void)
{
	entry(1, 0, 2, P | W);
	entry(1, 300, 2, P | W); /* the upper half is the kernel's */
	entry(2, 0, 3, P | W);
	entry(2, 1, 5, P);
	entry(3, 0, 4, P | W);
	entry(3, 1, 512, P | W | LARGE | A);
	entry(5, 0, 6, P | W);
	entry(4, 0, 10, P | W | A);
	entry(4, 1, 11, P | A);
	entry(4, 2, 12, P | W);
	entry(4, 3, 13, W | A); /* not present */
	entry(6, 0, 20, P | W | A);
}

struct seen {
	unsigned tables, used_tables, pages, large;
	uint64_t last_va;
	bool accessed[PAGES], writable[PAGES];
};

static void on_table(void *ctx, uint64_t at, bool accessed)
{
	(void)at;
	((struct seen *)ctx)->tables++;
	((struct seen *)ctx)->used_tables += accessed;
}

static void on_page(void *ctx, uint64_t at, uint64_t va, bool accessed, bool writable)
{
	struct seen *seen = ctx;

	cr_assert_geq(va, seen->last_va);
	seen->last_va = va;
	seen->pages++;
	if (at / GMEM_PAGE < PAGES) {
		seen->accessed[at / GMEM_PAGE] = accessed;
		seen->writable[at / GMEM_PAGE] = writable;
	}
}

static void on_large(void *ctx, uint64_t at, bool writable)
{
	struct seen *seen = ctx;

	seen->large++;
	cr_assert_eq(at % GUESTPAGES_LARGE, 0u);
	cr_assert(writable);
}

static int look(struct seen *seen)
{
	const struct guestpages_visit visit = { on_table, on_page, on_large, seen };

	*seen = (struct seen){ 0 };
	return guestpages_walk(&mem, 1 * GMEM_PAGE | 0x18, &visit);
}

Test(guestpages, lower_half_is_walked)
{
	static struct seen seen;

	make_tables();
	cr_assert_eq(look(&seen), 0);
	cr_assert_eq(seen.tables, 6u);
	cr_assert_eq(seen.used_tables, 6u);
	cr_assert_eq(seen.pages, 4u);
	cr_assert_eq(seen.large, 1u);
	cr_assert(seen.accessed[10] && seen.writable[10]);
	cr_assert(seen.accessed[11] && !seen.writable[11]);
	cr_assert(!seen.accessed[12] && seen.writable[12]);
	cr_assert(seen.accessed[20] && !seen.writable[20], "read-only at a level above");
}

Test(guestpages, forget_clears_the_flag_and_nothing_else)
{
	static struct seen seen;

	make_tables();
	cr_assert_eq(guestpages_forget(&mem, 1 * GMEM_PAGE), 0);
	cr_assert_eq(look(&seen), 0);
	cr_assert_eq(seen.pages, 4u);
	cr_assert_eq(seen.used_tables, 0u);
	cr_assert_not(seen.accessed[10] || seen.accessed[11] || seen.accessed[20]);
	cr_assert_eq(read_entry(4, 0), 10ull * GMEM_PAGE | P | W);
	cr_assert_eq(read_entry(4, 3), 13ull * GMEM_PAGE | W | A, "not present: the kernel's own");
	cr_assert_eq(read_entry(3, 1), 512ull * GMEM_PAGE | P | W | LARGE | A);
}

Test(guestpages, touch_sets_the_flag_where_a_page_is)
{
	static struct seen seen;

	make_tables();
	cr_assert_eq(guestpages_touch(&mem, 1 * GMEM_PAGE), 0);
	cr_assert_eq(look(&seen), 0);
	cr_assert(seen.accessed[10] && seen.accessed[11] && seen.accessed[12] && seen.accessed[20]);
	cr_assert_eq(read_entry(4, 2), 12ull * GMEM_PAGE | P | W | A);
	cr_assert_eq(read_entry(4, 3), 13ull * GMEM_PAGE | W | A, "not present: the kernel's own");
	cr_assert_eq(read_entry(4, 4), 0u);
}

Test(guestpages, tables_outside_of_memory_are_passed_over)
{
	static struct seen seen;

	make_tables();
	entry(1, 5, PAGES + 7, P | W);
	entry(4, 7, PAGES * 2, P | W | A); /* a page of a device */
	cr_assert_eq(look(&seen), 0);
	cr_assert_eq(seen.tables, 6u);
	cr_assert_eq(seen.pages, 5u);
	cr_assert_eq(guestpages_forget(&mem, 1ull << 51), 0);
}

Test(guestpages, a_table_full_of_itself_ends, .timeout = 20)
{
	static struct seen seen;

	for (unsigned i = 0; i < 512; i++)
		entry(1, i, 1, P | W | A);
	cr_assert_eq(look(&seen), -ELOOP);
	cr_assert_eq(guestpages_forget(&mem, 1 * GMEM_PAGE), -ELOOP);
}
