/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages the guest's user space uses, by its own page tables: the accessed flags that the CPU, or KVM
 * in its place, sets in them (Intel SDM volume 3, 4.5 and 4.8: 4-level paging). The tables are guest memory:
 * addresses are checked, and the walk is bounded. Pure functions; any thread, while no vCPU runs.
 */
#ifndef VMM_GUESTPAGES_H
#define VMM_GUESTPAGES_H

#include "core/compiler.h"
#include "core/gmem.h"

#include <stdbool.h>
#include <stdint.h>

struct guestpages_visit {
	/* A page that is a table of the lower half; accessed: a page below it was. After all below it. */
	void (*table)(void *ctx, uint64_t gpa, bool accessed);
	/* A mapped page of 4 KiB; writable: at all levels. Larger ones are not visited. */
	void (*page)(void *ctx, uint64_t gpa, bool accessed, bool writable);
	void *ctx;
};

/*
 * Walks the lower half of the address space whose top table CR3 names. 0, or -ELOOP when there are more tables
 * than memory could sensibly hold; tables outside of memory are passed over.
 */
NODISCARD int guestpages_walk(const struct gmem *mem, uint64_t cr3,
                              const struct guestpages_visit *visit);

/* Clears the accessed flag of each page of the lower half. As guestpages_walk(). */
NODISCARD int guestpages_forget(const struct gmem *mem, uint64_t cr3);

#endif
