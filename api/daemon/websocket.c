/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/websocket.h"

#include <string.h>

#define OP_CLOSE 8u

/* Of the length behind a head's first two bytes, which are there; 0: it is in them. */
static unsigned length_size(const uint8_t *head)
{
	unsigned n = head[1] & 0x7fu;

	return n == 126 ? 2u : n == 127 ? 8u : 0u;
}

static unsigned head_size(const uint8_t *head)
{
	return 2u + length_size(head) + (head[1] & 0x80u ? 4u : 0u);
}

static uint64_t body_size(const uint8_t *head)
{
	unsigned bytes = length_size(head);
	uint64_t size = bytes ? 0 : head[1] & 0x7fu;

	for (unsigned i = 0; i < bytes; i++)
		size = size << 8 | head[2 + i];
	return size;
}

void websocket_feed(struct websocket *ws, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len) {
		if (ws->body_left) {
			size_t n = ws->body_left < len ? (size_t)ws->body_left : len;

			ws->body_left -= n;
			p += n;
			len -= n;
			continue;
		}
		ws->head[ws->head_len++] = *p++;
		len--;
		if (ws->head_len < 2 || ws->head_len < head_size(ws->head))
			continue;
		ws->body_left = body_size(ws->head);
		ws->has_closed = ws->has_closed || (ws->head[0] & 0xfu) == OP_CLOSE;
		ws->head_len = 0;
	}
}

bool websocket_is_between(const struct websocket *ws)
{
	return !ws->head_len && !ws->body_left && !ws->has_closed;
}
