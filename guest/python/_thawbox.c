/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter kernel's C half: the doorbell (docs/protocol.md section 5), the writer of frames
 * (section 2), the capture of descriptors 1 and 2, and the memory work before the freeze.
 *
 * Invariants:
 * - Between the return of park() and done() nothing here enters the kernel for a cell that only
 *   writes a little: a guest system call costs up to 0.25 ms, a guest page fault 1.5 ms.
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
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PAGE         4096u
#define AREA_PAGES   16u /* of the mailbox's each half */
#define AREA_BYTES   (AREA_PAGES * PAGE)
#define DOORBELL_GPA 0xd000f000
#define MAGIC        0x31584254u /* "TBX1" */
#define WAKE_MAGIC   0x454b4157u /* "WAKE" */
#define WAKE_HEADER  80u         /* magic, length, entropy, time */
#define ENTROPY      64u
#define FRAME_HEADER 5u
#define FRAME_MAX    (1u << 20)
#define FRAME_MORE   0x80u
#define STDOUT_TYPE  0x11u /* STDERR follows */
#define IDLE_KEPT    (64u << 10)
#define PIPE_BYTES   (256 << 10)
#define FLUSH_NS     20000000 /* output waits at most this long while a cell runs */
#define FREE_BELLS   16u      /* writes of the first cell that ring at once */

enum reg {
	REG_MAGIC = 0x00,
	REG_PAGE_LO = 0x04,
	REG_PAGE_HI = 0x08,
	REG_PORT = 0x0c,
	REG_PARK = 0x10,
	REG_OUT = 0x14,
	REG_DONE = 0x18,
};

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

	if (write(bell.to_test, msg, sizeof(msg)) != (ssize_t)sizeof(msg) ||
	    read(bell.from_test, &answer, sizeof(answer)) != (ssize_t)sizeof(answer))
		_exit(70); /* the test is gone */
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
	int fd;                     /* SINK_FD; borrowed from Python's socket */
	uint8_t *buf;               /* bytes not yet taken by the sink */
	size_t len, open;           /* open: offset + 1 of a stream frame that may still grow */
	unsigned bells;             /* OUT writes of the first cell */
	int64_t flushed_ns, due_ns; /* due_ns: when the timer fires, 0 unarmed */
	bool cell;                  /* a cell runs: output is sent, else kept in `idle` */
	bool bounded;
	size_t head_left, tail_cap;
	struct ring tail, idle;
};

static uint8_t stream_buf[AREA_BYTES], drain_buf[AREA_BYTES];
static uint8_t idle_data[IDLE_KEPT], idle_tag[IDLE_KEPT];
static struct out out = { .fd = -1,
	                  .buf = stream_buf,
	                  .idle = { .data = idle_data, .tag = idle_tag, .cap = IDLE_KEPT } };
static atomic_int out_busy, out_dirty;
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

static void arm(int64_t wait_ns, int64_t now)
{
	struct itimerspec when = { .it_value.tv_nsec = wait_ns };

	if (out.due_ns || !has_timer)
		return;
	out.due_ns = now + wait_ns;
	timer_settime(timer, 0, &when, NULL);
}

/*
 * Sends what waits, or makes sure that it is sent within FLUSH_NS. The first bells of the first
 * cell ring at once, because there an exit is cheaper than arming a timer.
 */
