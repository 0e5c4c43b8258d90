/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/websocket.h"

#include <criterion/criterion.h>

/* Byte by byte: after which of them it is between two frames. */
static void expect(const char *frames, size_t len, const char *between)
{
	struct websocket ws = { 0 };

	cr_expect(websocket_is_between(&ws));
	for (size_t i = 0; i < len; i++) {
		websocket_feed(&ws, frames + i, 1);
		cr_expect_eq(websocket_is_between(&ws), between[i] == '|', "byte %zu", i);
	}
}

Test(websocket, small_frames)
{
	expect("\x81\x02hi\x81\0\x02\x01x", 9, "...|.|..|");
}

Test(websocket, a_server_that_masks)
{
	expect("\x81\x81keyzb\x81\x80keyz", 13, "......|.....|");
}

Test(websocket, long_frames)
{
	static const uint8_t medium[4 + 255] = { 0x82, 0x7e, 1, 0 };
	static const uint8_t large[10 + 65535] = { 0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0 };
	struct websocket ws = { 0 };

	websocket_feed(&ws, medium, sizeof(medium));
	cr_expect_not(websocket_is_between(&ws));
	websocket_feed(&ws, "x", 1);
	cr_expect(websocket_is_between(&ws));
	websocket_feed(&ws, large, sizeof(large));
	cr_expect_not(websocket_is_between(&ws));
	websocket_feed(&ws, "x\x81\x01", 3);
	cr_expect_not(websocket_is_between(&ws));
	websocket_feed(&ws, "y", 1);
	cr_expect(websocket_is_between(&ws));
}

/* It has said goodbye itself: nothing may follow. */
Test(websocket, closed)
{
	struct websocket ws = { 0 };

	websocket_feed(&ws, WEBSOCKET_RESTART, 4);
	cr_expect(!ws.head_len && !ws.body_left && !websocket_is_between(&ws));
}
