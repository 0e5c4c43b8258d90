/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "buf.h"
#include "frame.h"
#include "loop.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One connection of the host: one operation (docs/protocol.md sections 2 and 4). The stream reads
 * frames, hands the REQUEST to op_start() and what follows to the operation, and buffers what the
 * operation sends. Everything runs on the loop's thread.
 */

struct stream;

/* What an operation does when something comes. It is `release`d exactly once, unless it has given
 * its result before: stream_result() and stream_error() end it without a call. */
struct stream_ops {
	void (*data)(struct stream *, const uint8_t *bytes, size_t n); /* NULL: takes no DATA */
	void (*end)(struct stream *);                                  /* END: no more DATA */
	void (*request)(struct stream *, const json_t *);              /* a further REQUEST */
	void (*drained)(struct stream *);                              /* no longer full */
	void (*release)(struct stream *);                              /* the client has gone */
};

struct stream {
	struct watch watch;
	struct timer linger;
	struct frame_parser parser;
	struct buf request; /* REQUEST payload so far */
	struct buf out;
	const struct stream_ops *ops; /* NULL: no operation (yet, or any more) */
	void *op;                     /* the operation's own */
	bool in_request;              /* a REQUEST goes on in the next frame */
	bool started, ended;          /* a REQUEST was taken; END was seen */
	bool finished;                /* the RESULT is in `out` */
	bool held, eof, was_full, dirty, blocked, shut;
	struct stream *next_dirty;
};

/* Listens on `fd` (owned from now on): each connection becomes a stream. 0 or -errno. */
int stream_listen(int fd);

/* Sends what is buffered; to be called after each batch of events. True: call again soon. */
bool stream_flush_all(void);

/* Buffers one payload, in frames of at most FRAME_MAX. */
void stream_send(struct stream *s, uint8_t type, const void *payload, size_t n);

/* True when so much is buffered that the operation should wait for `drained`. */
bool stream_full(struct stream *s);

/* Stops (or takes up again) reading DATA from the client: the operation cannot take more now. */
void stream_hold(struct stream *s, bool hold);

/* Ends the operation with this RESULT; takes the reference. NULL reports an out-of-memory error. */
void stream_result(struct stream *s, json_t *result);

/* Ends the operation with {"status":"error"}: a name as in Python, a text for people. */
__attribute__((format(printf, 3, 4))) void stream_error(struct stream *s, const char *name,
                                                        const char *fmt, ...);

/* As stream_error(), from an errno and what it is about (may be NULL). */
void stream_errno(struct stream *s, int err, const char *about);
