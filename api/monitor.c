/* SPDX-License-Identifier: Apache-2.0 */
#include "api/monitor.h"

#include "api/cgroup.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define CONTROL_FD 3 /* in the process */

/* A descriptor above those that the process's set-up writes over. */
static int fd_high(int fd)
{
	int high;

	if (fd < 0 || fd > CONTROL_FD)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, CONTROL_FD + 1);
	close(fd);
	return high;
}

int monitor_pair(int *ours, int *theirs, struct err *err)
{
	int sv[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
		return err_set(err, -errno, "socket pair: %s", strerror(errno));
	*ours = sv[0];
	*theirs = fd_high(sv[1]);
	return 0;
}

int monitor_log(void)
{
	return fd_high(memfd_create("thawbox-vmm.log", MFD_CLOEXEC));
}

int monitor_find(char path[PATHS_MAX], const char *vmm, struct err *err)
{
	return vmm ? paths_format(path, err, "%s", vmm) : paths_vmm(path, err);
}

static const char *either(const char *given, const char *variable)
{
	return given ? given : getenv(variable);
}

int monitor_cgroup(const struct isolation *isolation, char **path, struct err *err)
{
	const char *spec = either(isolation->cgroup, "THAWBOX_CGROUP");

	*path = NULL;
	return spec && *spec ? cgroup_make(spec, path, err) : -1;
}

/* The program's words; `argv` has room for all of them. */
static void make_argv(const struct monitor_start *how, const char **argv)
{
	const char *options[][2] = {
		{ "--isolation", either(how->isolation.most, "THAWBOX_ISOLATION") },
		{ "--require-isolation",
		  either(how->isolation.least, "THAWBOX_REQUIRE_ISOLATION") },
		{ "--uid-base", getenv("THAWBOX_UID_BASE") },
		{ "--seccomp", getenv("THAWBOX_SECCOMP") },
	};
	unsigned n = 0;

	argv[n++] = "thawbox-vmm";
	argv[n++] = "--control-fd";
	argv[n++] = "3";
	if (how->zygote)
		argv[n++] = "--zygote";
	for (unsigned i = 0; i < ARRAY_LEN(options); i++) {
		if (!options[i][1])
			continue;
		argv[n++] = options[i][0];
		argv[n++] = options[i][1];
	}
	argv[n] = NULL;
}

/* What the child works on in our memory, while we wait. */
struct launch {
	const struct monitor_start *how;
	char *const *argv;
	char users[32], groups[32]; /* maps of a new user namespace; "": none */
	int error;
};

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n < 0 ? -errno : 0;
}

/* Before the program is executed, or it would lose its rights in the namespace. */
static int map_user(const struct launch *launch)
{
	int rc = 0;

	if (launch->users[0])
		rc = write_file("/proc/self/setgroups", "deny");
	if (!rc && launch->users[0])
		rc = write_file("/proc/self/uid_map", launch->users);
	if (!rc && launch->users[0])
		rc = write_file("/proc/self/gid_map", launch->groups);
	return rc;
}

static int set_descriptors(const struct monitor_start *how)
{
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(null_fd, 1) < 0 ||
	    (how->log_fd >= 0 && dup2(how->log_fd, 2) < 0) ||
	    dup2(how->control_fd, CONTROL_FD) < 0 || close_range(CONTROL_FD + 1, UINT_MAX, 0) < 0)
		return -errno;
	return 0;
}

