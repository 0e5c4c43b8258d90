/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to do when a cell's time is up: interrupt it, then kill its context, then kill the machine.
 * How long each step may take is measured by how fast the guest took the first: where KVM is done
 * in software the kernel of a guest is a thousand times slower than its processes, and a second is
 * little. Pure: the caller tells the time (CLOCK_MONOTONIC nanoseconds) and acts.
 */
#ifndef API_DEADLINE_H
#define API_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

#define DEADLINE_ANSWER_NS (5ull * 1000000000u)  /* for the guest to take an order */
#define DEADLINE_GRACE_NS  (1ull * 1000000000u)  /* for it to have an effect, at least */
#define DEADLINE_MOST_NS   (15ull * 1000000000u) /* and at most */
#define DEADLINE_FACTOR    100u                  /* times what the order took */

enum deadline_act {
	DEADLINE_NOTHING,
	DEADLINE_INTERRUPT,
	DEADLINE_KILL_CONTEXT,
	DEADLINE_KILL_MACHINE,
};

struct deadline {
	uint64_t at_ns;         /* of the next act; 0: never */
	uint64_t grace_ns;      /* between the acts after this one */
	uint64_t asked_ns;      /* when the interrupt was sent */
	enum deadline_act last; /* the act that was taken last */
	bool brief; /* nothing is to be saved: the machine goes soon after the interrupt */
};

/* `timeout_ns` after `now_ns`; 0: no deadline. */
static inline struct deadline deadline_start(uint64_t now_ns, uint64_t timeout_ns, bool brief)
{
	return (struct deadline){ .at_ns = timeout_ns ? now_ns + timeout_ns : 0,
		                  .grace_ns = brief ? DEADLINE_GRACE_NS : DEADLINE_ANSWER_NS,
		                  .brief = brief };
}

/* The act due at `now_ns`, each once and in order. */
static inline enum deadline_act deadline_due(struct deadline *d, uint64_t now_ns)
{
	if (!d->at_ns || now_ns < d->at_ns || d->last == DEADLINE_KILL_MACHINE)
		return DEADLINE_NOTHING;
	if (d->brief && d->last == DEADLINE_INTERRUPT)
		d->last = DEADLINE_KILL_CONTEXT;
	d->last = (enum deadline_act)(d->last + 1);
	/* The last step loses what was to be saved: a guest that the host has no time for just now is not silent yet. */
	if (d->last == DEADLINE_KILL_CONTEXT && d->grace_ns < DEADLINE_ANSWER_NS)
		d->grace_ns = DEADLINE_ANSWER_NS;
	d->at_ns = now_ns + d->grace_ns;
	d->asked_ns = now_ns;
	return d->last;
}

/* The guest has taken the interrupt: it gets the more time the slower it was. */
static inline void deadline_answered(struct deadline *d, uint64_t now_ns)
{
	uint64_t grace = (now_ns - d->asked_ns) * DEADLINE_FACTOR;

	if (d->last != DEADLINE_INTERRUPT || d->brief)
		return;
	d->grace_ns = grace < DEADLINE_GRACE_NS  ? DEADLINE_GRACE_NS
	              : grace > DEADLINE_MOST_NS ? DEADLINE_MOST_NS
	                                         : grace;
	d->at_ns = now_ns + d->grace_ns;
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
