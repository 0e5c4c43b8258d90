/* SPDX-License-Identifier: Apache-2.0 */
#include "exec.h"

#include "agent.h"
#include "path.h"
#include "procs.h"
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_CHUNK (64u << 10)
#define ARGS_MAX   4096
#define DIE_MS     2000 /* from SIGKILL to the RESULT even if the command will not die */

struct command {
	struct stream *s;
	pid_t pid;
	int tag;
	struct watch in, out, err; /* `in` and `out` are the same terminal with "pty" */
	struct buf input;          /* stdin that the command has not taken yet */
	bool pty, input_ended, exited, timed_out, must_succeed;
	int status;
	uint64_t timeout_ms;
	struct timer timer;
	struct command *next;
};

static struct command *commands;

#define OWNER(ptr, member) ((struct command *)((char *)(ptr)-offsetof(struct command, member)))

static void unlink_command(struct command *c)
{
	struct command **p = &commands;

	while (*p && *p != c)
		p = &(*p)->next;
	if (*p)
		*p = c->next;
}

static void free_command(struct command *c)
{
	unlink_command(c);
	timer_cancel(&c->timer);
	loop_close(&c->in);
	loop_close(&c->out);
	loop_close(&c->err);
	buf_free(&c->input);
	loop_free_later(c);
}

static void set_error(json_t *result, const char *name, const char *value)
{
	json_object_set_new(result, "status", json_string("error"));
	json_object_set_new(result, "error", json_pack("{s:s, s:s}", "name", name, "value", value));
}

static void finish(struct command *c)
{
	bool signaled = c->exited && WIFSIGNALED(c->status);
	int exit_code = c->exited && WIFEXITED(c->status) ? WEXITSTATUS(c->status) : -1;
	struct stream *s = c->s;
	json_t *result = json_pack("{s:s, s:i, s:i}", "status", "ok", "exit", exit_code, "signal",
	                           signaled ? WTERMSIG(c->status) : 0);

	if (c->timed_out)
		set_error(result, "TimeoutError", "the command ran out of its time and was killed");
	else if (c->must_succeed && exit_code != 0)
		set_error(result, "CalledProcessError", "the command did not succeed");
	free_command(c);
	stream_result(s, result);
}

static void maybe_finish(struct command *c)
{
	if (c->exited && c->out.fd < 0 && c->err.fd < 0)
		finish(c);
}

/* Moves output from a pipe to the stream. After the exit it reads to the bottom of the pipe and
 * closes it: what the command left running may hold it open for ever. */
static void pump(struct command *c, struct watch *w, uint8_t type)
{
	static uint8_t chunk[READ_CHUNK];
	ssize_t n;

	if (w->fd < 0)
		return;
	do {
		if (stream_full(c->s)) {
			loop_pause(w); /* until `drained` */
			return;
		}
		n = read(w->fd, chunk, sizeof(chunk));
		if (n > 0)
			stream_send(c->s, type, chunk, (size_t)n);
	} while (c->exited && (n > 0 || (n < 0 && errno == EINTR)));
	if (n == 0 || (n < 0 && (c->exited || (errno != EAGAIN && errno != EINTR))))
		loop_close(w); /* (a terminal ends with EIO) */
	else
		loop_set(w, EPOLLIN);
}

static void on_out(struct watch *w, uint32_t events)
{
	struct command *c = OWNER(w, out);

	(void)events;
	pump(c, w, FRAME_STDOUT);
	maybe_finish(c);
}

static void on_err(struct watch *w, uint32_t events)
{
	struct command *c = OWNER(w, err);

	(void)events;
	pump(c, w, FRAME_STDERR);
	maybe_finish(c);
}

static void on_drained(struct stream *s)
{
	struct command *c = s->op;

	pump(c, &c->out, FRAME_STDOUT);
	pump(c, &c->err, FRAME_STDERR);
	maybe_finish(c);
}

