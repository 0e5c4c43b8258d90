/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter kernel's C half: the doorbell (docs/protocol.md section 5), the writer of frames
 * (section 2), the capture of descriptors 1 and 2, and the memory work before the freeze.
 * What Python calls (py_*) is described in _thawbox.pyi.
 *
 * Invariants:
 * - Between the read of PARK and the write of DONE nothing here enters the kernel for a cell that only
 *   writes a little: a guest system call costs up to 0.25 ms, a guest page fault 1.5 ms. Nor does Python
 *   code run there but the cell's: each page that it touches is a fault of the host.
 * - `out` is changed only between out_lock() and out_unlock(). Callers from Python hold the GIL for
 *   all of it, so the lock only keeps Python threads and the SIGIO handler apart.
 * - The SIGIO handler runs on the main thread alone, touches no Python object and allocates nothing.
 * - A forked child never locks, never writes frames: its output goes to descriptors 1 and 2.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE /* Linux 6.1, madvise(2) */
#define MADV_COLLAPSE 25
#endif

#define PAGE         4096u
#define HUGE_PAGE    ((size_t)2 << 20)
#define ARENA        ((size_t)1 << 20) /* ARENA_SIZE of CPython 3.11 */
#define SMALL_MAX    512               /* of CPython's own allocator */
#define SMALL_STEP   16
#define MAX_ARENAS   64
#define AREA_PAGES   16u /* of the mailbox's each half */
#define AREA_BYTES   (AREA_PAGES * PAGE)
#define DOORBELL_GPA 0xd000f000
#define MAGIC        0x31584254u /* "TBX1" */
#define WAKE_MAGIC   0x454b4157u /* "WAKE" */
#define ENTROPY      64u
#define FRAME_HEADER 5u
#define FRAME_MAX    (1u << 20)
#define FRAME_MORE   0x80u
#define CELL_TYPE    0x04
#define RESULT_TYPE  0x10
#define STDOUT_TYPE  0x11u /* STDERR follows */
#define IDLE_KEPT    (64u << 10)
#define PIPE_BYTES   (256 << 10)
#define FLUSH_NS     20000000 /* output waits at most this long while a cell runs */
#define FREE_BELLS   16u      /* writes of the first cell that ring at once */
#define ENV_SLOTS    1024u

enum reg {
	REG_MAGIC = 0x00,
	REG_PAGE_LO = 0x04,
	REG_PAGE_HI = 0x08,
	REG_PORT = 0x0c,
	REG_PARK = 0x10,
	REG_OUT = 0x14,
	REG_DONE = 0x18,
	REG_NEXT = 0x1c,
};

/* What PARK and NEXT read beside a number of bytes that matters here. */
#define BELL_LOOK  0xfffffffcu /* an interrupt, or a timer: to be read again */
#define BELL_YIELD 0xfffffffbu /* the same; somebody else can run */

/* ---- the doorbell ---- */

struct bell {
	uint8_t *regs;    /* the registers, or `mock` in a rehearsal */
	uint8_t *request; /* AREA_BYTES, the response area follows */
	int to_test, from_test;
	bool fake; /* a test answers over pipes instead of a monitor */
};
static struct bell bell = { .to_test = -1, .from_test = -1 };
static _Alignas(PAGE) uint8_t mock[PAGE];

static uint32_t fake_access(uint32_t off, uint32_t value, uint32_t is_write)
{
	uint32_t msg[3] = { off, value, is_write };
	uint32_t answer = 0;

	ssize_t n = write(bell.to_test, msg, sizeof(msg));

	if (n != (ssize_t)sizeof(msg))
		_exit(70); /* the test is gone */
	do {
		n = read(bell.from_test, &answer, sizeof(answer));
	} while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(answer))
		_exit(70);
	return answer;
}

static uint32_t reg_read(enum reg off)
{
	uint32_t v;

	if (bell.fake && bell.regs != mock)
		return fake_access(off, 0, 0);
	/* The monitor completes exactly this instruction form: it patches eax at a thaw. */
	__asm__ volatile("movl (%1), %0" : "=a"(v) : "r"(bell.regs + off) : "memory");
	return v;
}

static void reg_write(enum reg off, uint32_t v)
{
	if (bell.fake && bell.regs != mock)
		fake_access(off, v, 1);
	else
		__asm__ volatile("movl %0, (%1)" : : "a"(v), "r"(bell.regs + off) : "memory");
}

/* ---- bytes kept when they may not be sent: the newest `cap`, with the stream of each ---- */

struct ring {
	uint8_t *data, *tag;
	size_t cap, start, len;
	uint64_t dropped[2];
};

static void ring_drop(struct ring *r, size_t n)
{
	while (n) {
		size_t k = r->cap - r->start < n ? r->cap - r->start : n;
		size_t err = 0;

		for (size_t i = 0; i < k; i++)
			err += r->tag[r->start + i];
		r->dropped[1] += err;
		r->dropped[0] += k - err;
		r->start = (r->start + k) % r->cap;
		r->len -= k;
		n -= k;
	}
}

static void ring_put(struct ring *r, uint8_t stream, const uint8_t *p, size_t n)
{
	if (n > r->cap) {
		r->dropped[stream] += n - r->cap;
		p += n - r->cap;
		n = r->cap;
	}
	if (r->len + n > r->cap)
		ring_drop(r, r->len + n - r->cap);
	while (n) {
		size_t at = (r->start + r->len) % r->cap;
		size_t k = r->cap - at < n ? r->cap - at : n;

		memcpy(r->data + at, p, k);
		memset(r->tag + at, stream, k);
		r->len += k;
		p += k;
		n -= k;
	}
}

