/* SPDX-License-Identifier: Apache-2.0 */
#include "api/frames.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Feeds bytes as if they had been read. */
static void feed(struct frame_reader *r, const void *data, size_t n)
{
	cr_assert_eq(bytes_append(&r->in, data, n), 0);
}

Test(frames, arrive_a_byte_at_a_time)
{
	static const uint8_t wire[] = { 3, 0, 0, 0, FRAME_STDOUT, 'a', 'b', 'c',
		                        0, 0, 0, 0, FRAME_END };
	struct frame_reader r = { 0 };
	struct frame f;

	for (size_t i = 0; i < sizeof(wire); i++) {
		cr_assert_eq(frame_next(&r, &f), 0, "nothing before byte %zu", i);
		feed(&r, &wire[i], 1);
		if (i == 7) {
			cr_assert_eq(frame_next(&r, &f), 1);
			cr_assert(f.type == FRAME_STDOUT && f.len == 3 &&
			          !memcmp(f.data, "abc", 3));
		}
	}
	cr_assert_eq(frame_next(&r, &f), 1);
	cr_assert(f.type == FRAME_END && f.len == 0);
	cr_assert(frame_reader_idle(&r));
	frame_reader_free(&r);
}

Test(frames, length_over_the_limit_is_refused_before_its_bytes_come)
{
	static const uint8_t over[] = { 1, 0, 0x10, 0, FRAME_STDOUT };
	static const uint8_t huge[] = { 0xff, 0xff, 0xff, 0xff, FRAME_STDOUT };
	struct frame_reader r = { 0 };
	struct frame f;

	feed(&r, over, sizeof(over));
	cr_assert_eq(frame_next(&r, &f), -EPROTO);
	frame_reader_free(&r);
	feed(&r, huge, sizeof(huge));
	cr_assert_eq(frame_next(&r, &f), -EPROTO);
	frame_reader_free(&r);
}

Test(frames, every_unknown_type_is_refused)
{
	unsigned known = 0;

	for (unsigned type = 0; type < 0x80; type++) {
		uint8_t wire[] = { 0, 0, 0, 0, (uint8_t)type };
		struct frame_reader r = { 0 };
		struct frame f;
		int rc;

		feed(&r, wire, sizeof(wire));
		rc = frame_next(&r, &f);
		cr_assert(rc == 1 || rc == -EPROTO);
		known += rc == 1;
		frame_reader_free(&r);
	}
	cr_assert_eq(known, 8);
}

Test(frames, parts_of_json_are_joined_and_those_of_output_are_not)
{
	static const uint8_t json[] = {
		1, 0, 0, 0, FRAME_RESULT | FRAME_MORE, '{', 1, 0, 0, 0, FRAME_RESULT, '}'
	};
	static const uint8_t text[] = {
		1, 0, 0, 0, FRAME_STDOUT | FRAME_MORE, 'a', 1, 0, 0, 0, FRAME_STDOUT, 'b'
	};
	struct frame_reader r = { 0 };
	struct frame f;

	feed(&r, json, 6);
	cr_assert_eq(frame_next(&r, &f), 0);
	cr_assert_not(frame_reader_idle(&r));
	feed(&r, json + 6, 6);
	cr_assert_eq(frame_next(&r, &f), 1);
	cr_assert(f.len == 2 && !memcmp(f.data, "{}", 2));
	feed(&r, text, sizeof(text));
	cr_assert_eq(frame_next(&r, &f), 1);
	cr_assert(f.len == 1 && *f.data == 'a');
	cr_assert_eq(frame_next(&r, &f), 1);
	cr_assert(f.len == 1 && *f.data == 'b');
	frame_reader_free(&r);
}

Test(frames, another_type_between_parts_is_refused)
{
	static const uint8_t wire[] = { 1, 0, 0, 0,           FRAME_RESULT | FRAME_MORE, '{', 0,
		                        0, 0, 0, FRAME_STDOUT };
	struct frame_reader r = { 0 };
	struct frame f;

	feed(&r, wire, sizeof(wire));
	cr_assert_eq(frame_next(&r, &f), -EPROTO);
	frame_reader_free(&r);
}

