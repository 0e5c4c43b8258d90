/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/answer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

struct outcome {
	int rc; /* 0: the text is an answer, whole when the server closes behind it */
	struct answer a;
	char body[512];
	size_t body_len;
};

/* Feeds `text` in pieces of `step` bytes. */
static void feed(struct outcome *o, const char *text, size_t len, size_t step)
{
	o->rc = 0;
	for (size_t at = 0; at < len && !o->rc;) {
		size_t take = len - at < step ? len - at : step;
		const uint8_t *data = (const uint8_t *)text + at, *body;
		size_t body_len;
		ssize_t n = answer_feed(&o->a, data, take, &body, &body_len);

		if (n < 0) {
			o->rc = (int)n;
			return;
		}
		cr_assert(n > 0 && (size_t)n <= take);
		if (body_len) {
			cr_assert(body >= data && body + body_len <= data + take);
			memcpy(o->body + o->body_len, body, body_len);
			o->body_len += body_len;
		}
		at += (size_t)n;
		if (o->a.stage == ANSWER_DONE)
			return;
	}
	o->rc = answer_end(&o->a);
}

/* In all ways of cutting it the outcome is the same. */
static void expect(const char *text, bool is_to_head, int rc, unsigned status, const char *body)
{
	for (size_t step = 1; step < 90; step += 4) {
		struct outcome o = { .a = { .is_to_head = is_to_head } };

		feed(&o, text, strlen(text), step);
		cr_expect_eq(o.rc, rc, "%s: %d", text, o.rc);
		if (!rc) {
			cr_expect_eq(o.a.status, status, "%s", text);
			cr_expect(o.body_len == strlen(body) && !memcmp(o.body, body, o.body_len),
			          "%s: %.*s", text, (int)o.body_len, o.body);
		}
		answer_free(&o.a);
	}
}

Test(answer, bodies)
{
	expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", false, 0, 200,
	       "hello");
	expect("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, 0, 200, "");
	expect("HTTP/1.0 404 Not Found\n\nuntil it closes", false, 0, 404, "until it closes");
	expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
	       "5\r\nhello\r\nA;x=y\r\n 123456789\r\n0\r\nTrailer: t\r\n\r\nmore",
	       false, 0, 200, "hello 123456789");
	expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
	       "1\r\nx\r\n0\r\n\r\n",
	       false, 0, 200, "x");
	expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, 0, 200, "");
	expect("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", false, 0, 304, "");
	expect("HTTP/1.1 204 No Content\r\n\r\n", false, 0, 204, "");
	expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
	       "HTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx",
	       false, 0, 201, "x");
	expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", false, 0,
	       200, "hello");
}

Test(answer, cut_off)
{
	static const char *const texts[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
		"HTTP/1.1 200 OK\r\nContent-Le",
		"",
		"HTTP/1.1 100 Continue\r\n\r\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		expect(texts[i], false, -EPROTO, 0, "");
}

Test(answer, refuses)
{
	static const char *const heads[] = {
		"HTTP/2 200 OK",
		"HTTP/1.1 20 OK",
		"HTTP/1.1 2000 OK",
		"HTTP/1.1 099 OK",
		"HTTP/1.1  200 OK",
		"ICY 200 OK",
		"\r\nHTTP/1.1 200 OK",
		"SSH-2.0-OpenSSH_9.2",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x",
		"HTTP/1.1 200 OK\r\nno colon",
		"HTTP/1.1 200 OK\r\n: nameless",
		"HTTP/1.1 200 OK\r\nA : blank before the colon",
		"HTTP/1.1 200 OK\r\nA: b\r\n folded: c",
		"HTTP/1.1 200 OK\r\nA: \x01",
		"HTTP/1.1 200 OK\r\nA: b\rc",
		"HTTP/1.1 200 OK\r\nContent-Length: -1",
		"HTTP/1.1 200 OK\r\nContent-Length: 5, 5",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
	};
	static const char *const chunks[] = { "x\r\n",
		                              "\r\n",
		                              " 5\r\nhello\r\n",
		                              "5\r\nhello!",
		                              "5-\r\nhello",
		                              "5\r\nhello\r\r\n",
		                              "FFFFFFFFFFFFFFFFF\r\nx" };
	char text[256];

	for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
		snprintf(text, sizeof(text), "%s\r\n\r\n", heads[i]);
		expect(text, false, -EPROTO, 0, "");
	}
	for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
		snprintf(text, sizeof(text),
		         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s", chunks[i]);
		expect(text, false, -EPROTO, 0, "");
	}
}

