/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one daemon to the next with everything under way, by a real execve() and HTTP clients: this program is the daemon
 * ("first", then "next"), and as the pool's zygote and monitors it plays the guest, too.
 */
#include "api/daemon/handover.h"
#include "api/daemon/restart.h"
#include "tests/unit/api/daemon/fake_host.h"

#include <criterion/criterion.h>
#include <spawn.h>

/* --- the guest ----------------------------------------------------------------------------------------- */

/* "sleep" lasts until it is interrupted; everything else is its own value. */
static void run_cell(int fd, const char *code)
{
	static const char interrupted[] = "{\"status\":\"error\",\"execution_count\":2,\"error\":{"
					  "\"name\":\"KeyboardInterrupt\"}}";
	char text[256];
	if (strcmp(code, "sleep") != 0) {
		snprintf(text, sizeof(text),
		         "{\"kind\":\"result\",\"data\":{\"text/plain\":\"%s\"}}", code);
		tell(fd, FRAME_DISPLAY, text);
		tell(fd, FRAME_RESULT, "{\"status\":\"ok\",\"execution_count\":3,\"error\":null}");
		return;
	}
	tell(fd, FRAME_STDOUT, "begun\n");
	await_word();
	tell(fd, FRAME_RESULT, interrupted);
}

static void do_request(int fd, const char *op, const json_t *request)
{
	static unsigned nr_syncs;
	char text[64];

	if (!strcmp(op, "run")) {
		run_cell(fd, json_string_value(json_object_get(request, "code")));
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
		give_word();
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

/* --- the daemon ---------------------------------------------------------------------------------------- */

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
	snprintf(box_id, sizeof(box_id), "%s", the_box()->id);

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
	box_end(the_box(), "the test is over");
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
	char home[] = "/tmp/test_restart.XXXXXX";
	char name[] = "test_restart", role[] = "first", *argv[] = { name, role, NULL };
	int status;
	pid_t pid;

	make_home(home);
	cr_assert_eq(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_expect(WIFEXITED(status) && !WEXITSTATUS(status), "status %#x", status);
	cr_assert_eq(paths_remove_tree(home), 0);
}
