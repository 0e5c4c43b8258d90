/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thawboxd: what its parts share. One thread, with the loop: HTTP, and all streams of all guests. A few more
 * take sandboxes from the pools and tear them down (jobs); each pool has its own (api/pool.h).
 */
#ifndef API_DAEMON_DAEMON_H
#define API_DAEMON_DAEMON_H

#include "api/args.h"
#include "api/daemon/box.h"
#include "api/daemon/http.h"
#include "api/daemon/jobs.h"
#include "api/daemon/route.h"
#include "api/keys.h"

#define ENVD_VERSION "0.6.4" /* what its gates in the SDKs stand for: docs/e2b.md */

struct options {
	/* where it listens */
	const char *listen, *unix_path, *tls_cert, *tls_key;
	const char *domain; /* under which clients find ports: PORT-ID.DOMAIN; NULL: none */
	/* who may come */
	const char *keys;
	/* what it serves */
	struct arg_list templates;
	const char *pool_kind;
	uint64_t pool_size;
	/* limits */
	uint64_t max_sandboxes, max_connections, max_ttl_ns, cell_timeout_ns, max_output;
	uint64_t grace_ns; /* for what runs when it is to stop */
	bool keep;         /* a stop leaves the sandboxes to the next daemon */
	bool log_json, quiet;
	bool exit_with_stdin; /* whoever started it holds the other end of a pipe */
};

/* Counters for /metrics; only ever up, from one daemon to the next, too (stats_save()). */
struct counters {
	uint64_t created, create_failed, ended_killed, ended_expired, ended_lost, rotated;
	uint64_t requests, denied, cells, cells_timed_out, processes;
	uint64_t bytes_in, bytes_out;
	uint64_t thaw_bucket[16], thaws, thaw_sum_us;
};

enum leave {
	LEAVE_NOT,
	LEAVE_EXEC,  /* to the program that it executes next */
	LEAVE_STORE, /* to systemd, for the next one */
};

struct daemon {
	struct options opts;
	struct loop loop;
	struct http http;
	struct jobs jobs;
	struct keys keys;
	struct stall *stalls[STALLS_MAX];
	unsigned nr_stalls;
	struct node old_stalls; /* whose place another has */
	struct rotation rotation;
	struct node boxes;
	unsigned nr_boxes; /* those that are being made included */
	unsigned nr_dying;
	struct counters counters;
	int64_t start_us;
	bool is_stopping;
	enum leave leave; /* it ends, and its sandboxes do not */
	bool is_late;     /* what it waited for has not come in time */
	struct loop_op stop_timer;
};

extern const struct http_handlers server_handlers;

struct daemon *daemon_of(struct request *req);
/* Microseconds since 1970. */
int64_t clock_us(void);
/* No box is left, and it is to stop: ends the loop. */
void daemon_check_stop(struct daemon *daemon);

/* {"code":status,"message":...}, the form that E2B's clients read. */
void reply_error(struct request *req, unsigned status, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same of an error with its remedy. */
void reply_err(struct request *req, unsigned status, const struct err *err);
/* The request's body as a JSON object: a new reference, or NULL and the request is answered (400). */
json_t *request_json(struct request *req);
/* What is known and not offered: 501, so that nobody waits for it. */
void reply_not_offered(struct request *req, const char *what);

/* Counts one thaw, by its histogram. */
void stats_thaw(struct counters *c, uint64_t us);
/* All of them by name: a new reference. */
json_t *stats_save(const struct counters *c);
/* What is not there, or no number, begins anew. */
void stats_restore(struct counters *c, const json_t *saved);
/* GET /metrics: in Prometheus' text format. */
void stats_handle(struct request *req);

#endif