/* The next run of one stream's bytes: its length, 0 when empty. */
static size_t ring_peek(const struct ring *r, uint8_t *stream, const uint8_t **p)
{
	size_t end = r->cap - r->start < r->len ? r->cap - r->start : r->len;
	size_t n = 0;

	if (!r->len)
		return 0;
	*stream = r->tag[r->start];
	*p = r->data + r->start;
	while (n < end && r->tag[r->start + n] == *stream)
		n++;
	return n;
}

static void ring_skip(struct ring *r, size_t n)
{
	r->start = (r->start + n) % r->cap;
	r->len -= n;
}

/* ---- the writer ---- */

enum sink { SINK_NONE, SINK_MAILBOX, SINK_FD };

struct out {
	enum sink sink;
	int fd;           /* SINK_FD; borrowed from Python's socket */
	uint8_t *buf;     /* bytes not yet taken by the sink */
	size_t len, open; /* open: offset + 1 of a stream frame that may still grow */
	unsigned bells;   /* OUT writes of the first cell */
	int64_t flushed_ns;
	bool armed;
	bool cell; /* a cell runs: output is sent, else kept in `idle` */
	bool bounded;
	size_t head_left, tail_cap;
	uint64_t said; /* by the cell, in bytes: output, what was cut of it too, and displays */
	struct ring tail, idle;
};

static uint8_t stream_buf[AREA_BYTES], drain_buf[AREA_BYTES];
static uint8_t idle_data[IDLE_KEPT], idle_tag[IDLE_KEPT];
static struct out out = { .fd = -1,
	                  .buf = stream_buf,
	                  .idle = { .data = idle_data, .tag = idle_tag, .cap = IDLE_KEPT } };
static atomic_int out_busy, out_dirty, out_fired;
static int pipe_fd[2] = { -1, -1 }; /* read ends of what descriptors 1 and 2 lead to */
static int saved_fd[2] = { -1, -1 };
static timer_t timer;
static bool has_timer;
static bool in_child;
static struct {
	char data[PAGE];
	size_t len;
} child[2]; /* of a forked child: what has no newline yet */

/*
 * The clock of intervals. Once calibrated it is the TSC: clock_gettime() enters the kernel where
 * the guest's clock has no vDSO form, which is up to the host.
 */
static double ns_per_tick;

