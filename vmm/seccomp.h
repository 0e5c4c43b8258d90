/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System call filters, one for each role that a thread has: when guest code runs, a thread of the monitor can
 * do what its role needs and nothing else. What is not in the table (seccomp_rules.c) kills the process, and
 * whoever started it is told by the signal, SIGSYS. The filters are compiled when the monitor is built
 * (seccomp_gen.c): putting one on is one system call. The last step of the jail (jail.h). A zygote has none: it runs
 * no guest, and makes processes.
 */
#ifndef VMM_SECCOMP_H
#define VMM_SECCOMP_H

#include "core/err.h"

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Roles, and what a thread of that role may need on top of it. A filter is for one role and any of its extras. */
enum seccomp_who {
	SECCOMP_LOOP = 1 << 0,       /* devices, disks, sockets, the control socket */
	SECCOMP_LOOP_WAITS = 1 << 1, /* its machine is in a pool: the rest of a thaw is to come */
	SECCOMP_LOOP_TRACE = 1 << 2, /* a trace is written to a file that has a name */
	SECCOMP_LOOP_UNIX = 1 << 3,  /* a Unix socket stands for the guest's vsock ports */
	SECCOMP_VCPU = 1 << 4,       /* runs the guest */
	SECCOMP_VCPU_WAITS = 1 << 5, /* of a shell: the guest's state is to be loaded */
	SECCOMP_VCPU_TRACE = 1 << 6, /* a trace reads KVM's counters */
};

/* What becomes of a call that is not allowed. */
enum seccomp_mode {
	SECCOMP_KILLS, /* the process ends by SIGSYS */
	SECCOMP_TRAPS, /* the same, after a line on standard error with number and arguments: for development */
	SECCOMP_LOGS, /* it is done, and the host's kernel logs it: for development */
	SECCOMP_OFF,  /* no filter: for measuring, and the sanitizers' builds */
};

/* In the place of a process id in a filter: stands for the process that puts it on. */
#define SECCOMP_OWN_PID 0x5ecc0941u

#define SECCOMP_MAX_LEN 512u

struct seccomp_program {
	unsigned who; /* enum seccomp_who */
	unsigned short len;
	const struct sock_filter *code;
};
/* Generated. */
extern const struct seccomp_program seccomp_programs[];
extern const size_t seccomp_nr_programs;

/* Of the whole process, before the first filter. KILLS (OFF under sanitizers, which need calls of their own) is set. */
void seccomp_set_mode(enum seccomp_mode mode);
enum seccomp_mode seccomp_get_mode(void);
/* The mode of that name ("kill", "trap", "log", "off"), or -1; the name of the one that is set. */
int seccomp_mode_of(const char *name);
const char *seccomp_mode_name(void);

/* Puts the filter of `who` on the calling thread, and on all that it will start. There is no way back. */
NODISCARD int seccomp_enter(unsigned who, struct err *err);

/* What `thawbox doctor` says of this layer: whether this host has it, and why not. `why` outlives the caller. */
bool seccomp_available(const char **why);

#endif
