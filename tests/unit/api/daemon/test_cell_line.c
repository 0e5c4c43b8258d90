/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/cell_line.h"

#include "tests/unit/api/daemon/same_json.h"

#include <criterion/criterion.h>
#include <string.h>

static void expect(const char *display, const char *line)
{
	json_t *in = json_loads(display, 0, NULL);

	expect_json(in, cell_line_result(in), line);
}

Test(cell_line, results)
{
	expect("{\"kind\":\"result\",\"data\":{\"text/plain\":\"'a'\"}}",
	       "{\"type\":\"result\",\"is_main_result\":true,\"text\":\"a\",\"extra\":{}}");
	expect("{\"kind\":\"display\",\"data\":{\"text/plain\":\"'a\",\"image/png\":\"AA==\",\"x/"
	       "y\":\"z\","
	       "\"application/json\":\"[1]\"}}",
	       "{\"type\":\"result\",\"is_main_result\":false,\"text\":\"'a\",\"png\":\"AA==\","
	       "\"json\":[1],\"extra\":{\"x/y\":\"z\"}}");
	expect("{\"data\":{\"text/plain\":\"'\",\"application/javascript\":\"1\"}}",
	       "{\"type\":\"result\",\"is_main_result\":false,\"text\":\"'\",\"javascript\":\"1\","
	       "\"extra\":{}}");
}

Test(cell_line, data_and_charts)
{
	expect("{\"kind\":\"result\",\"data\":{\"e2b/data\":\"{\\\"a\\\":[1,null]}\","
	       "\"e2b/chart\":\"{\\\"type\\\":\\\"line\\\"}\"}}",
	       "{\"type\":\"result\",\"is_main_result\":true,\"data\":{\"a\":[1,null]},"
	       "\"chart\":{\"type\":\"line\"},\"extra\":{}}");
}

static void expect_end(const char *result, const char *line)
{
	json_t *in = json_loads(result, 0, NULL);

	expect_json(in, cell_line_end(in), line);
}

Test(cell_line, ends)
{
	expect_end("{\"cut\":{\"stdout\":0,\"stderr\":0},\"usage\":{\"wall_ms\":1.5}}",
	           "{\"type\":\"end_of_execution\",\"usage\":{\"wall_ms\":1.5}}");
	expect_end("{\"cut\":{\"stdout\":3,\"stderr\":0},\"files_changed\":[{\"path\":\"/a\","
	           "\"size\":1,\"more\":2}],\"files_cut\":9}",
	           "{\"type\":\"end_of_execution\",\"truncated\":{\"stdout\":3,"
	           "\"files_changed\":9},\"files_changed\":[{\"path\":\"/a\",\"size\":1}]}");
	expect_end("{\"files_changed\":[],\"cut\":5,\"usage\":[]}",
	           "{\"type\":\"end_of_execution\",\"files_changed\":[]}");
	expect_end(
		"{\"files_changed\":[1,{\"path\":2},{\"path\":\"/b\",\"size\":-1},{\"path\":"
		"\"/c\"}],\"cut\":{\"stdout\":-1}}",
		"{\"type\":\"end_of_execution\",\"files_changed\":[{\"path\":\"/c\",\"size\":0}]}");
}

Test(cell_line, characters_that_are_not_complete)
{
	static const struct {
		const char *text;
		size_t open;
	} cases[] = { { "", 0 },
		      { "a", 0 },
		      { "\xc3\xa9", 0 },
		      { "a\xc3", 1 },
		      { "\xe2\x82", 2 },
		      { "\xe2\x82\xac", 0 },
		      { "\xf0\x9f", 2 },
		      { "\xf0\x9f\x98", 3 },
		      { "\xf0\x9f\x98\x80", 0 },
		      { "\x80\x80\x80\x80", 0 } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(
			cell_line_open_tail((const uint8_t *)cases[i].text, strlen(cases[i].text)),
			cases[i].open, "%zu", i);
}
