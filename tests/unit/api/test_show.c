/* SPDX-License-Identifier: Apache-2.0 */
#include "api/show.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *utf8(const char *text, size_t len)
{
	static char out[256];
	json_t *json = show_utf8((const uint8_t *)text, len);

	cr_assert_not_null(json);
	memcpy(out, json_string_value(json), json_string_length(json) + 1);
	json_decref(json);
	return out;
}

Test(show, what_is_not_utf8_is_replaced)
{
	cr_assert_str_eq(utf8("a\xc3\xa4\xf0\x9f\x90\x8d", 7), "a\xc3\xa4\xf0\x9f\x90\x8d");
	cr_assert_str_eq(utf8("\xff", 1), "\xef\xbf\xbd");
	cr_assert_str_eq(utf8("a\xc3", 2), "a\xef\xbf\xbd");
	cr_assert_str_eq(utf8("\xc0\x80", 2), "\xef\xbf\xbd\xef\xbf\xbd");
	cr_assert_str_eq(utf8("\xed\xa0\x80", 3), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	cr_assert_str_eq(utf8("\xf4\x90\x80\x80z", 5),
	                 "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz");
}

Test(show, nul_stays)
{
	json_t *json = show_utf8((const uint8_t *)"a\0b", 3);

	cr_assert_eq(json_string_length(json), 3);
	json_decref(json);
}

Test(show, every_byte_pair_becomes_valid)
{
	for (unsigned i = 0; i < 65536; i++) {
		uint8_t pair[2] = { (uint8_t)i, (uint8_t)(i >> 8) };
		json_t *json = show_utf8(pair, 2);

		cr_assert_not_null(json, "%04x", i);
		json_decref(json);
	}
}

Test(show, base64)
{
	static const struct {
		const char *text, *bytes;
		ssize_t len;
	} cases[] = { { "", "", 0 },        { "YQ==", "a", 1 },       { "YWI=", "ab", 2 },
		      { "YWJj", "abc", 3 }, { "YW\nJj\n", "abc", 3 }, { "//79", "\xff\xfe\xfd", 3 },
		      { "YW!j", NULL, -1 }, { "\xff", NULL, -1 } };

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[16];
		ssize_t n;

		strcpy(text, cases[i].text);
		n = show_base64(text, strlen(text));
		cr_assert_eq(n, cases[i].len, "%s", cases[i].text);
		cr_assert(n <= 0 || !memcmp(text, cases[i].bytes, (size_t)n));
	}
}
