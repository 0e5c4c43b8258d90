/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate limit of one queue of a device: a bucket of bytes, one of operations, and a timer of the loop
 * for the moment when the next chain may be taken. What waits stays in the queue: nothing is dropped, a
 * reset forgets it and a freeze carries it over. Device's lock; loop's thread.
 */
#ifndef DEVICES_THROTTLE_H
#define DEVICES_THROTTLE_H

#include "devices/bucket.h"
#include "devices/vdev.h"

/* Waits are at least as long, so that a fast device is woken for many chains, not for each. */
#define THROTTLE_MIN_NS 2000000u

struct throttle_stats {
	uint64_t waits;     /* times that the device stopped for want of tokens */
	uint64_t waited_ns; /* as long in all, the present wait not counted */
};

struct throttle {
	struct vdev *dev; /* const after init */
	unsigned queue;   /* const after init */
	uint64_t (*now_ns)(void);
	struct bucket bytes, ops;
	struct loop_op timer;
	uint64_t since_ns; /* the present wait; 0: none */
	struct throttle_stats stats;
};

/* No limit yet. */
void throttle_init(struct throttle *t, struct vdev *dev, unsigned queue);
/* From now on, by a monotonic clock; the buckets are full. `ops` NULL: none. Debts are forgotten. */
void throttle_set(struct throttle *t, const struct limit *bytes, const struct limit *ops,
                  uint64_t (*now_ns)(void));
/* A chain may be taken. If not, the device's kick for the queue follows as soon as one may. */
bool throttle_may_go(struct throttle *t);
/* One operation of `bytes` has been taken. */
void throttle_pay(struct throttle *t, uint32_t bytes);
/* Takes the timer back; called by the device's close, without the lock, before vdev_close(). */
void throttle_close(struct throttle *t);

#endif
