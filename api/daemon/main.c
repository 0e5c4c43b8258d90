/* SPDX-License-Identifier: Apache-2.0 */
/* thawboxd: options, then templates and pools, then the loop until it is told to stop. */
#include "api/cmd.h"
#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"
#include "api/daemon/listen.h"
#include "api/daemon/restart.h"
#include "core/own.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#ifndef THAWBOX_VERSION
#define THAWBOX_VERSION "unknown"
#endif

#define NR_JOBS  4u
#define TLS_MAX  (1u << 20)
#define NS_PER_S ((uint64_t)1000000000)

struct server {
	struct daemon daemon;
	struct listening listening;
	int signal_fd;
	struct loop_op signal_op, stdin_op;
	char keys_path[PATHS_MAX];
	char domain[32];
	char program[PATHS_MAX]; /* what to execute for a restart */
	char **argv;
	struct handover handover; /* of the daemon before, then for the next */
};

static const char about[] =
	"Usage: thawboxd [options]\n\n"
	"Serves sandboxes to E2B's SDKs, unchanged, on this machine: E2B's control plane, files, "
	"processes\n"
	"and code interpreter at one address.\n\nOptions:\n";

static const char more[] =
	"\n"
	"Clients find it by three variables (`thawbox up` starts it and prints them):\n"
	"  export E2B_API_URL=http://127.0.0.1:8429 E2B_SANDBOX_URL=http://127.0.0.1:8429\n"
	"  export E2B_API_KEY=e2b_0000000000000000000000000000000000000000   # any, where there "
	"are no "
	"keys\n"
	"\n"
	"Examples:\n"
	"  thawboxd                                         # this machine's users, no keys\n"
	"  thawbox key create alice && thawboxd --listen 0.0.0.0:8429 --tls-cert c.pem --tls-key "
	"k.pem\n"
	"  thawboxd --unix /run/thawboxd.sock --log-json\n"
	"  thawboxd --template code-interpreter --template geo --pool 4\n"
	"\n"
	"SIGTERM and SIGINT stop it: at once, or when the sandboxes have ended, for at most "
	"--grace; "
	"a second\n"
	"signal ends them. SIGUSR2 starts its program again, which may be another by now, and "
	"takes "
	"the\n"
	"sandboxes over. SIGHUP reads the keys again. A template that is baked again serves new "
	"sandboxes\n"
	"as soon as it is there. GET /health, GET /metrics (Prometheus).\n"
	"When it is killed, its sandboxes end with it. docs/e2b.md tells what of E2B it offers.\n";

/* --- stopping ------------------------------------------------------------------------------------------ */

static void end_boxes(struct daemon *daemon)
{
	while (!list_is_empty(&daemon->boxes))
		box_end(container_of(daemon->boxes.next, struct box, node),
		        "the daemon is stopping");
	daemon_check_stop(daemon);
}

static void on_grace_over(struct loop_op *op, int res)
{
	if (res != -ECANCELED)
		end_boxes(container_of(op, struct daemon, stop_timer));
}

/* The loop ends, and serve() goes on from there. */
static void leave(struct daemon *daemon, enum leave how)
{
	if (daemon->is_stopping || daemon->leave != LEAVE_NOT)
		return;
	daemon->leave = how;
	loop_stop(&daemon->loop);
}

static void stop(struct daemon *daemon)
{
	bool is_second = daemon->is_stopping || daemon->leave != LEAVE_NOT;

	daemon->is_stopping = true;
	journal_event(LOG_LVL_INFO, NULL, "stopping; %u sandboxes", daemon->nr_boxes);
	if (is_second || !daemon->opts.grace_ns)
		end_boxes(daemon);
	else
		loop_timer(&daemon->loop, &daemon->stop_timer, daemon->opts.grace_ns);
	daemon_check_stop(daemon);
}

/* Keys that are still there stay what they are to their sandboxes; those of others are nobody's any more. */
static void reload_keys(struct server *server)
{
	struct daemon *daemon = &server->daemon;
	struct keys fresh, old = daemon->keys;
	struct err err = { 0 };

	if (keys_load(&fresh, server->keys_path, &err)) {
		journal_event(LOG_LVL_ERR, NULL, "keys: %s; the old ones stay", err.msg);
		return;
	}
	if (!fresh.nr && !server->listening.is_local) {
		journal_event(LOG_LVL_ERR, NULL, "keys: there is none; the old ones stay");
		keys_free(&fresh);
		return;
	}
	list_each(&daemon->boxes, node)
	{
		struct box *box = container_of(node, struct box, node);
		struct key *key = NULL;

		for (unsigned i = 0; box->key && i < fresh.nr; i++)
			if (!strcmp(fresh.at[i]->name, box->key->name))
				key = fresh.at[i];
		box->key = key;
		if (key)
			key->live++;
	}
	list_each(&daemon->http.requests, node)
	{
		container_of(node, struct request, node)->key = NULL;
	}
	daemon->keys = fresh;
	keys_free(&old);
	journal_event(LOG_LVL_INFO, NULL, "keys: %u", fresh.nr);
}

