/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a server has come in the frames of a WebSocket (RFC 6455, section 5.2): between two of them somebody else may
 * say that it is over. Pure; any thread.
 */
#ifndef API_DAEMON_WEBSOCKET_H
#define API_DAEMON_WEBSOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed: before the first frame. */
struct websocket {
	uint8_t head[14];
	unsigned head_len; /* of it has come */
	uint64_t body_left;
	bool has_closed; /* it has said so itself */
};

/* "1012, service restart": clients connect again. A whole frame. */
#define WEBSOCKET_RESTART "\x88\x02\x03\xf4"

/* The server says this. */
void websocket_feed(struct websocket *ws, const void *data, size_t len);
/* Its last frame is complete, and was not the last one of all. */
bool websocket_is_between(const struct websocket *ws);

#endif