static void flush_soon(void)
{
	int64_t now;

	if (!out.len)
		return;
	if (out.sink == SINK_MAILBOX && out.bells < FREE_BELLS) {
		out.bells++;
		flush_now();
		return;
	}
	now = now_ns();
	if (out.due_ns && now >= out.due_ns)
		out.due_ns = 0;
	if (now - out.flushed_ns >= FLUSH_NS)
		flush_now();
	else
		arm(FLUSH_NS - (now - out.flushed_ns), now);
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
	if (out.cell)
		flush_soon();
	else
		out.due_ns = 0; /* one shot, fired or about to: the next cell arms anew */
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
static void on_sigio(int sig)
{
	int saved = errno;

	(void)sig; /* one handler, one signal */
	if (!in_child) {
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
	struct sigaction act = { .sa_handler = on_sigio, .sa_flags = SA_RESTART };
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGIO };
	int rc;

	ev._sigev_un._tid = gettid();
	if (sigaction(SIGIO, &act, NULL) < 0 || timer_create(CLOCK_MONOTONIC, &ev, &timer) < 0)
		return -errno;
	has_timer = true;
	out.due_ns = 0;
	in_child = false;
	rc = capture_one(0);
	return rc ? rc : capture_one(1);
}

PyDoc_STRVAR(capture_doc, "capture() -> None\n\nMakes this process, on its main thread, the reader "
                          "of its own descriptors 1 and 2. Once after each fork of a kernel. "
                          "Raises OSError.");
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

PyDoc_STRVAR(release_doc, "release() -> None\n\nGives descriptors 1 and 2 back to what they were "
                          "before capture(); what waits in the pipes is lost.");
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

PyDoc_STRVAR(write_doc, "write(stream: 0 | 1, data: str | bytes-like) -> int\n\nWrites to stdout "
                        "or stderr; text as UTF-8, surrogates as backslash escapes. Returns "
                        "len(data). Any thread.");
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

PyDoc_STRVAR(frame_doc, "frame(type: int, payload: bytes) -> None\n\nQueues one whole payload; "
                        "nothing in a forked child.");
static PyObject *py_frame(PyObject *self, PyObject *args)
{
	const char *p;
	Py_ssize_t n;
	int type;

	(void)self;
	if (!PyArg_ParseTuple(args, "iy#:frame", &type, &p, &n))
		return NULL;
	if (!in_child) {
		out_lock();
		put_frame((uint8_t)type, (const uint8_t *)p, (size_t)n);
		out_unlock();
	}
	Py_RETURN_NONE;
}

PyDoc_STRVAR(hint_doc, "hint() -> None\n\nWhat is queued should go out soon: at once in the first "
                       "cell, within 20 ms on a stream.");
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

PyDoc_STRVAR(flush_doc, "flush() -> None\n\nSends everything queued; in the first cell by DONE, "
                        "which ends the mailbox's use.");
static PyObject *py_flush(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	if (in_child)
		Py_RETURN_NONE;
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
	Py_RETURN_NONE;
}

PyDoc_STRVAR(begin_doc, "begin(max_output: int) -> None\n\nA cell starts: output is sent from now "
                        "on, first what was written since the last one. max_output in bytes, 0 for "
                        "no bound.");
static PyObject *py_begin(PyObject *self, PyObject *args)
{
	unsigned long long max;
	const uint8_t *p = NULL;
	uint8_t stream = 0;
	size_t n;

	(void)self;
	if (!PyArg_ParseTuple(args, "K:begin", &max))
		return NULL;
	out_lock();
	out.cell = true;
	out.bounded = max != 0;
	out.head_left = max / 2;
	out.tail_cap = max - max / 2;
	out.bells = 0;
	memcpy(out.tail.dropped, out.idle.dropped, sizeof(out.tail.dropped));
	memset(out.idle.dropped, 0, sizeof(out.idle.dropped));
	while ((n = ring_peek(&out.idle, &stream, &p))) {
		append(stream, p, n);
		ring_skip(&out.idle, n);
	}
	out.flushed_ns = now_ns();
	out_unlock();
	Py_RETURN_NONE;
}

PyDoc_STRVAR(end_doc, "end() -> tuple[int, int]\n\nThe cell is over: the kept tail is queued. "
                      "Returns the bytes of stdout and stderr that were dropped.");
static PyObject *py_end(PyObject *self, PyObject *args)
{
	uint64_t cut[2];
	const uint8_t *p = NULL;
	uint8_t stream = 0;
	size_t n;

	(void)self, (void)args;
	out_lock();
	while ((n = ring_peek(&out.tail, &stream, &p))) {
		put_stream(stream, p, n);
		ring_skip(&out.tail, n);
	}
	memcpy(cut, out.tail.dropped, sizeof(cut));
	tail_close();
	out.cell = false;
	out_unlock();
	return Py_BuildValue("KK", (unsigned long long)cut[0], (unsigned long long)cut[1]);
}

PyDoc_STRVAR(attach_doc, "attach(fd: int) -> None\n\nFrames go to this connected socket (-1: to "
                         "nobody). The caller keeps the socket open until the next attach().");
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

PyDoc_STRVAR(forked_doc, "forked() -> bool\n\nTrue in a process that user code forked.");
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

PyDoc_STRVAR(open_doc,
             "open(port: int) -> None\n\nMaps the doorbell and gives the monitor this process's "
             "mailbox. Root. Raises OSError where there is no such monitor.");
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

PyDoc_STRVAR(open_fake_doc,
             "open_fake(shm: int, to_test: int, from_test: int, port: int) -> None\n\nA doorbell "
             "for tests: the mailbox is the shared memory file, each register access a message of "
             "three u32 (offset, value, is_write), answered by a u32.");
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

PyDoc_STRVAR(rest_doc,
             "rest(seconds: float) -> None\n\nSleeps, and measures the TSC meanwhile: from "
             "then on now() needs no system call. Before any cell.");
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

PyDoc_STRVAR(now_doc, "now() -> int\n\nNanoseconds of an interval clock.");
static PyObject *py_now(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return PyLong_FromLongLong(now_ns());
}

PyDoc_STRVAR(park_doc, "park() -> int\n\nThe freeze point: returns what PARK read (protocol "
                       "section 5). Frames go to the mailbox from here to the next flush().");
static PyObject *py_park(PyObject *self, PyObject *args)
{
	uint32_t n;

	(void)self, (void)args;
	out.sink = SINK_MAILBOX;
	out.buf = bell.request + AREA_BYTES;
	out.len = out.open = 0;
	n = reg_read(REG_PARK);
	if (n == 0 || n > AREA_BYTES) {
		out.sink = SINK_NONE;
		out.buf = stream_buf;
	}
	return PyLong_FromUnsignedLong(n);
}

PyDoc_STRVAR(wake_doc, "wake(n: int) -> tuple[bytes, bytes, bytes]\n\nEntropy, wake JSON and the "
                       "request frame's n bytes out of the request area; the entropy is wiped "
                       "there. Raises ValueError when they are not there.");
static PyObject *py_wake(PyObject *self, PyObject *args)
{
	uint32_t head[2];
	unsigned n;
	PyObject *r;

	(void)self;
	if (!PyArg_ParseTuple(args, "I:wake", &n))
		return NULL;
	memcpy(head, bell.request, sizeof(head));
	if (head[0] != WAKE_MAGIC || n > AREA_BYTES || head[1] > AREA_BYTES ||
	    WAKE_HEADER + (size_t)head[1] + n > AREA_BYTES) {
		PyErr_SetString(PyExc_ValueError, "the request area holds no wake");
		return NULL;
	}
	r = Py_BuildValue("y#y#y#", bell.request + 8, (Py_ssize_t)ENTROPY,
	                  bell.request + WAKE_HEADER, (Py_ssize_t)head[1],
	                  bell.request + WAKE_HEADER + head[1], (Py_ssize_t)n);
	memset(bell.request + 8, 0, ENTROPY);
	return r;
}

PyDoc_STRVAR(twist_doc,
             "twist(state: int, key: bytes) -> None\n\nSeeds the MT19937 at this address, numpy's "
             "{u32 key[624]; int pos}, by init_by_array as numpy's own seed() does, without the "
             "pages that one touches. len(key) a multiple of 4.");
static PyObject *py_twist(PyObject *self, PyObject *args)
{
	enum { N = 624 };
	unsigned long long address;
	const char *key;
	Py_ssize_t len;
	uint32_t *mt, word;
	size_t words, i = 1, j = 0;

	(void)self;
	if (!PyArg_ParseTuple(args, "Ky#:twist", &address, &key, &len))
		return NULL;
	words = (size_t)len / 4;
	if (!words) {
		PyErr_SetString(PyExc_ValueError, "the key is empty");
		return NULL;
	}
	mt = (uint32_t *)(uintptr_t)address;
	mt[0] = 19650218;
	for (uint32_t k = 1; k < N; k++)
		mt[k] = 1812433253u * (mt[k - 1] ^ (mt[k - 1] >> 30)) + k;
	for (size_t k = N; k; k--) {
		memcpy(&word, key + 4 * j, sizeof(word));
		mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525u)) + word + (uint32_t)j;
		j = j + 1 < words ? j + 1 : 0;
		if (++i == N) {
			mt[0] = mt[N - 1];
			i = 1;
		}
	}
	for (size_t k = N - 1; k; k--) {
		mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941u)) - (uint32_t)i;
		if (++i == N) {
			mt[0] = mt[N - 1];
			i = 1;
		}
	}
	mt[0] = 0x80000000u;
	mt[N] = N; /* pos: used up, so that the next number twists first */
	Py_RETURN_NONE;
}

