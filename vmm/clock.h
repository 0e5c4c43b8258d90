/* SPDX-License-Identifier: Apache-2.0 */
/* The host's clocks in nanoseconds. Any thread. */
#ifndef VMM_CLOCK_H
#define VMM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts); /* cannot fail for the clocks used here */
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t clock_real_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

#endif
