/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sandbox's monitor, and so its guest, has used since it became somebody's: processor time, and memory of its
 * own over time. Nothing samples: memory is looked at when something begins or ends in the sandbox, as between these
 * it stands still. Loop's thread.
 */
#ifndef API_DAEMON_METER_H
#define API_DAEMON_METER_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

struct meter {
	uint64_t cpu_base_ns; /* that the monitor had used before */
	uint64_t last_ns;     /* of the last look, CLOCK_MONOTONIC */
	uint64_t last_bytes;
	double gib_s; /* GiB seconds until then */
};

void meter_start(struct meter *m, pid_t pid);
void meter_look(struct meter *m, pid_t pid);
/* Processor seconds since the start. */
double meter_cpu_s(const struct meter *m, pid_t pid);

/* For the next daemon: a new reference, and what it was made from. */
json_t *meter_save(const struct meter *m);
void meter_restore(struct meter *m, const json_t *saved);

/* A look that saw `bytes` at `now_ns`: the mean of the two looks for the time between. Pure. */
void meter_add(struct meter *m, uint64_t now_ns, uint64_t bytes);

#endif
