/* SPDX-License-Identifier: Apache-2.0 */
#include "core/loop.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 64

static struct loop loop;

static void setup(void)
{
	struct err err = { 0 };

	cr_assert_eq(loop_open(&loop, DEPTH, &err), 0, "%s", err.msg);
}

static void setup_plain(void)
{
	loop_forbid_ring();
	setup();
	cr_assert_str_eq(loop_engine_name(&loop), "poll");
}

static void teardown(void)
{
	loop_close(&loop);
}

TestSuite(loop, .init = setup, .fini = teardown, .timeout = 20);
TestSuite(plain, .init = setup_plain, .fini = teardown, .timeout = 20);

/* One test of both: what a caller sees must not differ. */
#define BOTH(name)              \
	static void name(void); \
	Test(loop, name)        \
	{                       \
		name();         \
	}                       \
	Test(plain, name)       \
	{                       \
		name();         \
	}                       \
	static void name(void)

/* An operation that remembers how it ended. */
struct probe {
	struct loop_op op;
	int res;
	int nr_done;
};

static void on_probe(struct loop_op *op, int res)
{
	struct probe *p = container_of(op, struct probe, op);

	p->res = res;
	p->nr_done++;
}

static struct probe probe(void)
{
	return (struct probe){ .op.done = on_probe };
}

static bool probe_is_done(void *ctx)
{
	return ((struct probe *)ctx)->nr_done > 0;
}

static int probe_wait(struct probe *p)
{
	cr_assert_eq(loop_run_until(&loop, probe_is_done, p), 0);
	cr_assert_eq(p->nr_done, 1);
	cr_assert(!p->op.busy);
	return p->res;
}

static int make_file(size_t size)
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

BOTH(file_round_trip)
{
	char out[] = "hello, ring", in[16] = { 0 }, sync_in[16] = { 0 };
	struct iovec w[2] = { { out, 5 }, { out + 5, sizeof(out) - 5 } };
	struct iovec r = { in, sizeof(out) };
	struct probe p = probe(), q = probe(), s = probe();
	int fd = make_file(8192);

	loop_writev(&loop, &p.op, fd, w, 2, 4000);
	cr_assert(p.op.busy);
	cr_assert_eq(probe_wait(&p), (int)sizeof(out));
	cr_assert_eq(pread(fd, sync_in, sizeof(out), 4000), (ssize_t)sizeof(out));
	cr_assert_str_eq(sync_in, out);
	loop_readv(&loop, &q.op, fd, &r, 1, 4000);
	cr_assert_eq(probe_wait(&q), (int)sizeof(out));
	cr_assert_str_eq(in, out);
	loop_fdatasync(&loop, &s.op, fd);
	cr_assert_eq(probe_wait(&s), 0);
	close(fd);
}

BOTH(fallocate_punches)
{
	struct probe p = probe();
	char c = 'x';
	int fd = make_file(8192);

	cr_assert_eq(pwrite(fd, &c, 1, 4096), 1);
	loop_fallocate(&loop, &p.op, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096);
	cr_assert_eq(probe_wait(&p), 0);
	cr_assert_eq(pread(fd, &c, 1, 4096), 1);
	cr_assert_eq(c, 0);
	close(fd);
}

BOTH(errors_are_results)
{
	struct probe p = probe(), q = probe();
	char c = 0;
	struct iovec iov = { &c, 1 };

	loop_readv(&loop, &p.op, -1, &iov, 1, 0);
	cr_assert_eq(probe_wait(&p), -EBADF);
	loop_fdatasync(&loop, &q.op, -1);
	cr_assert_eq(probe_wait(&q), -EBADF);
}

BOTH(poll_waits_for_readiness)
{
	struct probe p = probe(), t = probe();
	int fd[2];

	cr_assert_eq(pipe(fd), 0);
	loop_poll(&loop, &p.op, fd[0], POLLIN);
	loop_timer(&loop, &t.op, 5000000);
	cr_assert_eq(probe_wait(&t), -ETIME);
	cr_assert_eq(p.nr_done, 0);
	cr_assert_eq(write(fd[1], "x", 1), 1);
	cr_assert_eq(probe_wait(&p), POLLIN);
}

BOTH(timer_keeps_time)
{
	struct probe p = probe();
	uint64_t start = now_ns();

	loop_timer(&loop, &p.op, 30000000);
	cr_assert_eq(probe_wait(&p), -ETIME);
	cr_assert_geq(now_ns() - start, 30000000);
}