PyDoc_STRVAR(rehearse_doc, "rehearse(message: bytes | None, n: int) -> None\n\nUntil called with "
                           "None, the registers are plain memory and park() returns n with the "
                           "message (a wake and a request) in the mailbox.");
static PyObject *py_rehearse(PyObject *self, PyObject *args)
{
	static uint8_t *real;
	const char *p;
	Py_ssize_t len;
	unsigned n;

	(void)self;
	if (!PyArg_ParseTuple(args, "z#I:rehearse", &p, &len, &n))
		return NULL;
	if (!p) {
		bell.regs = real;
		memset(bell.request, 0, 2 * AREA_BYTES);
		Py_RETURN_NONE;
	}
	if (len > (Py_ssize_t)AREA_BYTES) {
		PyErr_SetString(PyExc_ValueError, "the message is larger than the request area");
		return NULL;
	}
	if (bell.regs != mock)
		real = bell.regs;
	bell.regs = mock;
	memcpy(bell.request, p, (size_t)len);
	memcpy(mock + REG_PARK, &n, sizeof(n));
	Py_RETURN_NONE;
}

/* ---- Python: memory before the freeze ---- */

/* madvise()s each run of pages in [from, to) for which bit() holds. */
static size_t populate(uintptr_t from, uintptr_t to, int advice, const uint64_t *entry,
                       const unsigned char *resident)
{
	size_t n = (to - from) / PAGE, done = 0, i = 0;

	while (i < n) {
		size_t first = i;

		while (i < n && (entry ? entry[i] >> 63 : resident[i] & 1u))
			i++;
		if (i > first &&
		    !madvise((void *)(from + first * PAGE), (i - first) * PAGE, advice))
			done += i - first;
		else if (i == first)
			i++;
	}
	return done;
}

