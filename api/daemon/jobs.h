/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads for what may block (taking a sandbox from a pool that is empty, tearing one down), so that the
 * loop never does. A job is inside its owner, which must live until done() has been called.
 */
#ifndef API_DAEMON_JOBS_H
#define API_DAEMON_JOBS_H

#include "core/err.h"
#include "core/loop.h"

struct job {
	void (*work)(struct job *job); /* on a thread of ours */
	void (*done)(struct job *job); /* on the loop's thread, afterwards */
	struct job *next;
};

struct job_list {
	struct job *first, **end;
};

struct jobs {
	struct loop *loop; /* const after open, as is what follows */
	pthread_t *thread;
	unsigned nr_threads;
	struct loop_event finished_event;

	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t wake;
	struct job_list waiting, finished;
	bool closing;
};

NODISCARD int jobs_open(struct jobs *jobs, struct loop *loop, unsigned nr_threads, struct err *err);
/* Waits for the jobs that there are; their done() is called. Loop's thread. Idempotent after open. */
void jobs_close(struct jobs *jobs);
/* Loop's thread. */
void jobs_add(struct jobs *jobs, struct job *job);

#endif
