/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of bench/thaw: sandboxes made in one of four ways, each with a first cell whose result is checked,
 * one after another, some at once, in bursts, or as they arrive. What ends a sandbox comes after its clock
 * has stopped. One load at a time.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "api/monitor.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define LOAD_AT_ONCE_MAX 256u
#define LOAD_POOL_MAX    256u

enum load_mode {
	LOAD_EXEC,    /* the program is started */
	LOAD_FRESH,   /* a zygote forks it; nothing else was made before */
	LOAD_SHELL,   /* taken from a pool */
	LOAD_STANDBY, /* as well */
	LOAD_WARM,    /* a standby that has run the template's warm-up */
	NR_LOAD_MODES
};

/* What is reached on the way, in order. */
enum load_part {
	PART_SPAWN,
	PART_RECEIVED,
	PART_MEMORY,
	PART_VM,
	PART_STATE,
	PART_POPULATED,
	PART_RUN,
	PART_RESULT,
	NR_PARTS
};

struct load_part_info {
	const char *name;
	const char *stamp; /* in the monitor's answer; NULL: taken here */
	unsigned modes;    /* bit n: mode n reaches it after the start */
	const char *text;
};
extern const struct load_part_info load_parts[NR_PARTS];
extern const char *const load_mode_names[NR_LOAD_MODES];

static inline bool load_is_pooled(enum load_mode mode)
{
	return mode >= LOAD_SHELL;
}

struct load_spec {
	enum load_mode mode;
	struct isolation isolation;
	unsigned runs;
	unsigned at_once; /* of a burst: its size */
	unsigned pool;    /* members; for the pooled modes */
	bool burst;       /* the clocks of those that start together start when they are released */
	bool cold;
	double arrive; /* per second, at random; the clock starts at the arrival. 0: one follows another */
	double age_s;
	const char *cell; /* NULL: a random sum */
	bool raises;      /* the cell must end in an error */
	const char *dir;
};

struct load_run {
	double ms[NR_PARTS]; /* since start_ns */
	uint64_t start_ns, end_ns;
};

struct load_totals {
	double wall_s; /* from the first start to the last end, destruction and refill included; 0: cold */
	uint64_t misses, lost; /* of the pool */
};

/* `runs` has room for spec->runs. Waits for all. The first failure is the result. */
NODISCARD int load_run(const struct load_spec *spec, struct load_run *runs,
                       struct load_totals *totals, struct err *err);

#endif
