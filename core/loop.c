/* SPDX-License-Identifier: Apache-2.0 */
#include "core/loop.h"

#include "core/log.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_S      1000000000u
#define MAX_WORKERS   4        /* kernel threads of one ring, whatever a guest asks for */
#define CLOSE_WAIT_NS 10000000 /* between two attempts to cancel what could not be cancelled */

/*
 * DEFER_TASKRUN (6.1): completions are handled when this thread waits, not by interrupting it.
 * The second set needs 5.19, which is also the first kernel that can cancel everything at once.
 */
static const unsigned ring_flags[] = {
	IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
	IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
};

static int open_ring(struct loop *loop, unsigned depth, struct err *err)
{
	unsigned workers[2] = { MAX_WORKERS, MAX_WORKERS }; /* for files, for everything else */
	int ret = -EINVAL;

	for (size_t i = 0; i < ARRAY_LEN(ring_flags) && ret == -EINVAL; i++)
		ret = io_uring_queue_init(depth, &loop->ring, ring_flags[i]);
	if (ret == 0) {
		ret = io_uring_register_iowq_max_workers(&loop->ring, workers);
		if (ret < 0)
			io_uring_queue_exit(&loop->ring);
	}
	if (ret >= 0)
		return 0;
	err_set(err, ret, "io_uring: %s", strerror(-ret));
	if (ret == -EPERM)
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

static void arm_wake(struct loop *loop);

static void on_wake(struct loop_op *op, int res)
{
	struct loop *loop = container_of(op, struct loop, wake_op);

	(void)res; /* posts are looked at after every batch; the read only ends the wait */
	arm_wake(loop);
}

int loop_open(struct loop *loop, unsigned depth, struct err *err)
{
	int ret;

	memset(loop, 0, sizeof(*loop));
	ret = open_ring(loop, depth, err);
	if (ret < 0)
		return ret;
	/* Blocking: the ring then waits for it; older kernels answer EAGAIN for a non-blocking one. */
	loop->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (loop->wake_fd < 0) {
		ret = err_set(err, -errno, "eventfd: %s", strerror(errno));
		io_uring_queue_exit(&loop->ring);
		return ret;
	}
	pthread_mutex_init(&loop->post_lock, NULL);
	loop->kept_tail = &loop->kept;
	loop->posted_tail = &loop->posted;
	loop->wake_op.done = on_wake;
	loop->open = true;
	arm_wake(loop);
	return 0;
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
		if (!op) /* a cancellation's own result: the cancelled one reports for itself */
			continue;
		op->res = res;
		op->next = NULL;
		*loop->kept_tail = op;
		loop->kept_tail = &op->next;
		loop->nr_busy--;
	}
}

static struct loop_op *kept_take(struct loop *loop, struct loop_op **link)
{
	struct loop_op *op = *link;

	*link = op->next;
	if (!op->next)
		loop->kept_tail = link;
	op->busy = false;
	return op;
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

static struct io_uring_sqe *op_start(struct loop *loop, struct loop_op *op)
{
	BUG_ON(op->busy || !loop->open);
	op->busy = true;
	loop->nr_busy++;
	return next_sqe(loop);
}

static void arm_wake(struct loop *loop)
{
	struct io_uring_sqe *sqe = op_start(loop, &loop->wake_op);

	io_uring_prep_read(sqe, loop->wake_fd, &loop->wake_count, sizeof(loop->wake_count), 0);
	io_uring_sqe_set_data(sqe, &loop->wake_op);
}

void loop_readv(struct loop *loop, struct loop_op *op, int fd, const struct iovec *iov, unsigned nr,
                uint64_t off)
{
	struct io_uring_sqe *sqe = op_start(loop, op);

	io_uring_prep_readv(sqe, fd, iov, nr, off);
	io_uring_sqe_set_data(sqe, op);
}

void loop_writev(struct loop *loop, struct loop_op *op, int fd, const struct iovec *iov,
                 unsigned nr, uint64_t off)
{
	struct io_uring_sqe *sqe = op_start(loop, op);

	io_uring_prep_writev(sqe, fd, iov, nr, off);
	io_uring_sqe_set_data(sqe, op);
}

void loop_fdatasync(struct loop *loop, struct loop_op *op, int fd)
{
	struct io_uring_sqe *sqe = op_start(loop, op);

	io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	io_uring_sqe_set_data(sqe, op);
}

void loop_fallocate(struct loop *loop, struct loop_op *op, int fd, int mode, uint64_t off,
                    uint64_t len)
{
	struct io_uring_sqe *sqe = op_start(loop, op);

	io_uring_prep_fallocate(sqe, fd, mode, (off_t)off, (off_t)len);
	io_uring_sqe_set_data(sqe, op);
}

void loop_poll(struct loop *loop, struct loop_op *op, int fd, short events)
{
	struct io_uring_sqe *sqe = op_start(loop, op);

	io_uring_prep_poll_add(sqe, fd, (unsigned short)events);
	io_uring_sqe_set_data(sqe, op);
}

void loop_timer(struct loop *loop, struct loop_op *op, uint64_t ns)
{
	struct io_uring_sqe *sqe = op_start(loop, op);

	op->ts.tv_sec = (long long)(ns / NS_PER_S);
	op->ts.tv_nsec = (long long)(ns % NS_PER_S);
	io_uring_prep_timeout(sqe, &op->ts, 0, 0);
	io_uring_sqe_set_data(sqe, op);
}

void loop_cancel(struct loop *loop, struct loop_op *op)
{
	struct io_uring_sqe *sqe;

	if (!op->busy)
		return;
	sqe = next_sqe(loop);
	io_uring_prep_cancel(sqe, op, 0);
	io_uring_sqe_set_data(sqe, NULL);
}

int loop_reap(struct loop *loop, struct loop_op *op)
{
	if (!op->busy)
		return -ECANCELED;
	loop_cancel(loop, op);
	for (;;) {
		int ret;

		for (struct loop_op **link = &loop->kept; *link; link = &(*link)->next)
			if (*link == op)
				return kept_take(loop, link)->res;
		ret = io_uring_submit_and_wait(&loop->ring, 1);
		BUG_ON(ret < 0 && !is_passing(ret));
		collect(loop);
	}
}

void loop_post(struct loop *loop, struct loop_event *event)
{
	const uint64_t one = 1;
	bool first = false;

	pthread_mutex_lock(&loop->post_lock);
	if (!event->pending) {
		first = !loop->posted;
		event->pending = true;
		event->next = NULL;
		*loop->posted_tail = event;
		loop->posted_tail = &event->next;
		loop->nr_posted++;
	}
	pthread_mutex_unlock(&loop->post_lock);
	/* The loop looks at a list that is not empty before it waits: only the first must wake it. */
	if (first && write(loop->wake_fd, &one, sizeof(one)) != sizeof(one))
		log_err("loop: cannot wake: %s", strerror(errno));
}

/* Unlinks *link. Lock held. */
static struct loop_event *post_take(struct loop *loop, struct loop_event **link)
{
	struct loop_event *event = *link;

