/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The frames of docs/protocol.md section 2. Pure: no allocation, no descriptors, any thread. */

#define FRAME_HEADER 5
#define FRAME_MAX    (1u << 20) /* payload bytes of one frame */
#define FRAME_MORE   0x80       /* type bit: the payload goes on in the next frame */

enum frame_type {
	FRAME_REQUEST = 0x01,
	FRAME_DATA = 0x02,
	FRAME_END = 0x03,
	FRAME_RESULT = 0x10,
	FRAME_STDOUT = 0x11,
	FRAME_STDERR = 0x12,
	FRAME_EVENT = 0x13,
};

/* Where a stream of bytes stands; all zero at its start. */
struct frame_parser {
	uint8_t head[FRAME_HEADER];
	uint8_t head_len;
	uint32_t left; /* payload bytes of the current frame that have not come yet */
};

/* A run of payload bytes, as they came: a frame may arrive in many pieces. */
struct frame_piece {
	uint8_t type; /* without FRAME_MORE */
	bool more;    /* the frame had FRAME_MORE */
	bool end;     /* the frame's last piece */
	const uint8_t *data;
	size_t len;
};

/*
 * Takes bytes from `in` (`len` of them) until a piece is whole or they run out; `*used` says how
 * many were taken. The piece points into `in`. Returns 1 with a piece, 0 when more bytes are
 * needed, -EMSGSIZE for a length above FRAME_MAX (the parser is then of no more use).
 */
int frame_parse(struct frame_parser *p, const uint8_t *in, size_t len, size_t *used,
                struct frame_piece *piece);

/* Writes the header of a frame of `len` payload bytes (at most FRAME_MAX) to `out`. */
void frame_header(uint8_t out[FRAME_HEADER], uint8_t type, uint32_t len);