static int64_t now_ns(void)
{
	struct timespec t;

	if (ns_per_tick > 0)
		return (int64_t)((double)__builtin_ia32_rdtsc() * ns_per_tick);
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Returns with nothing buffered. A peer that has gone turns the sink off; the cell goes on. */
static void flush_now(void)
{
	size_t off = 0;

	if (out.sink == SINK_MAILBOX && out.len)
		reg_write(REG_OUT, (uint32_t)out.len);
	while (out.sink == SINK_FD && off < out.len) {
		ssize_t n = send(out.fd, out.buf + off, out.len - off, MSG_NOSIGNAL);

		if (n >= 0)
			off += (size_t)n;
		else if (errno != EINTR)
			out.sink = SINK_NONE;
	}
	out.len = out.open = 0;
	out.flushed_ns = now_ns();
}

static void arm(int64_t wait_ns)
{
	struct itimerspec when = { .it_value.tv_nsec = wait_ns };

	if (out.armed || !has_timer)
		return;
	out.armed = true;
	timer_settime(timer, 0, &when, NULL);
}

/*
 * Sends what waits, or makes sure that it is sent within FLUSH_NS. The first bells of the first
 * cell ring at once, because there an exit is cheaper than arming a timer.
 */
static void flush_soon(void)
{
	int64_t waited;

	if (!out.len)
		return;
	if (out.sink == SINK_MAILBOX && out.bells < FREE_BELLS) {
		out.bells++;
		flush_now();
		return;
	}
	waited = now_ns() - out.flushed_ns;
	if (waited >= FLUSH_NS || waited < 0)
		flush_now();
	else
		arm(FLUSH_NS - waited);
}

static void put_header(uint8_t type, uint32_t n)
{
	uint8_t *h = out.buf + out.len;

	memcpy(h, &n, sizeof(n));
	h[4] = type;
	out.len += FRAME_HEADER;
}

static void put_bytes(const uint8_t *p, size_t n)
{
	while (n) {
		size_t k = AREA_BYTES - out.len < n ? AREA_BYTES - out.len : n;

		memcpy(out.buf + out.len, p, k);
		out.len += k;
		p += k;
		n -= k;
		if (n)
			flush_now();
	}
}

/* A whole payload; long ones go out in pieces with the continuation bit. */
static void put_frame(uint8_t type, const uint8_t *p, size_t n)
{
	out.open = 0;
	for (;;) {
		size_t k = n < FRAME_MAX ? n : FRAME_MAX;

		if (AREA_BYTES - out.len < FRAME_HEADER)
			flush_now();
		put_header((uint8_t)(k < n ? type | FRAME_MORE : type), (uint32_t)k);
		put_bytes(p, k);
		p += k;
		n -= k;
		if (!n)
			return;
	}
}

/* Output of a stream: joins the frame before it while that is unsent and of the same stream. */
static void put_stream(uint8_t stream, const uint8_t *p, size_t n)
{
	uint8_t type = (uint8_t)(STDOUT_TYPE + stream);

	while (n) {
		size_t k;
		uint32_t have;

		if (!out.open || out.buf[out.open + 3] != type) {
			if (AREA_BYTES - out.len <= FRAME_HEADER)
				flush_now();
			out.open = out.len + 1;
			put_header(type, 0);
		}
		k = AREA_BYTES - out.len < n ? AREA_BYTES - out.len : n;
		memcpy(out.buf + out.len, p, k);
		memcpy(&have, out.buf + out.open - 1, sizeof(have));
		have += (uint32_t)k;
		memcpy(out.buf + out.open - 1, &have, sizeof(have));
		out.len += k;
		p += k;
		n -= k;
		if (out.len == AREA_BYTES)
			flush_now();
	}
}

/* The tail is mapped when it is first needed: most cells stay within their head. */
static bool tail_open(void)
{
	void *p;

	if (out.tail.data)
		return true;
	p = mmap(NULL, 2 * out.tail_cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	         0);
	if (p == MAP_FAILED)
		return false;
	out.tail.data = p;
	out.tail.tag = out.tail.data + out.tail_cap;
	out.tail.cap = out.tail_cap;
	return true;
}

static void tail_close(void)
{
	if (out.tail.data)
		munmap(out.tail.data, 2 * out.tail.cap);
	memset(&out.tail, 0, sizeof(out.tail));
}

/* What a stream wrote: to the idle ring between cells, else to the head, then to the tail. */
static void append(uint8_t stream, const uint8_t *p, size_t n)
{
	size_t k = n;

	if (!out.cell) {
		ring_put(&out.idle, stream, p, n);
		return;
	}
	out.said += n;
	if (out.bounded) {
		k = n < out.head_left ? n : out.head_left;
		out.head_left -= k;
	}
	put_stream(stream, p, k);
	if (k == n)
		return;
	if (out.tail_cap && tail_open())
		ring_put(&out.tail, stream, p + k, n - k);
	else
		out.tail.dropped[stream] += n - k;
}

static void drain(void)
{
	for (uint8_t stream = 0; stream < 2; stream++) {
		ssize_t n;

		while (pipe_fd[stream] >= 0 &&
		       (n = read(pipe_fd[stream], drain_buf, sizeof(drain_buf))) > 0)
			append(stream, drain_buf, (size_t)n);
	}
}

static void service(void)
{
	atomic_store(&out_dirty, 0);
	drain();
	if (atomic_exchange(&out_fired, 0)) {
		out.armed = false;
		if (out.cell)
			flush_now();
	} else if (out.cell) {
		flush_soon();
	}
}

static void out_lock(void)
{
	/* Held by a handler on the main thread at most, which needs no GIL to finish. */
	while (atomic_exchange(&out_busy, 1))
		sched_yield();
}

static void out_unlock(void)
{
	for (;;) {
		atomic_store(&out_busy, 0);
		if (!atomic_load(&out_dirty) || atomic_exchange(&out_busy, 1))
			return;
		service();
	}
}

/* Raised by output in the pipes and by the flush timer. */
static void on_sigio(int sig, siginfo_t *info, void *context)
{
	int saved = errno;

	(void)sig, (void)context;
	if (!in_child) {
		if (info->si_code == SI_TIMER)
			atomic_store(&out_fired, 1);
		atomic_store(&out_dirty, 1);
		if (!atomic_exchange(&out_busy, 1)) {
			service();
			out_unlock();
		}
	}
	errno = saved;
}

static void on_fork_child(void)
{
	in_child = true;
	/* Else the host would not see the end of the stream while such a child lives. */
	if (out.sink == SINK_FD)
		close(out.fd);
}

/* ---- Python: capture of descriptors 1 and 2 ---- */

static int capture_one(int stream)
{
	struct f_owner_ex owner = { .type = F_OWNER_TID, .pid = gettid() };
	int fd[2];

	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	if (saved_fd[stream] < 0)
		saved_fd[stream] = fcntl(stream + 1, F_DUPFD_CLOEXEC, 3);
	if (pipe_fd[stream] >= 0)
		close(pipe_fd[stream]);
	if (dup2(fd[1], stream + 1) < 0 || fcntl(fd[0], F_SETOWN_EX, &owner) < 0 ||
	    fcntl(fd[0], F_SETFL, O_NONBLOCK | O_ASYNC) < 0)
		return -errno;
	fcntl(fd[0], F_SETPIPE_SZ, PIPE_BYTES); /* only fewer signals: the default does as well */
	close(fd[1]);
	pipe_fd[stream] = fd[0];
	return 0;
}

static int capture(void)
{
	struct sigaction act = { .sa_sigaction = on_sigio, .sa_flags = SA_RESTART | SA_SIGINFO };
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGIO };
	int rc;

	ev._sigev_un._tid = gettid();
	if (sigaction(SIGIO, &act, NULL) < 0 || timer_create(CLOCK_MONOTONIC, &ev, &timer) < 0)
		return -errno;
	has_timer = true;
	out.armed = false;
	in_child = false;
	rc = capture_one(0);
	return rc ? rc : capture_one(1);
}

static PyObject *py_capture(PyObject *self, PyObject *args)
{
	int rc = capture();

	(void)self, (void)args;
	if (rc) {
		errno = -rc;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	Py_RETURN_NONE;
}

static PyObject *py_release(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	for (int stream = 0; stream < 2; stream++) {
		if (saved_fd[stream] < 0)
			continue;
		dup2(saved_fd[stream], stream + 1);
		close(saved_fd[stream]);
		close(pipe_fd[stream]);
		saved_fd[stream] = pipe_fd[stream] = -1;
	}
	if (has_timer)
		timer_delete(timer);
	has_timer = false;
	Py_RETURN_NONE;
}

/* ---- Python: output ---- */

static void write_fully(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t k = write(fd, p, n);

		if (k < 0 && errno != EINTR)
			return;
		if (k > 0) {
			p += k;
			n -= (size_t)k;
		}
	}
}

/* A forked child's output: by lines, else those of several children would mix within a line. */
static void child_flush(int stream)
{
	write_fully(stream + 1, child[stream].data, child[stream].len);
	child[stream].len = 0;
}

static void child_write(int stream, const char *p, size_t n)
{
	if (n > sizeof(child->data) - child[stream].len)
		child_flush(stream);
	if (n > sizeof(child->data)) {
		write_fully(stream + 1, p, n);
		return;
	}
	memcpy(child[stream].data + child[stream].len, p, n);
	child[stream].len += n;
	if (memchr(p, '\n', n))
		child_flush(stream);
}