	*link = event->next;
	if (!event->next)
		loop->posted_tail = link;
	event->pending = false;
	loop->nr_posted--;
	return event;
}

void loop_unpost(struct loop *loop, struct loop_event *event)
{
	pthread_mutex_lock(&loop->post_lock);
	for (struct loop_event **link = &loop->posted; *link; link = &(*link)->next) {
		if (*link == event) {
			post_take(loop, link);
			break;
		}
	}
	pthread_mutex_unlock(&loop->post_lock);
}

/* Only as many as there are now: an event that posts itself again must not starve the ring. */
static void fire_posted(struct loop *loop)
{
	unsigned nr = UINT32_MAX;

	for (;;) {
		struct loop_event *event = NULL;

		pthread_mutex_lock(&loop->post_lock);
		if (nr > loop->nr_posted)
			nr = loop->nr_posted;
		if (nr)
			event = post_take(loop, &loop->posted);
		pthread_mutex_unlock(&loop->post_lock);
		if (!event)
			return;
		nr--;
		event->fire(event);
	}
}

static bool has_work(struct loop *loop)
{
	bool posted;

	pthread_mutex_lock(&loop->post_lock);
	posted = loop->posted;
	pthread_mutex_unlock(&loop->post_lock);
	return posted || loop->kept;
}

/* One turn: hands over what was started, waits when there is nothing to do, calls what is due. */
static int turn(struct loop *loop)
{
	int ret = has_work(loop) ? io_uring_submit_and_get_events(&loop->ring)
	                         : io_uring_submit_and_wait(&loop->ring, 1);

	if (ret < 0 && !is_passing(ret))
		return ret;
	collect(loop);
	while (loop->kept) {
		struct loop_op *op = kept_take(loop, &loop->kept);

		op->done(op, op->res);
	}
	fire_posted(loop);
	return 0;
}

int loop_run(struct loop *loop)
{
	int ret = 0;

	while (!loop->stop && ret == 0)
		ret = turn(loop);
	loop->stop = false;
	return ret;
}

void loop_stop(struct loop *loop)
{
	loop->stop = true;
}

int loop_run_until(struct loop *loop, bool (*done)(void *ctx), void *ctx)
{
	int ret = 0;

	while (ret == 0 && !done(ctx))
		ret = turn(loop);
	return ret;
}

static void cancel_all(struct loop *loop)
{
	struct io_uring_sqe *sqe = next_sqe(loop);

	io_uring_prep_cancel(sqe, NULL, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
	io_uring_sqe_set_data(sqe, NULL);
}

static void drop_kept(struct loop *loop)
{
	while (loop->kept)
		kept_take(loop, &loop->kept);
}

void loop_close(struct loop *loop)
{
	if (!loop->open)
		return;
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
	drop_kept(loop);
	io_uring_queue_exit(&loop->ring);
	close(loop->wake_fd);
	pthread_mutex_destroy(&loop->post_lock);
	memset(loop, 0, sizeof(*loop));
}
