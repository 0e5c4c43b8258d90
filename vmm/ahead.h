/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bringing pages in ahead of a first cell that turns out to need many. A plain cell is over before this
 * begins. While one goes on and the guest keeps meeting pages that are not yet its own, the loop's thread,
 * which has nothing else to do, makes those private that the template's warm-up has used
 * (PAGEIN_LATER), a few at a time; it stops with the cell, or when the guest has stopped needing them.
 */
#ifndef VMM_AHEAD_H
#define VMM_AHEAD_H

#include "core/gmem.h"
#include "core/loop.h"
#include "vmm/pagein.h"

struct ahead {
	struct loop *loop;
	struct pagein *set;
	const struct gmem *mem;
	struct loop_op timer;
	struct loop_event turn;
	uint64_t faults; /* of the guest, when last looked at */
	unsigned quiet;  /* looks in a row that found few */
	bool on;
};

/* The first cell begins. `set` and `mem` must live until ahead_stop(). Loop's thread. */
void ahead_start(struct ahead *ahead, struct loop *loop, struct pagein *set,
                 const struct gmem *mem);
/* The first cell is over, or the machine is. Idempotent; safe when zeroed. Loop's thread. */
void ahead_stop(struct ahead *ahead);

#endif
