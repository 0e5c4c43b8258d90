/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/text.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(text, base64)
{
	static const char *const pairs[][2] = { { "", "" },
		                                { "f", "Zg==" },
		                                { "fo", "Zm8=" },
		                                { "foo", "Zm9v" },
		                                { "foob", "Zm9vYg==" } };
	char *text;

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) { /* RFC 4648 §10 */
		text = text_base64(pairs[i][0], strlen(pairs[i][0]));
		cr_expect_str_eq(text, pairs[i][1]);
		free(text);
	}
	text = text_base64("\xff\xff\xfe", 3);
	cr_expect_str_eq(text, "///+");
	free(text);
}

Test(text, percent)
{
	char plain[] = "a%20b%2Fc%zz%", nul[] = "a%00b";

	cr_expect_eq(text_percent_decode(plain), 9);
	cr_expect_str_eq(plain, "a b/c%zz%");
	(void)text_percent_decode(nul);
	cr_expect_str_eq(nul, "a%00b");
}

Test(text, times)
{
	static const struct {
		const char *text;
		int64_t us;
	} good[] = {
		{ "1970-01-01T00:00:01Z", 1000000 },
		{ "1970-01-01T00:00:01.5Z", 1500000 },
		{ "1970-01-01T01:00:00.000001+01:00", 1 },
		{ "1970-01-01T00:00:00.123456789Z", 123456 },
		{ "2026-01-01T00:00:00 00:00", 1767225600000000 },
	};
	static const char *const bad[] = { "",
		                           "now",
		                           "1970-01-01",
		                           "1970-01-01T00:00:00",
		                           "1970-01-01T00:00:00Zx",
		                           "1970-01-01T00:00:00+1" };
	char out[TEXT_TIME_MAX];
	int64_t us;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		cr_assert(text_parse_time(good[i].text, &us), "%s", good[i].text);
		cr_expect_eq(us, good[i].us, "%s", good[i].text);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_expect(!text_parse_time(bad[i], &us), "%s", bad[i]);
	cr_expect_str_eq(text_time(1767225600000001, out), "2026-01-01T00:00:00.000001Z");
	cr_assert(text_parse_time(out, &us));
	cr_expect_eq(us, 1767225600000001);
}

Test(text, numbers)
{
	uint64_t n;

	cr_expect(text_number("65535", 65535, &n) && n == 65535);
	cr_expect(!text_number("65536", 65535, &n));
	cr_expect(!text_number(NULL, 9, &n) && !text_number("", 9, &n) &&
	          !text_number("-1", 9, &n));
	cr_expect(!text_number("1 ", 9, &n) &&
	          !text_number("99999999999999999999", UINT64_MAX, &n));
}

Test(text, string_maps)
{
	json_t *good = json_pack("{s:s}", "a", "b"), *bad = json_pack("{s:i}", "a", 1),
	       *list = json_array();

	cr_expect(text_is_string_map(NULL) && text_is_string_map(good));
	cr_expect(!text_is_string_map(bad) && !text_is_string_map(list));
	json_decref(good);
	json_decref(bad);
	json_decref(list);
}

Test(text, lists)
{
	cr_expect(text_list_has("keep-alive, Upgrade", "upgrade") && text_list_has("a,b", "B") &&
	          text_list_has(" ,\ta ,", "a"));
	cr_expect(!text_list_has("a-b, ab", "a") && !text_list_has("", "a") &&
	          !text_list_has(NULL, "a") && !text_list_has("ab", "abc"));
}
