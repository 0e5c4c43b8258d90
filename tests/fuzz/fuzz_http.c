/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon between its clients and its guests: the input is a list of what clients send (raw bytes, or a request of
 * one of the routes whose path, query, headers and body are the input's), of what guests and their monitors answer, and of
 * connections that end. So it passes every parser on HTTP's side: paths, queries, headers, multipart, gzip,
 * envelopes, JSON. Whatever comes, each answer is one of HTTP's, and nothing is left when clients and sandboxes have
 * gone. The pool alone is a stand-in: its sandboxes are socket pairs, whose other ends are played here.
 */
#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"

#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CLIENTS 4u
#define GUESTS  4u
#define STREAMS 24u
#define OPS_MAX 48

struct guest {
	int control; /* the monitor's end; -1: none */
	int stream[STREAMS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct guest
	guests[GUESTS]; /* `control` under the lock: pool_claim() is called on a job's thread */
static int clients[CLIENTS];
static bool has_answered[CLIENTS];
static struct daemon host;
static struct sockaddr_un address = { .sun_family = AF_UNIX };

/* --- the pool that is none -------------------------------------------------------------------------------- */

int pool_claim(struct pool *pool, struct sandbox *sb, int timeout_ms, struct err *err)
{
	int rc = err_set(err, -ETIMEDOUT, "no sandbox was ready within %d ms", timeout_ms);

	(void)pool;
	sandbox_init(sb);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; rc && i < GUESTS; i++) {
		if (guests[i].control >= 0)
			continue;
		err->code = 0;
		rc = monitor_pair(&sb->control_fd, &guests[i].control, err);
		break;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

void pool_destroy(struct pool *pool, struct sandbox *sb)
{
	(void)pool;
	sandbox_close(sb);
}

int pool_open(struct pool **pool, const struct pool_spec *spec, struct err *err)
{
	(void)spec;
	*pool = NULL;
	return err_set(err, -ENOSYS, "the pool is none");
}

void pool_close(struct pool *pool)
{
	(void)pool;
}

int pool_wait_full(struct pool *pool, int timeout_ms, struct err *err)
{
	(void)pool;
	(void)timeout_ms;
	return err_set(err, -ENOSYS, "the pool is none");
}

struct pool_stats pool_stats(struct pool *pool)
{
	(void)pool;
	return (struct pool_stats){ .ready = 1 };
}

/* --- guests and their monitors ---------------------------------------------------------------------------- */

static void end_guest(struct guest *g)
{
	for (unsigned i = 0; i < STREAMS; i++) {
		if (g->stream[i] >= 0)
			(void)close(g->stream[i]);
		g->stream[i] = -1;
	}
	(void)close(g->control);
	pthread_mutex_lock(&lock);
	g->control = -1;
	pthread_mutex_unlock(&lock);
}

static void take_stream(struct guest *g, int fd)
{
	for (unsigned i = 0; i < STREAMS; i++) {
		if (g->stream[i] >= 0)
			continue;
		g->stream[i] = fd;
		return;
	}
	(void)close(fd);
}

static void take_streams(struct guest *g, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		int fd;

		memcpy(&fd, CMSG_DATA(c), sizeof(fd)); /* the daemon never sends two with a line */
		take_stream(g, fd);
	}
}

/* Answers each line that has come, and reads what was sent to the guest. */
static void play(struct guest *g)
{
	static char text[65536];
	static const char answer[] =
		"{\"ok\":true,\"port\":2000,\"agent_port\":1024,\"create_ms\":1.5}\n";
	union {
		char buf[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr head;
	} ctl;
	bool has_ended;
	ssize_t n;

	for (;;) {
		struct iovec iov = { text, sizeof(text) };
		struct msghdr msg = { .msg_iov = &iov,
			              .msg_iovlen = 1,
			              .msg_control = ctl.buf,
			              .msg_controllen = sizeof(ctl.buf) };

		n = recvmsg(g->control, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n <= 0)
			break;
		take_streams(g, &msg);
		for (ssize_t i = 0; i < n; i++)
			if (text[i] == '\n')
				(void)!send(g->control, answer, sizeof(answer) - 1,
				            MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	has_ended = !n || errno == ECONNRESET; /* the daemon closed, the latter with words unread */
	for (unsigned i = 0; i < STREAMS; i++)
		while (g->stream[i] >= 0 &&
		       recv(g->stream[i], text, sizeof(text), MSG_DONTWAIT) > 0)
			;
	if (has_ended)
		end_guest(g);
}

static bool is_alive(const struct guest *g)
{
	bool alive;

	pthread_mutex_lock(&lock);
	alive = g->control >= 0;
	pthread_mutex_unlock(&lock);
	return alive;
}

static void play_all(void)
{
	for (unsigned i = 0; i < GUESTS; i++)
		if (is_alive(&guests[i]))
			play(&guests[i]);
}

/* A guest's bytes: a frame around the input's, or these as they are; an end; or words of its monitor. */
static void do_guest(struct fz_in *in)
{
	static const uint8_t types[] = { FRAME_RESULT,  FRAME_STDOUT, FRAME_STDERR, FRAME_EVENT,
		                         FRAME_DISPLAY, FRAME_DATA,   FRAME_END };
	struct guest *g = &guests[fz_u8(in) % GUESTS];
	int *stream = &g->stream[fz_u8(in) % STREAMS];
	uint8_t kind = fz_u8(in);
	struct fz_in bytes = fz_part(in, fz_u16(in));
	struct bytes out = { 0 };

	if (!is_alive(g))
		return;
	if (kind >= 0xf8) {
		(void)!send(g->control, bytes.p, bytes.n, MSG_DONTWAIT | MSG_NOSIGNAL);
	} else if (*stream >= 0 && kind >= 0xf0) {
		(void)close(*stream);
		*stream = -1;
	} else if (*stream >= 0 && kind >= 0xe0) {
		(void)!send(*stream, bytes.p, bytes.n, MSG_DONTWAIT | MSG_NOSIGNAL);
	} else if (*stream >= 0) {
		FZ_CHECK(frame_append(&out, (enum frame_type)types[kind % ARRAY_LEN(types)],
		                      bytes.p, bytes.n) == 0);
		(void)!send(*stream, out.p, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
		bytes_free(&out);
	}
}

/* --- the loop -------------------------------------------------------------------------------------------- */

static void on_turn(struct loop_event *event)
{
	(void)event;
}

static bool is_counted(void *ctx)
{
	return (*(int *)ctx)-- <= 0;
}

/* Some turns of the loop, which wait for nothing. */
static void turn(unsigned times)
{
	struct loop_event event = { .fire = on_turn };

	while (times--) {
		int once = 1;

		play_all();
		loop_post(&host.loop, &event);
		FZ_CHECK(loop_run_until(&host.loop, is_counted, &once) == 0);
		loop_unpost(&host.loop, &event);
	}
}

static bool is_made(void *ctx)
{
	(void)ctx;
	return !list_is_empty(&host.boxes) || !host.nr_boxes;
}

/* Sandboxes that are still being made end too, as soon as they are there. */
static bool is_over(void *ctx)
{
	const union MHD_DaemonInfo *info;

	(void)ctx;
	while (!list_is_empty(&host.boxes))
		box_end(container_of(host.boxes.next, struct box, node), "the input is over");
	info = MHD_get_daemon_info(host.http.mhd, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
	return !host.nr_boxes && !host.http.nr_requests && !info->num_connections;
}

/* --- clients --------------------------------------------------------------------------------------------- */

static int client_of(struct fz_in *in, unsigned *which)
{
	int *fd;

	*which = fz_u8(in) % CLIENTS;
	fd = &clients[*which];
	if (*fd >= 0)
		return *fd;
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	FZ_CHECK(*fd >= 0);
	if (connect(*fd, (struct sockaddr *)&address, sizeof(address))) {
		(void)close(*fd);
		*fd = -1;
	}
	has_answered[*which] = false;
	return *fd;
}

static void leave(unsigned which)
{
	if (clients[which] >= 0)
		(void)close(clients[which]);
	clients[which] = -1;
}

/* Reads what was answered; the first bytes on each connection are a status line. */
static void listen_to(unsigned which)
{
	char text[8192];
	ssize_t n;

	while (clients[which] >= 0 &&
	       (n = recv(clients[which], text, sizeof(text), MSG_DONTWAIT)) > 0) {
		if (!has_answered[which] && n >= 13) {
			int status = 0;

			FZ_CHECK(sscanf(text, "HTTP/1.1 %3d ", &status) == 1 ||
			         sscanf(text, "HTTP/1.0 %3d ", &status) == 1);
			FZ_CHECK(status >= 100 && status < 600);
			has_answered[which] = true;
		}
	}
}

/* "{}" of a route's path becomes the input's words, or the id of a sandbox that lives. */
static void print_path(FILE *f, const char *path, bool is_known, const char *id, struct fz_in words)
{
	for (const char *p = path; *p; p++) {
		if (p[0] != '{') {
			fputc(*p, f);
			continue;
		}
		if (is_known)
			fputs(id, f);
		else
			fwrite(words.p, 1, words.n, f);
		p++;
	}
}

static const struct route *route_of(struct fz_in *in, unsigned *table)
{
	const struct route *const tables[] = { control_routes, envd_routes, interpreter_routes };
	unsigned nr = 0;

	*table = fz_u8(in) % ARRAY_LEN(tables);
	while (tables[*table][nr].path)
		nr++;
	FZ_CHECK(nr);
	return &tables[*table][fz_u8(in) % nr];
}

/* A request that finds its handler; the rest of it is the input's. */
static void print_request(FILE *f, struct fz_in *in)
{
	static const char *const types[] = { "application/json",
		                             "application/connect+json",
		                             "multipart/form-data; boundary=edge",
		                             "application/octet-stream",
		                             "application/json; charset=utf-8",
		                             "text/plain",
		                             "multipart/form-data" };
	static const unsigned ports[] = { 0, PORT_ENVD, PORT_INTERPRETER };
	const char *id = list_is_empty(&host.boxes)
	                         ? "inone"
	                         : container_of(host.boxes.next, struct box, node)->id;
	unsigned table;
	const struct route *r = route_of(in, &table);
	uint8_t kind = fz_u8(in);
	struct fz_in words = fz_part(in, fz_u8(in)), query = fz_part(in, fz_u8(in)),
		     headers = fz_part(in, fz_u8(in)), body = fz_part(in, fz_u16(in));

	fprintf(f, "%s ", r->method);
	print_path(f, r->path, !table && !(kind & 1), id, words);
	if (query.n)
		fputc('?', f);
	fwrite(query.p, 1, query.n, f);
	fputs(" HTTP/1.1\r\nHost: x\r\nX-API-KEY: e2b_00\r\n", f);
	if (table)
		fprintf(f, "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %u\r\n", id, ports[table]);
	fprintf(f, "Content-Type: %s\r\n", types[(kind >> 2) % ARRAY_LEN(types)]);
	fwrite(headers.p, 1, headers.n, f);
	if (kind & 2) {
		fprintf(f, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", body.n);
		fwrite(body.p, 1, body.n, f);
		fputs(body.n ? "\r\n0\r\n\r\n" : "\r\n", f);
	} else {
		fprintf(f, "Content-Length: %zu\r\n\r\n", body.n);
		fwrite(body.p, 1, body.n, f);
	}
}

static void do_request(struct fz_in *in, int fd)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	FZ_CHECK(f);
	print_request(f, in);
	(void)fclose(f);
	(void)!send(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	free(text);
}

static void do_client(struct fz_in *in)
{
	unsigned which;
	int fd = client_of(in, &which);
	uint8_t kind = fz_u8(in);
	struct fz_in raw;

	if (fd < 0)
		return;
	if (kind < 0xa0) {
		do_request(in, fd);
	} else if (kind < 0xd0) {
		raw = fz_part(in, fz_u16(in));
		(void)!send(fd, raw.p, raw.n, MSG_DONTWAIT | MSG_NOSIGNAL);
	} else if (kind < 0xe0) {
		(void)shutdown(fd, SHUT_WR);
	} else if (kind < 0xf0) {
		leave(which);
	} else {
		listen_to(which);
	}
}

/* --- one input -------------------------------------------------------------------------------------------- */

/* Once for the process. */
static void open_host(void)
{
	struct http_spec spec = { .connections_max = 64 };
	static struct stall one = { .daemon = &host };
	struct stall *stall = &one;
	struct err err = { 0 };

	fz_quiet();
	for (unsigned i = 0; i < GUESTS; i++) {
		guests[i].control = -1;
		memset(guests[i].stream, 0xff, sizeof(guests[i].stream));
	}
	memset(clients, 0xff, sizeof(clients));
	host.opts = (struct options){ .max_sandboxes = GUESTS,
		                      .max_ttl_ns = 3600000000000u,
		                      .max_output = 65536 };
	list_init(&host.boxes);
	memcpy(stall->template.name, "t", 2);
	memcpy(stall->template.id, "t1", 3);
	stall->info = json_pack("{s:i, s:i}", "vcpus", 1, "memory_mb", 512);
	host.stalls[0] = stall;
	host.nr_stalls = 1;
	FZ_CHECK(loop_open(&host.loop, 256, &err) == 0);
	FZ_CHECK(jobs_open(&host.jobs, &host.loop, 1, &err) == 0);
	(void)snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "thawbox-fuzz-%d",
	               getpid());
	spec.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	FZ_CHECK(spec.listen_fd >= 0 &&
	         bind(spec.listen_fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	         listen(spec.listen_fd, 16) == 0);
	FZ_CHECK(http_open(&host.http, &host.loop, &server_handlers, &spec, &err) == 0);
}

static void on_made(struct box *box, const struct err *err)
{
	(void)box;
	FZ_CHECK(!err->code);
}

static void make_box(void)
{
	const struct box_spec spec = {
		.stall = host.stalls[0], .ttl_s = 3600, .is_open = true, .made = on_made
	};

	FZ_CHECK(box_create(&host, &spec));
	FZ_CHECK(loop_run_until(&host.loop, is_made, NULL) == 0);
}

static void finish(void)
{
	for (unsigned i = 0; i < CLIENTS; i++) {
		listen_to(i);
		leave(i);
	}
	FZ_CHECK(loop_run_until(&host.loop, is_over, NULL) == 0);
	play_all();
	for (unsigned i = 0; i < GUESTS; i++)
		FZ_CHECK(!is_alive(&guests[i]));
	FZ_CHECK(!host.nr_dying);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	uint8_t flags = fz_u8(&in);
	static int null_fd = -1;
	int lowest;

	if (!host.loop.open) {
		open_host();
		null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	}
	journal_open(null_fd, flags & 1, false);
	lowest = dup(STDERR_FILENO);
	(void)close(lowest);
	host.opts.cell_timeout_ns = flags & 2 ? 1000000000u : 0;
	make_box();
	for (int i = 0; in.n && i < OPS_MAX; i++) {
		if (fz_u8(&in) & 1)
			do_guest(&in);
		else
			do_client(&in);
		turn(flags & 4 ? 1 : 6);
	}
	finish();
	FZ_CHECK(dup(STDERR_FILENO) == lowest);
	(void)close(lowest);
	return 0;
}
