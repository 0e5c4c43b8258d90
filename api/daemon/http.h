/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP on the daemon's loop, over libmicrohttpd: one thread, no call that waits. A request goes through
 * `begin` (its headers are there), its body (collected, or given to ops->data piece by piece), `complete`, and
 * then has all the time it needs until somebody answers it: with one of the reply calls below. While nobody
 * does, its connection is suspended and its socket watched for the client's leaving.
 *
 * Memory for one request: the body up to body_max; of an answer that is streamed, what the writer puts into
 * it, who stops at reply_has_room() being false (REPLY_QUEUE_BYTES) and goes on at ops->drained; of an upload that is
 * streamed, one buffer of libmicrohttpd's (CONNECTION_BYTES), as request_hold() stops the client.
 *
 * Everything here belongs to the loop's thread.
 */
#ifndef API_DAEMON_HTTP_H
#define API_DAEMON_HTTP_H

#include "api/daemon/list.h"
#include "api/frames.h"
#include "core/err.h"
#include "core/loop.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#define REPLY_QUEUE_BYTES (256u << 10)

struct request;
struct box;
struct route;
struct http;

/* Whoever answers a request later. Any member may be NULL. */
struct request_ops {
	/* A piece of the body, which then is not collected. */
	void (*data)(struct request *req, const void *data, size_t len);
	/* The whole request is there. */
	void (*complete)(struct request *req);
	/* The queue of a streamed answer has room again. */
	void (*drained)(struct request *req);
	/* After reply_upgrade(): `fd` is the client, non-blocking and not to be closed; `extra` is what it has said. */
	void (*upgraded)(struct request *req, int fd, const void *extra, size_t len);
	/* The daemon is replaced: a last word, if there is one that is true. It is cut, or answered, after that. */
	void (*leaving)(struct request *req);
	/* The client has left, or the request's box is gone: no more calls with `req` after this one. */
	void (*gone)(struct request *req);
};

struct request {
	struct http *http;
	struct MHD_Connection *conn;
	struct node node; /* of http->requests */
	uint64_t number;  /* its id in the log */
	uint64_t start_ns;
	const char *method;
	char *target; /* as it was sent: path and query */
	char *path;   /* percent-decoded, without the query */
	bool is_loopback;

	/* set by the router */
	const struct route *route;
	const char *param[2]; /* parts of `path` */
	struct box *box;      /* NULL: not the business of one */
	struct node box_node; /* of the box's requests */
	unsigned port;        /* of the box */
	char box_id[40];      /* for the log */
	void *key;            /* whose it is */

	/* the body */
	struct bytes body;
	size_t body_max;
	bool has_begun, is_complete;

	/* the answer */
	const struct request_ops *ops;              /* NULL: nobody waits */
	void *ctx;                                  /* theirs */
	struct MHD_Response *response;              /* not yet queued */
	struct MHD_UpgradeResponseHandle *upgraded; /* NULL: it is HTTP */
	unsigned status;                            /* 0: not answered */
	bool is_stream, has_ended, is_cut;
	bool is_full; /* the writer has been told to wait, and not yet to go on */
	struct bytes out;
	uint64_t sent_bytes;

	bool is_suspended, is_held;
	struct loop_op left_op; /* the client's leaving, while suspended */
};

struct http_handlers {
	void (*begin)(struct request *req);
	void (*complete)(struct request *req); /* not called when `begin` has answered */
	void (*done)(struct request *req);     /* sent, or given up: for the log and the counters */
	void (*left)(
		struct request *req); /* answers one that http_quiesce() found without an answer */
};

struct http_spec {
	int listen_fd;                  /* listening; the caller's */
	const char *tls_cert, *tls_key; /* PEM texts, or NULL */
	unsigned connections_max;
};

struct http {
	struct loop *loop; /* const after open, as is what follows */
	const struct http_handlers *handlers;
	struct MHD_Daemon *mhd;
	int epoll_fd; /* of MHD */
	struct loop_op ready_op, timer_op;
	struct loop_event run_event;
	struct node requests;
	uint64_t last_number;
	unsigned nr_requests;
	bool is_quiet; /* no more requests */
};

NODISCARD int http_open(struct http *http, struct loop *loop, const struct http_handlers *handlers,
                        const struct http_spec *spec, struct err *err);
/* Cuts what is under way. Idempotent after open. */
void http_close(struct http *http);

/*
 * Takes no connection and no request any more. Who waits for an answer gets one that says why it is none; answers that have
 * begun end as their ops->leaving can say, or are cut, as are uploads and those of clients that read too slowly.
 * Whoever comes waits in the listening socket, which stays open also when this is closed.
 */
void http_quiesce(struct http *http);

/* A header or a query member, or NULL; what holds a NUL is none. */
const char *request_header(struct request *req, const char *name);
const char *request_query(struct request *req, const char *name);

/* No more of the body until request_resume(): only from ops->data. */
void request_hold(struct request *req);
void request_resume(struct request *req);

/* Answers. Exactly one for each request; `ops` are not called any more after a whole one. */
void reply_empty(struct request *req, unsigned status);
/* `json` is stolen. */
void reply_json(struct request *req, unsigned status, json_t *json);
/* `text` is copied. */
void reply_text(struct request *req, unsigned status, const char *type, const char *text);
/* A header of an answer; before that is begun, or given whole. */
void reply_header(struct request *req, const char *name, const char *value);

/* An answer in pieces: its headers are sent at once. */
void reply_stream(struct request *req, unsigned status, const char *type);
/* The same with no header but those asked for before, and of `size` bytes; MHD_SIZE_UNKNOWN: until reply_end(). */
void reply_body(struct request *req, unsigned status, uint64_t size);
void reply_write(struct request *req, const void *data, size_t len);
/* False: write no more until ops->drained. */
bool reply_has_room(struct request *req);
void reply_end(struct request *req);

/* 101 with the headers asked for before, of a request that is complete; then ops->upgraded, and the end is request_cut(). */
void reply_upgrade(struct request *req);

/*
 * Ends it without an end: the connection is reset in the middle of a stream, and closed before an answer, which is how
 * clients know that a sandbox is gone. ops are not called any more.
 */
void request_cut(struct request *req);

/* As if its client had left: ops->gone is called, then it is cut. */
void request_abandon(struct request *req);

#endif
