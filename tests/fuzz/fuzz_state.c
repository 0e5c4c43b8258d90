/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved-state sections from a hostile file. The first byte says whether the checksums are mended, so that
 * the fuzzer gets past them; each section that loads is put again and must load with equal content.
 */
#include "core/state.h"

#include "devices/blk.h"
#include "devices/doorbell.h"
#include "devices/ioapic.h"
#include "devices/serial.h"
#include "devices/vdev.h"
#include "tests/fuzz/fuzz.h"
#include "vmm/guestsym.h"

#define MAX_STATE 2048

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

/* Not in a header: the device alone saves and loads it. */
const struct state_desc *vsock_state_desc(void);

static void load_one(struct state_buf *in, const struct state_desc *desc)
{
	uint8_t first[MAX_STATE] = { 0 }, again[MAX_STATE] = { 0 };
	struct state_buf out = { 0 };
	struct err err = { 0 };

	if (desc->size > sizeof(first))
		abort();
	if (state_get(in, desc, 0, first, &err) < 0) {
		static const uint8_t untouched[MAX_STATE];

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
	static const struct state_desc *(*const kinds[])(
		void) = { sample_desc,       virtq_state_desc,  vdev_state_desc,
		          blk_state_desc,    vsock_state_desc,  doorbell_state_desc,
		          ioapic_state_desc, serial_state_desc, guestsym_state_desc };
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
		fz_mend(in.p, in.len);
	for (size_t last = SIZE_MAX; in.pos != last;) {
		last = in.pos;
		for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
			load_one(&in, kinds[i]());
		if (state_get_var(&in, "RAWS", 0, raw, 1, sizeof(raw), &got, NULL) == 0 &&
		    (got < 1 || got > sizeof(raw)))
			abort();
		if (in.pos > in.len)
			abort();
	}
	free(in.p);
	return 0;
}
