/* SPDX-License-Identifier: Apache-2.0 */
#include "api/proc.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

static int start(const char *const *argv, int out_fd, pid_t *pid, struct err *err)
{
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t attr;
	sigset_t defaults;
	int rc;

	sigemptyset(&defaults);
	sigaddset(&defaults, SIGINT);
	sigaddset(&defaults, SIGTERM);
	sigaddset(&defaults, SIGHUP);
	posix_spawn_file_actions_init(&fa);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigdefault(&attr, &defaults);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
	rc = rc ? rc : posix_spawn_file_actions_adddup2(&fa, out_fd, 1);
	/* argv's strings are not written to: the prototype is older than const. */
	rc = rc ? rc
	        : posix_spawn(pid, argv[0], &fa, &attr, (char *const *)(uintptr_t)argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	posix_spawnattr_destroy(&attr);
	return rc ? err_set(err, -rc, "start %s: %s", argv[0], strerror(rc)) : 0;
}

static int read_all(int fd, char *out, size_t size)
{
	size_t got = 0;

	for (;;) {
		ssize_t n = read(fd, out + got, size - 1 - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		got += (size_t)n;
		out[got] = '\0';
		if (!n)
			return 0;
		if (got == size - 1)
			return -EFBIG;
	}
}

int proc_capture(const char *const *argv, char *out, size_t size, struct err *err)
{
	own_fd int from = -1, to = -1;
	int pipe_fds[2], status, rc;
	pid_t pid = -1;

	out[0] = '\0';
	if (pipe2(pipe_fds, O_CLOEXEC))
		return err_set(err, -errno, "pipe: %s", strerror(errno));
	from = pipe_fds[0];
	to = pipe_fds[1];
	rc = start(argv, to, &pid, err);
	if (rc)
		return rc;
	close(fd_take(&to));
	rc = read_all(from, out, size);
	if (rc)
		(void)kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (rc)
		return err_set(err, rc, "output of %s: %s", argv[0], strerror(-rc));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
