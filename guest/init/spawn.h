/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "user.h"

#include <stdbool.h>

#define SPAWN_FDS 4

/* A program to start; everything is borrowed for the call. */
struct spawn {
	const char *const *argv; /* argv[0] without a slash is looked up in PATH of envp */
	char *const *envp;
	const char *cwd;
	const struct user *user;
	int fds[SPAWN_FDS]; /* become 0, 1, ...; -1: closed */
	bool terminal;      /* fds[0] becomes the controlling terminal */
	int oom_score_adj;  /* >= 0; inherited by all that the program starts: see procs.h */
};

/* Descriptors below SPAWN_FDS must be taken before anything else is opened, so that none of those
 * in `fds` lies among its targets. Returns 0 or -errno. */
int spawn_prepare(void);

/*
 * Starts the program in a session of its own, with the user's ids, bounded in processes and files.
 * By vfork: the agent never copies its page tables. The loop's thread. Returns the pid, or -errno
 * with `*step` naming what failed ("cwd", "exec", ...).
 */
pid_t spawn_start(const struct spawn *sp, const char **step);
