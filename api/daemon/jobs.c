/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/jobs.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void put(struct job_list *list, struct job *job)
{
	job->next = NULL;
	*list->end = job;
	list->end = &job->next;
}

static struct job *take(struct job_list *list)
{
	struct job *job = list->first;

	if (!job)
		return NULL;
	list->first = job->next;
	if (!list->first)
		list->end = &list->first;
	return job;
}

static void *serve(void *arg)
{
	struct jobs *jobs = arg;
	struct job *job;

	pthread_mutex_lock(&jobs->lock);
	for (;;) {
		while (!(job = take(&jobs->waiting)) && !jobs->closing)
			pthread_cond_wait(&jobs->wake, &jobs->lock);
		if (!job)
			break;
		pthread_mutex_unlock(&jobs->lock);
		job->work(job);
		pthread_mutex_lock(&jobs->lock);
		put(&jobs->finished, job);
		loop_post(jobs->loop, &jobs->finished_event);
	}
	pthread_mutex_unlock(&jobs->lock);
	return NULL;
}

static void deliver(struct jobs *jobs)
{
	struct job *job;

	for (;;) {
		pthread_mutex_lock(&jobs->lock);
		job = take(&jobs->finished);
		pthread_mutex_unlock(&jobs->lock);
		if (!job)
			return;
		job->done(job);
	}
}

static void on_finished(struct loop_event *event)
{
	deliver(container_of(event, struct jobs, finished_event));
}

int jobs_open(struct jobs *jobs, struct loop *loop, unsigned nr_threads, struct err *err)
{
	sigset_t all, before;
	int rc = 0;

	*jobs = (struct jobs){ .loop = loop,
		               .finished_event = { .fire = on_finished },
		               .lock = PTHREAD_MUTEX_INITIALIZER,
		               .wake = PTHREAD_COND_INITIALIZER };
	jobs->waiting.end = &jobs->waiting.first;
	jobs->finished.end = &jobs->finished.first;
	jobs->thread = calloc(nr_threads, sizeof(*jobs->thread));
	if (!jobs->thread)
		return err_set(err, -ENOMEM, "no memory for threads");
	sigfillset(&all); /* signals are the loop's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!rc && jobs->nr_threads < nr_threads) {
		rc = -pthread_create(&jobs->thread[jobs->nr_threads], NULL, serve, jobs);
		jobs->nr_threads += !rc;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		jobs_close(jobs);
		return err_set(err, rc, "no thread: %s", strerror(-rc));
	}
	return 0;
}

void jobs_close(struct jobs *jobs)
{
	if (!jobs->thread)
		return;
	pthread_mutex_lock(&jobs->lock);
	jobs->closing = true;
	pthread_cond_broadcast(&jobs->wake);
	pthread_mutex_unlock(&jobs->lock);
	for (unsigned i = 0; i < jobs->nr_threads; i++)
		pthread_join(jobs->thread[i], NULL);
	deliver(jobs);
	loop_unpost(jobs->loop, &jobs->finished_event);
	free(jobs->thread);
	*jobs = (struct jobs){ 0 };
}

void jobs_add(struct jobs *jobs, struct job *job)
{
	pthread_mutex_lock(&jobs->lock);
	put(&jobs->waiting, job);
	pthread_cond_signal(&jobs->wake);
	pthread_mutex_unlock(&jobs->lock);
}
