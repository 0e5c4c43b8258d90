/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved-state sections from a hostile file. The first byte says whether the checksums are mended, so that
 * the fuzzer gets past them; each section that loads is put again and must load with equal content.
 */
#include "core/state.h"
#include "devices/vdev.h"

#include <stdlib.h>
#include <string.h>

#define SAMPLE(F, A)         \
	F(1, uint8_t, small) \
	F(1, uint64_t, wide) \
	A(1, uint16_t, row, 5) F(2, uint32_t, later) A(3, uint8_t, tail, 7)
STATE_STRUCT(sample, SAMPLE);

static int sample_check(void *state, uint16_t from, struct err *err)
{
	const struct sample *s = state;

	if (from < 2 && s->later != 0)
		abort(); /* a field that the file's version lacks must keep its reset value */
	return s->small > 100 ? err_set(err, -34, "small is %u", s->small) : 0;
}

const struct state_desc *sample_desc(void);
STATE_DESC(sample, SAMPLE, "SAMP", 1, sample_check);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint64_t le(const uint8_t *p, unsigned width)
{
	uint64_t v = 0;

	memcpy(&v, p, width);
	return v;
}

/* The checksum covers the first 12 bytes of the header and the body, which are not adjacent. */
static void mend(uint8_t *p, size_t n)
{
	while (n >= 16 && le(p + 8, 4) <= n - 16) {
		size_t body = le(p + 8, 4);
		uint8_t *flat = malloc(12 + body);
		uint32_t crc;

		if (!flat)
			abort();
		memcpy(flat, p, 12);
		memcpy(flat + 12, p + 16, body);
		crc = state_crc(flat, 12 + body);
		memcpy(p + 12, &crc, 4);
		free(flat);
		p += 16 + body;
		n -= 16 + body;
	}
}

static void load_one(struct state_buf *in, const struct state_desc *desc)
{
	uint8_t first[512] = { 0 }, again[512] = { 0 };
	struct state_buf out = { 0 };
	struct err err = { 0 };

	if (desc->size > sizeof(first))
		abort();
	if (state_get(in, desc, 0, first, &err) < 0) {
		static const uint8_t untouched[512];

		if (err.code >= 0 || !err.msg[0] || memcmp(first, untouched, sizeof(first)) != 0)
			abort();
		return;
	}
	state_put(&out, desc, 0, first);
	if (out.err || state_get(&out, desc, 0, again, &err) < 0 ||
	    memcmp(first, again, sizeof(first)) != 0)
		abort();
	state_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct state_buf in = { 0 };
	uint8_t raw[64];
	size_t got;

	if (n < 1)
		return 0;
	in.len = n - 1;
	in.p = malloc(in.len + 1);
	if (!in.p)
		return 0;
	memcpy(in.p, data + 1, in.len);
	if (data[0] & 1)
		mend(in.p, in.len);
	for (size_t last = SIZE_MAX; in.pos != last;) {
		last = in.pos;
		load_one(&in, sample_desc());
		load_one(&in, virtq_state_desc());
		load_one(&in, vdev_state_desc());
		if (state_get_var(&in, "RAWS", 0, raw, 1, sizeof(raw), &got, NULL) == 0 &&
		    (got < 1 || got > sizeof(raw)))
			abort();
		if (in.pos > in.len)
			abort();
	}
	free(in.p);
	return 0;
}
