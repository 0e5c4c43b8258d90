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

struct walk {
	const struct gmem *mem;
	const struct guestpages_visit *visit; /* NULL: clear the flags */
	unsigned nr_tables;
};

static int clear_flags(struct walk *w, uint64_t table, uint64_t *entries)
{
	bool any = false;

	for (unsigned i = 0; i < ENTRIES; i++) {
		if (!(entries[i] & PTE_PRESENT) || !(entries[i] & PTE_ACCESSED))
			continue;
		entries[i] &= ~PTE_ACCESSED;
		any = true;
	}
	return any ? gmem_write(w->mem, gpa(table), entries, ENTRIES * sizeof(*entries)) : 0;
}

/* Returns whether one was accessed, or -errno; so does walk_table(). */
static int leaves(struct walk *w, uint64_t table, uint64_t *entries, bool writable)
{
	bool used = false;

	if (!w->visit)
		return clear_flags(w, table, entries);
	for (unsigned i = 0; i < ENTRIES; i++) {
		bool accessed = entries[i] & PTE_ACCESSED;

		if (!(entries[i] & PTE_PRESENT))
			continue;
		w->visit->page(w->visit->ctx, entries[i] & PTE_ADDRESS, accessed,
		               writable && (entries[i] & PTE_WRITE));
		used = used || accessed;
	}
	return used;
}

static int walk_table(struct walk *w, uint64_t table, unsigned level, bool writable)
{
	const unsigned nr = level == TOP ? LOWER_HALF : ENTRIES;
	uint64_t entries[ENTRIES];
	int used = 0, ret = 0;

	if (gmem_read(w->mem, gpa(table), entries, sizeof(entries)) < 0)
		return 0;
	if (++w->nr_tables > MAX_TABLES)
		return -ELOOP;
	if (level == 0)
		used = leaves(w, table, entries, writable);
	for (unsigned i = 0; level && i < nr && ret >= 0; i++) {
		if (!(entries[i] & PTE_PRESENT) || (level < TOP && (entries[i] & PTE_LARGE)))
			continue;
		ret = walk_table(w, entries[i] & PTE_ADDRESS, level - 1,
		                 writable && (entries[i] & PTE_WRITE));
		used |= ret;
	}
	if (ret < 0 || used < 0)
		return ret < 0 ? ret : used;
	if (w->visit)
		w->visit->table(w->visit->ctx, table, used);
	return used;
}

static int walk(struct walk *w, uint64_t cr3)
{
	int ret = walk_table(w, cr3 & PTE_ADDRESS, TOP, true);

	return ret < 0 ? ret : 0;
}

int guestpages_walk(const struct gmem *mem, uint64_t cr3, const struct guestpages_visit *visit)
{
	struct walk w = { .mem = mem, .visit = visit };

	return walk(&w, cr3);
}

int guestpages_forget(const struct gmem *mem, uint64_t cr3)
{
	struct walk w = { .mem = mem };

	return walk(&w, cr3);
}
