/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one daemon to the next with everything under way, by a real execve() and HTTP clients: this program is the daemon
 * ("first", then "next"), and as the pool's zygote and monitors it plays the guest, too.
 */
#include <sys/types.h>

static void play(int fd);
#define FZ_STREAM play

#include "api/daemon/daemon.h"
#include "api/daemon/handover.h"
#include "api/daemon/journal.h"
#include "api/daemon/restart.h"
#include "tests/unit/api/fake_zygote.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/un.h>

#define GUARD_S 60

/* --- the guest: a process for each stream -------------------------------------------------------------- */

static pid_t *interpreter; /* shared: who runs cells */

static void say(int fd, enum frame_type type, const char *text, size_t len)
{
	struct bytes out = { 0 };

	if (frame_append(&out, type, text, len))
		abort();
	send(fd, out.p, out.len, MSG_NOSIGNAL);
	bytes_free(&out);
}

static void tell(int fd, enum frame_type type, const char *text)
{
	say(fd, type, text, strlen(text));
}

/* "sleep" lasts until it is interrupted; everything else is its own value. */
static void run_cell(int fd, const char *code)
{
	static const char interrupted[] = "{\"status\":\"error\",\"execution_count\":2,\"error\":{"
					  "\"name\":\"KeyboardInterrupt\"}}";
	char text[256];
	sigset_t set;
	int sig;

	if (strcmp(code, "sleep") != 0) {
		snprintf(text, sizeof(text),
		         "{\"kind\":\"result\",\"data\":{\"text/plain\":\"%s\"}}", code);
		tell(fd, FRAME_DISPLAY, text);
		tell(fd, FRAME_RESULT, "{\"status\":\"ok\",\"execution_count\":3,\"error\":null}");
		return;
	}
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	*interpreter = getpid();
	tell(fd, FRAME_STDOUT, "begun\n");
	sigwait(&set, &sig);
	tell(fd, FRAME_RESULT, interrupted);
}

static void do_request(int fd, const char *op, const char *code)
{
	static unsigned nr_syncs;
	char text[64];

	if (!strcmp(op, "run")) {
		run_cell(fd, code);
	} else if (!strcmp(op, "watch")) {
		tell(fd, FRAME_EVENT, "{\"event\":\"start\"}");
		tell(fd, FRAME_EVENT, "{\"event\":\"create\",\"name\":\"before\"}");
	} else if (!strcmp(op, "sync")) {
		snprintf(text, sizeof(text), "{\"event\":\"create\",\"name\":\"sync%u\"}",
		         ++nr_syncs);
		tell(fd, FRAME_EVENT, text);
		tell(fd, FRAME_EVENT, "{\"event\":\"sync\"}");
	} else if (!strcmp(op, "exec")) {
		tell(fd, FRAME_EVENT, "{\"event\":\"start\",\"pid\":7}");
	} else if (!strcmp(op, "signal")) {
		tell(fd, FRAME_RESULT, "{\"status\":\"ok\",\"signal\":9}");
	} else if (!strcmp(op, "interrupt")) {
		kill(*interpreter, SIGUSR1);
		tell(fd, FRAME_RESULT, "{\"status\":\"ok\"}");
	}
}

/* A server on a port: a WebSocket that says hi, or one that never answers. */
static void do_data(int fd, const struct frame *frame)
{
	static const char hi[] = "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\n"
				 "Upgrade: websocket\r\n\r\n\x81\x02hi";

	if (memmem(frame->data, frame->len, "/ws ", 4))
		say(fd, FRAME_DATA, hi, sizeof(hi) - 1);
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
			const char *code = json_string_value(json_object_get(request, "code"));

			do_request(fd, json_string_value(json_object_get(request, "op")),
			           code ? code : "");
			json_decref(request);
		} else if (frame.type == FRAME_DATA) {
			do_data(fd, &frame);
		}
	}
}

static void play(int fd)
{
	if (!interpreter)
		interpreter =
			mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!fork())
		serve_stream(fd);
	close(fd);
}

/* --- clients ------------------------------------------------------------------------------------------- */

#define CHECK(cond)                                                                \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			_exit(1);                                                  \
		}                                                                  \
	} while (0)

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
static bool has(const struct client *c, const char *text)
{
	return memmem(c->text, c->len, text, strlen(text));
}

static void read_to(struct client *c, const char *wanted, size_t len)
{
	c->wanted = wanted;
	c->wanted_len = len;
	CHECK(loop_run_until(&host.loop, has_read, c) == 0);
}

#define READ_TO(c, text) read_to(c, text, sizeof(text) - 1)

