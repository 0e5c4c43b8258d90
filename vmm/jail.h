/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The monitor's own jail: what is left to whoever takes it over from inside (docs/threat-model.md). thawbox-vmm
 * puts itself there, in this order:
 *
 *	jail_begin()	in main(): what the starter left open, in the environment, or merged with others, is gone
 *	jail_window()	the few host directories that a machine needs later; anything else is opened now
 *	jail_enter()	namespaces and an empty root; a zygote does it once, for all that it forks
 *	jail_drop()	own user, no capabilities, limits, Landlock; each monitor for itself, before its threads
 *	seccomp_enter()	(seccomp.h) each thread, when its part of the machine is made
 *
 * Whoever starts it makes the pid namespace, which a process cannot move into (api/monitor, jail_fork()). What
 * the host does not grant is left out and reported; jail_check() refuses where too little is left. One per
 * process, from its one thread.
 */
#ifndef VMM_JAIL_H
#define VMM_JAIL_H

#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define JAIL_UID_BASE    0x70000000u /* a sandbox's user and group: this plus the monitor's pid */
#define JAIL_WINDOWS_MAX 2u
#define JAIL_PATH_MAX    4096u /* of a name inside */

/* Each has all of those before it. */
enum jail_level {
	JAIL_LEVEL_NONE,
	JAIL_LEVEL_VM,   /* the VM, and a process without privileges */
	JAIL_LEVEL_USER, /* also a user of its own, no file and no network of the host */
	JAIL_LEVEL_FULL, /* every layer */
};

enum jail_layer {
	JAIL_DESCRIPTORS,
	JAIL_ENVIRONMENT,
	JAIL_MERGING,
	JAIL_CAPABILITIES,
	JAIL_PRIVILEGES,
	JAIL_DUMPS,
	JAIL_LIMITS,
	JAIL_USER,
	JAIL_ROOT,
	JAIL_NET,
	JAIL_PID,
	JAIL_IPC,
	JAIL_UTS,
	JAIL_CGROUP_NS,
	JAIL_LANDLOCK,
	JAIL_CGROUP,
	JAIL_SECCOMP,
	JAIL_NR_LAYERS
};

struct jail_config {
	enum jail_level most;  /* what is tried */
	enum jail_level least; /* with less than that nothing runs */
	uint32_t uid_base;
};

/* -1: no such level. */
int jail_level_of(const char *name);
const char *jail_level_name(enum jail_level level);

/* Closes all descriptors but 0, 1, 2 and `keep_fd` (-1: none), wipes the environment, and shares no page by its content. */
void jail_begin(const struct jail_config *config, int keep_fd);

/*
 * The directory of the file `path` will be reachable inside. The monitor then keeps its caller's user, whose rights in
 * there it needs. Before jail_enter(); -EPERM after it. Returns the window's number.
 */
NODISCARD int jail_window(const char *path, struct err *err);
/* By which name that file is reached now. */
void jail_path(int window, const char *path, char now[JAIL_PATH_MAX]);
/* A file will be needed whose page cache only its owner may look at: the caller's user is kept, `why` says it. */
void jail_keep_user(const char *why);

/* Namespaces and root. A host that grants less is no error. Idempotent. */
NODISCARD int jail_enter(struct err *err);
/* A zygote drops what neither it nor its forks need. */
NODISCARD int jail_drop_some(struct err *err);
/* `largest`: bytes of the largest file that this process will write. Idempotent. */
NODISCARD int jail_drop(uint64_t largest, struct err *err);
/* -EPERM with the remedy when what is on does not reach the least level asked for. Logs what is missing. */
NODISCARD int jail_check(struct err *err);
bool jail_is_entered(void);

/*
 * As fork(2), with the caller's parent as the child's, in a pid namespace of its own where that is granted. The
 * C library's fork() cannot; what it does beside the call is for threads, of which there are none.
 */
pid_t jail_fork(void);
/* This process's pid as its starter knows it. */
pid_t jail_pid(void);
/* /proc/self/NAME, also in an empty root as long as jail_drop() has not been called. A descriptor or -errno. */
NODISCARD int jail_open_proc(const char *name);

/* How a layer came out; `why` says it in words (copied). For layers that are made elsewhere, too. */
void jail_note(enum jail_layer layer, bool on, const char *why);
/* The highest level whose layers are all on. */
enum jail_level jail_level(void);
/* {"level", "layers": [{"name", "level", "on", "why"}]}: a new object. */
json_t *jail_report(void);

#endif
