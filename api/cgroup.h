/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cgroup (v2) for each monitor, in a directory that has been delegated to us: what it uses of the host's processor,
 * memory, processes and disks is bounded there. Any thread.
 */
#ifndef API_CGROUP_H
#define API_CGROUP_H

#include "core/err.h"

/*
 * Makes a group in the directory that `spec` names, with its limits: "DIR[;FILE=VALUE]...", as in
 * "/sys/fs/cgroup/thawbox;memory.max=1G;pids.max=64;cpu.max=50000 100000". FILE and VALUE are cgroup's own
 * (Documentation/admin-guide/cgroup-v2.rst). Empty groups that others of us have left, killed, are removed. *path is
 * the caller's, NULL on error; the result is its cgroup.procs, the caller's too, or -errno: whoever writes "0" into it is
 * in the group.
 */
NODISCARD int cgroup_make(const char *spec, char **path, struct err *err);

/* Sets one more limit ("FILE=VALUE") of a group that cgroup_make() has made. */
NODISCARD int cgroup_limit(const char *path, const char *limit, struct err *err);

/* Removes the group, whose processes have been reaped, and frees `path`. NULL is allowed. */
void cgroup_remove(char *path);

#endif
