/* SPDX-License-Identifier: Apache-2.0 */
#include "api/frames.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define FILL_BYTES      (64u << 10)
#define JSON_DEPTH_MAX  32u
#define JSON_VALUES_MAX 100000u

void bytes_free(struct bytes *b)
{
	free(b->p);
	*b = (struct bytes){ 0 };
}

int bytes_reserve(struct bytes *b, size_t n)
{
	size_t held = b->len - b->pos, cap;
	uint8_t *p;

	if (b->cap - b->len >= n)
		return 0;
	if (b->pos) { /* taken bytes leave before the buffer grows */
		memmove(b->p, b->p + b->pos, held);
		b->pos = 0;
		b->len = held;
	}
	if (b->cap - b->len >= n)
		return 0;
	cap = held + n > 2 * b->cap ? held + n : 2 * b->cap;
	p = realloc(b->p, cap);
	if (!p)
		return -ENOMEM;
	b->p = p;
	b->cap = cap;
	return 0;
}

int bytes_append(struct bytes *b, const void *data, size_t n)
{
	int rc = bytes_reserve(b, n);

	if (rc || !n)
		return rc;
	memcpy(b->p + b->len, data, n);
	b->len += n;
	return 0;
}

void frame_reader_free(struct frame_reader *r)
{
	bytes_free(&r->in);
	bytes_free(&r->whole);
	*r = (struct frame_reader){ 0 };
}

ssize_t frame_fill(struct frame_reader *r, int fd)
{
	ssize_t n;

	if (bytes_reserve(&r->in, FILL_BYTES))
		return -ENOMEM;
	do
		n = read(fd, r->in.p + r->in.len, r->in.cap - r->in.len);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	r->in.len += (size_t)n;
	return n;
}

static bool type_known(uint8_t type)
{
	switch (type) {
	case FRAME_REQUEST:
	case FRAME_DATA:
	case FRAME_END:
	case FRAME_RESULT:
	case FRAME_STDOUT:
	case FRAME_STDERR:
	case FRAME_EVENT:
	case FRAME_DISPLAY:
		return true;
	default:
		return false;
	}
}

static bool type_streams(uint8_t type)
{
	return type == FRAME_DATA || type == FRAME_STDOUT || type == FRAME_STDERR;
}

/* Joins a part to the payload it belongs to: 1 when `frame` is complete, 0 when parts are missing. */
static int take_part(struct frame_reader *r, struct frame *frame, bool more)
{
	uint8_t type = (uint8_t)frame->type;

	if (r->part_type && r->part_type != type)
		return -EPROTO;
	if (!r->part_type)
		r->part_len = r->whole.pos = r->whole.len = 0;
	r->part_len += frame->len;
	if (r->part_len > (r->whole_max ? r->whole_max : FRAME_WHOLE_MAX) && !type_streams(type))
		return -EPROTO;
	if (type_streams(type)) {
		r->part_type = more ? type : 0;
		return 1;
	}
	if (!more && !r->part_type)
		return 1;
	if (bytes_append(&r->whole, frame->data, frame->len))
		return -ENOMEM;
	r->part_type = more ? type : 0;
	frame->data = r->whole.p;
	frame->len = r->whole.len;
	return !more;
}

int frame_next(struct frame_reader *r, struct frame *frame)
{
	for (;;) {
		size_t held = r->in.len - r->in.pos, len;
		const uint8_t *p;
		bool more;
		int rc;

		if (held < FRAME_HEAD)
			return 0;
		p = r->in.p + r->in.pos; /* not before: there may be no buffer yet */
		len = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
		more = p[4] & FRAME_MORE;
		frame->type = (enum frame_type)(p[4] & ~FRAME_MORE);
		if (len > FRAME_MAX || !type_known((uint8_t)frame->type))
			return -EPROTO;
		if (held < FRAME_HEAD + len)
			return 0;
		frame->data = p + FRAME_HEAD;
		frame->len = len;
		r->in.pos += FRAME_HEAD + len;
		rc = take_part(r, frame, more);
		if (rc)
			return rc;
	}
}

bool frame_reader_idle(const struct frame_reader *r)
{
	return r->in.pos == r->in.len && !r->part_type;
}

int frame_append(struct bytes *out, enum frame_type type, const void *data, size_t len)
{
	const uint8_t *p = data;

	if (len > FRAME_WHOLE_MAX)
		return -EMSGSIZE;
	do {
		size_t n = len < FRAME_MAX ? len : FRAME_MAX;
		unsigned more = n < len ? FRAME_MORE : 0u;
		uint8_t head[FRAME_HEAD] = { (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), 0,
			                     (uint8_t)((unsigned)type | more) };

		if (bytes_reserve(out, FRAME_HEAD + n) || bytes_append(out, head, FRAME_HEAD) ||
		    bytes_append(out, p, n))
			return -ENOMEM;
		p = n ? p + n : p;
		len -= n;
	} while (len);
	return 0;
}

int frame_append_json(struct bytes *out, enum frame_type type, const json_t *json)
{
	char *text = json_dumps(json, JSON_COMPACT);
	int rc = text ? frame_append(out, type, text, strlen(text)) : -ENOMEM;

	free(text);
	return rc;
}

/* jansson takes some hundred bytes for a value of two: the count must be known before it parses. */
static bool json_is_modest(const uint8_t *p, size_t len)
{
	size_t depth = 0, values = 0;
	bool quoted = false;

	for (size_t i = 0; i < len; i++) {
		if (quoted) {
			if (p[i] == '\\')
				i++;
			else if (p[i] == '"')
				quoted = false;
			continue;
		}
		switch (p[i]) {
		case '"':
			quoted = true;
			break;
		case '[':
		case '{':
			values++;
			if (++depth > JSON_DEPTH_MAX)
				return false;
			break;
		case ']':
		case '}':
			if (depth)
				depth--;
			break;
		case ',':
			values++;
			break;
		default:
			break;
		}
		if (values > JSON_VALUES_MAX)
			return false;
	}
	return true;
}

json_t *frame_json(const void *data, size_t len)
{
	json_t *json;

	if (!len || !json_is_modest(data, len))
		return NULL;
	json = json_loadb(data, len, JSON_ALLOW_NUL, NULL);
	if (json && !json_is_object(json)) {
		json_decref(json);
		return NULL;
	}
	return json;
}