BOTH(cancel_still_completes)
{
	struct probe p = probe(), t = probe();
	int fd[2];

	cr_assert_eq(pipe(fd), 0);
	loop_cancel(&loop, &p.op); /* not busy: nothing happens */
	loop_poll(&loop, &p.op, fd[0], POLLIN);
	loop_timer(&loop, &t.op, 3600ull * 1000000000u);
	loop_cancel(&loop, &p.op);
	loop_cancel(&loop, &t.op);
	cr_assert(p.op.busy);
	cr_assert_eq(probe_wait(&p), -ECANCELED);
	cr_assert_eq(probe_wait(&t), -ECANCELED);
}

/* Ten times more operations than the ring has entries: a full ring is no error. */
BOTH(more_operations_than_entries)
{
	enum { NR = DEPTH * 10 };
	static struct probe p[NR];
	static uint32_t value[NR];
	static struct iovec iov[NR];
	int fd = make_file(0);

	for (uint32_t i = 0; i < NR; i++) {
		p[i] = probe();
		value[i] = i * 7;
		iov[i] = (struct iovec){ &value[i], sizeof(value[i]) };
		loop_writev(&loop, &p[i].op, fd, &iov[i], 1, i * sizeof(value[i]));
	}
	for (uint32_t i = 0; i < NR; i++)
		cr_assert_eq(probe_wait(&p[i]), (int)sizeof(value[i]));
	for (uint32_t i = 0; i < NR; i++) {
		uint32_t got;

		cr_assert_eq(pread(fd, &got, sizeof(got), i * sizeof(got)), (ssize_t)sizeof(got));
		cr_assert_eq(got, i * 7);
	}
}

/* More completions at once than the completion ring holds. */
BOTH(completions_overflow)
{
	enum { NR = DEPTH * 20 };
	static struct probe p[NR];
	int fd[2];

	cr_assert_eq(pipe(fd), 0);
	for (int i = 0; i < NR; i++) {
		p[i] = probe();
		loop_poll(&loop, &p[i].op, fd[0], POLLIN);
	}
	cr_assert_eq(write(fd[1], "x", 1), 1);
	for (int i = 0; i < NR; i++)
		cr_assert_eq(probe_wait(&p[i]), POLLIN);
}

struct counter {
	struct loop_event event;
	int fired;
	int stop_at;
	bool again;
};

static void on_count(struct loop_event *event)
{
	struct counter *c = container_of(event, struct counter, event);

	if (++c->fired == c->stop_at)
		loop_stop(&loop);
	else if (c->again)
		loop_post(&loop, event);
}

BOTH(posts_melt_and_unpost)
{
	struct counter a = { .event.fire = on_count }, b = a, last = a;

	last.stop_at = 1;
	loop_post(&loop, &a.event);
	loop_post(&loop, &a.event);
	loop_post(&loop, &b.event);
	loop_unpost(&loop, &b.event);
	loop_unpost(&loop, &b.event);
	loop_post(&loop, &last.event);
	cr_assert_eq(loop_run(&loop), 0);
	cr_assert_eq(a.fired, 1);
	cr_assert_eq(b.fired, 0);
	cr_assert_eq(last.fired, 1);
	loop_post(&loop, &b.event);
	last = (struct counter){ .event.fire = on_count, .stop_at = 1 };
	loop_post(&loop, &last.event);
	cr_assert_eq(loop_run(&loop), 0);
	cr_assert_eq(b.fired, 1);
}

/* An event that posts itself for ever must not keep operations from completing. */
BOTH(reposting_does_not_starve)
{
	struct counter c = { .event.fire = on_count, .again = true };
	struct probe p = probe();

	loop_post(&loop, &c.event);
	loop_timer(&loop, &p.op, 10000000);
	cr_assert_eq(probe_wait(&p), -ETIME);
	cr_assert_gt(c.fired, 1);
	loop_unpost(&loop, &c.event);
}

/* A post behind another one does not wake the loop: it has to look before it waits. */
BOTH(reposting_behind_another)
{
	struct counter a = { .event.fire = on_count, .again = true, .stop_at = 3 };
	struct counter b = { .event.fire = on_count };

	loop_post(&loop, &a.event);
	loop_post(&loop, &b.event);
	cr_assert_eq(loop_run(&loop), 0);
	cr_assert_eq(a.fired, 3);
	cr_assert_eq(b.fired, 1);
}

enum { POSTERS = 4, POSTS = 5000 };

struct poster {
	pthread_t thread;
	struct loop_event event;
	_Atomic int posted;
	_Atomic int seen; /* `posted` as fire() saw it */
};

static void on_poster(struct loop_event *event)
{
	struct poster *p = container_of(event, struct poster, event);

	p->seen = p->posted;
}

