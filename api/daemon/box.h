/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box: a sandbox as a client of the daemon knows it. It has an id, a token, a time to live, what its creator
 * wrote on it, and a machine. When it ends, for whatever reason, all that is under way in it is cut, its id is
 * unknown from then on, and a job tears its machine down. Loop's thread.
 */
#ifndef API_DAEMON_BOX_H
#define API_DAEMON_BOX_H

#include "api/daemon/jobs.h"
#include "api/daemon/machine.h"
#include "api/daemon/meter.h"
#include "api/daemon/stall.h"

#include <jansson.h>

#define BOX_ID_LEN    21
#define BOX_LOG_LINES 200u

struct daemon;
struct handover;
struct key;
struct request;

struct box_line {
	int64_t us; /* since 1970 */
	char *text;
};

struct box {
	struct daemon *daemon;
	struct stall *stall;
	struct node node; /* of daemon->boxes */
	char id[BOX_ID_LEN + 1];
	char token[49];         /* X-Access-Token; "": none is asked for */
	char traffic_token[49]; /* E2B-Traffic-Access-Token; "" */
	struct key *key;        /* whose it is; NULL: there are no keys */
	json_t *metadata, *env;
	int64_t start_us, end_us; /* since 1970 */
	uint64_t claimed_ns;      /* CLOCK_MONOTONIC */
	struct machine machine;
	struct loop_op ttl_op;
	struct node requests;
	struct node processes;        /* of process.c */
	struct node contexts;         /* of context.c */
	struct node watches;          /* of watch.c */
	unsigned last_watch;          /* its number */
	unsigned nr_ports;            /* connections of port.c */
	uint64_t cpu_ns, cpu_seen_ns; /* of the last look at what it uses */
	struct meter meter;
	double cpu_share; /* of one processor; 0: all that there is */
	struct box_line log[BOX_LOG_LINES];
	unsigned nr_lines;    /* ever */
	struct job job;       /* its making, then its end */
	struct stall *reaper; /* whose pool does the latter */
	struct sandbox sb;    /* the same */
	struct err err;       /* the same */
	void (*made)(struct box *box, const struct err *err);
	void *ctx; /* of `made` */
};

struct box_spec {
	struct stall *stall;
	struct key *key;
	uint64_t ttl_s;
	bool is_open;     /* no token */
	bool is_private;  /* a traffic token */
	json_t *metadata; /* borrowed objects of strings, or NULL */
	json_t *env;
	struct sandbox_limits limits;
	double cpu_share; /* as in struct box */
	void (*made)(
		struct box *box,
		const struct err *err); /* err->code 0: it is there; else `box` ends behind it */
	void *ctx;
};

/* NULL: no memory. `made` comes later, always. */
struct box *box_create(struct daemon *daemon, const struct box_spec *spec);

/* The live one of that id, or NULL. */
struct box *box_find(struct daemon *daemon, const char *id);

/* It ends `seconds` from now; 0: at once. */
void box_set_ttl(struct box *box, uint64_t seconds);

/* Ends it, for `why`; `box` must not be used afterwards. */
void box_end(struct box *box, const char *why);

/* Nothing is under way in it: box_save() may come, when no request is left that could begin something. */
bool box_rests(const struct box *box);
/* All that the next daemon must know of it, and its descriptors: a new reference. */
json_t *box_save(const struct box *box, struct handover *h);
/* Takes over one of the daemon before. -ENOENT: its template is not served any more; -EPROTO. On error it ends. */
NODISCARD int box_restore(struct daemon *daemon, const json_t *saved, struct handover *h);

/* A line of its log, which keeps the last BOX_LOG_LINES. */
void box_log(struct box *box, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The environment that a command gets: the box's, with `more` (an object or NULL) over it. A new reference. */
json_t *box_env(const struct box *box, const json_t *more);

#endif
