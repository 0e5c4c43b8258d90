/* SPDX-License-Identifier: Apache-2.0 */
#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BATCH 16

static struct {
	int epfd;
	struct timer *timers; /* soonest first; few, so a list does */
	void **dead;
	unsigned nr_dead, cap_dead;
} loop = { .epfd = -1 };

int loop_open(void)
{
	loop.epfd = epoll_create1(EPOLL_CLOEXEC);
	return loop.epfd < 0 ? -errno : 0;
}

int loop_set(struct watch *w, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = w };

	if (w->registered && w->events == events)
		return 0;
	if (epoll_ctl(loop.epfd, w->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, w->fd, &ev) < 0)
		return -errno;
	w->registered = true;
	w->events = events;
	return 0;
}

void loop_pause(struct watch *w)
{
	if (w->registered)
		epoll_ctl(loop.epfd, EPOLL_CTL_DEL, w->fd, NULL);
	w->registered = false;
}

void loop_close(struct watch *w)
{
	if (w->fd < 0)
		return;
	loop_pause(w);
	close(w->fd);
	w->fd = -1;
}

uint64_t loop_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void timer_cancel(struct timer *t)
{
	if (t->at_ms == 0)
		return;
	for (struct timer **p = &loop.timers; *p; p = &(*p)->next) {
		if (*p == t) {
			*p = t->next;
			break;
		}
	}
	t->at_ms = 0;
}

void timer_set(struct timer *t, uint64_t ms)
{
	struct timer **p = &loop.timers;

	timer_cancel(t);
	t->at_ms = loop_now_ms() + ms;
	while (*p && (*p)->at_ms <= t->at_ms)
		p = &(*p)->next;
	t->next = *p;
	*p = t;
}

void loop_free_later(void *p)
{
	void **bigger;

	if (loop.nr_dead == loop.cap_dead) {
		bigger = realloc(loop.dead, (loop.cap_dead + 64) * sizeof(*bigger));
		if (!bigger)
			return; /* a leak is better than the end of PID 1 */
		loop.dead = bigger;
		loop.cap_dead += 64;
	}
	loop.dead[loop.nr_dead++] = p;
}

static int next_timeout_ms(void)
{
	uint64_t now;

	if (!loop.timers)
		return -1;
	now = loop_now_ms();
	if (loop.timers->at_ms <= now)
		return 0;
	return loop.timers->at_ms - now > 3600000 ? 3600000 : (int)(loop.timers->at_ms - now);
}

static void fire_timers(void)
{
	struct timer *t;

	while ((t = loop.timers) && t->at_ms <= loop_now_ms()) {
		loop.timers = t->next;
		t->at_ms = 0;
		t->fire(t);
	}
}

int loop_run(bool (*after)(void))
{
	struct epoll_event ev[BATCH];
	struct watch *w;
	bool again = false;
	int n;

	for (;;) {
		n = epoll_wait(loop.epfd, ev, BATCH, again ? 0 : next_timeout_ms());
		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n; i++) {
			w = ev[i].data.ptr;
			if (w->registered) /* an earlier event of the batch may have closed it */
				w->ready(w, ev[i].events);
		}
		fire_timers();
		again = after();
		while (loop.nr_dead > 0)
			free(loop.dead[--loop.nr_dead]);
	}
}
