/* SPDX-License-Identifier: Apache-2.0 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The child shares the agent's memory until its exec, so it reports through it. */
struct failure {
	const char *step;
	int err;
};

static const struct {
	__rlimit_resource_t what;
	struct rlimit limit;
} limits[] = {
	/* Bounds a fork bomb; does not bind root, whom only `sudo` makes. */
	{ RLIMIT_NPROC, { 512, 512 } },
	{ RLIMIT_NOFILE, { 4096, 65536 } },
	{ RLIMIT_CORE, { 0, RLIM_INFINITY } },
};

int spawn_prepare(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
		if (fd < 0)
			return -errno;
		if (fd >= 3)
			fcntl(fd, F_SETFD, FD_CLOEXEC);
	} while (fd < SPAWN_FDS);
	return 0;
}

static int set_oom_score(int score)
{
	char text[16];
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	int len = snprintf(text, sizeof(text), "%d", score);
	int r;

	if (fd < 0)
		return -1;
	r = write(fd, text, (size_t)len) == len ? 0 : -1;
	close(fd);
	return r;
}

static int place_fds(const struct spawn *sp)
{
	for (int i = 0; i < SPAWN_FDS; i++) {
		if (sp->fds[i] >= 0 && dup2(sp->fds[i], i) < 0)
			return -1;
		if (sp->fds[i] < 0)
			close(i);
	}
	return 0;
}

/* The raw calls: glibc's wrappers would tell other threads, which belong to the agent here. */
static int become(const struct user *u)
{
	if (geteuid() == 0 && syscall(SYS_setgroups, u->nr_groups, u->groups) < 0)
		return -1;
	if (syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0)
		return -1;
	return (int)syscall(SYS_setresuid, u->uid, u->uid, u->uid);
}

static const char *env_get(char *const *envp, const char *name)
{
	size_t n = strlen(name);

	for (; *envp; envp++) {
		if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
			return *envp + n + 1;
	}
	return NULL;
}

static void exec_in_path(const struct spawn *sp)
{
	char *const *argv = (char *const *)(uintptr_t)sp->argv; /* execve() changes none */
	const char *name = sp->argv[0], *path = env_get(sp->envp, "PATH");
	char full[PATH_MAX];
	int err = ENOENT;
	size_t n;

	if (strchr(name, '/') || !path) {
		execve(name, argv, sp->envp);
		return;
	}
	for (;; path += n + 1) {
		n = strcspn(path, ":");
		if (snprintf(full, sizeof(full), "%.*s/%s", (int)n, n ? path : ".", name) <
		    (int)sizeof(full)) {
			execve(full, argv, sp->envp);
			if (errno != ENOENT && errno != ENOTDIR)
				err = errno;
		}
		if (path[n] == '\0')
			break;
	}
	errno = err;
}

static const char *child_steps(const struct spawn *sp)
{
	sigset_t none;

	if (setsid() < 0)
		return "session";
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		(void)setrlimit(limits[i].what, &limits[i].limit); /* may be lower already */
	if (set_oom_score(sp->oom_score_adj) < 0)
		return "oom_score_adj";
	if (place_fds(sp) < 0)
		return "descriptors";
	if (sp->terminal && ioctl(0, TIOCSCTTY, 0) < 0)
		return "terminal";
	if (become(sp->user) < 0)
		return "user";
	if (chdir(sp->cwd) < 0)
		return "cwd";
	umask(022);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	exec_in_path(sp);
	return "exec";
}

/* A function of its own, so that no local of the caller lives across vfork's two returns. */
static __attribute__((noinline)) pid_t start(const struct spawn *sp, volatile struct failure *f)
{
	pid_t pid = vfork();

	if (pid == 0) {
		f->step = child_steps(sp);
		f->err = errno;
		_exit(127);
	}
	return pid;
}

pid_t spawn_start(const struct spawn *sp, const char **step)
{
	volatile struct failure f = { 0 };
	pid_t pid = start(sp, &f);

	*step = "fork";
	if (pid < 0)
		return -errno;
	if (!f.step)
		return pid;
	*step = f.step; /* the child is a zombie now; the loop reaps it as any orphan */
	return -f.err;
}
