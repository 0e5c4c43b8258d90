/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/first.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct first first;
static int peer;

static void pair(const void *bytes, size_t n)
{
	int fds[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	peer = fds[1];
	cr_assert_eq(write(peer, bytes, n), (ssize_t)n);
	first_open(&first, fds[0]);
}

Test(first, whole_frame)
{
	const uint8_t bytes[] = { 3, 0, 0, 0, 1, 'a', 'b', 'c' };

	pair(bytes, sizeof(bytes));
	cr_assert_eq(first.frame, sizeof(bytes));
	cr_assert_eq(memcmp(first.buf, bytes, sizeof(bytes)), 0);
}

static void ask(const char *json)
{
	uint8_t bytes[512] = { (uint8_t)strlen(json), 0, 0, 0, 1 };

	memcpy(bytes + 5, json, strlen(json));
	pair(bytes, 5 + strlen(json));
}

Test(first, plain_cell_goes_without_json)
{
	const uint8_t want[] = { 12, 0, 0, 0, 4, 1, 0, 0x10, 0, 0, 0, 0, 0, 0, '1', '+', '2' };
	struct iovec got;

	ask("{\"op\":\"run\",\"code\":\"1+2\",\"silent\":true,\"max_output\":4096}");
	got = first_request(&first);
	cr_assert_eq(got.iov_len, sizeof(want));
	cr_assert_eq(memcmp(got.iov_base, want, sizeof(want)), 0);
	first_close(&first);
	cr_assert_null(first.cell);
}

Test(first, what_the_interpreter_must_judge_goes_as_it_came)
{
	static const char *const odd[] = {
		"{\"op\":\"usage\"}",
		"{\"op\":\"run\"}",
		"{\"op\":\"run\",\"code\":1}",
		"{\"op\":\"run\",\"code\":\"1\",\"more\":1}",
		"{\"op\":\"run\",\"code\":\"1\",\"silent\":0}",
		"{\"op\":\"run\",\"code\":\"1\",\"max_output\":-1}",
		"{\"op\":\"run\",\"code\":\"1\",\"max_output\":1.5}",
		"{\"op\":\"run\",\"code\":\"a\\u0000b\"}",
		"{\"op\":\"run\",\"code\":\"\\ud800\"}",
		"[]",
		"not JSON",
	};

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		ask(odd[i]);
		cr_assert_null(first.cell, "%s", odd[i]);
		cr_assert_eq(first_request(&first).iov_base, first.buf);
		cr_assert_eq(first_request(&first).iov_len, strlen(odd[i]) + 5);
		first_close(&first);
	}
}

Test(first, part_of_a_frame_is_kept_for_vsock)
{
	const uint8_t bytes[] = { 9, 0, 0, 0, 1, 'a' };

	pair(bytes, sizeof(bytes));
	cr_assert_eq(first.frame, 0u);
	cr_assert_eq(first.len, sizeof(bytes));
}

Test(first, giant_length_is_no_frame)
{
	const uint8_t bytes[] = { 0xff, 0xff, 0xff, 0xff, 1, 'a' };

	pair(bytes, sizeof(bytes));
	cr_assert_eq(first.frame, 0u);
}

Test(first, nothing_written_yet)
{
	pair("", 0);
	cr_assert_eq(first.len, 0u);
	cr_assert_eq(first.frame, 0u);
}

Test(first, requests_one_after_another)
{
	const uint8_t two[] = { 1, 0, 0, 0, 2, 'a', 2, 0, 0, 0, 2, 'b', 'c', 1 },
		      rest[] = { 0, 0, 0, 2, 'd' };

	pair(two, sizeof(two));
	cr_assert_eq(first_request(&first).iov_len, 6u);
	first_give(&first);
	cr_assert_eq(first_next(&first), 1);
	cr_assert_eq(memcmp(first_request(&first).iov_base, two + 6, 7), 0);
	first_give(&first);
	cr_assert_eq(first_next(&first), 0, "one byte of the third");
	cr_assert_eq(first_next(&first), 0);
	cr_assert_eq(write(peer, rest, sizeof(rest)), (ssize_t)sizeof(rest));
	cr_assert_eq(first_next(&first), 1);
	cr_assert_eq(memcmp(first_request(&first).iov_base, (uint8_t[]){ 1, 0, 0, 0, 2, 'd' }, 6),
	             0);
	close(peer);
	first_give(&first);
	cr_assert_eq(first_next(&first), -EPIPE);
	first_close(&first);
}

/* Looked at as often as one likes: only what has been given makes room. */
Test(first, a_request_that_was_not_given_stays)
{
	const uint8_t bytes[] = { 1, 0, 0, 0, 2, 'a', 9 };

	pair(bytes, sizeof(bytes));
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(first_next(&first), 1);
		cr_assert_eq(first_request(&first).iov_len, 6u);
	}
	cr_assert_eq(first_rest(&first).iov_len, sizeof(bytes), "what goes by vsock is all of it");
	first_give(&first);
	cr_assert_eq(first_rest(&first).iov_len, 1u);
	first_close(&first);
}

Test(first, a_later_request_that_is_too_large)
{
	const uint8_t small[] = { 0, 0, 0, 0, 2 }, large[] = { 0, 0, 2, 0, 2 };

	pair(small, sizeof(small));
	cr_assert_eq(write(peer, large, sizeof(large)), (ssize_t)sizeof(large));
	first_give(&first);
	cr_assert_eq(first_next(&first), -EMSGSIZE);
	cr_assert_eq(first_rest(&first).iov_len, sizeof(large));
	cr_assert_eq(memcmp(first_rest(&first).iov_base, large, sizeof(large)), 0);
	first_close(&first);
}

static bool never(void *ctx)
{
	(void)ctx;
	return false;
}

static void *slow_reader(void *arg)
{
	static uint8_t got[8u << 20];
	size_t n = 0, want = *(size_t *)arg;

	while (n < want) {
		ssize_t k = read(peer, got + n, want - n);

		if (k <= 0)
			break;
		n += (size_t)k;
	}
	for (size_t i = 0; i < n; i++)
		if (got[i] != (uint8_t)(i * 7))
			return NULL;
	return n == want ? arg : NULL;
}

Test(first, output_larger_than_the_socket_arrives_whole, .timeout = 20)
{
	static uint8_t out[4u << 20];
	size_t want = sizeof(out);
	struct iovec iov[3] = { { out, 1000 },
		                { out + 1000, 3u << 20 },
		                { out + 1000 + (3u << 20), 0 } };
	pthread_t reader;
	void *ok;

	iov[2].iov_len = sizeof(out) - 1000 - (3u << 20);
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 7);
	pair("", 0);
	cr_assert_eq(pthread_create(&reader, NULL, slow_reader, &want), 0);
	first_output(&first, iov, 3, never, NULL);
	pthread_join(reader, &ok);
	cr_assert_not_null(ok, "bytes lost or out of order");
}

Test(first, a_gone_peer_does_not_stop_the_guest, .timeout = 20)
{
	char byte = 'x';
	struct iovec iov = { &byte, 1 };

	pair("", 0);
	close(peer);
	first_output(&first, &iov, 1, never, NULL);
	first_output(&first, &iov, 1, never, NULL);
	cr_assert(first.broken);
}
