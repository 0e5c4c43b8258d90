/* SPDX-License-Identifier: Apache-2.0 */
#include "api/deadline.h"

#include <criterion/criterion.h>

#define S 1000000000ull

Test(deadline, none_never_comes)
{
	struct deadline d = deadline_start(5 * S, 0);

	cr_assert_eq(deadline_due(&d, UINT64_MAX), DEADLINE_NOTHING);
	cr_assert_eq(deadline_wait_ms(&d, 5 * S), -1);
}

Test(deadline, steps_come_once_in_order_a_second_apart)
{
	struct deadline d = deadline_start(5 * S, 2 * S);

	cr_assert_eq(deadline_due(&d, 7 * S - 1), DEADLINE_NOTHING);
	cr_assert_eq(deadline_wait_ms(&d, 5 * S), 2000);
	cr_assert_eq(deadline_wait_ms(&d, 7 * S - 1), 1, "rounded up: no wake-up comes too early");
	cr_assert_eq(deadline_due(&d, 7 * S), DEADLINE_INTERRUPT);
	cr_assert_eq(deadline_due(&d, 7 * S), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 8 * S), DEADLINE_KILL_CONTEXT);
	cr_assert_eq(deadline_due(&d, 9 * S - 1), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 9 * S), DEADLINE_KILL_MACHINE);
	cr_assert_eq(deadline_due(&d, 99 * S), DEADLINE_NOTHING);
	cr_assert_eq(deadline_wait_ms(&d, 99 * S), -1);
}

Test(deadline, late_caller_gets_every_step_with_time_between)
{
	struct deadline d = deadline_start(0, S);

	cr_assert_eq(deadline_due(&d, 50 * S), DEADLINE_INTERRUPT);
	cr_assert_eq(deadline_due(&d, 50 * S), DEADLINE_NOTHING);
	cr_assert_eq(deadline_due(&d, 51 * S), DEADLINE_KILL_CONTEXT);
}