static void stream_write(int stream, const char *p, size_t n)
{
	if (in_child) {
		child_write(stream, p, n);
		return;
	}
	out_lock();
	append((uint8_t)stream, (const uint8_t *)p, n);
	/*
	 * In the first cell a part of a line waits for the rest of it: print() writes text and
	 * newline apart. An empty write is the end of print(..., end="").
	 */
	if (out.cell &&
	    (out.sink != SINK_MAILBOX || !n || out.bells >= FREE_BELLS || memchr(p, '\n', n)))
		flush_soon();
	out_unlock();
}

static PyObject *py_write(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
	PyObject *bytes = NULL;
	Py_buffer view = { 0 };
	Py_ssize_t n;
	long stream;

	(void)self;
	if (nargs != 2) {
		PyErr_SetString(PyExc_TypeError, "write() takes a stream and data");
		return NULL;
	}
	stream = PyLong_AsLong(args[0]);
	if (stream != 0 && stream != 1) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "stream must be 0 or 1");
		return NULL;
	}
	if (!PyUnicode_Check(args[1])) {
		if (PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE) < 0)
			return NULL;
		stream_write((int)stream, view.buf, (size_t)view.len);
		n = view.len;
		PyBuffer_Release(&view);
		return PyLong_FromSsize_t(n);
	}
	n = PyUnicode_GET_LENGTH(args[1]);
	if (PyUnicode_IS_COMPACT_ASCII(args[1])) {
		stream_write((int)stream, PyUnicode_DATA(args[1]), (size_t)n);
	} else {
		bytes = PyUnicode_AsEncodedString(args[1], "utf-8", "backslashreplace");
		if (!bytes)
			return NULL;
		stream_write((int)stream, PyBytes_AS_STRING(bytes),
		             (size_t)PyBytes_GET_SIZE(bytes));
		Py_DECREF(bytes);
	}
	return PyLong_FromSsize_t(n);
}

static PyObject *py_frame(PyObject *self, PyObject *args)
{
	const char *p;
	Py_ssize_t n;
	int type;

	(void)self;
	if (!PyArg_ParseTuple(args, "iy#:frame", &type, &p, &n))
		return NULL;
	if (!in_child && (out.cell || type == RESULT_TYPE)) {
		out_lock();
		if (type != RESULT_TYPE)
			out.said += (uint64_t)n;
		put_frame((uint8_t)type, (const uint8_t *)p, (size_t)n);
		out_unlock();
	}
	Py_RETURN_NONE;
}

static PyObject *py_hint(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	if (in_child) {
		child_flush(0);
		child_flush(1);
	} else if (out.cell) {
		out_lock();
		flush_soon();
		out_unlock();
	}
	Py_RETURN_NONE;
}

/* In the first cell by DONE, which ends it. */
static void flush_all(void)
{
	out_lock();
	if (out.sink == SINK_MAILBOX) {
		reg_write(REG_DONE, (uint32_t)out.len);
		out.len = out.open = 0;
		out.sink = SINK_NONE;
		out.buf = stream_buf;
	} else {
		flush_now();
	}
	out_unlock();
}

static PyObject *py_flush(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	if (!in_child)
		flush_all();
	Py_RETURN_NONE;
}

static void begin_output(uint64_t max)
{
	const uint8_t *p = NULL;
	uint8_t stream = 0;
	size_t n;

	out_lock();
	out.cell = true;
	out.bounded = max != 0;
	out.head_left = max / 2;
	out.tail_cap = max - max / 2;
	out.bells = 0;
	out.said = 0;
	memcpy(out.tail.dropped, out.idle.dropped, sizeof(out.tail.dropped));
	memset(out.idle.dropped, 0, sizeof(out.idle.dropped));
	while ((n = ring_peek(&out.idle, &stream, &p))) {
		append(stream, p, n);
		ring_skip(&out.idle, n);
	}
	out.flushed_ns = now_ns();
	out_unlock();
}

static PyObject *py_begin(PyObject *self, PyObject *args)
{
	unsigned long long max;

	(void)self;
	if (!PyArg_ParseTuple(args, "K:begin", &max))
		return NULL;
	begin_output(max);
	Py_RETURN_NONE;
}

/* The cell is over: the kept tail is queued; cut[] is what was dropped of each stream, in bytes. */
static void end_output(uint64_t cut[2])
{
	const uint8_t *p = NULL;
	uint8_t stream = 0;
	size_t n;

	out_lock();
	while ((n = ring_peek(&out.tail, &stream, &p))) {
		put_stream(stream, p, n);
		ring_skip(&out.tail, n);
	}
	memcpy(cut, out.tail.dropped, sizeof(out.tail.dropped));
	tail_close();
	out.cell = false;
	out_unlock();
}

static PyObject *py_end(PyObject *self, PyObject *args)
{
	uint64_t cut[2];

	(void)self, (void)args;
	end_output(cut);
	return Py_BuildValue("KK", (unsigned long long)cut[0], (unsigned long long)cut[1]);
}

static PyObject *py_said(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return PyLong_FromUnsignedLongLong(out.said);
}

static PyObject *py_attach(PyObject *self, PyObject *args)
{
	int fd;

	(void)self;
	if (!PyArg_ParseTuple(args, "i:attach", &fd))
		return NULL;
	out_lock();
	out.fd = fd;
	out.sink = fd < 0 ? SINK_NONE : SINK_FD;
	out.buf = stream_buf;
	out.len = out.open = 0;
	out_unlock();
	Py_RETURN_NONE;
}

static PyObject *py_forked(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return PyBool_FromLong(in_child);
}

/* ---- Python: the freeze point ---- */

static PyObject *os_error(const char *what)
{
	return PyErr_Format(PyExc_OSError, "%s: %s", what, strerror(errno));
}

