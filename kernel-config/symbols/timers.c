// SPDX-License-Identifier: GPL-2.0
/* When the next high resolution timer is due. */
#include "../kernel/time/hrtimer.c"

#include "emit.h"

/*
 * The monitor knows by heart (vmm/guestsym.c), and that what the kernel has for itself alone (the tick, the
 * scheduler's servers) lies in its own data, what tasks wait for on their stacks or in memory of their own.
 */
static_assert(HRTIMER_MAX_CLOCK_BASES == 8);
static_assert(offsetof(struct hrtimer, node) == 0);
static_assert(offsetof(struct timerqueue_node, node) == 0);
static_assert(offsetof(struct timerqueue_node, expires) == 24);
static_assert(offsetof(struct rb_node, rb_right) == 8);
static_assert(offsetof(struct rb_node, rb_left) == 16);

#define BASE(n) hrtimer_bases.clock_base[n]

void thawbox_symbols_timers(void);
void thawbox_symbols_timers(void)
{
	EMIT("hrtimer.first.0", BASE(0).active.rb_root.rb_leftmost);
	EMIT("hrtimer.first.1", BASE(1).active.rb_root.rb_leftmost);
	EMIT("hrtimer.offset.0", BASE(0).offset);
}