static void *post_much(void *arg)
{
	struct poster *p = arg;

	for (int i = 1; i <= POSTS; i++) {
		p->posted = i;
		loop_post(&loop, &p->event);
	}
	return NULL;
}

static bool posters_are_seen(void *ctx)
{
	struct poster *p = ctx;

	for (int i = 0; i < POSTERS; i++)
		if (p[i].seen != POSTS)
			return false;
	return true;
}

/* Every post is followed by a fire(), or the last one would never be seen. */
BOTH(posts_from_threads_are_never_lost)
{
	static struct poster p[POSTERS];

	for (int i = 0; i < POSTERS; i++) {
		p[i].event.fire = on_poster;
		cr_assert_eq(pthread_create(&p[i].thread, NULL, post_much, &p[i]), 0);
	}
	cr_assert_eq(loop_run_until(&loop, posters_are_seen, p), 0);
	for (int i = 0; i < POSTERS; i++)
		pthread_join(p[i].thread, NULL);
}

struct nested {
	struct loop_op op;
	struct probe inner, other;
	struct counter *posted;
	int order; /* of the inner end among what happened */
};

static void on_outer(struct loop_op *op, int res)
{
	struct nested *n = container_of(op, struct nested, op);

	cr_assert_eq(res, -ETIME);
	n->inner = probe();
	loop_timer(&loop, &n->inner.op, 1000000);
	loop_post(&loop, &n->posted->event);
	cr_assert_eq(loop_run_until(&loop, probe_is_done, &n->inner), 0);
	n->order = n->inner.nr_done;
	loop_stop(&loop);
}

BOTH(nested_run)
{
	struct counter c = { .event.fire = on_count };
	struct nested n = { .op.done = on_outer, .posted = &c };

	loop_timer(&loop, &n.op, 1000000);
	cr_assert_eq(loop_run(&loop), 0);
	cr_assert_eq(n.order, 1);
	cr_assert_eq(c.fired, 1);
}

/* Reaping ends one operation without calling anything; what completed meanwhile comes later. */
BOTH(reap_is_silent)
{
	struct probe p = probe(), q = probe(), done = probe();
	int fd[2], other[2];

	cr_assert_eq(pipe(fd), 0);
	cr_assert_eq(pipe(other), 0);
	cr_assert_eq(loop_reap(&loop, &p.op), -ECANCELED);
	loop_poll(&loop, &p.op, fd[0], POLLIN);
	loop_poll(&loop, &q.op, other[0], POLLIN);
	cr_assert_eq(write(other[1], "x", 1), 1);
	loop_timer(&loop, &done.op, 0);
	cr_assert_eq(loop_reap(&loop, &p.op), -ECANCELED);
	cr_assert(!p.op.busy);
	cr_assert_eq(p.nr_done + q.nr_done + done.nr_done, 0);
	cr_assert_eq(probe_wait(&q), POLLIN);
	cr_assert_eq(probe_wait(&done), -ETIME);
	cr_assert_eq(p.nr_done, 0);
}

BOTH(reap_of_a_completed_operation)
{
	struct probe p = probe(), q = probe();
	int fd[2];

	cr_assert_eq(pipe(fd), 0);
	cr_assert_eq(write(fd[1], "x", 1), 1);
	loop_poll(&loop, &p.op, fd[0], POLLIN);
	loop_timer(&loop, &q.op, 3600ull * 1000000000u);
	cr_assert_eq(loop_reap(&loop, &q.op), -ECANCELED); /* keeps p's completion */
	cr_assert_eq(loop_reap(&loop, &p.op), POLLIN);
	cr_assert_eq(p.nr_done, 0);
	loop_poll(&loop, &p.op, fd[0], POLLIN);
	cr_assert_eq(probe_wait(&p), POLLIN);
}

BOTH(close_with_operations_in_flight)
{
	static struct probe p[200];
	static char buf[200];
	static struct iovec iov[200];
	int fd[2], zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	cr_assert_eq(pipe(fd), 0);
	for (unsigned i = 0; i < ARRAY_LEN(p); i++) {
		p[i] = probe();
		iov[i] = (struct iovec){ &buf[i], 1 };
		if (i % 4 == 0)
			loop_poll(&loop, &p[i].op, fd[0], POLLIN);
		else if (i % 4 == 1)
			loop_timer(&loop, &p[i].op, 3600ull * 1000000000u);
		else
			loop_readv(&loop, &p[i].op, i % 4 == 2 ? fd[0] : zero, &iov[i], 1,
			           LOOP_STREAM);
	}
	loop_close(&loop);
	for (unsigned i = 0; i < ARRAY_LEN(p); i++) {
		cr_assert(!p[i].op.busy);
		cr_assert_eq(p[i].nr_done, 0);
	}
	cr_assert_eq(write(fd[1], "abc", 3), 3); /* no read is left that would take it */
	cr_assert_eq(read(fd[0], buf, 3), 3);
	loop_close(&loop);
}

