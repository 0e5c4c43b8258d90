/* SPDX-License-Identifier: Apache-2.0 */
#include "core/loop.h"

#include "core/log.h"
#include "core/loop_engine.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NS_PER_S 1000000000u

static bool ring_forbidden;

static void arm_wake(struct loop *loop);

static void on_wake(struct loop_op *op, int res)
{
	struct loop *loop = container_of(op, struct loop, wake_op);

	(void)res; /* posts are looked at after every batch; the read only ends the wait */
	arm_wake(loop);
}

void loop_forbid_ring(void)
{
	ring_forbidden = true;
}

const char *loop_engine_name(const struct loop *loop)
{
	return loop->engine ? loop->engine->name : "none";
}

/* The host's decision, or its age; not that it lacks memory just now. */
static bool is_refused(int ret)
{
	return ret == -EPERM || ret == -EACCES || ret == -ENOSYS || ret == -EINVAL;
}

static int open_engine(struct loop *loop, unsigned depth, struct err *err)
{
	struct err why = { 0 };
	int ret = -EPERM;

	loop->engine = ring_forbidden ? &loop_plain : &loop_ring;
	ret = loop->engine->open(loop, depth, &why);
	if (ret < 0 && !ring_forbidden && is_refused(ret) && depth) {
		log_warn("%s; goes on without, slower. Remedy: %s", why.msg, why.remedy);
		loop->engine = &loop_plain;
		ret = loop->engine->open(loop, depth, &why);
	}
	if (ret < 0 && err)
		*err = why;
	return ret;
}

int loop_open(struct loop *loop, unsigned depth, struct err *err)
{
	int ret;

	memset(loop, 0, sizeof(*loop));
	ret = open_engine(loop, depth, err);
	if (ret < 0)
		return ret;
	loop->kept_tail = &loop->kept;
	loop->posted_tail = &loop->posted;
	loop->wake_op.done = on_wake;
	/* Blocking: the ring then waits for it; older kernels answer EAGAIN for a non-blocking one. */
	loop->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (loop->wake_fd < 0) {
		ret = err_set(err, -errno, "eventfd: %s", strerror(errno));
		loop->engine->close(loop);
		return ret;
	}
	pthread_mutex_init(&loop->post_lock, NULL);
	loop->wake_iov = (struct iovec){ &loop->wake_count, sizeof(loop->wake_count) };
	loop->open = true;
	arm_wake(loop);
	return 0;
}

void loop_completed(struct loop *loop, struct loop_op *op, int res)
{
	op->res = res;
	op->next = NULL;
	*loop->kept_tail = op;
	loop->kept_tail = &op->next;
	loop->nr_busy--;
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

static void op_start(struct loop *loop, struct loop_op *op, const struct loop_call *call)
{
	BUG_ON(op->busy || !loop->open);
	op->busy = true;
	op->call = *call;
	loop->nr_busy++;
	loop->engine->start(loop, op);
}

static void arm_wake(struct loop *loop)
{
	loop_readv(loop, &loop->wake_op, loop->wake_fd, &loop->wake_iov, 1, LOOP_STREAM);
}

void loop_readv(struct loop *loop, struct loop_op *op, int fd, const struct iovec *iov, unsigned nr,
                uint64_t off)
{
	op_start(loop, op,
	         &(struct loop_call){
			 .kind = LOOP_READV, .fd = fd, .iov = iov, .nr = nr, .off = off });
}

void loop_writev(struct loop *loop, struct loop_op *op, int fd, const struct iovec *iov,
                 unsigned nr, uint64_t off)
{
	op_start(loop, op,
	         &(struct loop_call){
			 .kind = LOOP_WRITEV, .fd = fd, .iov = iov, .nr = nr, .off = off });
}

void loop_fdatasync(struct loop *loop, struct loop_op *op, int fd)
{
	op_start(loop, op, &(struct loop_call){ .kind = LOOP_FDATASYNC, .fd = fd });
}

void loop_fallocate(struct loop *loop, struct loop_op *op, int fd, int mode, uint64_t off,
                    uint64_t len)
{
	op_start(loop, op,
	         &(struct loop_call){
			 .kind = LOOP_FALLOCATE, .fd = fd, .mode = mode, .off = off, .len = len });
}

void loop_poll(struct loop *loop, struct loop_op *op, int fd, short events)
{
	op_start(loop, op, &(struct loop_call){ .kind = LOOP_POLL, .fd = fd, .events = events });
}

void loop_timer(struct loop *loop, struct loop_op *op, uint64_t ns)
{
	op_start(loop, op,
	         &(struct loop_call){ .kind = LOOP_TIMER,
	                              .ts = { .tv_sec = (long long)(ns / NS_PER_S),
	                                      .tv_nsec = (long long)(ns % NS_PER_S) } });
}

static struct loop_op **find_kept(struct loop *loop, const struct loop_op *op)
{
	struct loop_op **link = &loop->kept;

	while (*link && *link != op)
		link = &(*link)->next;
	return *link ? link : NULL;
}

void loop_cancel(struct loop *loop, struct loop_op *op)
{
	if (op->busy && !find_kept(loop, op))
		loop->engine->cancel(loop, op);
}

int loop_reap(struct loop *loop, struct loop_op *op)
{
	struct loop_op **link;

	if (!op->busy)
		return -ECANCELED;
	loop_cancel(loop, op);
	while (!(link = find_kept(loop, op)))
		BUG_ON(loop->engine->turn(loop, true) < 0);
	return kept_take(loop, link)->res;
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
	int ret = loop->engine->turn(loop, !has_work(loop));

	if (ret < 0)
		return ret;
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

static void drop_kept(struct loop *loop)
{
	while (loop->kept)
		kept_take(loop, &loop->kept);
}

void loop_close(struct loop *loop)
{
	if (!loop->open)
		return;
	loop->engine->close(loop);
	drop_kept(loop);
	close(loop->wake_fd);
	pthread_mutex_destroy(&loop->post_lock);
	memset(loop, 0, sizeof(*loop));
}
