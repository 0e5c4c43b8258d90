/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: one thread, one io_uring. An operation is a `struct loop_op` inside its owner; it
 * is busy from the call until done() has been entered, also after loop_cancel(), and its buffers
 * must live as long. Everything here is called by the loop's thread, except loop_post().
 */
#ifndef CORE_LOOP_H
#define CORE_LOOP_H

#include "core/compiler.h"
#include "core/err.h"

#include <liburing.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct loop_op {
	/* `res`: what the system call would return, or -errno (-ECANCELED after loop_cancel). */
	void (*done)(struct loop_op *op, int res);
	bool busy;
	struct __kernel_timespec ts; /* loop_timer's */
};

/* Something that any thread asks the loop to call. Posts that come before fire() melt into one. */
struct loop_event {
	void (*fire)(struct loop_event *event);
	struct loop_event *next; /* under post_lock */
	bool pending;            /* under post_lock */
};

struct loop {
	struct io_uring ring;
	bool open;
	bool stop;
	unsigned nr_busy; /* ops in flight, without the loop's own wake-up */
	int wake_fd;      /* eventfd, owned */
	struct loop_op wake_op;
	pthread_mutex_t post_lock;
	struct loop_event *posted; /* under post_lock, first posted first */
	struct loop_event **posted_tail;
};

/* Opens a ring of `depth` entries (a full ring is submitted and waited for, never an error). */
NODISCARD int loop_open(struct loop *loop, unsigned depth, struct err *err);
/* Cancels what is in flight and frees the ring. No done() is called any more. Idempotent; safe when zeroed. */
void loop_close(struct loop *loop);

/* Each starts one operation; done() follows from loop_run(). `op` must not be busy. `fd`, `iov` are borrowed. */
void loop_readv(struct loop *loop, struct loop_op *op, int fd, const struct iovec *iov, unsigned nr,
                uint64_t off);
void loop_writev(struct loop *loop, struct loop_op *op, int fd, const struct iovec *iov,
                 unsigned nr, uint64_t off);
void loop_fdatasync(struct loop *loop, struct loop_op *op, int fd);
void loop_fallocate(struct loop *loop, struct loop_op *op, int fd, int mode, uint64_t off,
                    uint64_t len);
/* Waits once for poll(2) `events`; res is the set that came true. */
void loop_poll(struct loop *loop, struct loop_op *op, int fd, short events);
/* Fires once after `ns` nanoseconds (CLOCK_MONOTONIC); res is -ETIME. */
void loop_timer(struct loop *loop, struct loop_op *op, uint64_t ns);
/* done(-ECANCELED), or its ordinary result, still comes. Nothing to do when not busy. */
void loop_cancel(struct loop *loop, struct loop_op *op);

/* Asks for event->fire() on the loop's thread. Any thread; never blocks for long; never fails. */
void loop_post(struct loop *loop, struct loop_event *event);
/* Takes a posted event back. Loop's thread. */
void loop_unpost(struct loop *loop, struct loop_event *event);

/* Serves until loop_stop(). Returns 0, or -errno when the ring itself fails. */
NODISCARD int loop_run(struct loop *loop);
void loop_stop(struct loop *loop);
/* Serves until done(ctx) is true (asked after each batch of completions). Nested inside a done() it is allowed. */
NODISCARD int loop_run_until(struct loop *loop, bool (*done)(void *ctx), void *ctx);

#endif
