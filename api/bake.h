/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bakes a template: boots its image, waits until its interpreter stands at the freeze point, takes
 * the snapshot, records the working set, proves it with real runs, and switches it in. Whatever ends
 * a bake leaves the old template as it was; what lies about is swept by the next one.
 */
#ifndef API_BAKE_H
#define API_BAKE_H

#include "api/monitor.h"
#include "api/paths.h"
#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct bake_opts {
	const char *what;    /* a template's name, or a folder with a template.json */
	uint64_t memory_mb;  /* 0: as the template says */
	const char *kernel;  /* NULL: the one built */
	const char *symbols; /* NULL: beside the kernel */
	const char *rootfs;  /* a folder with root.img and scratch.img; NULL: built or found */
	bool verbose;        /* the guest's console on standard error */
	bool force;          /* also when nothing has changed */
	uint64_t max_age_s;  /* also when the template in use is as old as that; 0: of any age */
	int intr_fd;         /* readable: give up, -EINTR */
	struct isolation isolation;
};

/* What is baked: everything that the result depends on. */
struct bake_plan {
	char name[64]; /* with @MB when the memory is not the template's own */
	char kernel[PATHS_MAX], symbols[PATHS_MAX], root[PATHS_MAX], scratch[PATHS_MAX];
	json_t *template; /* owned: its template.json */
	uint64_t memory_mb;
	unsigned vcpus;
	char inputs[33]; /* hash over all of it */
};

struct bake_result {
	bool current; /* nothing had changed: nothing was done */
	char dir[PATHS_MAX];
	double seconds;
	double create_ms, first_result_ms; /* of the run that proved it */
	double clock_ms;                   /* the guest's clock against ours in that run */
};

/* Works out the plan; builds the root image of a template with packages of its own. */
NODISCARD int bake_plan(struct bake_plan *plan, const struct bake_opts *opts, struct err *err);
void bake_plan_free(struct bake_plan *plan);

/* Bakes it, unless the template in use was made from the same inputs and is not too old. */
NODISCARD int bake_run(const struct bake_plan *plan, const struct bake_opts *opts,
                       struct bake_result *result, struct err *err);

#endif
