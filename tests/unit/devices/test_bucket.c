/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of a token bucket; the clock is a number. */
#include "devices/bucket.h"

#include <criterion/criterion.h>

#define MS 1000000ull
#define S  1000000000ull

static struct bucket make(uint64_t rate, uint64_t burst, uint64_t once)
{
	struct limit limit = { rate, burst, once };
	struct bucket b;

	bucket_init(&b, &limit, 5 * S);
	return b;
}

Test(bucket, no_limit_never_waits)
{
	struct bucket b = make(0, 0, 0);

	for (int i = 0; i < 100; i++) {
		cr_assert_eq(bucket_wait(&b, 5 * S), 0);
		bucket_pay(&b, UINT32_MAX);
	}
}

Test(bucket, burst_then_rate)
{
	struct bucket b = make(1000, 10, 0);

	for (int i = 0; i < 10; i++) {
		cr_assert_eq(bucket_wait(&b, 5 * S), 0, "%d", i);
		bucket_pay(&b, 1);
	}
	cr_assert_eq(bucket_wait(&b, 5 * S), MS);
	cr_assert_eq(bucket_wait(&b, 5 * S + MS - 1), 1);
	cr_assert_eq(bucket_wait(&b, 5 * S + MS), 0);
}

Test(bucket, the_default_burst_is_a_tenth_of_a_second_and_never_nothing)
{
	cr_assert_eq(make(1000, 0, 0).burst, 100);
	cr_assert_eq(make(1, 0, 0).burst, 1);
	cr_assert_eq(make(BUCKET_MAX, 0, 0).burst, BUCKET_MAX / 10);
}

Test(bucket, what_is_larger_than_the_burst_passes_and_is_paid_for_later)
{
	struct bucket b = make(1000, 10, 0);

	bucket_pay(&b, 2010);
	cr_assert_eq(bucket_wait(&b, 5 * S), 2 * S + MS, "a debt of 2000, and one token");
	cr_assert_eq(bucket_wait(&b, 7 * S + MS), 0);
}

Test(bucket, never_more_than_the_burst_is_saved_up)
{
	struct bucket b = make(1000, 10, 0);

	cr_assert_eq(bucket_wait(&b, UINT64_MAX), 0, "a long sleep does not overflow");
	cr_assert_eq(b.level, 10);
	b = make(BUCKET_MAX, BUCKET_MAX, 0);
	bucket_pay(&b, UINT32_MAX);
	cr_assert_eq(bucket_wait(&b, UINT64_MAX), 0);
	cr_assert_eq((uint64_t)b.level, BUCKET_MAX);
}

Test(bucket, once_is_spent_first_and_never_comes_back)
{
	struct bucket b = make(1000, 10, 90);

	bucket_pay(&b, 50);
	cr_assert_eq(bucket_wait(&b, 6 * S), 0);
	cr_assert_eq(b.level, 50, "above the burst nothing is added");
	bucket_pay(&b, 50);
	cr_assert_eq(bucket_wait(&b, 6 * S), MS);
	cr_assert_eq(bucket_wait(&b, 60 * S), 0);
	cr_assert_eq(b.level, 10);
}

Test(bucket, looking_often_loses_nothing)
{
	/* 7 a second, looked at every 1,000,003 ns: each look is a fraction of a token. */
	struct bucket b = make(7, 1, 0);
	uint64_t now = 5 * S, passed = 0;

	while (now < 105 * S) {
		if (!bucket_wait(&b, now)) {
			bucket_pay(&b, 1);
			passed++;
		}
		now += 1000003;
	}
	/* One of the burst, 7 a second; a full bucket may lose what comes until it is looked at. */
	cr_assert_geq(passed, 695);
	cr_assert_leq(passed, 701);
}

Test(bucket, debts_keep_the_rate_exact)
{
	/* Never full: nothing is lost, whatever the sizes. */
	struct bucket b = make(1000003, 1000, 0);
	uint64_t now = 5 * S, paid = 0, seed = 1;

	for (int i = 0; i < 100000; i++) {
		uint64_t n = (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 48;

		now += bucket_wait(&b, now);
		cr_assert_eq(bucket_wait(&b, now), 0);
		bucket_pay(&b, n + 1);
		paid += n + 1;
	}
	now += bucket_wait(&b, now);
	/* All that came by the rate, and the first burst, less the one that may go now. */
	cr_assert_eq(paid, (unsigned __int128)(now - 5 * S) * 1000003 / S + 1000 - 1);
}

Test(bucket, a_clock_that_goes_back_adds_nothing)
{
	struct bucket b = make(1000, 10, 0);

	bucket_pay(&b, 10);
	cr_assert_eq(bucket_wait(&b, 4 * S), MS);
	cr_assert_eq(bucket_wait(&b, 5 * S), MS);
	cr_assert_eq(bucket_wait(&b, 5 * S + MS), 0);
}
