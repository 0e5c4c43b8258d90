/* SPDX-License-Identifier: Apache-2.0 */
#include "api/deadline.h"

#include <criterion/criterion.h>

#define S  1000000000ull
#define MS 1000000ull

Test(deadline, none_never_comes)
{
	struct deadline d = deadline_start(5 * S, 0, false);

	cr_assert_eq(deadline_due(&d, UINT64_MAX), DEADLINE_NOTHING);
	cr_assert_eq(deadline_wait_ms(&d, 5 * S), -1);
}

Test(deadline, guest_that_does_not_answer)
{
	struct deadline d = deadline_start(5 * S, 2 * S, false);

	cr_assert_eq(deadline_due(&d, 7 * S - 1), DEADLINE_NOTHING);
	cr_assert_eq(deadline_wait_ms(&d, 5 * S), 2000);
	cr_assert_eq(deadline_wait_ms(&d, 7 * S - 1), 1, "rounded up: no wake-up comes too early");
	cr_assert_eq(deadline_due(&d, 7 * S), DEADLINE_INTERRUPT);
	cr_assert_eq(deadline_due(&d, 7 * S), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 12 * S), DEADLINE_KILL_CONTEXT);
	cr_assert_eq(deadline_due(&d, 17 * S - 1), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 17 * S), DEADLINE_KILL_MACHINE);
	cr_assert_eq(deadline_due(&d, 99 * S), DEADLINE_NOTHING);
	cr_assert_eq(deadline_wait_ms(&d, 99 * S), -1);
}

Test(deadline, quick_guest_gets_a_second_for_the_interrupt_and_five_before_the_machine_goes)
{
	struct deadline d = deadline_start(0, S, false);

	cr_assert_eq(deadline_due(&d, S), DEADLINE_INTERRUPT);
	deadline_answered(&d, S + 2 * MS);
	cr_assert_eq(deadline_due(&d, 2 * S + MS), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 2 * S + 2 * MS), DEADLINE_KILL_CONTEXT);
	deadline_answered(&d, 2 * S + 3 * MS);
	cr_assert_eq(deadline_due(&d, 7 * S + 1 * MS), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 7 * S + 2 * MS), DEADLINE_KILL_MACHINE);
}

Test(deadline, slow_guest_gets_more_within_bounds)
{
	struct deadline d = deadline_start(0, S, false);

	cr_assert_eq(deadline_due(&d, S), DEADLINE_INTERRUPT);
	deadline_answered(&d, S + 80 * MS);
	cr_assert_eq(deadline_wait_ms(&d, S + 80 * MS), 8000);
	d = deadline_start(0, S, false);
	cr_assert_eq(deadline_due(&d, S), DEADLINE_INTERRUPT);
	deadline_answered(&d, 4 * S);
	cr_assert_eq(deadline_wait_ms(&d, 4 * S), 15000);
}

Test(deadline, nothing_to_save)
{
	struct deadline d = deadline_start(0, S, true);

	cr_assert_eq(deadline_due(&d, S), DEADLINE_INTERRUPT);
	deadline_answered(&d, S + 500 * MS);
	cr_assert_eq(deadline_due(&d, 2 * S - 1), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 2 * S), DEADLINE_KILL_MACHINE);
}

Test(deadline, late_caller_gets_every_step_with_time_between)
{
	struct deadline d = deadline_start(0, S, false);

	cr_assert_eq(deadline_due(&d, 50 * S), DEADLINE_INTERRUPT);
	cr_assert_eq(deadline_due(&d, 50 * S), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 55 * S), DEADLINE_KILL_CONTEXT);
}
