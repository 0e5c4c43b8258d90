/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/websocket.h"

#include <string.h>

#define OP_CLOSE 8u

/* Of a head whose first two bytes are there. */
static unsigned head_size(const uint8_t *head)
{
	unsigned n = head[1] & 0x7fu;

	return 2u + (n == 126 ? 2u : n == 127 ? 8u : 0u) + (head[1] & 0x80u ? 4u : 0u);
}

static uint64_t body_size(const uint8_t *head)
{
	unsigned n = head[1] & 0x7fu, bytes = n == 126 ? 2u : n == 127 ? 8u : 0u;
	uint64_t size = bytes ? 0 : n;

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
