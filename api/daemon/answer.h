/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server in a guest answers over HTTP/1.1 (RFC 9112), parsed as it comes. Every byte is the guest's: a head
 * of more than ANSWER_HEAD_MAX bytes or ANSWER_HEADERS_MAX lines, a line that is folded, a length that is none or
 * that differs from another one, and a coding other than chunked are errors. Nothing of a body is kept. One thread.
 */
#ifndef API_DAEMON_ANSWER_H
#define API_DAEMON_ANSWER_H

#include "api/frames.h"
#include "core/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ANSWER_HEAD_MAX    (64u << 10)
#define ANSWER_HEADERS_MAX 128u
#define ANSWER_INTERIM_MAX 16u /* answers 1xx before the real one */

enum answer_stage {
	ANSWER_HEAD, /* zero: the beginning */
	ANSWER_LENGTH,
	ANSWER_CHUNK_SIZE,
	ANSWER_CHUNK_DATA,
	ANSWER_CHUNK_END,
	ANSWER_TRAILER,
	ANSWER_REST, /* until the server closes, or after an upgrade */
	ANSWER_DONE,
};

struct answer_header {
	const char *name, *value; /* in `head` */
};

struct answer {
	/* what was asked; set before the first byte */
	bool is_to_head;  /* HEAD: no body follows, whatever the head says */
	bool may_upgrade; /* 101 is an answer */

	enum answer_stage stage;
	unsigned status;
	bool has_length;
	uint64_t length; /* of the body, as announced */
	unsigned nr_headers;
	struct answer_header header[ANSWER_HEADERS_MAX];

	/* own */
	struct bytes head;
	size_t line_len; /* of the line that comes, without its end */
	uint64_t left;   /* of the body, or of a chunk */
	size_t tail_len; /* of chunk sizes' lines and trailers, in bytes */
	unsigned nr_interim;
};

/*
 * Takes bytes: how many (all, up to the end of the answer; what is behind that is nobody's), or -EPROTO or -ENOMEM.
 * It stops after the head, so that it can be looked at, and after each piece of the body, which is *body (in
 * `data`) of *body_len bytes.
 */
NODISCARD ssize_t answer_feed(struct answer *a, const uint8_t *data, size_t len,
                              const uint8_t **body, size_t *body_len);

/* The server has closed: 0 when that is an end, and the answer is done; -EPROTO when something is missing. */
NODISCARD int answer_end(struct answer *a);

static inline bool answer_has_head(const struct answer *a)
{
	return a->stage != ANSWER_HEAD;
}

/* The values of the headers of this name, one after another; NULL: no more. *at is 0 at first. */
const char *answer_next(const struct answer *a, const char *name, unsigned *at);

void answer_free(struct answer *a);

/* A header that is between two neighbours alone, or tells how long a body is: it is not passed on. Pure. */
bool answer_is_hop(const char *name);

#endif
