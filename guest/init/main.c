/* SPDX-License-Identifier: Apache-2.0 */
/* PID 1 of the guest and the agent that the host talks to: docs/guest.md. */
#include "agent.h"
#include "exec.h"
#include "kernels.h"
#include "loop.h"
#include "ops.h"
#include "spawn.h"
#include "stream.h"
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGENT_PORT 1024
#define BACKLOG    128
#define GRACE_MS   100 /* from the answer to "shutdown" to the end, so that it gets out */

struct options {
	const char *listen;            /* NULL: vsock */
	const char *template;          /* file */
	const char *kernel_parent[64]; /* argv */
	bool as_init;
};

static void usage(void)
{
	fputs("Usage: init [--listen unix:PATH] [--user NAME] [--template FILE]\n"
	      "            [--kernel-parent PROGRAM [ARG...]]\n"
	      "As PID 1 without options: boots the guest. With --listen: only the agent, for "
	      "tests;\n"
	      "nothing is mounted, and the kernel parent is PROGRAM.\n",
	      stderr);
	exit(2);
}

static void parse_options(struct options *o, int argc, char **argv)
{
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 >= argc)
			usage();
		if (strcmp(argv[i], "--listen") == 0 && strncmp(argv[i + 1], "unix:", 5) == 0) {
			o->listen = argv[i + 1] + 5;
		} else if (strcmp(argv[i], "--user") == 0) {
			agent.user = argv[i + 1];
		} else if (strcmp(argv[i], "--template") == 0) {
			o->template = argv[i + 1];
		} else if (strcmp(argv[i], "--kernel-parent") == 0 && argc - i < 64) {
			for (int j = 0; i + 1 + j < argc; j++)
				o->kernel_parent[j] = argv[i + 1 + j];
			break;
		} else {
			usage();
		}
	}
	if (!o->listen)
		usage();
}

/* The kernel hands PID 1 words of its command line as arguments: they are not options. */
static void set_options(struct options *o, int argc, char **argv)
{
	o->as_init = getpid() == 1;
	o->template = o->as_init ? "/etc/thawbox/template.json" : NULL;
	if (!o->as_init)
		parse_options(o, argc, argv);
}

static int listen_vsock(void)
{
	struct sockaddr_vm a = { .svm_family = AF_VSOCK,
		                 .svm_cid = VMADDR_CID_ANY,
		                 .svm_port = AGENT_PORT };
	int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, BACKLOG) < 0)
		return -errno;
	return fd;
}

static int listen_unix(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	memcpy(a.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, BACKLOG) < 0)
		return -errno;
	return fd;
}

static void load_template(const char *path)
{
	json_error_t why;

	agent.template = path ? json_load_file(path, JSON_REJECT_DUPLICATES, &why) : NULL;
	if (path && !agent.template)
		say("%s: %s", path, why.text);
	if (!json_is_object(agent.template)) {
		json_decref(agent.template);
		agent.template = json_object();
	}
}

/* The interpreter of the template, unless the command line says `thawbox.kernels=off`. */
static void start_kernels(struct options *o)
{
	static const char *const parent[] = { "/usr/bin/python3", "/usr/lib/thawbox/kernel.py",
		                              NULL };
	char word[16];

	system_cmdline("thawbox.kernels", word, sizeof(word));
	if (!o->as_init && o->kernel_parent[0])
		kernels_start(o->kernel_parent);
	else if (o->as_init && strcmp(word, "off") != 0 && access(parent[1], F_OK) == 0)
		kernels_start(parent);
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (!exec_reaped(pid, status))
			kernels_reaped(pid, status);
	}
}

static void on_shutdown_timer(struct timer *t)
{
	(void)t;
	if (getpid() == 1)
		system_power_off();
	exit(0);
}

static void on_shutdown(void)
{
	static struct timer timer = { .fire = on_shutdown_timer };

	timer_set(&timer, GRACE_MS);
}

static void on_signal(struct watch *w, uint32_t events)
{
	struct signalfd_siginfo info;

	(void)events;
	if (read(w->fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGCHLD)
		reap();
	else
		on_shutdown();
}

/* All are blocked, SIGPIPE too: a write to a closed pipe is then an errno. */
static int watch_signals(void)
{
	static struct watch w = { .ready = on_signal };
	sigset_t all, some;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&some);
	sigaddset(&some, SIGCHLD);
	sigaddset(&some, SIGTERM);
	sigaddset(&some, SIGINT);
	w.fd = signalfd(-1, &some, SFD_NONBLOCK | SFD_CLOEXEC);
	return w.fd < 0 ? -errno : loop_set(&w, EPOLLIN);
}

static int run(struct options *o)
{
	int fd, r;

	r = spawn_prepare();
	if (r == 0)
		r = loop_open();
	if (r == 0)
		r = watch_signals();
	if (r < 0)
		return r;
	load_template(o->template);
	op_on_shutdown(on_shutdown);
	fd = o->listen ? listen_unix(o->listen) : listen_vsock();
	if (fd < 0) {
		say("cannot listen: %s", strerror(-fd));
		if (!o->as_init)
			return fd;
	} else {
		r = stream_listen(fd);
		if (r < 0)
			return r;
	}
	say("phase agent listens");
	start_kernels(o);
	return loop_run(stream_flush_all);
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	int r;

	set_options(&o, argc, argv);
	umask(022);
	if (o.as_init) {
		say("phase mounts");
		if (system_mount() < 0)
			system_power_off();
		system_set_up();
	} else {
		prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come here, as to PID 1 */
	}
	r = run(&o);
	say("the agent ends: %s", strerror(-r));
	if (o.as_init)
		system_power_off();
	return 1;
}
