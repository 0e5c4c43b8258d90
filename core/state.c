/* SPDX-License-Identifier: Apache-2.0 */
#include "core/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* On disk: tag[4], u16 instance, u16 version (0: raw), u32 length of the body, u32 crc of header and body. */
#define HEAD 16u

static uint32_t crc_update(uint32_t crc, const uint8_t *p, size_t n)
{
	for (; n; n--, p++) {
		crc ^= *p;
		for (int k = 0; k < 8; k++)
			crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
	}
	return crc;
}

__attribute__((target("sse4.2"))) static uint32_t crc_update_sse(uint32_t crc, const uint8_t *p,
                                                                 size_t n)
{
	uint64_t wide = crc, word;

	for (; n >= sizeof(word); n -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		wide = __builtin_ia32_crc32di(wide, word);
	}
	crc = (uint32_t)wide;
	for (; n; n--, p++)
		crc = __builtin_ia32_crc32qi(crc, *p);
	return crc;
}

static uint32_t crc_any(uint32_t crc, const void *data, size_t n)
{
	return __builtin_cpu_supports("sse4.2") ? crc_update_sse(crc, data, n)
	                                        : crc_update(crc, data, n);
}

uint32_t state_crc(const void *data, size_t n)
{
	return ~crc_any(~0u, data, n);
}

static void put_le(uint8_t *p, uint64_t v, size_t width)
{
	for (size_t i = 0; i < width; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, size_t width)
{
	uint64_t v = 0;

	for (size_t i = 0; i < width; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

void state_buf_free(struct state_buf *buf)
{
	free(buf->p);
	*buf = (struct state_buf){ 0 };
}

/* Room for `n` more bytes at the end, or NULL with the error kept. */
static uint8_t *grow(struct state_buf *buf, size_t n)
{
	uint8_t *p;

	if (buf->err)
		return NULL;
	if (buf->cap - buf->len < n) {
		size_t cap = (buf->cap + n) * 2;

		p = realloc(buf->p, cap);
		if (!p) {
			buf->err = -ENOMEM;
			return NULL;
		}
		buf->p = p;
		buf->cap = cap;
	}
	p = buf->p + buf->len;
	buf->len += n;
	return p;
}

void state_put_bytes(struct state_buf *buf, const void *bytes, size_t n)
{
	uint8_t *p = grow(buf, n);

	if (p)
		memcpy(p, bytes, n);
}

static uint8_t *put_head(struct state_buf *buf, const char *tag, uint16_t instance,
                         uint16_t version, size_t body)
{
	uint8_t *p = body <= UINT32_MAX ? grow(buf, HEAD + body) : NULL;

	if (!p)
		return NULL;
	memcpy(p, tag, 4);
	put_le(p + 4, instance, 2);
	put_le(p + 6, version, 2);
	put_le(p + 8, body, 4);
	return p;
}

static uint32_t section_crc(const uint8_t *p, size_t body)
{
	return ~crc_any(crc_any(~0u, p, 12), p + HEAD, body);
}

static size_t body_size(const struct state_desc *desc, uint16_t version)
{
	size_t n = 0;

	for (unsigned i = 0; i < desc->nr_fields; i++)
		if (desc->fields[i].since <= version)
			n += (size_t)desc->fields[i].width * desc->fields[i].count;
	return n;
}

/* Host structs hold host-endian integers; x86 is little endian, so elements are copied as they are. */
void state_put(struct state_buf *buf, const struct state_desc *desc, uint16_t instance,
               const void *state)
{
	size_t body = body_size(desc, desc->version);
	uint8_t *p = put_head(buf, desc->tag, instance, desc->version, body);
	uint8_t *at;

	if (!p)
		return;
	at = p + HEAD;
	for (unsigned i = 0; i < desc->nr_fields; i++) {
		const struct state_field *f = &desc->fields[i];
		size_t n = (size_t)f->width * f->count;

		memcpy(at, (const uint8_t *)state + f->offset, n);
		at += n;
	}
	put_le(p + 12, section_crc(p, body), 4);
}

void state_put_raw(struct state_buf *buf, const char *tag, uint16_t instance, const void *data,
                   size_t n)
{
	uint8_t *p = put_head(buf, tag, instance, 0, n);

	if (!p)
		return;
	memcpy(p + HEAD, data, n);
	put_le(p + 12, section_crc(p, n), 4);
}

/* Checks the head of the next section; on success *body is its content and `pos` stands after it. */
static int next_section(struct state_buf *buf, const char *tag, uint16_t instance,
                        uint16_t *version, const uint8_t **body, size_t *len, struct err *err)
{
	const uint8_t *p = buf->p + buf->pos;
	size_t left = buf->len - buf->pos;

	if (left < HEAD || get_le(p + 8, 4) > left - HEAD)
		return err_set(err, -EBADMSG, "section %.4s: the file is cut", tag);
	if (memcmp(p, tag, 4) != 0 || get_le(p + 4, 2) != instance)
		return err_set(err, -EBADMSG, "section %.4s %u: found another in its place", tag,
		               instance);
	*len = (size_t)get_le(p + 8, 4);
	if (get_le(p + 12, 4) != section_crc(p, *len))
		return err_set(err, -EBADMSG, "section %.4s: damaged (checksum)", tag);
	*version = (uint16_t)get_le(p + 6, 2);
	*body = p + HEAD;
	buf->pos += HEAD + *len;
	return 0;
}

int state_get(struct state_buf *buf, const struct state_desc *desc, uint16_t instance, void *state,
              struct err *err)
{
	const uint8_t *at;
	uint16_t version;
	size_t len;
	void *copy;
	int ret = next_section(buf, desc->tag, instance, &version, &at, &len, err);

	if (ret < 0)
		return ret;
	if (version > desc->version || version < desc->min)
		return err_set(err, -EPROTONOSUPPORT,
		               "section %s: version %u, this build reads %u to %u", desc->tag,
		               version, desc->min, desc->version);
	if (len != body_size(desc, version))
		return err_set(err, -EBADMSG, "section %s: length %zu, want %zu", desc->tag, len,
		               body_size(desc, version));
	copy = malloc(desc->size);
	if (!copy)
		return err_set(err, -ENOMEM, "section %s: out of memory", desc->tag);
	memcpy(copy, state, desc->size);
	for (unsigned i = 0; i < desc->nr_fields; i++) {
		const struct state_field *f = &desc->fields[i];
		size_t n = (size_t)f->width * f->count;

		if (f->since > version)
			continue;
		memcpy((uint8_t *)copy + f->offset, at, n);
		at += n;
	}
	ret = desc->check ? desc->check(copy, version, err) : 0;
	if (ret < 0)
		ret = err_wrap(err, "section %s", desc->tag);
	else
		memcpy(state, copy, desc->size);
	free(copy);
	return ret;
}

int state_get_var(struct state_buf *buf, const char *tag, uint16_t instance, void *data, size_t min,
                  size_t max, size_t *n, struct err *err)
{
	const uint8_t *body;
	uint16_t version;
	size_t len;
	int ret = next_section(buf, tag, instance, &version, &body, &len, err);

	if (ret < 0)
		return ret;
	if (version != 0 || len < min || len > max)
		return err_set(err, -EBADMSG, "section %.4s: length %zu, want %zu to %zu", tag, len,
		               min, max);
	memcpy(data, body, len);
	*n = len;
	return 0;
}

int state_get_raw(struct state_buf *buf, const char *tag, uint16_t instance, void *data, size_t n,
                  struct err *err)
{
	size_t got;

	return state_get_var(buf, tag, instance, data, n, n, &got, err);
}
