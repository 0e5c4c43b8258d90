/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/bucket.h"

#define NS_PER_S 1000000000u
#define MS_PER_S 1000u

typedef unsigned __int128 u128; /* a rate times nanoseconds */

void bucket_init(struct bucket *b, const struct limit *limit, uint64_t now_ns)
{
	uint64_t burst = limit->burst;

	if (!burst)
		burst = limit->rate * BUCKET_BURST_MS / MS_PER_S;
	if (!burst)
		burst = 1;
	*b = (struct bucket){ .rate = limit->rate,
		              .burst = burst,
		              .level = (int64_t)(burst + limit->once),
		              .at_ns = now_ns };
}

static void refill(struct bucket *b, uint64_t now_ns)
{
	u128 parts;
	uint64_t room;

	if (now_ns <= b->at_ns)
		return;
	parts = (u128)(now_ns - b->at_ns) * b->rate + b->rest;
	b->at_ns = now_ns;
	b->rest = 0;
	if (b->level >= (int64_t)b->burst) /* what is left of `once` */
		return;
	room = (uint64_t)((int64_t)b->burst - b->level);
	if (parts / NS_PER_S >= room) {
		b->level = (int64_t)b->burst;
		return;
	}
	b->level += (int64_t)(parts / NS_PER_S);
	b->rest = (uint64_t)(parts % NS_PER_S);
}

uint64_t bucket_wait(struct bucket *b, uint64_t now_ns)
{
	u128 missing;

	if (!b->rate)
		return 0;
	refill(b, now_ns);
	if (b->level > 0)
		return 0;
	missing = (u128)(1 - b->level) * NS_PER_S - b->rest;
	return (uint64_t)((missing + b->rate - 1) / b->rate);
}

void bucket_pay(struct bucket *b, uint64_t n)
{
	if (b->rate)
		b->level -= (int64_t)n;
}
