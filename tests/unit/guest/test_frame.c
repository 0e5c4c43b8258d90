/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/init/frame.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Takes a whole stream in chunks of `step` bytes and writes what it saw as text. */
static int parse_all(const uint8_t *in, size_t len, size_t step, char *seen, size_t size)
{
	struct frame_parser p = { 0 };
	struct frame_piece piece;
	size_t used, at = 0, n = 0;
	int r;

	seen[0] = '\0';
	while (at < len) {
		size_t give = len - at < step ? len - at : step;

		while ((r = frame_parse(&p, in + at, give, &used, &piece)) > 0) {
			at += used;
			give -= used;
			n += (size_t)snprintf(seen + n, size - n, "%.*s", (int)piece.len,
			                      (const char *)piece.data);
			if (piece.end)
				n += (size_t)snprintf(seen + n, size - n, "<%x%s>", piece.type,
				                      piece.more ? "+" : "");
		}
		if (r < 0)
			return r;
		at += used;
	}
	return 0;
}

Test(frame, whole_and_split_streams_read_the_same)
{
	static const uint8_t in[] = "\x05\0\0\0\x01hello"
				    "\0\0\0\0\x03"
				    "\x03\0\0\0\x82"
				    "abc"
				    "\x01\0\0\0\x02"
				    "d";
	char seen[128];

	for (size_t step = 1; step < sizeof(in); step++) {
		cr_assert_eq(parse_all(in, sizeof(in) - 1, step, seen, sizeof(seen)), 0);
		cr_assert_str_eq(seen, "hello<1><3>abc<2+>d<2>", "in steps of %zu", step);
	}
}

Test(frame, length_bound)
{
	static const uint8_t most[] = { 0, 0, 0x10, 0, 2 }, more[] = { 1, 0, 0x10, 0, 2 };
	struct frame_parser p = { 0 };
	struct frame_piece piece;
	size_t used;

	cr_assert_eq(frame_parse(&p, most, sizeof(most), &used, &piece), 0);
	cr_assert_eq(used, sizeof(most));
	cr_assert_eq(p.left, FRAME_MAX);
	p = (struct frame_parser){ 0 };
	cr_assert_eq(frame_parse(&p, more, sizeof(more), &used, &piece), -EMSGSIZE);
}

Test(frame, nothing_in_nothing_out)
{
	struct frame_parser p = { 0 };
	struct frame_piece piece;
	size_t used = 7;

	cr_assert_eq(frame_parse(&p, (const uint8_t *)"", 0, &used, &piece), 0);
	cr_assert_eq(used, 0);
}

Test(frame, header_round_trip)
{
	uint8_t head[FRAME_HEADER];
	struct frame_parser p = { 0 };
	struct frame_piece piece;
	size_t used;

	frame_header(head, FRAME_RESULT | FRAME_MORE, 0x01020);
	cr_assert_eq(memcmp(head, "\x20\x10\0\0\x90", 5), 0);
	frame_header(head, FRAME_END, 0);
	cr_assert_eq(frame_parse(&p, head, sizeof(head), &used, &piece), 1);
	cr_assert(piece.end && piece.len == 0 && piece.type == FRAME_END && !piece.more);
}