Test(answer, refuses_a_nul)
{
	static const char text[] = "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n";
	struct outcome o = { 0 };

	feed(&o, text, sizeof(text) - 1, 99);
	cr_expect_eq(o.rc, -EPROTO);
	answer_free(&o.a);
}

/* Feeds `line` until the parser refuses: how many bytes it took. */
static size_t feed_for_ever(struct answer *a, const char *line)
{
	const uint8_t *body;
	size_t body_len, total = 0, len = strlen(line);

	while (total < (4u << 20)) {
		ssize_t n = answer_feed(a, (const uint8_t *)line, len, &body, &body_len);

		if (n < 0)
			return total;
		total += (size_t)n;
	}
	return total;
}

Test(answer, bounds)
{
	static const char *const begins[] = {
		"HTTP/1.1 200 OK\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
	};
	struct answer many = { 0 }, interim = { 0 };
	const uint8_t *body;
	size_t body_len;

	for (size_t i = 0; i < ARRAY_LEN(begins); i++) {
		struct answer a = { 0 };
		const char *at = begins[i];

		while (*at)
			at += answer_feed(&a, (const uint8_t *)at, strlen(at), &body, &body_len);
		cr_expect_leq(feed_for_ever(&a, "x: yyyyyyyyyyyyyyyyyyyyyyyyy"), ANSWER_HEAD_MAX);
		answer_free(&a);
	}
	cr_assert(answer_feed(&many, (const uint8_t *)"HTTP/1.1 200 OK\r\n", 17, &body,
	                      &body_len) == 17);
	for (unsigned i = 0; i <= ANSWER_HEADERS_MAX; i++)
		cr_assert_eq(answer_feed(&many, (const uint8_t *)"a: b\r\n", 6, &body, &body_len),
		             6);
	cr_expect_eq(answer_feed(&many, (const uint8_t *)"\r\n", 2, &body, &body_len), -EPROTO);
	answer_free(&many);
	cr_expect_leq(feed_for_ever(&interim, "HTTP/1.1 100 Continue\r\n\r\n"),
	              25u * ANSWER_INTERIM_MAX);
	answer_free(&interim);
}

Test(answer, upgrade)
{
	static const char text[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
				   "Connection: Upgrade\r\n\r\n\x81\x02hi";
	struct outcome o = { .a = { .may_upgrade = true } };
	unsigned at = 0;

	feed(&o, text, sizeof(text) - 1, 7);
	cr_expect(o.a.status == 101 && o.a.stage == ANSWER_REST && o.body_len == 4);
	cr_expect_str_eq(answer_next(&o.a, "upgrade", &at), "websocket");
	cr_expect_null(answer_next(&o.a, "upgrade", &at));
	answer_free(&o.a);
}

Test(answer, headers)
{
	static const char text[] = "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nset-cookie:\t c=d \t\r\n"
				   "Content-Length: 0\r\n\r\n";
	struct outcome o = { 0 };
	unsigned at = 0;

	feed(&o, text, sizeof(text) - 1, 11);
	cr_expect_str_eq(answer_next(&o.a, "Set-Cookie", &at), "a=b");
	cr_expect_str_eq(answer_next(&o.a, "Set-Cookie", &at), "c=d");
	cr_expect_null(answer_next(&o.a, "Set-Cookie", &at));
	cr_expect(answer_is_hop("connection") && answer_is_hop("Content-Length") &&
	          !answer_is_hop("Content-Type") && !answer_is_hop("Host"));
	answer_free(&o.a);
}
