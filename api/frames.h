/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between host and guest (docs/protocol.md, section 2): u32 length, u8 type, payload. The
 * guest is hostile: lengths, nesting and the memory that a payload may take are bounded here, and
 * memory grows with the bytes that have arrived, never with what a header announces.
 * Any thread; one object belongs to one thread at a time.
 */
#ifndef API_FRAMES_H
#define API_FRAMES_H

#include "core/compiler.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum frame_type {
	FRAME_REQUEST = 0x01,
	FRAME_DATA = 0x02,
	FRAME_END = 0x03,
	FRAME_RESULT = 0x10,
	FRAME_STDOUT = 0x11,
	FRAME_STDERR = 0x12,
	FRAME_EVENT = 0x13,
	FRAME_DISPLAY = 0x14,
	FRAME_MORE = 0x80, /* the payload goes on in the next frame of this type */
};

#define FRAME_HEAD      5u
#define FRAME_MAX       (1u << 20)  /* bytes of payload in one frame */
#define FRAME_WHOLE_MAX (64u << 20) /* bytes of payload over all parts */

/* Bytes on their way: appended at the end, taken from the front. */
struct bytes {
	uint8_t *p;
	size_t pos; /* first byte not yet taken */
	size_t len; /* end of what was appended */
	size_t cap;
};

void bytes_free(struct bytes *b);
/* Room for `n` more bytes at b->p + b->len. Returns 0 or -ENOMEM. */
NODISCARD int bytes_reserve(struct bytes *b, size_t n);
NODISCARD int bytes_append(struct bytes *b, const void *data, size_t n);

/* One frame, or the whole of a payload sent in parts. `data` lives until the next frame_next(). */
struct frame {
	enum frame_type type;
	const uint8_t *data;
	size_t len; /* bytes */
};

struct frame_reader {
	struct bytes in;    /* received, not yet parsed */
	struct bytes whole; /* the parts so far of a JSON payload */
	uint8_t part_type;  /* 0: no payload is open */
	size_t part_len;    /* bytes of the open payload so far */
	size_t whole_max;   /* the reader's own bound of a JSON payload; 0: FRAME_WHOLE_MAX */
};

void frame_reader_free(struct frame_reader *r);

/* Reads once from `fd`: bytes > 0, 0 at the end of the stream, or -errno (-EAGAIN: nothing there). */
NODISCARD ssize_t frame_fill(struct frame_reader *r, int fd);

/*
 * The next frame: 1, 0 when more bytes are needed, or -EPROTO (unknown type, too long, parts mixed),
 * -ENOMEM. Parts of STDOUT, STDERR and DATA come as they arrive; JSON payloads come whole.
 */
NODISCARD int frame_next(struct frame_reader *r, struct frame *frame);

/* True when no byte of an unfinished frame or payload is held. */
bool frame_reader_idle(const struct frame_reader *r);

/* Appends frames that carry `data` (cut into parts where needed). -EMSGSIZE above FRAME_WHOLE_MAX. */
NODISCARD int frame_append(struct bytes *out, enum frame_type type, const void *data, size_t len);
/* As above with `json` as payload. */
NODISCARD int frame_append_json(struct bytes *out, enum frame_type type, const json_t *json);

/*
 * Parses JSON from the guest: an object, nested at most 32 deep, at most 100,000 values. A new
 * reference, or NULL.
 */
json_t *frame_json(const void *data, size_t len);

#endif
