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

#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>

/* The tables are of the kind that is understood here: 64-bit, four levels. */
static inline bool guestpages_can_walk(const struct kvm_sregs *sregs)
{
	const uint64_t pae = 1ull << 5, la57 = 1ull << 12, lma = 1ull << 10;

	return (sregs->cr4 & pae) && !(sregs->cr4 & la57) && (sregs->efer & lma);
}

#define GUESTPAGES_LARGE (2ull << 20) /* bytes */

struct guestpages_visit {
	/* A page that is a table of the lower half; accessed: a page of 4 KiB below it was. After all below it. */
	void (*table)(void *ctx, uint64_t gpa, bool accessed);
	/* A page of 4 KiB mapped at `va`, in the order of these; writable: at all levels. */
	void (*page)(void *ctx, uint64_t gpa, uint64_t va, bool accessed, bool writable);
	/* A page of 2 MiB. */
	void (*large)(void *ctx, uint64_t gpa, bool writable);
	void *ctx; /* any of these may be NULL */
};

/*
 * Walks the lower half of the address space whose top table CR3 names. 0, or -ELOOP when there are more tables
 * than memory could sensibly hold; tables outside of memory are passed over.
 */
NODISCARD int guestpages_walk(const struct gmem *mem, uint64_t cr3,
                              const struct guestpages_visit *visit);

/* Clears the accessed flag of each page of 4 KiB of the lower half. As guestpages_walk(). */
NODISCARD int guestpages_forget(const struct gmem *mem, uint64_t cr3);
/* Sets it: a shadow-paging KVM maps pages ahead of their use only where it is set. As guestpages_walk(). */
NODISCARD int guestpages_touch(const struct gmem *mem, uint64_t cr3);

#endif
