/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop's operations by poll(2) and plain reads and writes, for hosts that forbid io_uring. An operation on a
 * file is done at once when the loop next looks, and everything else waits for it: correct, and slower.
 */
#include "core/loop_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000u
#define GROW     32u /* entries of the array for poll(2) */
#define ONE_WRITE \
	PIPE_BUF /* bytes that a pipe, socket or terminal which polls as writable takes without waiting */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static uint64_t duration_ns(const struct loop_call *call)
{
	return (uint64_t)call->ts.tv_sec * NS_PER_S + (uint64_t)call->ts.tv_nsec;
}

static int plain_open(struct loop *loop, unsigned depth, struct err *err)
{
	if (depth == 0)
		return err_set(err, -EINVAL, "loop: a depth of 0");
	loop->pending = NULL;
	loop->pending_tail = &loop->pending;
	return 0;
}

static void plain_start(struct loop *loop, struct loop_op *op)
{
	if (op->call.kind == LOOP_TIMER)
		op->call.off = now_ns() + duration_ns(&op->call);
	op->next = NULL;
	*loop->pending_tail = op;
	loop->pending_tail = &op->next;
}

/* Unlinks *link, which has completed. */
static void end(struct loop *loop, struct loop_op **link, int res)
{
	struct loop_op *op = *link;

	*link = op->next;
	if (!op->next)
		loop->pending_tail = link;
	loop_completed(loop, op, res);
}

/* Needs no waiting for anything but the disk. */
static bool is_direct(const struct loop_call *call)
{
	bool moves = call->kind == LOOP_READV || call->kind == LOOP_WRITEV;

	return (moves && call->off != LOOP_STREAM) || call->kind == LOOP_FDATASYNC ||
	       call->kind == LOOP_FALLOCATE;
}

static int result(ssize_t n)
{
	return n < 0 ? -errno : (int)n;
}

static int do_direct(const struct loop_call *call)
{
	switch (call->kind) {
	case LOOP_READV:
		return result(preadv2(call->fd, call->iov, (int)call->nr, (off_t)call->off, 0));
	case LOOP_WRITEV:
		return result(pwritev2(call->fd, call->iov, (int)call->nr, (off_t)call->off, 0));
	case LOOP_FDATASYNC:
		return result(fdatasync(call->fd));
	default:
		return result(fallocate(call->fd, call->mode, (off_t)call->off, (off_t)call->len));
	}
}

/* On a stream that has been found ready. The kernel knows better where it has RWF_NOWAIT for that kind of file. */
static int do_stream(const struct loop_call *call)
{
	bool reads = call->kind == LOOP_READV;
	struct iovec first = call->iov[0];
	int ret = result(reads ? preadv2(call->fd, call->iov, (int)call->nr, -1, RWF_NOWAIT)
	                       : pwritev2(call->fd, call->iov, (int)call->nr, -1, RWF_NOWAIT));

	if (ret != -EOPNOTSUPP)
		return ret;
	if (first.iov_len > ONE_WRITE)
		first.iov_len = ONE_WRITE;
	return result(reads ? preadv2(call->fd, call->iov, (int)call->nr, -1, 0)
	                    : pwritev2(call->fd, &first, 1, -1, 0));
}

static void do_all_direct(struct loop *loop)
{
	struct loop_op **link = &loop->pending;

	while (*link) {
		if (is_direct(&(*link)->call))
			end(loop, link, do_direct(&(*link)->call));
		else
			link = &(*link)->next;
	}
}

static short wanted(const struct loop_call *call)
{
	if (call->kind == LOOP_POLL)
		return call->events;
	return call->kind == LOOP_READV ? POLLIN : POLLOUT;
}

/* What waits for a descriptor, in the order of the list; its number, or -ENOMEM. Also the first timer's time. */
static int gather(struct loop *loop, uint64_t *due_ns)
{
	unsigned nr = 0;

	*due_ns = UINT64_MAX;
	for (const struct loop_op *op = loop->pending; op; op = op->next) {
		if (op->call.kind == LOOP_TIMER) {
			*due_ns = op->call.off < *due_ns ? op->call.off : *due_ns;
			continue;
		}
		if (nr == loop->nr_pollfds) {
			struct pollfd *grown = realloc(loop->pollfd, (nr + GROW) * sizeof(*grown));

			if (!grown)
				return -ENOMEM;
			loop->pollfd = grown;
			loop->nr_pollfds = nr + GROW;
		}
		loop->pollfd[nr++] =
			(struct pollfd){ .fd = op->call.fd, .events = wanted(&op->call) };
	}
	return (int)nr;
}

/* Completes what poll(2) has found, and the timers that are due. */
static void end_ready(struct loop *loop)
{
	struct loop_op **link = &loop->pending;
	uint64_t now = now_ns();
	unsigned i = 0;

	while (*link) {
		const struct loop_call *call = &(*link)->call;
		int res = -EAGAIN; /* goes on */
		short found;

		if (call->kind == LOOP_TIMER) {
			res = call->off <= now ? -ETIME : -EAGAIN;
		} else if ((found = loop->pollfd[i++].revents)) {
			if (found & POLLNVAL)
				res = -EBADF;
			else
				res = call->kind == LOOP_POLL ? found : do_stream(call);
		}
		if (res == -EAGAIN)
			link = &(*link)->next;
		else
			end(loop, link, res);
	}
}

static int plain_turn(struct loop *loop, bool wait)
{
	struct timespec ts = { 0 };
	uint64_t due, now;
	int nr;

	do_all_direct(loop);
	nr = gather(loop, &due);
	if (nr < 0)
		return nr;
	now = now_ns();
	if (wait && !loop->kept && due > now)
		ts = (struct timespec){ .tv_sec = (time_t)((due - now) / NS_PER_S),
			                .tv_nsec = (long)((due - now) % NS_PER_S) };
	else
		due = 0;
	if (ppoll(loop->pollfd, (nfds_t)nr, due == UINT64_MAX ? NULL : &ts, NULL) < 0)
		return errno == EINTR ? 0 : -errno;
	end_ready(loop);
	return 0;
}

/* What could have completed by now has; then it is either done or taken out. */
static void plain_cancel(struct loop *loop, struct loop_op *op)
{
	struct loop_op **link = &loop->pending;

	if (plain_turn(loop, false) < 0)
		link = &loop->pending; /* no memory: then it is cancelled all the same */
	while (*link && *link != op)
		link = &(*link)->next;
	if (*link)
		end(loop, link, -ECANCELED);
}

static void plain_close(struct loop *loop)
{
	while (loop->pending)
		end(loop, &loop->pending, -ECANCELED);
	free(loop->pollfd);
}

const struct loop_engine loop_plain = {
	.name = "poll",
	.open = plain_open,
	.start = plain_start,
	.cancel = plain_cancel,
	.turn = plain_turn,
	.close = plain_close,
};
