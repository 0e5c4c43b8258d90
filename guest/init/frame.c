/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"

#include <errno.h>
#include <string.h>

static uint32_t load_le32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int frame_parse(struct frame_parser *p, const uint8_t *in, size_t len, size_t *used,
                struct frame_piece *piece)
{
	size_t n;

	*used = 0;
	if (p->head_len < FRAME_HEADER) {
		n = FRAME_HEADER - (size_t)p->head_len;
		n = n < len ? n : len;
		memcpy(p->head + p->head_len, in, n);
		p->head_len = (uint8_t)(p->head_len + n);
		*used = n;
		if (p->head_len < FRAME_HEADER)
			return 0;
		p->left = load_le32(p->head);
		if (p->left > FRAME_MAX)
			return -EMSGSIZE;
	}
	n = len - *used;
	n = n < p->left ? n : p->left;
	if (n == 0 && p->left > 0)
		return 0;
	piece->type = p->head[4] & (uint8_t)~FRAME_MORE;
	piece->more = (p->head[4] & FRAME_MORE) != 0;
	piece->data = in + *used;
	piece->len = n;
	*used += n;
	p->left -= (uint32_t)n;
	piece->end = p->left == 0;
	if (piece->end)
		p->head_len = 0;
	return 1;
}

void frame_header(uint8_t out[FRAME_HEADER], uint8_t type, uint32_t len)
{
	for (unsigned i = 0; i < 4; i++)
		out[i] = (uint8_t)(len >> (8 * i));
	out[4] = type;
}
