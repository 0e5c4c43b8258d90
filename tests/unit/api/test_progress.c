/* SPDX-License-Identifier: Apache-2.0 */
#include "api/progress.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

static struct progress after(double at_s, const char *phase)
{
	struct progress p = { .nr = 1, .nr_last = 2, .last_total_s = 100 };

	p.last[0] = (struct progress_phase){ "kernel", 0 };
	p.last[1] = (struct progress_phase){ "imports", 40 };
	p.phase[0].at_s = at_s;
	snprintf(p.phase[0].text, sizeof(p.phase[0].text), "%s", phase);
	return p;
}

Test(progress, unknown_without_a_last_time)
{
	struct progress p = { 0 };

	cr_assert_lt(progress_fraction(&p, 10), 0);
}

Test(progress, phases_place_the_bar)
{
	struct progress p = after(0, "kernel");

	cr_assert_float_eq(progress_fraction(&p, 20), 0.2, 1e-9);
	cr_assert_float_eq(progress_fraction(&p, 90), 0.4, 1e-9, "slower: it waits");
	p = after(80, "imports");
	cr_assert_float_eq(progress_fraction(&p, 90), 0.5, 1e-9, "40 then, and 10 since");
	p = after(80, "something new");
	cr_assert_float_eq(progress_fraction(&p, 90), 0.9, 1e-9);
	cr_assert_float_eq(progress_fraction(&p, 900), 0.99, 1e-9, "done only when it is");
}

Test(progress, last_time_is_remembered)
{
	char file[] = "/tmp/test_progress.XXXXXX";
	struct progress p, q;

	close(mkstemp(file));
	progress_begin(&p, file, false);
	cr_assert_eq(p.last_total_s, 0);
	progress_phase(&p, "one\033[2J");
	progress_phase(&p, "two");
	usleep(20000);
	progress_save(&p, file);
	progress_begin(&q, file, false);
	cr_assert_eq(q.nr_last, 2);
	cr_assert_str_eq(q.last[0].text, "one?[2J");
	cr_assert_geq(q.last_total_s, 0.02);
	unlink(file);
}

Test(progress, guest_cannot_overflow_it)
{
	struct progress p;

	progress_begin(&p, "/nonexistent", false);
	for (int i = 0; i < 3 * PROGRESS_PHASES_MAX; i++)
		progress_phase(&p, "again");
	cr_assert_eq(p.nr, PROGRESS_PHASES_MAX);
}
