/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/rpc.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static void add(struct bytes *b, uint8_t flags, uint32_t n, const char *data)
{
	uint8_t head[5] = { flags, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8),
		            (uint8_t)n };

	cr_assert_eq(bytes_append(b, head, 5), 0);
	cr_assert_eq(bytes_append(b, data, strlen(data)), 0);
}

Test(rpc, envelopes)
{
	struct bytes in = { 0 };
	const void *data;
	size_t len;

	cr_expect_eq(rpc_take_envelope(&in, &data, &len), 0);
	add(&in, 0, 2, "{}");
	add(&in, 2, 2, "{}"); /* an end is skipped */
	add(&in, 0, 0, "");
	add(&in, 0, 5, "{\"a");
	cr_assert_eq(rpc_take_envelope(&in, &data, &len), 1);
	cr_expect(len == 2 && !memcmp(data, "{}", 2));
	cr_assert_eq(rpc_take_envelope(&in, &data, &len), 1);
	cr_expect_eq(len, 0);
	cr_expect_eq(rpc_take_envelope(&in, &data, &len), 0, "it is not all there");
	cr_assert_eq(bytes_append(&in, "\":1", 2), 0);
	cr_assert_eq(rpc_take_envelope(&in, &data, &len), 1);
	cr_expect(len == 5 && !memcmp(data, "{\"a\":", 5));
	bytes_free(&in);
}

Test(rpc, envelopes_out_of_bounds)
{
	struct bytes in = { 0 }, packed = { 0 };
	const void *data;
	size_t len;

	add(&in, 0, RPC_MESSAGE_MAX + 1, "");
	cr_expect_eq(rpc_take_envelope(&in, &data, &len), -EPROTO);
	add(&packed, 1, 2, "{}");
	cr_expect_eq(rpc_take_envelope(&packed, &data, &len), -EPROTO);
	bytes_free(&in);
	bytes_free(&packed);
}

Test(rpc, errors_of_the_agent)
{
	cr_expect_eq(rpc_code_of("FileNotFoundError"), RPC_NOT_FOUND);
	cr_expect_eq(rpc_code_of("KeyError"), RPC_UNAUTHENTICATED);
	cr_expect_eq(rpc_code_of("anything"), RPC_INTERNAL);
	cr_expect_eq(rpc_code_of(NULL), RPC_INTERNAL);
}