BOTH(stop_before_run)
{
	loop_stop(&loop);
	cr_assert_eq(loop_run(&loop), 0);
}

Test(loop, close_of_zeroed)
{
	struct loop zero = { 0 };

	loop_close(&zero);
}

Test(loop, bad_depth_is_an_error_with_a_remedy)
{
	struct loop bad;
	struct err err = { 0 };

	cr_assert_lt(loop_open(&bad, 0, &err), 0);
	cr_assert_neq(err.msg[0], '\0');
	loop_close(&bad);
}

/* Makes io_uring_setup() fail in this process, as a host that forbids or lacks it does. */
static void forbid_rings(unsigned error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { .len = ARRAY_LEN(code), .filter = code };

	cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0);
}

static void goes_on_without(unsigned error)
{
	struct probe p = probe();
	struct err err = { 0 };

	loop_close(&loop);
	forbid_rings(error);
	cr_assert_eq(loop_open(&loop, DEPTH, &err), 0, "%s", err.msg);
	cr_assert_str_eq(loop_engine_name(&loop), "poll");
	loop_timer(&loop, &p.op, 1000000);
	cr_assert_eq(probe_wait(&p), -ETIME);
}

Test(loop, a_host_that_forbids_rings)
{
	goes_on_without(EPERM);
}

Test(loop, a_host_without_rings)
{
	goes_on_without(ENOSYS);
}

/* Lack of memory passes, and says what to do. */
Test(loop, a_host_without_memory)
{
	struct loop bad;
	struct err err = { 0 };

	forbid_rings(ENOMEM);
	cr_assert_eq(loop_open(&bad, DEPTH, &err), -ENOMEM);
	cr_assert(strstr(err.remedy, "ulimit -l"), "%s", err.remedy);
	loop_close(&bad);
}

/* The ring's own answer to an operation that is put into it behind the loop's back. */
static int ring_answer(const struct io_uring_sqe *wanted)
{
	struct io_uring *ring = &loop.ring;
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	uint64_t data;
	int res;

	*sqe = *wanted;
	sqe->user_data = 0x5ea1;
	cr_assert_geq(io_uring_submit(ring), 1);
	do {
		cr_assert_eq(io_uring_wait_cqe(ring, &cqe), 0);
		res = cqe->res;
		data = cqe->user_data;
		io_uring_cqe_seen(ring, cqe);
	} while (data != 0x5ea1);
	return res;
}

/* The list is the kernel's to enforce: each operation that is not in it, and each flag. */
Test(loop, the_ring_is_sealed)
{
	static const uint8_t in_list[] = { IORING_OP_READV,       IORING_OP_WRITEV,
		                           IORING_OP_FSYNC,       IORING_OP_POLL_ADD,
		                           IORING_OP_TIMEOUT,     IORING_OP_FALLOCATE,
		                           IORING_OP_ASYNC_CANCEL };
	static const uint8_t flags[] = { IOSQE_FIXED_FILE, IOSQE_ASYNC };
	int refused = 0;

	for (int op = 0; op < IORING_OP_LAST; op++) {
		struct io_uring_sqe sqe = { .opcode = (uint8_t)op, .fd = -1 };

		if (memchr(in_list, op, sizeof(in_list)))
			continue;
		cr_assert_eq(ring_answer(&sqe), -EACCES, "operation %d", op);
		refused++;
	}
	cr_assert_eq(refused, IORING_OP_LAST - (int)ARRAY_LEN(in_list));
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		struct io_uring_sqe sqe = { .opcode = IORING_OP_FSYNC, .flags = flags[i] };

		cr_assert_eq(ring_answer(&sqe), -EACCES, "flag 0x%x", flags[i]);
	}
	cr_assert_lt(io_uring_register_files(&loop.ring, (int[]){ 0 }, 1), 0);
	cr_assert_lt(io_uring_enable_rings(&loop.ring), 0, "enabled once");
}

/* A ring is opened on the way of every sandbox: it must stay far below a millisecond. */
Test(loop, opening_is_cheap)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 50; i++) {
		struct loop l;
		uint64_t start = now_ns(), took;

		cr_assert_eq(loop_open(&l, DEPTH, NULL), 0);
		took = now_ns() - start;
		loop_close(&l);
		if (took < best)
			best = took;
	}
	cr_log_info("loop_open: %llu ns", (unsigned long long)best);
	cr_assert_lt(best, 1000000);
}