/* Tells the monitor where each page of the mailbox lies. Needs root: else frame numbers read 0. */
static int register_pages(void)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int rc = 0;

	if (fd < 0)
		return -errno;
	for (unsigned i = 0; i < 2 * AREA_PAGES && !rc; i++) {
		uint64_t entry = 0;
		uint64_t at = ((uintptr_t)bell.request / PAGE + i) * sizeof(entry);

		if (pread(fd, &entry, sizeof(entry), (off_t)at) != (ssize_t)sizeof(entry))
			rc = -EIO;
		entry &= (UINT64_C(1) << 55) - 1;
		if (!entry)
			rc = -EPERM;
		if (rc)
			break;
		reg_write(REG_PAGE_LO, (uint32_t)(entry * PAGE));
		reg_write(REG_PAGE_HI, (uint32_t)(entry * PAGE >> 32));
	}
	close(fd);
	return rc;
}

static PyObject *py_open(PyObject *self, PyObject *args)
{
	unsigned port;
	int fd, rc;

	(void)self;
	if (!PyArg_ParseTuple(args, "I:open", &port))
		return NULL;
	fd = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
	if (fd < 0)
		return os_error("open /dev/mem");
	bell.regs = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, DOORBELL_GPA);
	close(fd);
	if (bell.regs == MAP_FAILED)
		return os_error("map the doorbell");
	if (reg_read(REG_MAGIC) != MAGIC) {
		errno = ENODEV;
		return os_error("doorbell");
	}
	bell.request = mmap(NULL, 2 * AREA_BYTES, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (bell.request == MAP_FAILED || mlock(bell.request, 2 * AREA_BYTES) < 0)
		return os_error("mailbox memory");
	/* A child would copy the page on write and leave this process with another one. */
	madvise(bell.regs, PAGE, MADV_DONTFORK);
	madvise(bell.request, 2 * AREA_BYTES, MADV_DONTFORK);
	rc = register_pages();
	if (rc) {
		errno = -rc;
		return os_error("mailbox addresses (root needed)");
	}
	reg_write(REG_PORT, port);
	Py_RETURN_NONE;
}

static PyObject *py_open_fake(PyObject *self, PyObject *args)
{
	unsigned port;
	int shm;

	(void)self;
	if (!PyArg_ParseTuple(args, "iiiI:open_fake", &shm, &bell.to_test, &bell.from_test, &port))
		return NULL;
	bell.request = mmap(NULL, 2 * AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
	                    shm, 0);
	if (bell.request == MAP_FAILED)
		return os_error("map the test's mailbox");
	madvise(bell.request, 2 * AREA_BYTES, MADV_DONTFORK);
	bell.fake = true;
	reg_write(REG_PORT, port);
	Py_RETURN_NONE;
}

static PyObject *py_rest(PyObject *self, PyObject *args)
{
	struct timespec pause = { 0 };
	int64_t from, to;
	uint64_t tick;
	double seconds;

	(void)self;
	if (!PyArg_ParseTuple(args, "d:rest", &seconds))
		return NULL;
	pause.tv_sec = (time_t)seconds;
	pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
	ns_per_tick = 0;
	from = now_ns();
	tick = __builtin_ia32_rdtsc();
	nanosleep(&pause, NULL);
	to = now_ns();
	tick = __builtin_ia32_rdtsc() - tick;
	if (to > from && tick)
		ns_per_tick = (double)(to - from) / (double)tick;
	Py_RETURN_NONE;
}

static PyObject *py_now(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return PyLong_FromLongLong(now_ns());
}

/*
 * As setenv(3), which also enters each value into a tree of all that it has seen: a new one turns
 * nodes in pages that this process shares with its relatives. False: too many variables, or no memory.
 */
static bool put_env(const char *name, const char *value)
{
	static char *slots[ENV_SLOTS + 1];
	size_t n = strlen(name), i = 0;
	char *text;

	if (environ != slots) {
		for (size_t count = 0; environ && environ[count]; count++)
			if (count == ENV_SLOTS)
				return false;
		for (; environ && environ[i]; i++)
			slots[i] = environ[i];
		slots[i] = NULL;
		environ = slots;
	}
	for (i = 0; slots[i]; i++)
		if (strncmp(slots[i], name, n) == 0 && slots[i][n] == '=')
			break;
	if (i == ENV_SLOTS || !(text = malloc(n + strlen(value) + 2)))
		return false;
	stpcpy(stpcpy(stpcpy(text, name), "="), value);
	if (!slots[i])
		slots[i + 1] = NULL;
	slots[i] = text;
	return true;
}

/* Environment of the wake: NUL-terminated "NAME=VALUE". Also for os.environ, whose dictionary this is. */
static int take_env(PyObject *environ_data, const char *p, size_t len)
{
	while (len) {
		const char *end = memchr(p, '\0', len);
		const char *equals = end ? strchr(p, '=') : NULL;
		PyObject *name, *value;
		int rc = -1;

		if (!equals)
			return PyErr_Format(PyExc_ValueError, "the wake's environment is damaged"),
			       -1;
		name = PyBytes_FromStringAndSize(p, equals - p);
		value = PyBytes_FromString(equals + 1);
		if (name && value && !put_env(PyBytes_AS_STRING(name), PyBytes_AS_STRING(value)) &&
		    setenv(PyBytes_AS_STRING(name), PyBytes_AS_STRING(value), 1) < 0)
			PyErr_SetFromErrno(PyExc_OSError);
		else if (name && value)
			rc = PyDict_SetItem(environ_data, name, value);
		Py_XDECREF(name);
		Py_XDECREF(value);
		if (rc < 0)
			return rc;
		len -= (size_t)(end + 1 - p);
		p = end + 1;
	}
	return 0;
}

enum { MT = 624 };

