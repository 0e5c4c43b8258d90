/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token bucket: what may pass in a second, and how much of it at once. Pure arithmetic over a clock
 * that the caller reads; whole numbers, with the remainder kept, so that nothing drifts. Whoever is not
 * in debt may go and pays afterwards: what is larger than the bucket passes too, and the next one waits
 * for longer. One thread, or the caller's lock.
 */
#ifndef DEVICES_BUCKET_H
#define DEVICES_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#define BUCKET_MAX      (1ull << 40) /* of rate, burst and once */
#define BUCKET_BURST_MS 100u         /* the burst when none is given is the rate of that time */

/* Tokens: bytes, or operations. */
struct limit {
	uint64_t rate;  /* a second; 0: no limit */
	uint64_t burst; /* saved up at most; 0: BUCKET_BURST_MS of the rate */
	uint64_t once;  /* on top of the first burst, never refilled */
};

struct bucket {
	uint64_t rate, burst; /* rate 0: no limit */
	int64_t level;        /* below 1: in debt */
	uint64_t rest;        /* of a token, in 1 / NS_PER_S */
	uint64_t at_ns;       /* that the level is of */
};

/* Full at `now_ns`. The limit's values are at most BUCKET_MAX. */
void bucket_init(struct bucket *b, const struct limit *limit, uint64_t now_ns);
/* Nanoseconds from `now_ns` until the next one may go; 0: now. A clock that goes back adds nothing. */
uint64_t bucket_wait(struct bucket *b, uint64_t now_ns);
/* One of `n` tokens (at most 2^32) has gone, which bucket_wait() had allowed. */
void bucket_pay(struct bucket *b, uint64_t n);

#endif
