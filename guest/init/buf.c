/* SPDX-License-Identifier: Apache-2.0 */
#include "buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES 16384 /* an empty buffer keeps no more than this */

int buf_put(struct buf *b, const void *bytes, size_t n)
{
	uint8_t *bigger;
	size_t cap;

	if (n == 0)
		return 0;
	if (b->head > 0 && b->head + b->len + n > b->cap) {
		memmove(b->data, b->data + b->head, b->len);
		b->head = 0;
	}
	if (b->len + n > b->cap) {
		cap = b->cap ? b->cap : 1024;
		while (cap < b->len + n)
			cap *= 2;
		bigger = realloc(b->data, cap);
		if (!bigger)
			return -ENOMEM;
		b->data = bigger;
		b->cap = cap;
	}
	memcpy(b->data + b->head + b->len, bytes, n);
	b->len += n;
	return 0;
}

void buf_drop(struct buf *b, size_t n)
{
	b->head += n;
	b->len -= n;
	if (b->len > 0)
		return;
	b->head = 0;
	if (b->cap > KEEP_BYTES)
		buf_free(b);
}

void buf_free(struct buf *b)
{
	free(b->data);
	*b = (struct buf){ 0 };
}
