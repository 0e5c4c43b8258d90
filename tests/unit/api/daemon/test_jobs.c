/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/jobs.h"

#include <criterion/criterion.h>
#include <pthread.h>

#define JOBS 40

struct sum {
	struct job job;
	unsigned n;
	bool was_elsewhere;
	pthread_t loop_thread;
};

static unsigned done_sum, nr_done;

static void work(struct job *job)
{
	struct sum *sum = container_of(job, struct sum, job);

	sum->n *= 2;
	sum->was_elsewhere = !pthread_equal(pthread_self(), sum->loop_thread);
}

static void done(struct job *job)
{
	struct sum *sum = container_of(job, struct sum, job);

	cr_expect(sum->was_elsewhere);
	cr_expect(pthread_equal(pthread_self(), sum->loop_thread));
	done_sum += sum->n;
	nr_done++;
}

static bool all_done(void *ctx)
{
	(void)ctx;
	return nr_done == JOBS;
}

Test(jobs, run_elsewhere_and_end_here, .timeout = 60)
{
	static struct sum sums[2 * JOBS];
	struct loop loop = { 0 };
	struct jobs jobs;
	struct err err;

	cr_assert_eq(loop_open(&loop, 64, &err), 0);
	cr_assert_eq(jobs_open(&jobs, &loop, 3, &err), 0);
	for (unsigned i = 0; i < 2 * JOBS; i++) {
		sums[i] = (struct sum){ .job = { .work = work, .done = done },
			                .n = i,
			                .loop_thread = pthread_self() };
		if (i < JOBS)
			jobs_add(&jobs, &sums[i].job);
	}
	cr_assert_eq(loop_run_until(&loop, all_done, NULL), 0);
	cr_expect_eq(done_sum, JOBS * (JOBS - 1));
	for (unsigned i = JOBS; i < 2 * JOBS; i++)
		jobs_add(&jobs, &sums[i].job);
	jobs_close(&jobs); /* none is forgotten */
	cr_expect_eq(nr_done, 2 * JOBS);
	loop_close(&loop);
}
