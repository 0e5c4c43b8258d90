/* SPDX-License-Identifier: Apache-2.0 */
#include "api/monitor.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
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

static int spawn(const struct monitor_start *how, pid_t *pid)
{
	char arg0[] = "thawbox-vmm", arg1[] = "--control-fd", arg2[] = "3", arg3[] = "--zygote";
	char *argv[] = { arg0, arg1, arg2, how->zygote ? arg3 : NULL, NULL };
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc;

	posix_spawn_file_actions_init(&fa);
	posix_spawnattr_init(&attr);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	/* Its own session: a Ctrl-C at our terminal is ours to handle, not the monitor's. */
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
	                                        POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDWR, 0);
	rc = rc ? rc : posix_spawn_file_actions_adddup2(&fa, 0, 1);
	if (!rc && how->log_fd >= 0)
		rc = posix_spawn_file_actions_adddup2(&fa, how->log_fd, 2);
	rc = rc ? rc : posix_spawn_file_actions_adddup2(&fa, how->control_fd, CONTROL_FD);
	rc = rc ? rc : posix_spawn_file_actions_addclosefrom_np(&fa, CONTROL_FD + 1);
	rc = rc ? rc : posix_spawn(pid, how->path, &fa, &attr, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	posix_spawnattr_destroy(&attr);
	return -rc;
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
		(void)snprintf(words, size, "was killed by signal %d (SIG%s)", info.si_status,
		               sigabbrev_np(info.si_status));
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
