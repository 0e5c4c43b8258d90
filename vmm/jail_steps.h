/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The single steps of vmm/jail.h, one or few system calls each: 0, or -errno with nothing changed, unless it says
 * otherwise. A process of one thread.
 */
#ifndef VMM_JAIL_STEPS_H
#define VMM_JAIL_STEPS_H

#include "core/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Without CAP_SYS_ADMIN: a user namespace with the caller as its only user, unless it is in one like that. */
NODISCARD int steps_user_namespace(void);
/* In a namespace of one user, made by this process or by its starter. */
bool steps_in_user_namespace(void);
uid_t steps_host_uid(void); /* of that user, outside */

/* A directory of the host that stays reachable. */
struct steps_window {
	char *dir; /* owned */
	int fd;    /* owned, O_PATH */
};
/* After the mount namespace has been left: no directory of another can be mounted. */
NODISCARD int steps_open_windows(struct steps_window *windows, unsigned nr);
/*
 * An empty tmpfs as root, read-only; directory i is "/i" in it. In a mount namespace of its own. -EXDEV: the
 * old root is not left, and the process must not go on.
 */
NODISCARD int steps_root(const struct steps_window *windows, unsigned nr);

/* User and group `id`, no other groups. */
NODISCARD int steps_become(uint32_t id);
/* `largest`: bytes of a file. `alone`: no process of others counts against this user's limits. */
NODISCARD int steps_limits(uint64_t largest, bool alone);

/* No program that is executed gets any. */
void steps_bound_capabilities(void);
/* All but those for namespaces, users and files. */
void steps_keep_for_forks(void);
NODISCARD int steps_drop_capabilities(void);
NODISCARD int steps_no_new_privileges(void);
NODISCARD int steps_not_dumpable(void);
/* For this process and its children; -EINVAL: the kernel cannot merge for a whole process. */
NODISCARD int steps_no_merging(void);

/* No file is opened but in the windows, no TCP, no signal and no abstract socket to others. *why in words. */
NODISCARD int steps_landlock(const struct steps_window *windows, unsigned nr, char *why,
                             size_t size);

#endif
