/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop's operations by io_uring. What a ring does passes no system call filter, so it has a list of its own:
 * it is made disabled, given the list, then enabled, and from then on the list stands.
 */
#include "core/loop_engine.h"

#include <errno.h>
#include <string.h>

#define MAX_WORKERS   4        /* kernel threads of one ring, whatever a guest asks for */
#define CLOSE_WAIT_NS 10000000 /* between two attempts to cancel what could not be cancelled */

/*
 * DEFER_TASKRUN (6.1): completions are handled when this thread waits, not by interrupting it.
 * The second set needs 5.19, which is also the first kernel that can cancel everything at once.
 */
static const unsigned ring_flags[] = {
	IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
		IORING_SETUP_DEFER_TASKRUN,
	IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
};

/*
 * All that a ring may do. Nothing may be registered with it, and no operation may have a flag (a registered
 * file or buffer, a chain): those are not in the list, so they are refused.
 */
static const uint8_t allowed[] = {
	IORING_OP_READV,     /* disks; the loop's own wake-up */
	IORING_OP_WRITEV,    /* disks; the serial console */
	IORING_OP_FSYNC,     /* a disk's flush */
	IORING_OP_FALLOCATE, /* a disk's discard */
	IORING_OP_POLL_ADD,  /* the control socket, SIGTERM, vsock's sockets, the serial console */
	IORING_OP_TIMEOUT,   /* timers */
	IORING_OP_ASYNC_CANCEL, /* each of these can be ended */
};

static int seal(struct io_uring *ring)
{
	struct io_uring_restriction list[ARRAY_LEN(allowed)] = { 0 };
	int ret;

	for (size_t i = 0; i < ARRAY_LEN(allowed); i++) {
		list[i].opcode = IORING_RESTRICTION_SQE_OP;
		list[i].sqe_op = allowed[i];
	}
	ret = io_uring_register_restrictions(ring, list, ARRAY_LEN(list));
	return ret < 0 ? ret : io_uring_enable_rings(ring);
}

static int set_up(struct io_uring *ring)
{
	unsigned workers[2] = { MAX_WORKERS, MAX_WORKERS }; /* for files, for everything else */
	int ret = io_uring_register_iowq_max_workers(ring, workers);

	if (ret >= 0)
		ret = seal(ring);
	if (ret < 0)
		io_uring_queue_exit(ring);
	return ret;
}

static int ring_open(struct loop *loop, unsigned depth, struct err *err)
{
	int ret = -EINVAL;

	for (size_t i = 0; i < ARRAY_LEN(ring_flags) && ret == -EINVAL; i++)
		ret = io_uring_queue_init(depth, &loop->ring, ring_flags[i]);
	if (ret == 0)
		ret = set_up(&loop->ring);
	if (ret >= 0)
		return 0;
	err_set(err, ret, "io_uring: %s", strerror(-ret));
	if (ret == -EPERM || ret == -EACCES)
		err_remedy(err,
		           "the host forbids io_uring: set the sysctl kernel.io_uring_disabled to "
		           "0, or allow io_uring_setup, _enter and _register in the container's "
		           "seccomp profile");
	else if (ret == -ENOSYS || ret == -EINVAL)
		err_remedy(err, "a host kernel of 5.19 or later with CONFIG_IO_URING is needed");
	else if (ret == -ENOMEM)
		err_remedy(err, "raise the limit on locked memory (ulimit -l)");
	return ret;
}

/* Failures of io_uring_enter that pass by themselves once completions have been taken. */
static bool is_passing(int ret)
{
	return ret == -EINTR || ret == -EAGAIN || ret == -EBUSY;
}

/* Moves the kernel's completions to the kept list, so that nothing is called while we look. */
static void collect(struct loop *loop)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&loop->ring, &cqe) == 0) {
		struct loop_op *op = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&loop->ring, cqe);
		if (op) /* or a cancellation's own result: the cancelled one reports for itself */
			loop_completed(loop, op, res);
	}
}

static struct io_uring_sqe *next_sqe(struct loop *loop)
{
	struct io_uring_sqe *sqe;

	while (!(sqe = io_uring_get_sqe(&loop->ring))) {
		int ret = io_uring_submit(&loop->ring);

		BUG_ON(ret < 0 && !is_passing(ret));
		if (ret < 0)
			collect(loop);
	}
	return sqe;
}

static void ring_start(struct loop *loop, struct loop_op *op)
{
	struct io_uring_sqe *sqe = next_sqe(loop);
	const struct loop_call *call = &op->call;

	switch (call->kind) {
	case LOOP_READV:
		io_uring_prep_readv(sqe, call->fd, call->iov, call->nr, call->off);
		break;
	case LOOP_WRITEV:
		io_uring_prep_writev(sqe, call->fd, call->iov, call->nr, call->off);
		break;
	case LOOP_FDATASYNC:
		io_uring_prep_fsync(sqe, call->fd, IORING_FSYNC_DATASYNC);
		break;
	case LOOP_FALLOCATE:
		io_uring_prep_fallocate(sqe, call->fd, call->mode, (off_t)call->off,
		                        (off_t)call->len);
		break;
	case LOOP_POLL:
		io_uring_prep_poll_add(sqe, call->fd, (unsigned short)call->events);
		break;
	case LOOP_TIMER:
		io_uring_prep_timeout(sqe, &op->call.ts, 0, 0);
		break;
	}
	io_uring_sqe_set_data(sqe, op);
}

static void ring_cancel(struct loop *loop, struct loop_op *op)
{
	struct io_uring_sqe *sqe = next_sqe(loop);

	io_uring_prep_cancel(sqe, op, 0);
	io_uring_sqe_set_data(sqe, NULL);
}

static int ring_turn(struct loop *loop, bool wait)
{
	int ret = wait ? io_uring_submit_and_wait(&loop->ring, 1)
	               : io_uring_submit_and_get_events(&loop->ring);

	if (ret < 0 && !is_passing(ret))
		return ret;
	collect(loop);
	return 0;
}

static void cancel_all(struct loop *loop)
{
	struct io_uring_sqe *sqe = next_sqe(loop);

	io_uring_prep_cancel(sqe, NULL, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
	io_uring_sqe_set_data(sqe, NULL);
}

static void ring_close(struct loop *loop)
{
	collect(loop);
	while (loop->nr_busy) {
		struct __kernel_timespec ts = { .tv_nsec = CLOSE_WAIT_NS };
		struct io_uring_cqe *cqe;
		int ret;

		cancel_all(loop);
		ret = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, loop->nr_busy + 1, &ts,
		                                       NULL);
		BUG_ON(ret < 0 && ret != -ETIME && !is_passing(ret));
		collect(loop);
	}
	io_uring_queue_exit(&loop->ring);
}

const struct loop_engine loop_ring = {
	.name = "io_uring",
	.open = ring_open,
	.start = ring_start,
	.cancel = ring_cancel,
	.turn = ring_turn,
	.close = ring_close,
};
