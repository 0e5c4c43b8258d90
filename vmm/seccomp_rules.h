/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of the table of allowed system calls (seccomp_rules.c). Only the generator reads it: a filter is
 * compiled when the monitor is built, not when it runs.
 */
#ifndef VMM_SECCOMP_RULES_H
#define VMM_SECCOMP_RULES_H

#include "vmm/seccomp.h"

#define SECCOMP_MAX_CHECKS 3

/* The call is answered with ENOSYS, as by a kernel that has none. */
#define SECCOMP_NONE (1u << 16)

/* True when (argument `arg` & mask) == value. A mask of 0: nothing is checked. */
struct seccomp_check {
	unsigned arg;
	uint64_t mask, value;
};

/* One call, to whom it is allowed, and why. Several rules of one call: any of them may hold. */
struct seccomp_rule {
	int nr;
	unsigned who; /* enum seccomp_who, and SECCOMP_NONE */
	struct seccomp_check check[SECCOMP_MAX_CHECKS];
	const char *why;
};

extern const struct seccomp_rule seccomp_rules[];
extern const size_t seccomp_nr_rules;

#endif
