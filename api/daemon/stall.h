/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates that are served. Each has a place, and in it a stall: one snapshot of the template, locked, and the pool that
 * new sandboxes come from. When the template is baked again (its link `current` names another snapshot, which inotify
 * tells), a job opens that one and fills a pool of it; then its stall takes the place. The old one is drained: its pool
 * ends as soon as nobody waits for a member of it, its lock as soon as the last of its sandboxes has ended. A
 * snapshot that cannot be served leaves the place as it is.
 *
 * Loop's thread, except what stalls_open() does before there is a loop.
 */
#ifndef API_DAEMON_STALL_H
#define API_DAEMON_STALL_H

#include "api/daemon/jobs.h"
#include "api/daemon/list.h"
#include "api/template.h"

#include <jansson.h>

#define STALLS_MAX 8

struct daemon;
struct handover;
struct pool;

struct stall {
	struct daemon *daemon;
	struct template template;
	json_t *info;                  /* its template.json */
	struct pool *pool;             /* NULL: no sandbox comes from it any more */
	uint64_t misses;               /* of the pools that its place had before */
	char refused[TEMPLATE_ID_MAX]; /* a newer snapshot that cannot be served */
	unsigned place;                /* in daemon->stalls */
	unsigned nr_boxes;             /* of its snapshot */
	unsigned nr_calls;             /* jobs that use its pool */
	bool is_old;                   /* another has its place, */
	struct node node;              /* and it is in daemon->old_stalls */
	struct job job;                /* the end of its pool */
};

/* Looks for what was baked again. */
struct rotation {
	int fd; /* inotify; -1: it cannot be had */
	struct loop_op op;
	struct job job; /* opens `fresh` */
	struct stall *fresh;
	struct err err;
	bool is_busy;
};

/* All templates of the options, in their order. On error stalls_close() has to come, too. */
NODISCARD int stalls_open(struct daemon *daemon, struct err *err);
/* From now on what is baked again is served. */
void stalls_watch(struct daemon *daemon);
/* Looks now, also at what was refused before. */
void stalls_look(struct daemon *daemon);
/* No look any more; a job that is under way ends with jobs_close(). Idempotent. */
void stalls_unwatch(struct daemon *daemon);
/* When the jobs have ended. What has sandboxes, which a next daemon takes over, keeps its lock. */
void stalls_close(struct daemon *daemon);

/* That which serves a template now, or NULL. */
struct stall *stall_find(struct daemon *daemon, const char *name);

/* A sandbox of it begins; has ended. */
void stall_hold(struct stall *stall);
void stall_release(struct stall *stall);
/* A job calls its pool; has done so. stall_reaper() is one whose pool is there: for the end of a sandbox of `stall`. */
void stall_call(struct stall *stall);
void stall_called(struct stall *stall);
struct stall *stall_reaper(const struct stall *stall);

/* Creates that found no member ready, in its place. */
uint64_t stall_misses(const struct stall *stall);

/* For the next daemon: all that sandboxes are of, with their locks, and what is counted. A new reference. */
json_t *stalls_save(const struct daemon *daemon, struct handover *h);
/* Before the sandboxes are restored. */
void stalls_restore(struct daemon *daemon, const json_t *saved, struct handover *h);
/* Then that of a sandbox: of its snapshot, or where that was not handed over what serves its template. NULL: nothing does. */
struct stall *stall_of(struct daemon *daemon, const char *name, const char *id);
/* After them: forgets what nobody uses. */
void stalls_settle(struct daemon *daemon);

#endif
