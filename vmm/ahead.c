/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/ahead.h"

#include <sys/resource.h>

#define FIRST_NS  4000000u /* a plain cell is over by then */
#define NEXT_NS   1000000u
#define MANY      40u /* faults between two looks: the guest is in unknown territory */
#define QUIET_MAX 8u  /* looks without, after which nothing is to be expected */
#define TURN      64u /* pages at a time, 0.2 to 0.3 ms */

/* Page faults of all threads but this one: the guest's, by way of KVM. */
static uint64_t guest_faults(void)
{
	struct rusage all, mine;

	if (getrusage(RUSAGE_SELF, &all) < 0 || getrusage(RUSAGE_THREAD, &mine) < 0)
		return 0;
	return (uint64_t)(all.ru_minflt + all.ru_majflt - mine.ru_minflt - mine.ru_majflt);
}

/* True: the guest has met many pages since the last look. */
static bool is_busy(struct ahead *ahead)
{
	uint64_t now = guest_faults(), since = now - ahead->faults;

	ahead->faults = now;
	ahead->quiet = since >= MANY ? 0 : ahead->quiet + 1;
	return since >= MANY;
}

static void on_timer(struct loop_op *op, int res)
{
	struct ahead *ahead = container_of(op, struct ahead, timer);

	(void)res; /* -ETIME, or cancelled: then it is off */
	if (!ahead->on)
		return;
	if (is_busy(ahead))
		loop_post(ahead->loop, &ahead->turn);
	else if (ahead->quiet < QUIET_MAX)
		loop_timer(ahead->loop, &ahead->timer, NEXT_NS);
}

static void on_turn(struct loop_event *event)
{
	struct ahead *ahead = container_of(event, struct ahead, turn);

	if (!ahead->on || !pagein_later(ahead->set, ahead->mem, TURN))
		return;
	if (ahead->set->later_done % (4 * TURN) < TURN && !is_busy(ahead))
		loop_timer(ahead->loop, &ahead->timer, NEXT_NS);
	else
		loop_post(ahead->loop, &ahead->turn);
}

void ahead_start(struct ahead *ahead, struct loop *loop, struct pagein *set, const struct gmem *mem)
{
	if (!set->later)
		return;
	*ahead = (struct ahead){ .loop = loop, .set = set, .mem = mem, .on = true };
	ahead->timer.done = on_timer;
	ahead->turn.fire = on_turn;
	ahead->faults = guest_faults();
	loop_timer(loop, &ahead->timer, FIRST_NS);
}

void ahead_stop(struct ahead *ahead)
{
	if (!ahead->on)
		return;
	ahead->on = false;
	loop_cancel(ahead->loop, &ahead->timer);
	loop_unpost(ahead->loop, &ahead->turn);
}
