/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/guestpages.h"

#include <errno.h>
#include <string.h>

#define ENTRIES    512u
#define LOWER_HALF 256u
#define TOP        3u /* level of the table in CR3; level 0 maps pages */
#define MAX_TABLES 65536u

#define PTE_PRESENT  (1ull << 0)
#define PTE_WRITE    (1ull << 1)
#define PTE_ACCESSED (1ull << 5)
#define PTE_LARGE    (1ull << 7)
#define PTE_ADDRESS  0x000ffffffffff000ull

enum what { VISIT, FORGET, TOUCH };

struct walk {
	const struct gmem *mem;
	enum what what;
	const struct guestpages_visit *visit;
	unsigned nr_tables;
};

static int set_flags(struct walk *w, uint64_t table, uint64_t *entries, uint64_t flag)
{
	bool any = false;

	for (unsigned i = 0; i < ENTRIES; i++) {
		if (!(entries[i] & PTE_PRESENT) || (entries[i] & PTE_ACCESSED) == flag)
			continue;
		entries[i] ^= PTE_ACCESSED;
		any = true;
	}
	return any ? gmem_write(w->mem, gpa(table), entries, ENTRIES * sizeof(*entries)) : 0;
}

/* Returns whether one was accessed, or -errno; so does walk_table(). */
static int leaves(struct walk *w, uint64_t table, uint64_t *entries, uint64_t va, bool writable)
{
	bool used = false;

	if (w->what != VISIT)
		return set_flags(w, table, entries, w->what == TOUCH ? PTE_ACCESSED : 0);
	for (unsigned i = 0; i < ENTRIES; i++) {
		bool accessed = entries[i] & PTE_ACCESSED;

		if (!(entries[i] & PTE_PRESENT))
			continue;
		if (w->visit->page)
			w->visit->page(w->visit->ctx, entries[i] & PTE_ADDRESS,
			               va + (uint64_t)i * GMEM_PAGE, accessed,
			               writable && (entries[i] & PTE_WRITE));
		used = used || accessed;
	}
	return used;
}

static void large(struct walk *w, uint64_t entry, bool writable)
{
	if (w->what == VISIT && w->visit->large)
		w->visit->large(w->visit->ctx, entry & PTE_ADDRESS & ~(GUESTPAGES_LARGE - 1),
		                writable && (entry & PTE_WRITE));
}

static int walk_table(struct walk *w, uint64_t table, unsigned level, uint64_t va, bool writable)
{
	const unsigned nr = level == TOP ? LOWER_HALF : ENTRIES;
	uint64_t entries[ENTRIES];
	int used = 0, ret = 0;

	if (gmem_read(w->mem, gpa(table), entries, sizeof(entries)) < 0)
		return 0;
	if (++w->nr_tables > MAX_TABLES)
		return -ELOOP;
	if (level == 0)
		used = leaves(w, table, entries, va, writable);
	for (unsigned i = 0; level && i < nr && ret >= 0; i++) {
		if (!(entries[i] & PTE_PRESENT))
			continue;
		if (level == 1 && (entries[i] & PTE_LARGE))
			large(w, entries[i], writable);
		else if (level == TOP || !(entries[i] & PTE_LARGE))
			ret = walk_table(w, entries[i] & PTE_ADDRESS, level - 1,
			                 va + ((uint64_t)i << (12 + 9 * level)),
			                 writable && (entries[i] & PTE_WRITE));
		used |= ret;
	}
	if (ret < 0 || used < 0)
		return ret < 0 ? ret : used;
	if (w->what == VISIT && w->visit->table)
		w->visit->table(w->visit->ctx, table, used);
	return used;
}

static int walk(struct walk *w, uint64_t cr3)
{
	int ret = walk_table(w, cr3 & PTE_ADDRESS, TOP, 0, true);

	return ret < 0 ? ret : 0;
}

int guestpages_walk(const struct gmem *mem, uint64_t cr3, const struct guestpages_visit *visit)
{
	struct walk w = { .mem = mem, .what = VISIT, .visit = visit };

	return walk(&w, cr3);
}

int guestpages_forget(const struct gmem *mem, uint64_t cr3)
{
	struct walk w = { .mem = mem, .what = FORGET };

	return walk(&w, cr3);
}

int guestpages_touch(const struct gmem *mem, uint64_t cr3)
{
	struct walk w = { .mem = mem, .what = TOUCH };

	return walk(&w, cr3);
}
