/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon in a test, whole but for main(): its HTTP clients are here, its pool's zygote and monitors are this program too
 * (fake_zygote.h), and the test says what its guests do: do_request() and do_data(), in a process for each stream.
 */
#ifndef TESTS_FAKE_HOST_H
#define TESTS_FAKE_HOST_H

#include <sys/types.h>

static void play(int fd);
#define FZ_STREAM play

#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"
#include "tests/unit/api/fake_zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>

#define GUARD_S 60

/* Also in processes that are not Criterion's. */
#define CHECK(cond)                                                                \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			_exit(1);                                                  \
		}                                                                  \
	} while (0)

/* --- guests -------------------------------------------------------------------------------------------- */

/* Seen by the test and by all its guests. */
static struct shared {
	_Atomic uint64_t said, heard; /* bytes, as the test counts them */
} * shared;

static void do_request(int fd, const char *op, const json_t *request);
static void do_data(int fd, const struct frame *frame);

static inline void say(int fd, enum frame_type type, const char *text, size_t len)
{
	struct bytes out = { 0 };

	if (frame_append(&out, type, text, len))
		abort();
	for (size_t at = 0; at < out.len;) {
		ssize_t n = send(fd, out.p + at, out.len - at, MSG_NOSIGNAL);

		if (n <= 0)
			_exit(0); /* nobody listens */
		at += (size_t)n;
	}
	bytes_free(&out);
}

static inline void tell(int fd, enum frame_type type, const char *text)
{
	say(fd, type, text, strlen(text));
}

static void serve_stream(int fd)
{
	struct frame_reader in = { 0 };
	struct frame frame;
	int rc;

	for (;;) {
		while ((rc = frame_next(&in, &frame)) == 0)
			if (frame_fill(&in, fd) <= 0)
				_exit(0);
		if (rc < 0)
			_exit(1);
		if (frame.type == FRAME_REQUEST) {
			json_t *request = frame_json(frame.data, frame.len);

			do_request(fd, json_string_value(json_object_get(request, "op")), request);
			json_decref(request);
		} else if (frame.type == FRAME_DATA) {
			do_data(fd, &frame);
		}
	}
}

/* Idempotent: the memory is a file's, as guests are processes of another program. */
static inline void share(void)
{
	char path[PATHS_MAX];
	int fd;

	if (shared)
		return;
	snprintf(path, sizeof(path), "%s/shared", getenv("THAWBOX_HOME"));
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, 4096));
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(shared != MAP_FAILED);
	close(fd);
}

static void play(int fd)
{
	share();
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may wait for a word that does not come */
		serve_stream(fd);
	}
	close(fd);
}

/* --- clients ------------------------------------------------------------------------------------------- */

static struct daemon host;
static struct sockaddr_un address = { .sun_family = AF_UNIX };
static char box_id[64];

struct client {
	int fd;
	char text[16384];
	size_t len;
	bool has_ended;
	const char *wanted;
	size_t wanted_len;
};

/* NULL: until its end. */
static bool has_read(void *ctx)
{
	struct client *c = ctx;
	ssize_t n = 1;

	while (n > 0) {
		n = recv(c->fd, c->text + c->len, sizeof(c->text) - 1 - c->len, MSG_DONTWAIT);
		if (n > 0)
			c->len += (size_t)n;
		else if (!n || errno != EAGAIN)
			c->has_ended = true;
	}
	c->text[c->len] = '\0';
	return c->wanted ? memmem(c->text, c->len, c->wanted, c->wanted_len) != NULL : c->has_ended;
}

/* Envelopes have NULs. */
static inline bool has(const struct client *c, const char *text)
{
	return memmem(c->text, c->len, text, strlen(text));
}

static inline void read_to(struct client *c, const char *wanted, size_t len)
{
	c->wanted = wanted;
	c->wanted_len = len;
	CHECK(loop_run_until(&host.loop, has_read, c) == 0);
}

#define READ_TO(c, text) read_to(c, text, sizeof(text) - 1)