/* init_by_array() of the reference MT19937. `len` bytes of key, a multiple of 4. */
static void twist(uint32_t mt[MT], const uint8_t *key, size_t len)
{
	size_t words = len / 4, i = 1, j = 0;
	uint32_t word;

	mt[0] = 19650218;
	for (uint32_t k = 1; k < MT; k++)
		mt[k] = 1812433253u * (mt[k - 1] ^ (mt[k - 1] >> 30)) + k;
	for (size_t k = MT; k; k--) {
		memcpy(&word, key + 4 * j, sizeof(word));
		mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525u)) + word + (uint32_t)j;
		j = j + 1 < words ? j + 1 : 0;
		if (++i == MT) {
			mt[0] = mt[MT - 1];
			i = 1;
		}
	}
	for (size_t k = MT - 1; k; k--) {
		mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
		if (++i == MT) {
			mt[0] = mt[MT - 1];
			i = 1;
		}
	}
	mt[0] = 0x80000000u;
}

/* A random.Random of CPython 3.11 (Modules/_randommodule.c), and numpy's generator (mt19937.h). */
struct python_random {
	PyObject head;
	int index;
	uint32_t state[MT];
};
struct numpy_random {
	uint32_t state[MT];
	int pos;
};

/* Half of the key for each: they are the same kind of generator, and must not give the same numbers. */
static void reseed(PyObject *python, uintptr_t numpy, const uint8_t *key, size_t len)
{
	struct python_random *p = (struct python_random *)python;
	struct numpy_random *n = (struct numpy_random *)numpy;

	twist(p->state, key, len / 2);
	p->index = MT; /* used up, so that the next number twists first */
	if (!n)
		return;
	twist(n->state, key + len / 2, len / 2);
	n->pos = MT;
}

static PyObject *py_reseed(PyObject *self, PyObject *args)
{
	unsigned long long numpy;
	PyObject *python;
	const char *key;
	Py_ssize_t len;

	(void)self;
	if (!PyArg_ParseTuple(args, "OKy#:reseed", &python, &numpy, &key, &len))
		return NULL;
	if (!len || len % 8) {
		PyErr_SetString(PyExc_ValueError, "the key must have a multiple of 8 bytes");
		return NULL;
	}
	reseed(python, (uintptr_t)numpy, (const uint8_t *)key, (size_t)len);
	Py_RETURN_NONE;
}

/* ---- Python: the first request ---- */

/* What stands in the request area (docs/protocol.md section 5), and behind it. */
struct wake {
	uint32_t magic, env_len;
	uint8_t entropy[ENTROPY];
	uint64_t realtime_ns;
	char env[];
};
struct cell {
	uint32_t len;
	uint8_t type, silent;
	uint8_t max_output[8];
	char code[];
} __attribute__((packed));

static bool cell_runs; /* one of the mailbox is under way: an interrupt is for it */

static PyObject *py_cell_runs(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return PyBool_FromLong(cell_runs);
}

/* Stands at PARK or NEXT; returns what it read. */
static uint32_t park(enum reg where)
{
	uint32_t n;

	out.sink = SINK_MAILBOX;
	out.buf = bell.request + AREA_BYTES;
	out.len = out.open = 0;
	n = reg_read(where);
	if (n == 0 || n > AREA_BYTES) {
		out.sink = SINK_NONE;
		out.buf = stream_buf;
	}
	return n;
}

/* Its frames and RESULT are in the mailbox, and the bell has rung. Returns (start, end) in ns. */
static PyObject *finish_cell(int64_t start_ns, long count)
{
	uint64_t cut[2];
	int64_t end_ns;
	char text[192];
	int n;

	end_output(cut);
	end_ns = now_ns();
	n = snprintf(text, sizeof(text),
	             "{\"status\":\"ok\",\"execution_count\":%ld,\"error\":null,"
	             "\"cut\":{\"stdout\":%llu,\"stderr\":%llu}}",
	             count, (unsigned long long)cut[0], (unsigned long long)cut[1]);
	out_lock();
	put_frame(RESULT_TYPE, (const uint8_t *)text, (size_t)n);
	out_unlock();
	flush_all();
	return Py_BuildValue("LLO", (long long)start_ns, (long long)end_ns, Py_None);
}

/* Runs a cell; one that fails, or returns in a forked child, is left to the caller: (start, 0, error). */
static PyObject *run_cell(PyObject *run, const struct cell *cell, size_t len, long count)
{
	int64_t start_ns = now_ns();
	PyObject *argv[2], *error, *type, *trace, *rest;
	uint64_t max_output;

	memcpy(&max_output, cell->max_output, sizeof(max_output));
	argv[0] = PyUnicode_DecodeUTF8(cell->code, (Py_ssize_t)(len - sizeof(*cell)), "strict");
	if (!argv[0])
		return NULL;
	argv[1] = cell->silent ? Py_True : Py_False;
	begin_output(max_output);
	cell_runs = true;
	error = PyObject_Vectorcall(run, argv, 2, NULL);
	cell_runs = false;
	Py_DECREF(argv[0]);
	if (error == Py_None && !in_child) {
		Py_DECREF(error);
		return finish_cell(start_ns, count);
	}
	if (!error) {
		PyErr_Fetch(&type, &error, &trace);
		PyErr_NormalizeException(&type, &error, &trace);
		Py_XDECREF(type);
		Py_XDECREF(trace);
	}
	rest = Py_BuildValue("LiO", (long long)start_ns, 0, error);
	Py_DECREF(error);
	return rest;
}

/* What there is to do about the request of `n` bytes: a cell is run, a REQUEST frame returned. */
static PyObject *take_request(PyObject *run, const uint8_t *p, size_t n, long count)
{
	const struct cell *cell = (const struct cell *)p;

	if (n >= sizeof(*cell) && cell->type == CELL_TYPE && cell->len == n - FRAME_HEADER)
		return run_cell(run, cell, n, count);
	return PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)n);
}

