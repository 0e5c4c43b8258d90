// SPDX-License-Identifier: GPL-2.0
/* Whether anybody else wants the processor. */
#include "../kernel/sched/core.c"

#include "emit.h"

void thawbox_symbols_sched(void);
void thawbox_symbols_sched(void)
{
	EMIT("rq.nr_running", runqueues.nr_running);
}