static void default_signals(void)
{
	const struct sigaction by_default = { .sa_handler = SIG_DFL };
	sigset_t none;

	sigemptyset(&none);
	for (int i = 1; i < NSIG; i++)
		(void)sigaction(i, &by_default, NULL); /* some cannot be changed */
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The child: our memory, its own everything else. Calls nothing that could take a lock. */
static int child(void *arg)
{
	struct launch *launch = arg;

	if (launch->how->cgroup_fd > 0 && write(launch->how->cgroup_fd, "0", 1) < 0)
		launch->error = -errno;
	if (!launch->error)
		launch->error = map_user(launch);
	if (!launch->error)
		launch->error = set_descriptors(launch->how);
	if (launch->error)
		_exit(127);
	default_signals();
	/* Its own session: a Ctrl-C at our terminal is ours to handle, not the monitor's. */
	(void)setsid();
	(void)execve(launch->how->path, launch->argv, environ);
	launch->error = -errno;
	_exit(127);
}

/* As vfork(2): returns when the program runs, or could not. */
static int spawn_with(struct launch *launch, int flags, pid_t *pid)
{
	size_t size = 64u << 10;
	char *stack = mmap(NULL, size, PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, before;
	int rc = 0;

	if (stack == MAP_FAILED)
		return -errno;
	launch->error = 0;
	/* A handler of ours must not run in the child: it would do so on our data. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	*pid = clone(child, stack + size, CLONE_VM | CLONE_VFORK | SIGCHLD | flags, launch);
	if (*pid < 0)
		rc = -errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)munmap(stack, size);
	if (*pid > 0 && launch->error) {
		rc = launch->error;
		(void)waitpid(*pid, NULL, 0);
	}
	return rc;
}

/*
 * The namespaces that only a starter can make, as many as the host grants. A zygote stays in ours: the first process
 * of a pid namespace could not have siblings.
 */
static int spawn(const struct monitor_start *how, pid_t *pid)
{
	const char *argv[16], *most = either(how->isolation.most, "THAWBOX_ISOLATION");
	bool plain = how->zygote || (most && strcmp(most, "full") != 0);
	struct launch launch = { .how = how };
	int rc = -EPERM;

	make_argv(how, argv);
	launch.argv = (char *const *)(uintptr_t)
		argv; /* not written to: the prototype is older than const */
	if (!plain)
		rc = spawn_with(&launch, CLONE_NEWPID, pid);
	if (!plain && rc == -EPERM) {
		(void)snprintf(launch.users, sizeof(launch.users), "0 %u 1", geteuid());
		(void)snprintf(launch.groups, sizeof(launch.groups), "0 %u 1", getegid());
		rc = spawn_with(&launch, CLONE_NEWUSER | CLONE_NEWPID, pid);
		launch.users[0] = '\0';
	}
	if (plain || (rc && rc != -ENOENT && rc != -EACCES))
		rc = spawn_with(&launch, 0, pid);
	return rc;
}

int monitor_start(const struct monitor_start *how, pid_t *pid, int *pid_fd, struct err *err)
{
	int rc = spawn(how, pid);

	if (rc) {
		*pid = 0;
		(void)err_set(err, rc, "start %s: %s", how->path, strerror(-rc));
		return err_remedy(err, "build it (make build), or set THAWBOX_VMM to its path");
	}
	*pid_fd = pidfd_open(*pid, 0);
	if (*pid_fd < 0)
		return err_set(err, -errno, "pidfd of thawbox-vmm: %s", strerror(errno));
	return 0;
}

void monitor_end(pid_t pid, int pid_fd)
{
	siginfo_t info;

	if (pid && pid_fd >= 0) {
		(void)pidfd_send_signal(pid_fd, SIGKILL, NULL, 0);
		(void)waitid(P_PIDFD, (id_t)pid_fd, &info, WEXITED);
	} else if (pid) {
		(void)kill(pid, SIGKILL);
		(void)waitid(P_PID, (id_t)pid, &info, WEXITED);
	}
}

/* The last line of a log, without its newline. */
static void last_line(int fd, char *line, size_t size)
{
	off_t end = fd >= 0 ? lseek(fd, 0, SEEK_CUR) : 0;
	off_t from = end > (off_t)size - 1 ? end - (off_t)size + 1 : 0;
	ssize_t n = end > 0 ? pread(fd, line, size - 1, from) : 0;
	char *start;

	line[n > 0 ? n : 0] = '\0';
	while (n > 0 && line[n - 1] == '\n')
		line[--n] = '\0';
	start = strrchr(line, '\n');
	if (start)
		memmove(line, start + 1, strlen(start));
}

bool monitor_ended(int pid_fd, int log_fd, int wait_ms, char *words, size_t size)
{
	struct pollfd pfd = { .fd = pid_fd, .events = POLLIN };
	siginfo_t info = { 0 };
	char line[200];

	if (pid_fd < 0 || poll(&pfd, 1, wait_ms) != 1 ||
	    waitid(P_PIDFD, (id_t)pid_fd, &info, WEXITED | WNOWAIT))
		return false;
	last_line(log_fd, line, sizeof(line));
	if (info.si_code == CLD_EXITED)
		(void)snprintf(words, size, "exited with code %d%s%s", info.si_status,
		               *line ? ": " : "", line);
	else
		(void)snprintf(words, size, "was killed by signal %d (SIG%s)%s", info.si_status,
		               sigabbrev_np(info.si_status),
		               info.si_status == SIGSYS
		                       ? ": it made a system call that its filter does not allow"
		                       : "");
	return true;
}

/* One sendmsg(2), with the descriptors if there are any. Bytes taken, or -errno. */
static ssize_t send_some(int control_fd, const char *text, size_t len, const int *fds,
                         unsigned nr_fds)
{
	union {
		char buf[CMSG_SPACE(MONITOR_FDS_MAX * sizeof(int))];
		struct cmsghdr head;
	} ctl = { 0 };
	struct iovec iov = { (char *)(uintptr_t)text, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (nr_fds) {
		msg.msg_control = ctl.buf;
		msg.msg_controllen = CMSG_SPACE(nr_fds * sizeof(int));
		ctl.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
			                     .cmsg_type = SCM_RIGHTS,
			                     .cmsg_len = CMSG_LEN(nr_fds * sizeof(int)) };
		memcpy(ctl.buf + CMSG_LEN(0), fds, nr_fds * sizeof(int));
	}
	do
		n = sendmsg(control_fd, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

int monitor_send(int control_fd, const json_t *line, const int *fds, unsigned nr_fds,
                 struct err *err)
{
	own_free char *text = json_dumps(line, JSON_COMPACT);
	size_t len = text ? strlen(text) : 0, sent = 0;

	BUG_ON(nr_fds > MONITOR_FDS_MAX);
	if (!text)
		return err_set(err, -ENOMEM, "no memory for a control line");
	if (len + 1 > MONITOR_LINE_MAX)
		return err_set(err, -EMSGSIZE,
		               "a control line of %zu bytes is over the limit of %u", len,
		               MONITOR_LINE_MAX);
	text[len++] = '\n';
	while (sent < len) {
		ssize_t n = send_some(control_fd, text + sent, len - sent, fds, sent ? 0 : nr_fds);

		if (n < 0)
			return err_set(err, (int)n, "control socket: %s", strerror((int)-n));
		sent += (size_t)n;
	}
	return 0;
}

int monitor_refused(const json_t *answer, struct err *err)
{
	const char *why = json_string_value(json_object_get(answer, "error"));
	const char *remedy = json_string_value(json_object_get(answer, "remedy"));

	if (json_is_true(json_object_get(answer, "ok")))
		return 0;
	(void)err_set(err, -EREMOTEIO, "%s",
	              why && *why ? why : "the monitor refused without a reason");
	if (remedy && *remedy)
		(void)err_remedy(err, "%s", remedy);
	return -EREMOTEIO;
}
