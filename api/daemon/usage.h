/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sandbox uses, as the host sees it: its monitor is one process, and its guest's processor a thread of
 * that. Each look costs some ten microseconds. Any thread.
 */
#ifndef API_DAEMON_USAGE_H
#define API_DAEMON_USAGE_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

/* CPU time of a process so far, ns; 0: there is none. */
uint64_t usage_cpu_ns(pid_t pid);

/* Pages of a process that are in memory, those shared with others (of the template's file) among them; and those that are its alone. */
struct usage_pages {
	uint64_t resident, own;
};
struct usage_pages usage_pages(pid_t pid);

/* A moment in the life of a process. */
struct usage_mark {
	uint64_t wall_ns, cpu_ns, own_pages;
};
struct usage_mark usage_mark(pid_t pid);

/*
 * What was used from `from` to `to`: {"wall_ms","cpu_ms","pages_dirtied","output_bytes"}, and of `guest` (what an
 * interpreter says in a RESULT; untrusted, or NULL) the numbers that only it knows. A new reference. Pure.
 */
json_t *usage_between(const struct usage_mark *from, const struct usage_mark *to,
                      uint64_t output_bytes, const json_t *guest);

#endif