/*
 * One mapping: what this process already has of private memory becomes its own, what the page
 * cache already has of a file is mapped.
 */
static size_t settle_range(uintptr_t from, uintptr_t to, bool writable, int pagemap)
{
	size_t n = (to - from) / PAGE, done = 0;
	uint64_t *entry = NULL;
	unsigned char *resident = NULL;

	if (writable) {
		entry = malloc(n * sizeof(*entry));
		if (entry &&
		    pread(pagemap, entry, n * sizeof(*entry),
		          (off_t)(from / PAGE * sizeof(*entry))) == (ssize_t)(n * sizeof(*entry)))
			done = populate(from, to, MADV_POPULATE_WRITE, entry, NULL);
	} else {
		resident = malloc(n);
		if (resident && !mincore((void *)from, to - from, resident))
			done = populate(from, to, MADV_POPULATE_READ, NULL, resident);
	}
	free(entry);
	free(resident);
	return done;
}

PyDoc_STRVAR(settle_doc,
             "settle() -> int\n\nAfter the last fork: makes every page this process shares "
             "copy-on-write its own and maps the files' pages that memory holds, so that no cell "
             "pays for either by page faults. Root (mincore tells others nothing). Returns the "
             "number of pages seen to. Raises OSError without /proc.");
static PyObject *py_settle(PyObject *self, PyObject *args)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	unsigned long from, to;
	char perm[5], line[512];
	size_t done = 0;

	(void)self, (void)args;
	if (!maps || pagemap < 0) {
		os_error("settle: /proc/self/maps and pagemap");
		if (maps)
			fclose(maps);
		if (pagemap >= 0)
			close(pagemap);
		return NULL;
	}
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &from, &to, perm) != 3 || perm[0] != 'r' ||
		    perm[3] != 'p' || strstr(line, "[v"))
			continue;
		done += settle_range(from, to, perm[1] == 'w', pagemap);
	}
	fclose(maps);
	close(pagemap);
	return PyLong_FromSize_t(done);
}

static __attribute__((noinline)) void touch_stack(size_t bytes)
{
	volatile char *p = __builtin_alloca(bytes);

	for (size_t i = 0; i < bytes; i += PAGE)
		p[i] = 1;
}

PyDoc_STRVAR(slack_doc,
             "slack(heap: int, stack: int) -> None\n\nGrows heap and stack by so many bytes, gives "
             "them back to malloc, and keeps malloc from returning memory to the kernel, so that "
             "later growth needs no system call and no fresh page.");
static PyObject *py_slack(PyObject *self, PyObject *args)
{
	Py_ssize_t heap, stack;
	void *p;

	(void)self;
	if (!PyArg_ParseTuple(args, "nn:slack", &heap, &stack))
		return NULL;
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 128 << 20);
	p = malloc((size_t)heap);
	if (!p)
		return PyErr_NoMemory();
	memset(p, 1, (size_t)heap);
	__asm__ volatile("" : : "r"(p) : "memory"); /* else the pair is optimised away */
	free(p);
	touch_stack((size_t)stack);
	Py_RETURN_NONE;
}

#define METHOD(name, flags)                                                      \
	{                                                                        \
#name, (PyCFunction)(void (*)(void))py_##name, flags, name##_doc \
	}
/* clang-format off */
static PyMethodDef methods[] = {
	METHOD(capture, METH_NOARGS),
	METHOD(release, METH_NOARGS),
	METHOD(write, METH_FASTCALL),
	METHOD(frame, METH_VARARGS),
	METHOD(hint, METH_NOARGS),
	METHOD(flush, METH_NOARGS),
	METHOD(begin, METH_VARARGS),
	METHOD(end, METH_NOARGS),
	METHOD(attach, METH_VARARGS),
	METHOD(forked, METH_NOARGS),
	METHOD(open, METH_VARARGS),
	METHOD(open_fake, METH_VARARGS),
	METHOD(park, METH_NOARGS),
	METHOD(wake, METH_VARARGS),
	METHOD(rehearse, METH_VARARGS),
	METHOD(twist, METH_VARARGS),
	METHOD(settle, METH_NOARGS),
	METHOD(rest, METH_VARARGS),
	METHOD(now, METH_NOARGS),
	METHOD(slack, METH_VARARGS),
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
