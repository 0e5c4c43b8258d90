/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/meter.h"

#include "api/sandbox.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GIB 1073741824u
#define S   UINT64_C(1000000000)

Test(meter, memory_over_time)
{
	struct meter m = { .last_ns = 10 * S, .last_bytes = GIB };

	meter_add(&m, 12 * S, GIB);
	cr_expect_float_eq(m.gib_s, 2, 1e-9);
	meter_add(&m, 14 * S, 3u * GIB); /* it has grown: two in the mean */
	cr_expect_float_eq(m.gib_s, 6, 1e-9);
	meter_add(&m, 14 * S, 0);
	cr_expect_float_eq(m.gib_s, 6, 1e-9);
	meter_add(&m, 13 * S, GIB); /* a clock does not go back; if it did, nothing is added */
	cr_expect_float_eq(m.gib_s, 6, 1e-9);
}

Test(meter, processor_time)
{
	struct meter m;
	volatile unsigned x = 0;
	double first;

	meter_start(&m, getpid());
	first = meter_cpu_s(&m, getpid());
	while (meter_cpu_s(&m, getpid()) < first + 0.01)
		x = x + 1;
	cr_expect(meter_cpu_s(&m, getpid()) < 60);
	meter_look(&m, getpid());
	cr_expect(m.gib_s > 0);
}

Test(meter, of_none)
{
	pid_t pid = fork();
	struct meter m;

	if (!pid)
		_exit(0);
	waitpid(pid, NULL, 0);
	meter_start(&m, pid);
	cr_expect_eq(meter_cpu_s(&m, pid), 0);
}

Test(meter, goes_on_in_the_next_daemon)
{
	struct meter m = { .cpu_base_ns = 5 * S,
		           .last_ns = 6 * S,
		           .last_bytes = GIB,
		           .gib_s = 0.5 },
		     n;
	json_t *saved = meter_save(&m);

	meter_restore(&n, saved);
	json_decref(saved);
	cr_expect_eq(memcmp(&m, &n, sizeof(m)), 0);
}
