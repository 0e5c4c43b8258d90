/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: one thread, one io_uring, which is sealed: it does what this header offers and nothing else.
 * On a host that forbids io_uring it is poll(2) and plain calls, and slower; no caller sees a difference.
 * An operation is a `struct loop_op` inside its owner; it
 * is busy from the call until done() has been entered, also after loop_cancel(), and its buffers
 * must live as long. Everything here is called by the thread that called loop_open() (the kernel
 * refuses a second one), except loop_post(). Operations are handed to the kernel in batches, when
 * the loop next waits. Needs Linux 5.19; from 6.1 on completions come without interrupting the thread.
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

enum loop_kind { LOOP_READV, LOOP_WRITEV, LOOP_FDATASYNC, LOOP_FALLOCATE, LOOP_POLL, LOOP_TIMER };

/* What an operation is; filled in by those below. */
struct loop_call {
	enum loop_kind kind;
	int fd, mode;
	short events;
	unsigned nr;
	const struct iovec *iov;
	uint64_t off, len;
	struct __kernel_timespec ts;
};

struct loop_op {
	/* `res`: what the system call would return, or -errno (-ECANCELED after loop_cancel). */
	void (*done)(struct loop_op *op, int res);
	bool busy;
	int res;              /* while kept */
	struct loop_op *next; /* while kept, or in a list of the engine's */
	struct loop_call call;
};

/* Something that any thread asks the loop to call. Posts that come before fire() melt into one. */
struct loop_event {
	void (*fire)(struct loop_event *event);
	struct loop_event *next; /* under post_lock */
	bool pending;            /* under post_lock */
};

struct loop_engine;
struct pollfd;

struct loop {
	const struct loop_engine *engine;
	struct io_uring ring; /* with io_uring */
	/* Without. */
	struct loop_op *pending; /* oldest first */
	struct loop_op **pending_tail;
	struct pollfd *pollfd; /* owned */
	unsigned nr_pollfds;
	bool open;
	bool stop;
	unsigned nr_busy;     /* completions that are owed, the loop's own wake-up among them */
	struct loop_op *kept; /* completed, done() not yet called; oldest first */
	struct loop_op **kept_tail;
	int wake_fd; /* eventfd, owned */
	uint64_t wake_count;
	struct iovec wake_iov;
	struct loop_op wake_op;
	pthread_mutex_t post_lock;
	struct loop_event *posted; /* under post_lock, first posted first */
	struct loop_event **posted_tail;
	unsigned nr_posted; /* under post_lock */
};

/* From now on loops are opened without io_uring. Before there are threads. */
void loop_forbid_ring(void);
/*
 * Opens a ring of `depth` entries (a full ring is submitted and waited for, never an error). Where the host
 * forbids or lacks io_uring a warning is logged, and the loop goes without.
 */
NODISCARD int loop_open(struct loop *loop, unsigned depth, struct err *err);
/* "io_uring" or "poll". */
const char *loop_engine_name(const struct loop *loop);
/*
 * Cancels what is in flight, waits until the kernel has let go of every buffer, and frees the ring.
 * No done() is called any more; op->res has the result. Not from inside a done(). Idempotent; safe
 * when zeroed.
 */
void loop_close(struct loop *loop);

/*
 * Each starts one operation; done() follows from loop_run(). `op` must not be busy. `fd`, `iov` are
 * borrowed. `off` is in bytes; LOOP_STREAM for what cannot seek (a descriptor in O_NONBLOCK mode
 * may answer -EAGAIN: then poll).
 */
#define LOOP_STREAM UINT64_MAX
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
/*
 * Cancels `op` and waits until the kernel has let go of it; done() is not called. Nothing else runs
 * meanwhile, so a device may call it with its lock held (a reset). Returns its result, or
 * -ECANCELED when it was not busy.
 */
int loop_reap(struct loop *loop, struct loop_op *op);

/* Asks for event->fire() on the loop's thread. Any thread; never blocks for long; never fails. */
void loop_post(struct loop *loop, struct loop_event *event);
/* Takes a posted event back. Loop's thread. */
void loop_unpost(struct loop *loop, struct loop_event *event);

/* Serves until loop_stop(). Returns 0, or -errno when the ring itself fails. */
NODISCARD int loop_run(struct loop *loop);
/* Ends the loop_run() that is running, or else the next one. Loop's thread. */
void loop_stop(struct loop *loop);
/*
 * Serves until done(ctx) is true (asked first, and after each batch of completions). Nested inside
 * a done() or fire() it is allowed; no lock may be held.
 */
NODISCARD int loop_run_until(struct loop *loop, bool (*done)(void *ctx), void *ctx);

#endif
