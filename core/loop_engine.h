/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands behind a loop, for core/loop*.c alone: io_uring (loop_ring.c), or, on a host that forbids it, poll
 * and plain system calls on the loop's own thread (loop_plain.c). All for the loop's thread.
 */
#ifndef CORE_LOOP_ENGINE_H
#define CORE_LOOP_ENGINE_H

#include "core/loop.h"

struct loop_engine {
	const char *name;
	NODISCARD int (*open)(struct loop *loop, unsigned depth, struct err *err);
	/* op->call is filled in. */
	void (*start)(struct loop *loop, struct loop_op *op);
	/* Has a busy op completed soon, by -ECANCELED if it has not been already. */
	void (*cancel)(struct loop *loop, struct loop_op *op);
	/*
	 * Hands over what was started and takes what has completed (loop_completed()); with `wait`, at least one. May
	 * come back early without any: -EINTR and the like are 0.
	 */
	NODISCARD int (*turn)(struct loop *loop, bool wait);
	/* Cancels all; afterwards no buffer is in use. */
	void (*close)(struct loop *loop);
};

extern const struct loop_engine loop_ring, loop_plain;

/* Puts the op on the kept list. Nothing is called. */
void loop_completed(struct loop *loop, struct loop_op *op, int res);

#endif