/* Port 0: the control plane. `is_stream`: the body goes into an envelope. */
static struct client *ask(const char *line, unsigned port, const char *more, bool is_stream,
                          const char *body)
{
	struct client *c = calloc(1, sizeof(*c));
	size_t n = strlen(body);
	char text[4096];
	int len = snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: x\r\nX-API-KEY: k\r\n%s", line,
	                   more);

	if (port)
		len += snprintf(text + len, sizeof(text) - len,
		                "E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %u\r\n", box_id, port);
	len += snprintf(text + len, sizeof(text) - len,
	                "Content-Type: application/%s\r\nContent-Length: %zu\r\n\r\n",
	                is_stream ? "connect+json" : "json", n + (is_stream ? 5 : 0));
	if (is_stream) {
		memcpy(text + len, (char[]){ 0, 0, 0, 0, (char)n }, 5);
		len += 5;
	}
	memcpy(text + len, body, n);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(connect(c->fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(send(c->fd, text, len + n, 0) == (ssize_t)(len + n));
	return c;
}

static struct client *call(const char *line, const char *body)
{
	return ask(line, PORT_ENVD, "", false, body);
}

static struct client *stream(const char *line, const char *body)
{
	return ask(line, PORT_ENVD, "", true, body);
}

static void leave(struct client *c)
{
	close(c->fd);
	free(c);
}

/* --- the daemon ---------------------------------------------------------------------------------------- */

static void open_daemon(int listen_fd)
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

static void close_daemon(void)
{
	http_close(&host.http);
	jobs_close(&host.jobs);
	stalls_close(&host);
	loop_close(&host.loop);
}

static int listening_fd(void)
{
	const union MHD_DaemonInfo *info =
		MHD_get_daemon_info(host.http.mhd, MHD_DAEMON_INFO_LISTEN_FD);

	return info->listen_fd;
}

static void make_box(void)
{
	struct client *c =
		ask("POST /sandboxes", 0, "", false, "{\"templateID\":\"t\",\"secure\":false}");
	const char *id;

	READ_TO(c, "}");
	id = strstr(c->text, "\"sandboxID\":\"");
	CHECK(id && sscanf(id, "\"sandboxID\":\"%63[a-z0-9]", box_id) == 1);
	leave(c);
}

/* Everything that can be under way, then the word to go. Returns only on failure. */
static void run_first(void)
{
	char name[] = "test_restart", role[] = "next", *argv[] = { name, role, NULL };
	struct client *made, *idle, *watch, *process, *cell, *queued, *socket, *silent, *asks;
	struct handover h;
	struct err err = { 0 };
	int listen_fd;

	open_daemon(-1);
	listen_fd = listening_fd();
	make_box();
	made = call("POST /filesystem.Filesystem/CreateWatcher", "{\"path\":\"/a\"}");
	READ_TO(made, "{\"watcherId\":\"w1\"}");
	asks = call("POST /filesystem.Filesystem/GetWatcherEvents", "{\"watcherId\":\"w1\"}");
	READ_TO(asks, "sync1");
	CHECK(has(asks, "before"));
	watch = stream("POST /filesystem.Filesystem/WatchDir", "{\"path\":\"/a\"}");
	READ_TO(watch, "before");
	process = stream("POST /process.Process/Start", "{\"process\":{\"cmd\":\"c\"}}");
	READ_TO(process, "\"pid\":7");
	cell = ask("POST /execute", PORT_INTERPRETER, "", false, "{\"code\":\"sleep\"}");
	READ_TO(cell, "begun");
	queued = ask("POST /execute", PORT_INTERPRETER, "", false, "{\"code\":\"1\"}");
	READ_TO(queued, "200 OK");
	socket = ask("GET /ws", 8000, "Connection: Upgrade\r\nUpgrade: websocket\r\n", false, "");
	READ_TO(socket, "hi");
	silent = ask("GET /", 8000, "", false, "");
	idle = ask("GET /health", 0, "", false, "");
	READ_TO(idle, "OK");

	host.leave = LEAVE_EXEC;
	CHECK(restart_settle(&host) == 0);
	CHECK(!list_is_empty(&host.boxes));
	READ_TO(watch, "watch the folder again");
	CHECK(has(watch, "\"code\":\"aborted\""));
	READ_TO(process, "the command runs on: connect to it again");
	READ_TO(cell, "end_of_execution");
	CHECK(has(cell, "DaemonReplaced") && has(cell, "was interrupted"));
	READ_TO(queued, "end_of_execution");
	CHECK(has(queued, "DaemonReplaced") && has(queued, "did not run"));
	READ_TO(silent, "ask again");
	CHECK(has(silent, "HTTP/1.1 503"));
	READ_TO(cell, "\r\n0\r\n\r\n");
	READ_TO(watch, "\r\n0\r\n\r\n");
	READ_TO(socket, "\x88\x02\x03\xf4");
	CHECK(restart_save(&host, listen_fd, &h, &err) == 0);
	close_daemon();
	CHECK(has_read(socket) && socket->has_ended);
	CHECK(handover_exec(&h, "/proc/self/exe", argv, &err) == 0);
}

static bool is_over(void *ctx)
{
	(void)ctx;
	return !host.nr_boxes;
}

static void run_next(void)
{
	struct handover h;
	struct err err = { 0 };
	struct client *c, *killer;
	int listen_fd;

	CHECK(handover_receive(&h, &err) == 1);
	listen_fd = restart_take_listening(&h);
	CHECK(listen_fd >= 0);
	open_daemon(listen_fd);
	restart_adopt(&host, &h);
	CHECK(host.nr_boxes == 1 && host.counters.created == 1 && host.counters.cells == 1);
	snprintf(box_id, sizeof(box_id), "%s", container_of(host.boxes.next, struct box, node)->id);

	c = call("POST /filesystem.Filesystem/GetWatcherEvents", "{\"watcherId\":\"w1\"}");
	READ_TO(c, "sync2");
	CHECK(!has(c, "sync1"));
	leave(c);
	c = call("POST /filesystem.Filesystem/CreateWatcher", "{\"path\":\"/a\"}");
	READ_TO(c, "{\"watcherId\":\"w3\"}"); /* the stream was the second */
	leave(c);
	c = ask("POST /execute", PORT_INTERPRETER, "", false, "{\"code\":\"5\"}");
	READ_TO(c, "end_of_execution");
	CHECK(has(c, "\"text\":\"5\"") && !has(c, "error"));
	leave(c);
	c = stream("POST /process.Process/Connect", "{\"process\":{\"pid\":7}}");
	READ_TO(c, "\"pid\":7");
	killer = call("POST /process.Process/SendSignal",
	              "{\"process\":{\"pid\":7},\"signal\":\"SIGNAL_SIGKILL\"}");
	READ_TO(killer, "200 OK");
	leave(killer);
	READ_TO(c, "signal: killed");
	leave(c);
	c = call("POST /filesystem.Filesystem/RemoveWatcher", "{\"watcherId\":\"w1\"}");
	READ_TO(c, "200 OK");
	leave(c);
	box_end(container_of(host.boxes.next, struct box, node), "the test is over");
	CHECK(loop_run_until(&host.loop, is_over, NULL) == 0);
	close_daemon();
	close(listen_fd);
	exit(0);
}

/* Before Criterion's main(), as fz_main(). */
__attribute__((constructor)) static void daemon_main(int argc, char **argv)
{
	if (argc != 2 || (strcmp(argv[1], "first") != 0 && strcmp(argv[1], "next") != 0))
		return;
	journal_open(STDERR_FILENO, false, true);
	if (!strcmp(argv[1], "next"))
		run_next();
	run_first();
	_exit(1);
}

/* --- the test ------------------------------------------------------------------------------------------ */

extern char **environ;

Test(restart, with_everything_under_way, .timeout = 2 * GUARD_S)
{
	char home[] = "/tmp/test_restart.XXXXXX", path[PATHS_MAX], dir[PATHS_MAX];
	char name[] = "test_restart", role[] = "first", *argv[] = { name, role, NULL };
	struct err err = { 0 };
	int status;
	pid_t pid;
	FILE *f;

	cr_assert_not_null(mkdtemp(home));
	setenv("THAWBOX_HOME", home, 1);
	setenv("THAWBOX_VMM", FAKE_ZYGOTE, 1);
	cr_assert_eq(template_path("t", path, &err), 0);
	cr_assert_eq(paths_format(dir, &err, "%s/1", path), 0);
	cr_assert_eq(paths_make_dirs(dir, &err), 0);
	cr_assert_eq(paths_format(dir, &err, "%s/1/template.json", path), 0);
	f = fopen(dir, "w");
	fputs("{\"memory_mb\":512,\"vcpus\":1}", f);
	fclose(f);
	cr_assert_eq(template_publish(path, "1", &err), 0);
	cr_assert_eq(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_expect(WIFEXITED(status) && !WEXITSTATUS(status), "status %#x", status);
	cr_assert_eq(paths_remove_tree(home), 0);
}
