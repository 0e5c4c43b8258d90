/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile guest's stream: the first byte chooses how the rest is cut into reads, since a parser's faults
 * hide at the seams. JSON payloads go through the bounded parser as well.
 */
#include "api/frames.h"

#include "tests/fuzz/fuzz.h"

static int drain(struct frame_reader *r)
{
	struct frame frame;
	static uint8_t copy[FRAME_WHOLE_MAX];
	json_t *json;
	int rc;

	while ((rc = frame_next(r, &frame)) == 1) {
		if (frame.len > FRAME_WHOLE_MAX)
			abort();
		if (frame.len)
			memcpy(copy, frame.data, frame.len); /* all of it must be there to read */
		if (frame.type == FRAME_RESULT || frame.type == FRAME_DISPLAY) {
			json = frame_json(frame.data, frame.len);
			if (json && !json_is_object(json))
				abort();
			json_decref(json);
		}
	}
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct frame_reader r = { 0 };
	size_t step, off = 1;

	if (n < 2)
		return 0;
	step = data[0] ? data[0] : n;
	while (off < n) {
		size_t take = n - off < step ? n - off : step;

		if (bytes_append(&r.in, data + off, take) < 0)
			break;
		off += take;
		if (drain(&r) < 0)
			break;
	}
	frame_reader_free(&r);
	return 0;
}
