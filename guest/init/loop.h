/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

/*
 * The agent's event loop: epoll and timers. A process has one, on one thread, from which everything
 * here is called. Watches and timers are embedded in their owners.
 */

struct watch {
	int fd; /* owned; -1: closed */
	bool registered;
	uint32_t events;
	void (*ready)(struct watch *, uint32_t events);
};

struct timer {
	uint64_t at_ms; /* 0: not set */
	struct timer *next;
	void (*fire)(struct timer *);
};

/* Opens the loop. Returns 0 or -errno. */
int loop_open(void);

/* Waits for `events` (EPOLLHUP and EPOLLERR always come too) on w->fd. Returns 0 or -errno. */
int loop_set(struct watch *w, uint32_t events);

/* Waits for nothing on w->fd, not even for its end. */
void loop_pause(struct watch *w);

/* Pauses and closes; events that were already fetched for it are not delivered. */
void loop_close(struct watch *w);

/* CLOCK_MONOTONIC in milliseconds: time in which the guest is frozen does not count. */
uint64_t loop_now_ms(void);

/* Fires once, in `ms` milliseconds from now; sets anew if it was set. */
void timer_set(struct timer *t, uint64_t ms);
void timer_cancel(struct timer *t);

/* free(p) after the events at hand: for owners of watches that may have one more event waiting. */
void loop_free_later(void *p);

/*
 * Runs for ever. `after` is called after each batch of events and says whether it wants to be
 * called again without waiting. Returns -errno if epoll itself fails.
 */
int loop_run(bool (*after)(void));