static PyObject *py_first(PyObject *self, PyObject *args)
{
	const struct wake *wake = (const struct wake *)bell.request;
	PyObject *run, *python, *environ_data, *rest;
	unsigned long long numpy;
	uint32_t env_len, n;
	long count;

	(void)self;
	if (!PyArg_ParseTuple(args, "OOKO!l:first", &run, &python, &numpy, &PyDict_Type,
	                      &environ_data, &count))
		return NULL;
	n = park(REG_PARK);
	if (n > AREA_BYTES)
		return Py_BuildValue("IO", n, Py_None);
	env_len = wake->env_len;
	if (wake->magic != WAKE_MAGIC || env_len > AREA_BYTES ||
	    sizeof(*wake) + (size_t)env_len + n > AREA_BYTES) {
		PyErr_SetString(PyExc_ValueError, "the request area holds no wake");
		return NULL;
	}
	reseed(python, (uintptr_t)numpy, wake->entropy, ENTROPY);
	memset(bell.request + offsetof(struct wake, entropy), 0, ENTROPY);
	if (take_env(environ_data, wake->env, env_len) < 0)
		return NULL;
	if (n)
		rest = take_request(run, bell.request + sizeof(*wake) + env_len, n, count);
	else
		rest = Py_NewRef(Py_None);
	return rest ? Py_BuildValue("IN", n, rest) : NULL;
}

static PyObject *py_next(PyObject *self, PyObject *args)
{
	PyObject *run;
	uint32_t n;
	long count;

	(void)self;
	if (!PyArg_ParseTuple(args, "Ol:next", &run, &count))
		return NULL;
	do {
		/* Threads that a cell has left behind go on. */
		Py_BEGIN_ALLOW_THREADS;
		n = park(REG_NEXT);
		if (n == BELL_YIELD)
			sched_yield();
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals() < 0)
			return NULL;
	} while (n == BELL_LOOK || n == BELL_YIELD);
	if (n == 0 || n > AREA_BYTES)
		Py_RETURN_NONE;
	return take_request(run, bell.request, n, count);
}

static PyObject *py_rehearse(PyObject *self, PyObject *args)
{
	static uint8_t *real;
	static size_t used;
	const char *p;
	Py_ssize_t len;
	unsigned n;

	(void)self;
	if (!PyArg_ParseTuple(args, "z#I:rehearse", &p, &len, &n))
		return NULL;
	if (!p) {
		bell.regs = real;
		/* Not all of both: a page that is written is one that each sandbox has a copy of. */
		memset(bell.request, 0, used);
		memset(bell.request + AREA_BYTES, 0, PAGE);
		Py_RETURN_NONE;
	}
	if (len > (Py_ssize_t)AREA_BYTES) {
		PyErr_SetString(PyExc_ValueError, "the message is larger than the request area");
		return NULL;
	}
	if (bell.regs != mock)
		real = bell.regs;
	bell.regs = mock;
	used = (size_t)len;
	memcpy(bell.request, p, used);
	memcpy(mock + REG_PARK, &n, sizeof(n));
	Py_RETURN_NONE;
}

/* ---- Python: memory before the freeze ---- */

/* Arenas of Python's small objects, all touched before the freeze. With the GIL. */
static struct {
	char *base;
	size_t size;
	bool taken[MAX_ARENAS];
} arenas;

