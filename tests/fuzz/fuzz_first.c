/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first stream's beginning, cut anywhere: what goes into the mailbox and what follows by vsock are together what
 * the peer wrote, and a cell in its short form is the request in JSON.
 */
#include "vmm/first.h"

#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <sys/socket.h>

#define HEAD      5u
#define CELL_HEAD 14u

/* The short form, byte for byte what the JSON says. */
static void check_cell(const struct first *first)
{
	json_t *json = json_loadb((const char *)first->buf + HEAD, first->frame - HEAD, 0, NULL);
	json_t *code = json_object_get(json, "code");

	FZ_CHECK(code && first->cell_len == CELL_HEAD + json_string_length(code));
	FZ_CHECK(memcmp(first->cell + CELL_HEAD, json_string_value(code),
	                json_string_length(code)) == 0);
	FZ_CHECK(fz_le(first->cell, 4) == first->cell_len - HEAD && first->cell[4] == 0x04);
	FZ_CHECK(fz_le(first->cell + 6, 8) ==
	         (uint64_t)json_integer_value(json_object_get(json, "max_output")));
	json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct first first;
	struct iovec request, rest;
	int pair[2], size = 1 << 20;

	fz_quiet();
	FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	(void)setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	n = n < 100000 ? n : 100000;
	FZ_CHECK(n == 0 || send(pair[1], data, n, MSG_DONTWAIT) == (ssize_t)n);
	first_open(&first, pair[0]);
	request = first_request(&first);
	first_give(&first);
	rest = first_rest(&first);
	FZ_CHECK(first.len <= FIRST_MAX && first.frame <= first.len &&
	         first.frame + rest.iov_len == first.len);
	FZ_CHECK(memcmp(first.buf, data, first.len) == 0);
	FZ_CHECK(request.iov_len == 0 || request.iov_len <= first.frame);
	if (first.frame && first.cell)
		check_cell(&first);
	first_close(&first);
	(void)close(pair[1]);
	return 0;
}
