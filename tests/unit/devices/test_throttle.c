/* SPDX-License-Identifier: Apache-2.0 */
/* The throttle of a device that echoes, with a clock of the test's and a real loop. */
#include "devices/throttle.h"

#include "tests/unit/devices/fake_dev.h"

#define MS 1000000ull

static struct loop loop;
static struct drv d;
static struct vdev_host host;
static struct fake fake;
static struct throttle t;
static uint64_t now;

static uint64_t clock_of_test(void)
{
	return now;
}

static void start(void)
{
	now = 1;
	cr_assert_eq(loop_open(&loop, 64, NULL), 0);
	drv_open(&d, &loop, &host);
	vdev_init(&fake.vdev, &fake_ops, &host, 0);
	throttle_init(&t, &fake.vdev, 1);
	drv_start(&d, &fake.vdev, DRV_ALL_FEATURES, 16);
}

static void stop(void)
{
	throttle_close(&t);
	vdev_close(&fake.vdev);
	loop_close(&loop);
	drv_close(&d);
}

TestSuite(throttle, .init = start, .fini = stop, .timeout = 60);

static bool was_kicked(void *ctx)
{
	(void)ctx;
	return fake.kicks > 0;
}

static bool timer_ended(void *ctx)
{
	(void)ctx;
	return !t.timer.busy;
}

static bool may_go(void)
{
	bool may;

	pthread_mutex_lock(&fake.vdev.lock);
	may = throttle_may_go(&t);
	pthread_mutex_unlock(&fake.vdev.lock);
	return may;
}

Test(throttle, without_a_limit_the_clock_is_not_asked)
{
	cr_assert(may_go());
	throttle_pay(&t, UINT32_MAX);
	cr_assert(may_go());
	cr_assert(!t.timer.busy);
}

Test(throttle, the_timer_kicks_the_queue)
{
	const struct limit bytes = { .rate = 1000, .burst = 10 };

	throttle_set(&t, &bytes, NULL, clock_of_test);
	cr_assert(may_go());
	throttle_pay(&t, 10);
	cr_assert(!may_go());
	cr_assert(!may_go(), "asked again while the timer runs");
	cr_assert(t.timer.busy);
	cr_assert_eq(loop_run_until(&loop, was_kicked, NULL), 0);
	cr_assert(!may_go(), "the clock says no still: another wait");
	cr_assert(t.timer.busy);
	now += 5 * MS;
	cr_assert(may_go());
	cr_assert_eq(t.stats.waits, 1);
	cr_assert_eq(t.stats.waited_ns, 5 * MS);
}

Test(throttle, the_longer_of_two_waits)
{
	const struct limit bytes = { .rate = 1000000, .burst = 1000 },
			   ops = { .rate = 100, .burst = 2 };

	throttle_set(&t, &bytes, &ops, clock_of_test);
	throttle_pay(&t, 0);
	throttle_pay(&t, 0);
	cr_assert(!may_go(), "no bytes, but two operations");
	now += 10 * MS;
	cr_assert(may_go());
	throttle_pay(&t, 1000 + 20000);
	cr_assert(!may_go());
	now += 10 * MS;
	cr_assert(!may_go(), "the operation's time is up, that of the bytes not");
	now += 11 * MS;
	cr_assert(may_go());
	cr_assert_eq(t.stats.waits, 2);
}

Test(throttle, a_limit_that_is_lifted)
{
	const struct limit bytes = { .rate = 1, .burst = 1 }, none = { 0 };

	throttle_set(&t, &bytes, NULL, clock_of_test);
	throttle_pay(&t, 1000000);
	cr_assert(!may_go());
	throttle_set(&t, &none, NULL, clock_of_test);
	cr_assert(may_go());
	cr_assert_eq(t.since_ns, 0);
}

Test(throttle, a_device_that_was_reset_meanwhile_is_left_alone)
{
	const struct limit bytes = { .rate = 1000, .burst = 1 };

	throttle_set(&t, &bytes, NULL, clock_of_test);
	throttle_pay(&t, 1);
	cr_assert(!may_go());
	fake.resets = 0; /* the driver's start is one, too */
	drv_write(&d, 0x70, 0);
	cr_assert_eq(loop_run_until(&loop, timer_ended, NULL), 0);
	cr_assert_eq(fake.resets, 1);
	cr_assert_eq(fake.kicks, 0);
}

Test(throttle, closed_while_it_waits)
{
	const struct limit bytes = { .rate = 1, .burst = 1 };

	throttle_set(&t, &bytes, NULL, clock_of_test);
	throttle_pay(&t, UINT32_MAX);
	cr_assert(!may_go());
	cr_assert(t.timer.busy, "for hours: stop() takes it back");
}