static void on_signal(struct loop_op *op, int res)
{
	struct server *server = container_of(op, struct server, signal_op);
	struct signalfd_siginfo info;

	if (res == -ECANCELED)
		return;
	while (read(server->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGHUP) {
			reload_keys(server);
			stalls_look(&server->daemon);
		} else if (info.ssi_signo == SIGUSR2) {
			leave(&server->daemon, LEAVE_EXEC);
		} else if (server->daemon.opts.keep && server->daemon.leave == LEAVE_NOT) {
			leave(&server->daemon, LEAVE_STORE);
		} else {
			stop(&server->daemon);
		}
	}
	loop_poll(&server->daemon.loop, op, server->signal_fd, POLLIN);
}

/* What is written to it is nobody's: its end is what counts, which comes also when its writer is killed. */
static void on_stdin(struct loop_op *op, int res)
{
	struct server *server = container_of(op, struct server, stdin_op);
	char text[256];
	ssize_t n;

	if (res == -ECANCELED)
		return;
	n = read(STDIN_FILENO, text, sizeof(text));
	if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)))
		loop_poll(&server->daemon.loop, op, STDIN_FILENO, POLLIN);
	else
		stop(&server->daemon);
}

/* Before any thread is started, so that all have them blocked. */
static int take_signals(struct server *server, struct err *err)
{
	struct sigaction ignore = { .sa_handler = SIG_IGN };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
	server->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return server->signal_fd < 0 ? err_set(err, -errno, "signalfd: %s", strerror(errno)) : 0;
}

/* --- starting ------------------------------------------------------------------------------------------ */

/* Without keys nobody but this machine's users may come. */
static int check_exposure(const struct server *server, struct err *err)
{
	if (server->daemon.keys.nr || server->listening.is_local)
		return 0;
	(void)err_set(err, -EPERM, "without keys it listens on loopback alone, not on %s",
	              server->listening.where);
	return err_remedy(err, "make a key with `thawbox key create NAME`, or listen on 127.0.0.1");
}

static int open_keys(struct server *server, struct err *err)
{
	const struct options *opts = &server->daemon.opts;
	int rc = opts->keys ? paths_format(server->keys_path, err, "%s", opts->keys)
	                    : keys_path(server->keys_path, err);

	return rc ? rc : keys_load(&server->daemon.keys, server->keys_path, err);
}

static int open_http(struct server *server, struct err *err)
{
	const struct options *opts = &server->daemon.opts;
	own_free char *cert = NULL;
	own_free char *key = NULL;
	struct http_spec spec = { .listen_fd = server->listening.fd,
		                  .connections_max = (unsigned)opts->max_connections };
	size_t len;
	int rc = 0;

	if (!opts->tls_cert != !opts->tls_key)
		return err_set(err, -EINVAL, "--tls-cert and --tls-key go together");
	if (opts->tls_cert) {
		rc = cmd_read_file(opts->tls_cert, TLS_MAX, &cert, &len, err);
		rc = rc ? rc : cmd_read_file(opts->tls_key, TLS_MAX, &key, &len, err);
	}
	spec.tls_cert = cert;
	spec.tls_key = key;
	return rc ? rc
	          : http_open(&server->daemon.http, &server->daemon.loop, &server_handlers, &spec,
	                      err);
}

/* Where nothing else was said, local clients find a sandbox's ports at PORT-ID.localhost and our own port. */
static void choose_domain(struct server *server)
{
	const char *where = server->listening.where, *colon = strrchr(where, ':');

	if (server->daemon.opts.domain || !server->listening.is_local ||
	    strncmp(where, "http", 4) != 0)
		return;
	(void)snprintf(server->domain, sizeof(server->domain), "localhost%.8s", colon);
	server->daemon.opts.domain = server->domain;
}

/* A socket for each client and each stream of a guest. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit); /* what there is must do */
}

