/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to do when a cell's time is up: interrupt it, a second later kill its context, a second later
 * kill the machine. Pure: the caller tells the time (CLOCK_MONOTONIC nanoseconds) and acts.
 */
#ifndef API_DEADLINE_H
#define API_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

#define DEADLINE_GRACE_NS 1000000000u /* between two steps */

enum deadline_act {
	DEADLINE_NOTHING,
	DEADLINE_INTERRUPT,
	DEADLINE_KILL_CONTEXT,
	DEADLINE_KILL_MACHINE,
};

struct deadline {
	uint64_t at_ns;         /* of the next act; 0: never */
	enum deadline_act last; /* the act that was taken last */
};

/* `timeout_ns` after `now_ns`; 0: no deadline. */
static inline struct deadline deadline_start(uint64_t now_ns, uint64_t timeout_ns)
{
	return (struct deadline){ .at_ns = timeout_ns ? now_ns + timeout_ns : 0 };
}

/* The act due at `now_ns`, each once and in order. */
static inline enum deadline_act deadline_due(struct deadline *d, uint64_t now_ns)
{
	if (!d->at_ns || now_ns < d->at_ns || d->last == DEADLINE_KILL_MACHINE)
		return DEADLINE_NOTHING;
	d->at_ns = now_ns + DEADLINE_GRACE_NS;
	d->last = (enum deadline_act)(d->last + 1);
	return d->last;
}

/* Milliseconds to wait before the next act, rounded up; -1: for ever. */
static inline int deadline_wait_ms(const struct deadline *d, uint64_t now_ns)
{
	uint64_t ms;

	if (!d->at_ns || d->last == DEADLINE_KILL_MACHINE)
		return -1;
	ms = d->at_ns > now_ns ? (d->at_ns - now_ns + 999999u) / 1000000u : 0;
	return ms < 86400000u ? (int)ms : 86400000;
}

#endif