/* A request's head, by a client of its own. Port 0: the control plane. */
static inline struct client *ask_head(const char *line, unsigned port, const char *more,
                                      const char *type, size_t body_len)
{
	struct client *c = calloc(1, sizeof(*c));
	char to[128] = "", text[1024];
	int n;

	if (port)
		snprintf(to, sizeof(to), "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %u\r\n", box_id,
		         port);
	n = snprintf(text, sizeof(text),
	             "%s HTTP/1.1\r\nHost: x\r\nX-API-KEY: k\r\n%s%sContent-Type: "
	             "application/%s\r\nContent-Length: %zu\r\n\r\n",
	             line, to, more, type, body_len);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(connect(c->fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(send(c->fd, text, (size_t)n, 0) == n);
	return c;
}

/* `is_stream`: the body goes into an envelope. */
static inline struct client *ask(const char *line, unsigned port, const char *more, bool is_stream,
                                 const char *body)
{
	size_t n = strlen(body);
	uint8_t envelope[5] = { 0, 0, 0, (uint8_t)(n >> 8), (uint8_t)n };
	struct client *c = ask_head(line, port, more, is_stream ? "connect+json" : "json",
	                            n + (is_stream ? sizeof(envelope) : 0));

	if (is_stream)
		CHECK(send(c->fd, envelope, sizeof(envelope), 0) == sizeof(envelope));
	CHECK(send(c->fd, body, n, 0) == (ssize_t)n);
	return c;
}

static inline struct client *call(const char *line, const char *body)
{
	return ask(line, PORT_ENVD, "", false, body);
}

static inline struct client *stream(const char *line, const char *body)
{
	return ask(line, PORT_ENVD, "", true, body);
}

static inline void leave(struct client *c)
{
	close(c->fd);
	free(c);
}

/* Bytes for the daemon, which reads them on the same thread. */
struct sender {
	struct client *c;
	const char *data;
	size_t left;
};

static inline bool send_some(void *ctx)
{
	struct sender *s = ctx;

	while (s->left) {
		ssize_t n = send(s->c->fd, s->data, s->left, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n <= 0)
			return n < 0 && errno != EAGAIN; /* it is not wanted */
		s->data += n;
		s->left -= (size_t)n;
	}
	return true;
}

/* As ask(), of a body of any length. */
static inline struct client *ask_long(const char *line, unsigned port, const char *body, size_t len)
{
	struct sender s = { .c = ask_head(line, port, "", "json", len), .data = body, .left = len };

	CHECK(loop_run_until(&host.loop, send_some, &s) == 0);
	return s.c;
}

/* --- the daemon ---------------------------------------------------------------------------------------- */

static inline void open_daemon(int listen_fd)
{
	struct http_spec spec = { .listen_fd = listen_fd, .connections_max = 64 };
	struct err err = { 0 };

	alarm(GUARD_S);
	host.opts = (struct options){ .pool_kind = "standby",
		                      .pool_size = 1,
		                      .max_sandboxes = 4,
		                      .max_ttl_ns = 3600000000000u,
		                      .max_output = 65536 };
	host.opts.templates.nr = 1;
	host.opts.templates.at[0] = "t";
	list_init(&host.boxes);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", getenv("THAWBOX_HOME"));
	CHECK(stalls_open(&host, &err) == 0);
	CHECK(loop_open(&host.loop, 256, &err) == 0);
	CHECK(jobs_open(&host.jobs, &host.loop, 2, &err) == 0);
	if (listen_fd < 0) {
		spec.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		CHECK(bind(spec.listen_fd, (struct sockaddr *)&address, sizeof(address)) == 0);
		CHECK(listen(spec.listen_fd, 16) == 0);
	}
	CHECK(http_open(&host.http, &host.loop, &server_handlers, &spec, &err) == 0);
}

static inline void close_daemon(void)
{
	http_close(&host.http);
	jobs_close(&host.jobs);
	stalls_close(&host);
	loop_close(&host.loop);
}

static inline int listening_fd(void)
{
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(host.http.mhd, MHD_DAEMON_INFO_LISTEN_FD);

	return info->listen_fd;
}

static inline void make_box(void)
{
	struct client *c =
		ask("POST /sandboxes", 0, "", false, "{\"templateID\":\"t\",\"secure\":false}");
	const char *id;

	READ_TO(c, "}");
	id = strstr(c->text, "\"sandboxID\":\"");
	CHECK(id && sscanf(id, "\"sandboxID\":\"%63[a-z0-9]", box_id) == 1);
	leave(c);
}

/* --- bounds -------------------------------------------------------------------------------------------- */

static inline struct box *the_box(void)
{
	return container_of(host.boxes.next, struct box, node);
}

/* One of the box's streams is not read any more: its guest has to wait. */
static inline bool is_paused(void *ctx)
{
	(void)ctx;
	list_each(&the_box()->machine.streams, node)
	{
		if (container_of(node, struct guest_stream, node)->is_paused)
			return true;
	}
	return false;
}

/* The most that is held of any one answer, and of any one stream to the box's guest. */
static inline size_t most_held(void)
{
	size_t most = 0;

	list_each(&host.http.requests, node)
	{
		const struct bytes *out = &container_of(node, struct request, node)->out;

		most = out->len - out->pos > most ? out->len - out->pos : most;
	}
	list_each(&the_box()->machine.streams, node)
	{
		const struct stream *to = &container_of(node, struct guest_stream, node)->s;

		most = to->out.len - to->out.pos > most ? to->out.len - to->out.pos : most;
	}
	return most;
}

/* A guest waits until it is given a word: each for the other. */
static inline int open_word(int flags)
{
	char path[PATHS_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/word", getenv("THAWBOX_HOME"));
	fd = open(path, flags | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

/* Also before it waits: the word stays while this process has it open. */
static inline void give_word(void)
{
	CHECK(write(open_word(O_RDWR), "w", 1) == 1);
}

static inline void await_word(void)
{
	int fd = open_word(O_RDONLY);
	char byte;

	CHECK(read(fd, &byte, 1) == 1);
	close(fd);
}

/* Until nobody listens. */
static inline void flood(int fd, enum frame_type type)
{
	static char text[64 << 10];

	memset(text, 'x', sizeof(text));
	for (;;) {
		say(fd, type, text, sizeof(text));
		shared->said += sizeof(text);
	}
}

static inline bool has_said(void *ctx)
{
	return shared->said >= *(const uint64_t *)ctx;
}

/* What comes of a flood, up to so many bytes. */
struct drain {
	struct client *c;
	size_t left;
};

static inline bool drain(void *ctx)
{
	struct drain *d = ctx;
	char text[65536];
	ssize_t n = 1;

	while (d->left && n > 0) {
		n = recv(d->c->fd, text, sizeof(text) < d->left ? sizeof(text) : d->left,
		         MSG_DONTWAIT);
		d->left -= n > 0 ? (size_t)n : 0;
	}
	CHECK(n);
	return !d->left;
}

/* A template "t" in a folder of its own, which is the environment's from now on; `home` is a pattern of mkdtemp(3). */
static inline void make_home(char *home)
{
	char path[PATHS_MAX], file[PATHS_MAX];
	struct err err = { 0 };
	FILE *f;

	CHECK(mkdtemp(home));
	snprintf(path, sizeof(path), "%s/word", home);
	CHECK(!mkfifo(path, 0600));
	setenv("THAWBOX_HOME", home, 1);
	setenv("THAWBOX_VMM", FAKE_ZYGOTE, 1);
	CHECK(template_path("t", path, &err) == 0);
	CHECK(paths_format(file, &err, "%s/1", path) == 0);
	CHECK(paths_make_dirs(file, &err) == 0);
	CHECK(paths_format(file, &err, "%s/1/template.json", path) == 0);
	f = fopen(file, "w");
	fputs("{\"memory_mb\":512,\"vcpus\":1}", f);
	fclose(f);
	CHECK(template_publish(path, "1", &err) == 0);
}

/* A daemon with one sandbox, in this process. */
static inline void start_host(char *home)
{
	make_home(home);
	share();
	journal_open(STDERR_FILENO, false, true);
	open_daemon(-1);
	make_box();
}

static inline bool is_over(void *ctx)
{
	(void)ctx;
	return !host.nr_boxes;
}

static inline void end_host(const char *home)
{
	int listen_fd = listening_fd();

	box_end(the_box(), "the test is over");
	CHECK(loop_run_until(&host.loop, is_over, NULL) == 0);
	close_daemon();
	close(listen_fd);
	CHECK(!paths_remove_tree(home));
}

#endif
