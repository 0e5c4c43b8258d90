/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/*
 * Finding and killing all that a program has started. A process belongs to a program when it is of
 * its session, a descendant, or carries its tag: the value of oom_score_adj, which the agent gives
 * to each program anew and which, unlike session and parent, survives setsid and double fork. (As
 * PID 1 only: elsewhere others give out such values too.)
 */

enum proc_tag {
	PROC_TAG_COMMAND = 311, /* .. 589: commands of `exec` (300 is what browsers give theirs) */
	PROC_TAG_KERNEL = 611,  /* .. 889: interpreter kernels: the likelier victims of an OOM */
	PROC_TAGS = 279,
};

struct proc_stat {
	pid_t pid, ppid, session;
	char state;
};

/* Reads the content of a /proc/PID/stat. Returns 0 or -EINVAL. Pure. */
int procs_parse_stat(const char *text, struct proc_stat *st);

/* The next tag of a kind. The loop's thread. */
int procs_next_tag(bool kernel);

/* Gives a running process its tag. Returns 0 or -errno. */
int procs_set_tag(pid_t pid, int tag);

/*
 * SIGKILLs `root` and all that belongs to it, in rounds until a round finds nobody new, so that a
 * fork bomb ends too. PID 1, the agent and `spare_pid` (or 0) are left alone. Reaps nothing.
 * Returns how many were killed. The loop's thread; bounded in time.
 */
int procs_kill_tree(pid_t root, int tag, pid_t spare_pid);
