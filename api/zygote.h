/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A zygote (thawbox-vmm --zygote): a process that has a snapshot open and forks monitors, which so need
 * neither exec nor a look at the snapshot. struct sandbox_spec names one.
 *
 * Its forks are our children, not its own, and go on when it ends. One that is killed in the middle of a fork
 * may leave a child whose pid nobody has learnt: that one ends with its control socket, and is reaped when
 * this process ends.
 *
 * zygote_spawn() may be called by several threads at once; zygote_close() by one, when no other uses it.
 */
#ifndef API_ZYGOTE_H
#define API_ZYGOTE_H

#include "api/frames.h"
#include "api/monitor.h"
#include "core/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct zygote {
	pid_t pid;  /* this and what follows: const after open. 0: none */
	int pid_fd; /* readable when it has ended */
	int control_fd;
	int log_fd; /* -1: our own standard error */

	pthread_mutex_t lock; /* of what follows: one request and its answer at a time */
	struct bytes in;      /* of an answer, so far */
	struct err lost;      /* code 0: it serves */
};

struct zygote_spec {
	const char *vmm;            /* as in struct sandbox_spec */
	struct isolation isolation; /* as in struct sandbox_spec: of all that it forks */
	const char *
		overlay_dir; /* where its forks' private disks are made, as in struct thaw_spec: they name the same */
	bool verbose; /* its log, and that of forks without one of their own, goes to our standard error */
};

/* Starts the process and waits until it has opened the snapshot in `dir`. On error nothing is left. */
NODISCARD int zygote_open(struct zygote *z, const struct zygote_spec *spec, const char *dir,
                          struct err *err);

/*
 * A monitor on `control_fd`, with its log in `log_fd` (-1: the zygote's), in the cgroup whose cgroup.procs is `cgroup_fd`
 * (-1: the zygote's); all stay the caller's. Returns when
 * it has been forked, as posix_spawn(3). The caller reaps *pid.
 */
NODISCARD int zygote_spawn(struct zygote *z, int control_fd, int log_fd, int cgroup_fd, pid_t *pid,
                           struct err *err);

/* Whether it is gone, as zygote_spawn() has found: it will fork no more. */
NODISCARD bool zygote_is_lost(struct zygote *z);

/* Ends the zygote, never its forks. Idempotent; also after a zygote_open() that failed. */
void zygote_close(struct zygote *z);

#endif