/* Gives the command what it takes of its stdin, and holds the client while there is more. */
static void push_input(struct command *c)
{
	ssize_t n = 0;

	while (c->in.fd >= 0 && c->input.len > 0) {
		n = write(c->in.fd, c->input.data + c->input.head, c->input.len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		buf_drop(&c->input, (size_t)n);
	}
	if (n < 0 && errno == EAGAIN) {
		loop_set(&c->in, EPOLLOUT);
		stream_hold(c->s, true);
		return;
	}
	if (n < 0)
		loop_close(
			&c->in); /* the command has closed it: the rest goes nowhere, as in a shell */
	if (c->in.fd < 0 || (c->input_ended && !c->pty))
		loop_close(&c->in);
	else
		loop_pause(&c->in);
	if (c->s->held)
		stream_hold(c->s, false);
}

static void on_in(struct watch *w, uint32_t events)
{
	struct command *c = OWNER(w, in);

	if ((events & (EPOLLERR | EPOLLHUP)) && !(events & EPOLLOUT))
		loop_close(w);
	push_input(c);
}

static void on_data(struct stream *s, const uint8_t *bytes, size_t n)
{
	struct command *c = s->op;

	if (c->in.fd < 0)
		return;
	if (buf_put(&c->input, bytes, n) < 0) {
		loop_close(&c->in);
		return;
	}
	push_input(c);
}

static void on_end(struct stream *s)
{
	struct command *c = s->op;

	c->input_ended = true;
	push_input(c);
}

static void kill_command(struct command *c)
{
	procs_kill_tree(c->pid, c->tag, 0);
}

/* A further REQUEST while the command runs: {"op":"signal","signal":N} or, for a terminal,
 * {"op":"resize","rows":N,"cols":N}. Nothing answers; a nonsense one is ignored. */
static void on_control(struct stream *s, const json_t *request)
{
	struct command *c = s->op;
	const char *op = json_string_value(json_object_get(request, "op"));
	json_int_t sig = json_integer_value(json_object_get(request, "signal"));
	struct winsize size = {
		.ws_row = (unsigned short)json_integer_value(json_object_get(request, "rows")),
		.ws_col = (unsigned short)json_integer_value(json_object_get(request, "cols")),
	};

	if (op && strcmp(op, "signal") == 0 && sig == SIGKILL)
		kill_command(c);
	else if (op && strcmp(op, "signal") == 0 && sig > 0 && sig < NSIG && !c->exited)
		kill(-c->pid, (int)sig);
	else if (op && strcmp(op, "resize") == 0 && c->pty && c->out.fd >= 0)
		ioctl(c->out.fd, TIOCSWINSZ, &size);
}

static void on_release(struct stream *s)
{
	struct command *c = s->op;

	kill_command(c);
	free_command(c);
}

static void on_timer(struct timer *t)
{
	struct command *c = OWNER(t, timer);

	if (c->exited) /* only its output is still on the way */
		return;
	if (c->timed_out) { /* killed, and still there: it hangs in the kernel */
		finish(c);
		return;
	}
	c->timed_out = true;
	kill_command(c);
	timer_set(t, DIE_MS);
}

bool exec_reaped(pid_t pid, int status)
{
	struct command *c = commands;

	while (c && c->pid != pid)
		c = c->next;
	if (!c)
		return false;
	c->exited = true;
	c->status = status;
	pump(c, &c->out, FRAME_STDOUT);
	pump(c, &c->err, FRAME_STDERR);
	maybe_finish(c);
	return true;
}

static const struct stream_ops exec_ops = {
	.data = on_data,
	.end = on_end,
	.request = on_control,
	.drained = on_drained,
	.release = on_release,
};

/* The command's three descriptors and ours; -1 where there is none. */
struct ends {
	int child[SPAWN_FDS];
	int ours[3];
};

static void close_all(int *fds, int n)
{
	for (int i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

static int open_pty(struct ends *e, const json_t *size)
{
	struct winsize ws = {
		.ws_row = (unsigned short)json_integer_value(json_object_get(size, "rows")),
		.ws_col = (unsigned short)json_integer_value(json_object_get(size, "cols")),
	};
	int unlock = 0, slave;
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);

	if (master < 0)
		return -errno;
	e->ours[1] = master;
	if (ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &ws) < 0)
		return -errno;
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		return -errno;
	e->child[0] = slave;
	e->ours[0] = fcntl(master, F_DUPFD_CLOEXEC, 0);
	e->child[1] = fcntl(slave, F_DUPFD_CLOEXEC, 0);
	e->child[2] = fcntl(slave, F_DUPFD_CLOEXEC, 0);
	return e->ours[0] < 0 || e->child[1] < 0 || e->child[2] < 0 ? -EMFILE : 0;
}

static int open_pipes(struct ends *e, bool with_stdin)
{
	int p[2];

	for (int i = 0; i < 3; i++) {
		if (i == 0 && !with_stdin) {
			e->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
			if (e->child[0] < 0)
				return -errno;
			continue;
		}
		if (pipe2(p, O_CLOEXEC) < 0)
			return -errno;
		e->child[i] = p[i == 0 ? 0 : 1];
		e->ours[i] = p[i == 0 ? 1 : 0];
		if (fcntl(e->ours[i], F_SETFL, O_NONBLOCK) < 0)
			return -errno;
	}
	return 0;
}

/* argv of the request, or of a shell for its "shell"; free() it. NULL: the stream has its error. */
static const char **make_argv(struct stream *s, const json_t *request)
{
	const json_t *list = json_object_get(request, "argv");
	const char *shell = json_string_value(json_object_get(request, "shell"));
	size_t n = shell ? 3 : json_array_size(list);
	const char **argv;

	if (n == 0 || n > ARGS_MAX || (shell && list)) {
		stream_error(s, "ValueError", "exec needs \"argv\" (1 to %d strings) or \"shell\"",
		             ARGS_MAX);
		return NULL;
	}
	argv = calloc(n + 1, sizeof(*argv));
	if (!argv) {
		stream_errno(s, ENOMEM, NULL);
		return NULL;
	}
	if (shell) {
		argv[0] = "/bin/bash";
		argv[1] = "-c";
		argv[2] = shell;
		return argv;
	}
	for (size_t i = 0; i < n; i++) {
		argv[i] = json_string_value(json_array_get(list, i));
		if (!argv[i]) {
			stream_error(s, "ValueError", "\"argv\" must hold strings only");
			free(argv);
			return NULL;
		}
	}
	return argv;
}

static void report_start_failure(struct stream *s, int err, const char *step, const char *cwd,
                                 const char *program)
{
	if (strcmp(step, "cwd") == 0)
		stream_errno(s, err, cwd);
	else if (strcmp(step, "exec") == 0)
		stream_errno(s, err, program);
	else
		stream_error(s, "OSError", "[Errno %d] %s: cannot start '%s' (%s)", err,
		             strerror(err), program, step);
}

static void start_watches(struct command *c, struct ends *e)
{
	c->in = (struct watch){ .fd = e->ours[0], .ready = on_in };
	c->out = (struct watch){ .fd = e->ours[1], .ready = on_out };
	c->err = (struct watch){ .fd = e->ours[2], .ready = on_err };
	for (int i = 0; i < 3; i++)
		e->ours[i] = -1;
	loop_set(&c->out, EPOLLIN);
	if (c->err.fd >= 0)
		loop_set(&c->err, EPOLLIN);
	if (c->timeout_ms > 0)
		timer_set(&c->timer, c->timeout_ms);
}

static void send_started(struct command *c)
{
	char text[48];
	int n = snprintf(text, sizeof(text), "{\"event\":\"started\",\"pid\":%d}", c->pid);

	stream_send(c->s, FRAME_EVENT, text, (size_t)n);
}

/* All is known and open: starts the command and ties it to the stream. */
static void launch(struct stream *s, const json_t *request, struct spawn *sp, struct ends *e)
{
	struct command *c = calloc(1, sizeof(*c));
	const char *step = "";

	if (!c) {
		stream_errno(s, ENOMEM, NULL);
		return;
	}
	c->tag = sp->oom_score_adj = procs_next_tag(false);
	memcpy(sp->fds, e->child, sizeof(sp->fds));
	c->pid = spawn_start(sp, &step);
	if (c->pid < 0) {
		report_start_failure(s, -c->pid, step, sp->cwd, sp->argv[0]);
		free(c);
		return;
	}
	c->s = s;
	c->pty = sp->terminal;
	c->timer.fire = on_timer;
	c->timeout_ms = (uint64_t)json_integer_value(json_object_get(request, "timeout_ms"));
	c->must_succeed = json_is_true(json_object_get(request, "must_succeed"));
	c->next = commands;
	commands = c;
	s->op = c;
	s->ops = &exec_ops;
	start_watches(c, e);
	if (json_is_true(json_object_get(request, "events")))
		send_started(c);
}

static void start_as(struct stream *s, const json_t *request, const char **argv,
                     const struct user *u)
{
	const json_t *pty = json_object_get(request, "pty");
	const char *cwd = json_string_value(json_object_get(request, "cwd"));
	struct ends e = { .child = { -1, -1, -1, -1 }, .ours = { -1, -1, -1 } };
	struct spawn sp = { .argv = argv, .user = u, .terminal = json_is_object(pty) };
	char dir[PATH_MAX];
	const char *bad;
	char **envp;
	int r;

	if (path_resolve(u->home, cwd && *cwd ? cwd : u->home, dir, sizeof(dir)) < 0) {
		stream_errno(s, ENAMETOOLONG, cwd);
		return;
	}
	envp = user_env(u, json_object_get(agent.template, "env"), json_object_get(request, "env"),
	                &bad);
	if (!envp) {
		stream_error(s, bad ? "ValueError" : "MemoryError", "environment: bad entry '%s'",
		             bad ? bad : "");
		return;
	}
	sp.envp = envp;
	sp.cwd = dir;
	r = sp.terminal ? open_pty(&e, pty)
	                : open_pipes(&e, !json_is_false(json_object_get(request, "stdin")));
	if (r < 0)
		stream_errno(s, -r, NULL);
	else
		launch(s, request, &sp, &e);
	close_all(e.child, SPAWN_FDS);
	close_all(e.ours, 3);
	free(envp);
}

void exec_start(struct stream *s, const json_t *request)
{
	const char *name = json_string_value(json_object_get(request, "user"));
	json_int_t timeout = json_integer_value(json_object_get(request, "timeout_ms"));
	const char **argv = make_argv(s, request);
	struct user u;

	if (!argv)
		return;
	if (timeout < 0)
		stream_error(s, "ValueError", "\"timeout_ms\" must not be negative");
	else if (user_find(agent.passwd, agent.group, name ? name : agent.user, &u) < 0)
		stream_error(s, "KeyError", "no user '%s' in the sandbox",
		             name ? name : agent.user);
	else
		start_as(s, request, argv, &u);
	free(argv);
}