static int serve(struct server *server, struct err *err)
{
	struct daemon *daemon = &server->daemon;
	int rc;

	daemon->stop_timer.done = on_grace_over;
	server->signal_op.done = on_signal;
	loop_poll(&daemon->loop, &server->signal_op, server->signal_fd, POLLIN);
	server->stdin_op.done = on_stdin;
	if (daemon->opts.exit_with_stdin)
		loop_poll(&daemon->loop, &server->stdin_op, STDIN_FILENO, POLLIN);
	journal_event(LOG_LVL_INFO, NULL, "thawboxd " THAWBOX_VERSION " serves %s at %s, %u keys",
	              daemon->stalls[0]->template.name, server->listening.where, daemon->keys.nr);
	restart_adopt(daemon, &server->handover);
	stalls_watch(daemon);
	rc = loop_run(&daemon->loop);
	if (!rc && daemon->leave != LEAVE_NOT)
		rc = restart_settle(daemon);
	if (!rc && daemon->is_stopping && daemon->nr_boxes) /* a stop came in between */
		rc = loop_run(&daemon->loop);
	stalls_unwatch(daemon);
	(void)loop_reap(&daemon->loop, &server->signal_op);
	(void)loop_reap(&daemon->loop, &server->stdin_op);
	(void)loop_reap(&daemon->loop, &daemon->stop_timer);
	return rc ? err_set(err, rc, "the event loop failed: %s", strerror(-rc)) : 0;
}

/* What the daemon before this one has left, if it has. */
static int open_listening(struct server *server, struct err *err)
{
	const struct options *opts = &server->daemon.opts;
	struct err why = { 0 };
	int fd;

	if (handover_receive(&server->handover, &why) < 0)
		journal_event(LOG_LVL_ERR, NULL, "%s: its sandboxes are lost", why.msg);
	fd = restart_take_listening(&server->handover);
	return fd >= 0 ? listen_adopt(&server->listening, fd, opts->tls_cert, err)
	               : listen_open(&server->listening, opts->listen, opts->unix_path,
	                             opts->tls_cert, err);
}

static bool is_leaving(const struct daemon *daemon)
{
	return daemon->leave != LEAVE_NOT && !daemon->is_stopping;
}

/* Everything but the sandboxes has been closed. Of LEAVE_EXEC it returns only on failure. */
static int hand_over(struct server *server, struct err *err)
{
	int rc = server->daemon.leave == LEAVE_STORE
	                 ? handover_store(&server->handover, err)
	                 : handover_exec(&server->handover, server->program, server->argv, err);

	handover_close(&server->handover);
	return rc;
}

static int run(struct server *server, struct err *err)
{
	struct daemon *daemon = &server->daemon;
	const struct options *opts = &daemon->opts;
	int rc;

	raise_limits();
	journal_open(STDERR_FILENO, opts->log_json, opts->quiet);
	list_init(&daemon->boxes);
	daemon->start_us = clock_us();
	server->listening.fd = -1;
	rc = take_signals(server, err);
	rc = rc ? rc : open_keys(server, err);
	rc = rc ? rc : open_listening(server, err);
	rc = rc ? rc : check_exposure(server, err);
	choose_domain(server);
	rc = rc ? rc : stalls_open(daemon, err);
	rc = rc ? rc : loop_open(&daemon->loop, 1024, err);
	if (!rc) {
		rc = jobs_open(&daemon->jobs, &daemon->loop, NR_JOBS, err);
		rc = rc ? rc : open_http(server, err);
		rc = rc ? rc : serve(server, err);
		if (!rc && is_leaving(daemon))
			rc = restart_save(daemon, server->listening.fd, &server->handover, err);
		http_close(&daemon->http);
		jobs_close(&daemon->jobs);
		loop_close(&daemon->loop);
	}
	stalls_close(daemon);
	if (!rc && is_leaving(daemon))
		rc = hand_over(server, err);
	keys_free(&daemon->keys);
	own_close_fd(&server->listening.fd);
	own_close_fd(&server->signal_fd);
	if (opts->unix_path && !rc && !is_leaving(daemon))
		(void)unlink(opts->unix_path);
	return rc;
}

