/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile server in a guest answers over HTTP: the first byte chooses what was asked and how the rest is
 * cut. However it is cut, the outcome must be the same.
 */
#include "api/daemon/answer.h"

#include "tests/fuzz/fuzz.h"

struct outcome {
	bool is_refused, is_whole;
	unsigned status, nr_headers;
	uint64_t body_len, sum;
};

static struct outcome parse(const uint8_t *data, size_t n, size_t step, uint8_t flags)
{
	struct answer a = { .is_to_head = flags & 1, .may_upgrade = flags & 2 };
	struct outcome o = { 0 };
	size_t off = 0;

	while (off < n && !o.is_refused && a.stage != ANSWER_DONE) {
		size_t take = n - off < step ? n - off : step, body_len = 0;
		const uint8_t *body = NULL;
		ssize_t used = answer_feed(&a, data + off, take, &body, &body_len);

		o.is_refused = used < 0;
		if (o.is_refused)
			break;
		FZ_CHECK(used > 0 && (size_t)used <= take);
		FZ_CHECK(!body_len || (body >= data + off && body + body_len <= data + off + used));
		for (size_t i = 0; i < body_len; i++)
			o.sum = o.sum * 31 + body[i];
		o.body_len += body_len;
		off += (size_t)used;
	}
	FZ_CHECK(a.head.len <= ANSWER_HEAD_MAX + 1 && a.nr_headers <= ANSWER_HEADERS_MAX);
	if (!o.is_refused && answer_has_head(&a)) {
		FZ_CHECK(a.status >= 200 || (a.status == 101 && flags & 2));
		FZ_CHECK(a.stage != ANSWER_DONE || !a.has_length || flags & 1 || a.status == 204 ||
		         a.status == 304 || a.left == 0);
		o.status = a.status;
		o.nr_headers = a.nr_headers;
		for (unsigned i = 0; i < a.nr_headers; i++)
			FZ_CHECK(*a.header[i].name && !strpbrk(a.header[i].name, "\r\n :") &&
			         !strpbrk(a.header[i].value, "\r\n"));
	}
	o.is_whole = !o.is_refused && !answer_end(&a);
	answer_free(&a);
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct outcome whole, cut;

	if (n < 2)
		return 0;
	whole = parse(data + 1, n - 1, n, data[0]);
	cut = parse(data + 1, n - 1, 1u + data[0] / 4, data[0]);
	FZ_CHECK(whole.is_refused == cut.is_refused && whole.is_whole == cut.is_whole);
	if (!whole.is_refused)
		FZ_CHECK(whole.status == cut.status && whole.nr_headers == cut.nr_headers &&
		         whole.body_len == cut.body_len && whole.sum == cut.sum);
	return 0;
}
