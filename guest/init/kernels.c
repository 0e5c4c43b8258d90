/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

#include "agent.h"
#include "procs.h"
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_CONTEXTS 64
#define MAX_SPARES   8
#define DEFAULT_PORT 2000
#define PACKET_MAX   65536
#define SPARE_WAIT   120000 /* ms: a fork of the warmed parent takes seconds on software KVM */
#define PARENT_SCORE (-500) /* of its oom_score_adj: all new contexts come from it */
#define MAX_FAILURES 5      /* spares in a row that ended unused: do not fork for ever */

struct kernel {
	pid_t pid; /* 0: none */
	int port;
	int tag; /* procs.h */
};

struct context {
	char name[64];
	struct kernel k;
	bool alive, oom;
	int exit, signal; /* of the last kernel, once it is not alive */
	int restarts;
	struct stream *waiting; /* for a spare */
	struct timer timeout;
};

static struct {
	struct watch channel; /* descriptor 3 of the parent */
	pid_t parent;
	bool parent_alive;
	struct context *contexts[MAX_CONTEXTS];
	struct kernel spares[MAX_SPARES];
	unsigned nr_spares;
	int next_port;
	unsigned failures;
	unsigned long long oom_kills; /* seen so far */
} all = { .channel.fd = -1, .next_port = DEFAULT_PORT + 1 };

static const char no_parent[] =
	"no spare interpreter, and the kernel parent, which makes them, has "
	"ended: make a new sandbox";

/* --- contexts --------------------------------------------------------------------------------- */

static struct context *find_context(const char *name)
{
	for (unsigned i = 0; i < MAX_CONTEXTS; i++) {
		if (all.contexts[i] && strcmp(all.contexts[i]->name, name) == 0)
			return all.contexts[i];
	}
	return NULL;
}

static struct context *new_context(const char *name)
{
	struct context *c;

	for (unsigned i = 0; i < MAX_CONTEXTS; i++) {
		if (all.contexts[i])
			continue;
		c = calloc(1, sizeof(*c));
		if (!c)
			return NULL;
		snprintf(c->name, sizeof(c->name), "%s", name);
		all.contexts[i] = c;
		return c;
	}
	return NULL;
}

static void drop_context(struct context *c)
{
	timer_cancel(&c->timeout);
	for (unsigned i = 0; i < MAX_CONTEXTS; i++) {
		if (all.contexts[i] == c)
			all.contexts[i] = NULL;
	}
	loop_free_later(c);
}

/* The kernel's OOM counter tells who died of SIGKILL from whom the agent did not send it to. */
static bool oom_kill_since_last_look(void)
{
	unsigned long long n = all.oom_kills;
	FILE *f = fopen("/proc/vmstat", "re");
	char line[128];
	bool more;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "oom_kill %llu", &n) == 1)
			break;
	}
	if (f)
		fclose(f);
	more = n > all.oom_kills;
	all.oom_kills = n;
	return more;
}

/* --- the parent ------------------------------------------------------------------------------- */