int main(int argc, char **argv)
{
	static struct server server = {
		.daemon = { .opts = { .listen = "127.0.0.1:8429",
		                      .pool_kind = "standby",
		                      .pool_size = 2,
		                      .max_sandboxes = 128,
		                      .max_connections = 4096,
		                      .max_ttl_ns = 86400 * NS_PER_S,
		                      .max_output = UINT64_C(8) << 20 } },
		.signal_fd = -1,
	};
	struct options *o = &server.daemon.opts;
	bool help = false, version = false;
	const struct arg args[] = {
		{ "listen", 'l', ARG_TEXT, &o->listen, "HOST:PORT", "where to (127.0.0.1:8429)" },
		{ "unix", 'u', ARG_TEXT, &o->unix_path, "PATH", "a Unix socket instead" },
		{ "tls-cert", '\0', ARG_TEXT, &o->tls_cert, "FILE", "certificate chain (PEM)" },
		{ "tls-key", '\0', ARG_TEXT, &o->tls_key, "FILE", "its private key (PEM)" },
		{ "domain", '\0', ARG_TEXT, &o->domain, "NAME",
		  "clients find sandboxes' ports at PORT-ID.NAME (localhost:PORT)" },
		{ "keys", 'k', ARG_TEXT, &o->keys, "FILE",
		  "API keys (keys.json beside the templates); without any: loopback only" },
		{ "template", 't', ARG_LIST, &o->templates, "NAME",
		  "serve it (code-interpreter); the first is also `base`" },
		{ "pool", 'p', ARG_NUMBER, &o->pool_size, "N",
		  "sandboxes of each template that wait for a user (2)" },
		{ "pool-kind", '\0', ARG_TEXT, &o->pool_kind, "KIND",
		  "shell, standby or warm (standby)" },
		{ "max-sandboxes", '\0', ARG_NUMBER, &o->max_sandboxes, "N",
		  "of all clients at a time (128)" },
		{ "max-ttl", '\0', ARG_SECONDS, &o->max_ttl_ns, "TIME",
		  "longest time to live that may be asked for (24 h)" },
		{ "cell-timeout", '\0', ARG_SECONDS, &o->cell_timeout_ns, "TIME",
		  "a deadline for each cell (its sandbox's end)" },
		{ "max-output", '\0', ARG_BYTES, &o->max_output, "BYTES",
		  "stdout and stderr of a cell; of more the middle is cut (8M)" },
		{ "max-connections", '\0', ARG_NUMBER, &o->max_connections, "N",
		  "of clients (4096)" },
		{ "grace", 'g', ARG_SECONDS, &o->grace_ns, "TIME",
		  "how long a stop waits for sandboxes to end (not at all)" },
		{ "keep", '\0', ARG_FLAG, &o->keep, NULL,
		  "a stop leaves the sandboxes to the next start: systemd keeps them" },
		{ "exit-with-stdin", '\0', ARG_FLAG, &o->exit_with_stdin, NULL,
		  "stop when standard input ends: for a program that starts it" },
		{ "log-json", '\0', ARG_FLAG, &o->log_json, NULL, "log in JSON, a line each" },
		{ "quiet", 'q', ARG_FLAG, &o->quiet, NULL, "only warnings and errors" },
		{ "version", 'V', ARG_FLAG, &version, NULL, "its version" },
		{ "help", 'h', ARG_FLAG, &help, NULL, "this text" },
	};
	struct arg_rest rest;
	struct err err = { 0 };
	int rc = args_parse(args, ARRAY_LEN(args), argc, argv, false, &rest, &err);

	if (!rc && rest.nr)
		rc = err_set(&err, -EINVAL, "it takes no operands");
	if (!rc && (!o->pool_size || o->pool_size > 64))
		rc = err_set(&err, -EINVAL, "--pool is 1 to 64");
	if (!rc && o->keep && !handover_has_store()) {
		rc = err_set(&err, -EINVAL,
		             "--keep: NOTIFY_SOCKET is not set, so nobody would keep the "
		             "sandboxes: start it by systemd, or use SIGUSR2");
	}
	if (rc) {
		fprintf(stderr, "thawboxd: %s\nsee `thawboxd --help`\n", err.msg);
		return EXIT_USAGE;
	}
	if (help) {
		fputs(about, stdout);
		args_help(args, ARRAY_LEN(args), stdout);
		fputs(more, stdout);
		return EXIT_OK;
	}
	if (version) {
		puts("thawboxd " THAWBOX_VERSION);
		return EXIT_OK;
	}
	server.argv = argv;
	if (readlink("/proc/self/exe", server.program, sizeof(server.program) - 1) < 0)
		server.program[0] = '\0'; /* the one that runs will do */
	rc = run(&server, &err);
	return rc ? cmd_fail(rc == -EINVAL ? EXIT_USAGE : EXIT_NOT_READY, &err) : EXIT_OK;
}
