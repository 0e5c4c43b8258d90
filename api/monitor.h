/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of thawbox-vmm, as a monitor or as a zygote: how it is started, how it ended, and control lines
 * to it (docs/protocol.md section 1). Any thread.
 */
#ifndef API_MONITOR_H
#define API_MONITOR_H

#include "api/paths.h"
#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#define MONITOR_LINE_MAX (64u << 10) /* bytes of a control line */
#define MONITOR_FDS_MAX  10u         /* descriptors that go with one */

/* Both ends of a control socket: ours, and the one for the process. The caller's. */
NODISCARD int monitor_pair(int *ours, int *theirs, struct err *err);
/* A file for what the process writes to its standard error, or -1: it then writes to ours. The caller's. */
int monitor_log(void);

/* Where the program is: `vmm`, or, when that is NULL, as paths_vmm() finds it. */
NODISCARD int monitor_find(char path[PATHS_MAX], const char *vmm, struct err *err);

/* How much isolation a monitor tries, and how much it must have: "none", "vm", "user", "full". */
struct isolation {
	const char *most;   /* NULL: $THAWBOX_ISOLATION, else all that the host grants */
	const char *least;  /* NULL: $THAWBOX_REQUIRE_ISOLATION, else "none" */
	const char *cgroup; /* as for cgroup_make(); NULL: $THAWBOX_CGROUP, else none */
};

/* The cgroup of a monitor to be: its cgroup.procs, -1 when none is wanted, or -errno. *path is as cgroup_make()'s. */
NODISCARD int monitor_cgroup(const struct isolation *isolation, char **path, struct err *err);

struct monitor_start {
	const char *path;
	struct isolation isolation;
	int control_fd, log_fd; /* of monitor_pair(), monitor_log(); they stay the caller's */
	int cgroup_fd;          /* of monitor_cgroup(): stays the caller's; -1 or 0: none */
	bool zygote;
};
/*
 * Returns when the program runs (as posix_spawn(3)), in a pid namespace of its own where the host grants one: it cannot
 * move into one itself. *pid and *pid_fd are the caller's to end and to reap. */
NODISCARD int monitor_start(const struct monitor_start *how, pid_t *pid, int *pid_fd,
                            struct err *err);
/* SIGKILL, then waits for the end and reaps. Safe on what never started (pid 0). */
void monitor_end(pid_t pid, int pid_fd);

/*
 * Writes how the process ended ("exited with code 9: its last line", "was killed by signal 9 (SIGKILL)") when
 * it does so within `wait_ms`. It is not reaped.
 */
NODISCARD bool monitor_ended(int pid_fd, int log_fd, int wait_ms, char *words, size_t size);

/*
 * Writes one line, and descriptors with its first byte; they stay the caller's. -EPIPE or -ECONNRESET: the
 * process is gone. Waits only while the socket is full.
 */
NODISCARD int monitor_send(int control_fd, const json_t *line, const int *fds, unsigned nr_fds,
                           struct err *err);

/* -EREMOTEIO with the words and the remedy of an answer that is no "ok". */
NODISCARD int monitor_refused(const json_t *answer, struct err *err);

#endif