static void ask_for_spare(void)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "{\"op\":\"fork\",\"port\":%d}", all.next_port);

	if (all.channel.fd < 0)
		return;
	if (send(all.channel.fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
		say("cannot ask the kernel parent for a spare: %s", strerror(errno));
	else
		all.next_port++;
}

static void answer_kernel(struct stream *s, const struct context *c)
{
	stream_result(s, json_pack("{s:s, s:i, s:i}", "status", "ok", "port", c->k.port, "pid",
	                           c->k.pid));
}

static void give(struct context *c, const struct kernel *k)
{
	struct stream *s = c->waiting;

	c->k = *k;
	c->alive = true;
	c->oom = false;
	c->exit = c->signal = 0;
	c->waiting = NULL;
	timer_cancel(&c->timeout);
	if (s)
		answer_kernel(s, c);
}

static struct context *first_waiting(void)
{
	for (unsigned i = 0; i < MAX_CONTEXTS; i++) {
		if (all.contexts[i] && all.contexts[i]->waiting)
			return all.contexts[i];
	}
	return NULL;
}

static void on_kernel(const json_t *event)
{
	const char *role = json_string_value(json_object_get(event, "role"));
	struct kernel k = {
		.pid = (pid_t)json_integer_value(json_object_get(event, "pid")),
		.port = (int)json_integer_value(json_object_get(event, "port")),
		.tag = procs_next_tag(true),
	};
	struct context *c;

	if (k.pid <= 1 || k.port <= 0)
		return;
	procs_set_tag(k.pid, k.tag);
	if (k.port >= all.next_port)
		all.next_port = k.port + 1;
	c = role && strcmp(role, "default") == 0 ? find_context("default") : first_waiting();
	if (c)
		give(c, &k);
	else if (all.nr_spares < MAX_SPARES)
		all.spares[all.nr_spares++] = k;
	else
		kill(k.pid, SIGKILL); /* nobody asked for so many */
}

static void kernel_ended(struct context *c, int code, int sig)
{
	bool oom = sig == SIGKILL && oom_kill_since_last_look();

	c->alive = false;
	c->exit = code;
	c->signal = sig;
	c->oom = oom;
	say("context %s: its interpreter ended (%s %d%s)", c->name, sig ? "signal" : "exit",
	    sig ? sig : code, oom ? ", out of memory" : "");
}

/* A kernel has ended by itself (those that the agent kills are in no context any more). */
static void on_exit_of(pid_t pid, int code, int sig)
{
	for (unsigned i = 0; i < MAX_CONTEXTS; i++) {
		if (all.contexts[i] && all.contexts[i]->alive && all.contexts[i]->k.pid == pid)
			kernel_ended(all.contexts[i], code, sig);
	}
	for (unsigned i = 0; i < all.nr_spares; i++) {
		if (all.spares[i].pid != pid)
			continue;
		all.spares[i] = all.spares[--all.nr_spares];
		say("a spare interpreter ended (%s %d)", sig ? "signal" : "exit", sig ? sig : code);
		if (++all.failures <= MAX_FAILURES)
			ask_for_spare();
	}
}

static void on_event(const json_t *event)
{
	const char *what = json_string_value(json_object_get(event, "event"));
	const char *text = json_string_value(json_object_get(event, "text"));

	if (!what)
		return;
	if (strcmp(what, "kernel") == 0)
		on_kernel(event);
	else if (strcmp(what, "phase") == 0 && text)
		say("phase %.200s", text);
	else if (strcmp(what, "ready") == 0)
		say("ready");
	else if (strcmp(what, "exit") == 0)
		on_exit_of((pid_t)json_integer_value(json_object_get(event, "pid")),
		           (int)json_integer_value(json_object_get(event, "code")),
		           (int)json_integer_value(json_object_get(event, "signal")));
}

static void fail_waiting(struct context *c, const char *why)
{
	struct stream *s = c->waiting;

	if (!s)
		return;
	c->waiting = NULL;
	timer_cancel(&c->timeout);
	stream_error(s, "RuntimeError", "%s", why);
}

static void parent_is_gone(void)
{
	loop_close(&all.channel);
	for (unsigned i = 0; i < MAX_CONTEXTS; i++) {
		if (all.contexts[i])
			fail_waiting(all.contexts[i], no_parent);
	}
}

static void on_channel(struct watch *w, uint32_t events)
{
	static char packet[PACKET_MAX];
	json_t *event;
	ssize_t n;

	(void)events;
	n = recv(w->fd, packet, sizeof(packet), MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		parent_is_gone();
		return;
	}
	event = json_loadb(packet, (size_t)n, 0, NULL);
	on_event(event);
	json_decref(event);
}

void kernels_reaped(pid_t pid, int status)
{
	int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

	if (pid == all.parent && all.parent_alive) {
		all.parent_alive = false;
		say("the kernel parent ended (%s %d): interpreters that run go on, no new ones",
		    sig ? "signal" : "exit", sig ? sig : code);
		parent_is_gone();
	} else {
		on_exit_of(pid, code, sig);
	}
}

/* Starts the parent with `fd` as its descriptor 3; returns its pid or -errno. */
static pid_t start_parent(const char *const *argv, int fd, const char **step)
{
	struct user u;
	struct spawn sp = { .argv = argv, .cwd = "/", .user = &u, .fds = { 0, 1, 2, fd } };
	const char *bad;
	char **env;
	pid_t pid;
	int r;

	*step = "environment";
	r = user_find(agent.passwd, agent.group, geteuid() == 0 ? "root" : agent.user, &u);
	if (r < 0)
		return r;
	env = user_env(&u, json_object_get(agent.template, "env"), NULL, &bad);
	if (!env)
		return bad ? -EINVAL : -ENOMEM;
	sp.envp = env;
	pid = spawn_start(&sp, step);
	free(env);
	return pid;
}

int kernels_start(const char *const *argv)
{
	const char *step = "socket pair";
	int pair[2];
	pid_t pid;

	if (!new_context("default"))
		return -ENOMEM;
	pid = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
	if (pid == 0) {
		pid = start_parent(argv, pair[1], &step);
		close(pair[1]);
		if (pid < 0)
			close(pair[0]);
	}
	if (pid < 0) {
		say("cannot start the kernel parent %s: %s: %s", argv[0], step, strerror(-pid));
		return pid;
	}
	oom_kill_since_last_look();
	procs_set_tag(pid, PARENT_SCORE);
	all.parent = pid;
	all.parent_alive = true;
	all.channel = (struct watch){ .fd = pair[0], .ready = on_channel };
	return loop_set(&all.channel, EPOLLIN);
}

/* --- operations ------------------------------------------------------------------------------- */

static const char *name_of(const json_t *request)
{
	const char *name = json_string_value(json_object_get(request, "context"));

	return name ? name : "default";
}

/* NULL: the stream has its error. */
static struct context *named_context(struct stream *s, const json_t *request)
{
	struct context *c = find_context(name_of(request));

	if (!c)
		stream_error(s, "KeyError", "no context '%s' in the sandbox", name_of(request));
	return c;
}

void kernels_interrupt(struct stream *s, const json_t *request)
{
	struct context *c = named_context(s, request);

	if (!c)
		return;
	if (!c->alive || kill(c->k.pid, SIGINT) < 0)
		stream_error(s, "ProcessLookupError", "the interpreter of context '%s' has ended",
		             c->name);
	else
		stream_result(s, json_pack("{s:s}", "status", "ok"));
}

static void on_wait_release(struct stream *s)
{
	struct context *c = s->op;

	c->waiting = NULL;
	timer_cancel(&c->timeout);
}

static const struct stream_ops wait_ops = { .release = on_wait_release };

static void on_wait_timeout(struct timer *t)
{
	struct context *c = (struct context *)((char *)t - offsetof(struct context, timeout));

	fail_waiting(c, "no spare interpreter came up in time; try again, or make a new sandbox");
}

/* Gives the context a spare, now or when one is there, and answers the stream with it. */
static void take_spare(struct stream *s, struct context *c)
{
	struct kernel k;

	if (all.nr_spares > 0) {
		k = all.spares[0];
		all.spares[0] = all.spares[--all.nr_spares];
		all.failures = 0;
		give(c, &k);
		answer_kernel(s, c);
		ask_for_spare();
		return;
	}
	if (all.channel.fd < 0) {
		stream_error(s, "RuntimeError", "%s", no_parent);
		return;
	}
	if (c->waiting) {
		stream_error(s, "RuntimeError", "context '%s' waits for an interpreter already",
		             c->name);
		return;
	}
	ask_for_spare();
	c->waiting = s;
	c->timeout.fire = on_wait_timeout;
	timer_set(&c->timeout, SPARE_WAIT);
	s->op = c;
	s->ops = &wait_ops;
}

void kernels_kill(struct stream *s, const json_t *request)
{
	struct context *c = named_context(s, request);

	if (!c)
		return;
	if (c->k.pid > 0) {
		c->alive = false;
		c->signal = SIGKILL;
		procs_kill_tree(c->k.pid, c->k.tag, all.parent);
		c->k.pid = 0;
		c->restarts++;
	}
	if (!json_is_true(json_object_get(request, "close"))) {
		take_spare(s, c);
	} else if (strcmp(c->name, "default") == 0) {
		stream_error(s, "ValueError", "the default context cannot be closed, only killed");
	} else {
		fail_waiting(c, "the context was closed");
		drop_context(c);
		stream_result(s, json_pack("{s:s}", "status", "ok"));
	}
}

static void create_context(struct stream *s, const json_t *request)
{
	const char *name = name_of(request);
	struct context *c;

	if (*name == '\0' || strlen(name) >= sizeof(c->name)) {
		stream_error(s, "ValueError", "a context's name has 1 to %zu bytes",
		             sizeof(c->name) - 1);
		return;
	}
	if (find_context(name)) {
		stream_error(s, "FileExistsError", "there is a context '%s' already", name);
		return;
	}
	if (all.nr_spares == 0 && all.channel.fd < 0) {
		stream_error(s, "RuntimeError", "%s", no_parent);
		return;
	}
	c = new_context(name);
	if (!c)
		stream_error(s, "RuntimeError", "a sandbox has at most %d contexts: close one",
		             MAX_CONTEXTS);
	else
		take_spare(s, c);
}

void kernels_context(struct stream *s, const json_t *request)
{
	struct context *c;

	if (json_is_true(json_object_get(request, "create"))) {
		create_context(s, request);
		return;
	}
	c = named_context(s, request);
	if (!c)
		return;
	stream_result(s, json_pack("{s:s, s:b, s:i, s:i, s:i, s:i, s:b, s:i, s:b, s:i}", "status",
	                           "ok", "alive", c->alive, "port", c->k.port, "pid", c->k.pid,
	                           "exit", c->exit, "signal", c->signal, "oom", c->oom, "restarts",
	                           c->restarts, "parent_alive", all.parent_alive, "spares",
	                           (int)all.nr_spares));
}