Test(frames, payload_in_parts_is_bounded)
{
	uint8_t *part = calloc(1, FRAME_HEAD + FRAME_MAX);
	struct frame_reader r = { 0 };
	struct frame f;
	int rc = 0;
	unsigned parts = 0;

	part[2] = 0x10;
	part[4] = FRAME_DISPLAY | FRAME_MORE;
	while (!rc) {
		feed(&r, part, FRAME_HEAD + FRAME_MAX);
		rc = frame_next(&r, &f);
		parts++;
	}
	cr_assert_eq(rc, -EPROTO);
	cr_assert_eq(parts, FRAME_WHOLE_MAX / FRAME_MAX + 1);
	free(part);
	frame_reader_free(&r);
}

Test(frames, append_and_read_back_every_size_at_the_edges)
{
	static const size_t sizes[] = {
		0, 1, FRAME_MAX - 1, FRAME_MAX, FRAME_MAX + 1, 3 * FRAME_MAX + 7
	};
	uint8_t *data = malloc(4 * FRAME_MAX);

	for (size_t i = 0; i < 4 * FRAME_MAX; i++)
		data[i] = (uint8_t)(i * 31 + i / 253);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct frame_reader r = { 0 };
		struct bytes out = { 0 };
		struct frame f;

		cr_assert_eq(frame_append(&out, FRAME_REQUEST, data, sizes[i]), 0);
		feed(&r, out.p, out.len);
		cr_assert_eq(frame_next(&r, &f), 1);
		cr_assert_eq(f.len, sizes[i]);
		cr_assert(!f.len || !memcmp(f.data, data, f.len));
		cr_assert_eq(frame_next(&r, &f), 0);
		bytes_free(&out);
		frame_reader_free(&r);
	}
	free(data);
}

Test(frames, too_long_a_payload_is_refused)
{
	struct bytes out = { 0 };
	char byte = 0;

	cr_assert_eq(frame_append(&out, FRAME_REQUEST, &byte, (size_t)FRAME_WHOLE_MAX + 1),
	             -EMSGSIZE);
	cr_assert_eq(out.len, 0);
}

Test(frames, fill_tells_the_end_and_an_empty_socket)
{
	struct frame_reader r = { 0 };
	int fds[2];

	cr_assert_eq(pipe2(fds, O_NONBLOCK), 0);
	cr_assert_eq(frame_fill(&r, fds[0]), -EAGAIN);
	cr_assert_eq(write(fds[1], "abc", 3), 3);
	cr_assert_eq(frame_fill(&r, fds[0]), 3);
	close(fds[1]);
	cr_assert_eq(frame_fill(&r, fds[0]), 0);
	close(fds[0]);
	frame_reader_free(&r);
}

Test(frames, json_of_the_guest_is_an_object_and_modest)
{
	char deep[200], *wide = malloc(1 << 20);
	json_t *json;
	size_t n = 0;

	json = frame_json("{\"a\":\"[[[[ \\\" ,,,\"}", 19);
	cr_assert_not_null(json, "brackets in a string are no nesting");
	json_decref(json);
	json = frame_json("{\"a\":\"\\u0000\"}", 14);
	cr_assert_not_null(json);
	json_decref(json);
	cr_assert_null(frame_json("[1]", 3));
	cr_assert_null(frame_json("", 0));
	cr_assert_null(frame_json("{\"a\":", 5));
	cr_assert_null(frame_json("{\"a\":\"\xff\"}", 9));
	for (int i = 0; i < 33; i++)
		n += (size_t)sprintf(deep + n, "{\"a\":");
	memset(deep + n, '}', 33);
	deep[0] = '{';
	cr_assert_null(frame_json(deep, n));
	n = (size_t)sprintf(wide, "{\"a\":[0");
	for (int i = 0; i < 100001; i++)
		n += (size_t)sprintf(wide + n, ",0");
	n += (size_t)sprintf(wide + n, "]}");
	cr_assert_null(frame_json(wide, n));
	free(wide);
}

Test(frames, bytes_taken_make_room_without_growing)
{
	struct bytes b = { 0 };
	char chunk[1000] = { 0 };
	size_t cap;

	cr_assert_eq(bytes_append(&b, chunk, sizeof(chunk)), 0);
	cap = b.cap;
	for (int i = 0; i < 1000; i++) {
		b.pos = b.len;
		cr_assert_eq(bytes_append(&b, chunk, sizeof(chunk)), 0);
	}
	cr_assert_eq(b.cap, cap);
	bytes_free(&b);
}