static void *arena_alloc(void *context, size_t size)
{
	void *p;

	(void)context;
	for (size_t i = 0; size == ARENA && i < arenas.size / ARENA; i++) {
		if (!arenas.taken[i]) {
			arenas.taken[i] = true;
			return arenas.base + i * ARENA;
		}
	}
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static void arena_free(void *context, void *p, size_t size)
{
	size_t off = (size_t)((char *)p - arenas.base);

	(void)context;
	if (off < arenas.size)
		arenas.taken[off / ARENA] = false;
	else
		munmap(p, size);
}

/*
 * Fills [p, p + size) with pages in one call instead of a fault each, large ones where the guest's
 * kernel has some to give (the monitor turns them off on hosts that get them wrong after a fork).
 */
static void touch(char *p, size_t size)
{
	uintptr_t from = ((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
	uintptr_t to = ((uintptr_t)p + size) & ~(uintptr_t)(HUGE_PAGE - 1);

	if (to > from) {
		madvise((void *)from, to - from, MADV_HUGEPAGE);
		madvise((void *)from, to - from, MADV_POPULATE_WRITE);
	}
	memset(p, 1, size);
	__asm__ volatile("" : : "r"(p) : "memory"); /* else a free() after it takes it away */
}

static __attribute__((noinline)) void touch_stack(size_t bytes)
{
	volatile char *p = __builtin_alloca(bytes);

	for (size_t i = 0; i < bytes; i += PAGE)
		p[i] = 1;
}

/*
 * Maps the interpreter's own program and the C library, which any cell's code may reach, and takes
 * their data (the built-in types and their reference counts) for this process.
 */
static int map_object(struct dl_phdr_info *info, size_t size, void *unused)
{
	const uintptr_t page = ~(uintptr_t)(PAGE - 1);
	uintptr_t fixed = 0; /* end of what the loader made read-only in the data segment */

	(void)size, (void)unused;
	if (*info->dlpi_name && !strstr(info->dlpi_name, "/libc.so"))
		return 0;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *seg = &info->dlpi_phdr[i];

		if (seg->p_type == PT_GNU_RELRO)
			fixed = (info->dlpi_addr + seg->p_vaddr + seg->p_memsz) & page;
	}
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *seg = &info->dlpi_phdr[i];
		uintptr_t from = (info->dlpi_addr + seg->p_vaddr) & page;
		uintptr_t to = info->dlpi_addr + seg->p_vaddr + seg->p_memsz;
		bool is_data = seg->p_flags & PF_W;

		if (seg->p_type != PT_LOAD)
			continue;
		if (is_data && from < fixed && fixed < to)
			from = fixed;
		madvise((void *)from, to - from,
		        is_data ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
	}
	return 0;
}

/* What an object maps without write permission, one range without holes; empty when there is none. */
static void constant_range(const struct dl_phdr_info *info, uintptr_t *from, uintptr_t *to)
{
	*from = *to = 0;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *seg = &info->dlpi_phdr[i];
		uintptr_t start = (info->dlpi_addr + seg->p_vaddr) & ~(uintptr_t)(PAGE - 1);
		uintptr_t end = info->dlpi_addr + seg->p_vaddr + seg->p_memsz;

		if (seg->p_type != PT_LOAD || seg->p_flags & PF_W || (*to && start != *to))
			continue;
		*from = *to ? *from : start;
		*to = (end + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
	}
}

/*
 * Replaces [to, to + size) by a copy in large pages, code among it. The copy is made elsewhere and takes the
 * place in one call, so that there is no moment without code. -errno: all is as it was.
 */
static int replace_by_large(uintptr_t to, size_t size)
{
	char *room = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
	                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *copy = room + (-(uintptr_t)room & (HUGE_PAGE - 1));
	int rc = 0;

	if (room == MAP_FAILED)
		return -errno;
	memcpy(copy, (const void *)to, size);
	/* Before the rest: only memory that may be written is collapsed. */
	if (madvise(copy, size, MADV_COLLAPSE) < 0 ||
	    mprotect(copy, size, PROT_READ | PROT_EXEC) < 0 ||
	    mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to) == MAP_FAILED)
		rc = -errno;
	munmap(room, size + HUGE_PAGE); /* what has moved away is a hole by now */
	return rc;
}

/* dl_iterate_phdr() begins with the program itself. */
static int enlarge_program(struct dl_phdr_info *info, size_t size, void *result)
{
	uintptr_t from, to;

	(void)size;
	constant_range(info, &from, &to);
	from = (from + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
	to &= ~(uintptr_t)(HUGE_PAGE - 1);
	*(int *)result = from < to ? replace_by_large(from, to - from) : -ENOENT;
	return 1;
}

static PyObject *py_large_text(PyObject *self, PyObject *args)
{
	int rc = 0;

	(void)self, (void)args;
	dl_iterate_phdr(enlarge_program, &rc);
	return PyLong_FromLong(-rc);
}

static int arenas_open(size_t size)
{
	PyObjectArenaAllocator ours = { NULL, arena_alloc, arena_free };
	char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
	               -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	p += -(uintptr_t)p & (HUGE_PAGE - 1);
	touch(p, size);
	arenas.base = p;
	arenas.size = size;
	PyObject_SetArenaAllocator(&ours);
	return 0;
}

/*
 * Takes, for good, the free blocks among what this process shares with its relatives. What cells
 * allocate then lies in pages that are its own and close together, in whatever size they ask.
 */
static void fill_holes(const char *heap)
{
	for (size_t size = SMALL_MAX; size; size -= SMALL_STEP) {
		char *p;

		do {
			p = PyObject_Malloc(size);
		} while (p && (size_t)(p - arenas.base) >= arenas.size);
		PyObject_Free(p);
	}
	for (size_t size = HUGE_PAGE; size >= SMALL_STEP; size -= size > PAGE ? size / 8 : 16) {
		char *p;

		do {
			p = malloc(size);
		} while (p && p < heap);
		free(p);
	}
}

static PyObject *py_slack(PyObject *self, PyObject *args)
{
	Py_ssize_t objects, heap, stack;
	char *p;

	(void)self;
	if (!PyArg_ParseTuple(args, "nnn:slack", &objects, &heap, &stack))
		return NULL;
	if (objects < 0 || heap < 0 || stack < 0 || (size_t)objects > MAX_ARENAS * ARENA ||
	    arenas.base) {
		PyErr_SetString(PyExc_ValueError, "slack: sizes out of range, or called twice");
		return NULL;
	}
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 128 << 20);
	p = malloc((size_t)heap);
	if (!p || (objects && arenas_open((size_t)objects)))
		return PyErr_NoMemory();
	touch(p, (size_t)heap);
	if (objects) {
		fill_holes(p);
		dl_iterate_phdr(map_object, NULL);
	}
	free(p);
	touch_stack((size_t)stack);
	Py_RETURN_NONE;
}

/* clang-format off */
#define METHOD(name, flags) { #name, (PyCFunction)(void (*)(void))py_##name, flags, NULL }
static PyMethodDef methods[] = {
	METHOD(capture, METH_NOARGS),
	METHOD(release, METH_NOARGS),
	METHOD(write, METH_FASTCALL),
	METHOD(frame, METH_VARARGS),
	METHOD(hint, METH_NOARGS),
	METHOD(flush, METH_NOARGS),
	METHOD(begin, METH_VARARGS),
	METHOD(end, METH_NOARGS),
	METHOD(said, METH_NOARGS),
	METHOD(attach, METH_VARARGS),
	METHOD(forked, METH_NOARGS),
	METHOD(open, METH_VARARGS),
	METHOD(open_fake, METH_VARARGS),
	METHOD(first, METH_VARARGS),
	METHOD(next, METH_VARARGS),
	METHOD(cell_runs, METH_NOARGS),
	METHOD(rehearse, METH_VARARGS),
	METHOD(reseed, METH_VARARGS),
	METHOD(rest, METH_VARARGS),
	METHOD(now, METH_NOARGS),
	METHOD(slack, METH_VARARGS),
	METHOD(large_text, METH_NOARGS),
	{ NULL, NULL, 0, NULL },
};
/* clang-format on */

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_thawbox",
	.m_doc = "Doorbell, frame writer and memory preparation of the interpreter kernel.",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit__thawbox(void)
{
	pthread_atfork(NULL, NULL, on_fork_child);
	return PyModule_Create(&module);
}
