/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/watch.h"

#include <criterion/criterion.h>
#include <string.h>

static json_t *event(const char *text)
{
	json_t *in = json_loads(text, 0, NULL), *out = watch_event(in);

	cr_assert(in, "%s", text);
	json_decref(in);
	return out;
}

Test(watch, events)
{
	static const char *const kinds[][2] = { { "create", "EVENT_TYPE_CREATE" },
		                                { "write", "EVENT_TYPE_WRITE" },
		                                { "remove", "EVENT_TYPE_REMOVE" },
		                                { "rename", "EVENT_TYPE_RENAME" },
		                                { "chmod", "EVENT_TYPE_CHMOD" } };
	char text[96];

	for (size_t i = 0; i < 5; i++) {
		json_t *out;

		snprintf(text, sizeof(text), "{\"event\":\"%s\",\"name\":\"a/b\"}", kinds[i][0]);
		out = event(text);
		cr_expect_str_eq(json_string_value(json_object_get(out, "type")), kinds[i][1]);
		cr_expect_str_eq(json_string_value(json_object_get(out, "name")), "a/b");
		cr_expect_eq(json_object_size(out), 2);
		json_decref(out);
	}
}

Test(watch, entries)
{
	json_t *out = event("{\"event\":\"write\",\"name\":\"a\",\"entry\":{\"name\":\"a\","
	                    "\"path\":\"/t/a\","
	                    "\"type\":\"file\",\"size\":1,\"mode\":420,\"mtime_ns\":0}}"),
	       *none = event("{\"event\":\"write\",\"name\":\"a\",\"entry\":7}");

	cr_expect_str_eq(json_string_value(json_object_get(json_object_get(out, "entry"), "path")),
	                 "/t/a");
	cr_expect_null(json_object_get(none, "entry"));
	cr_expect(watch_is_same(out, none));
	json_decref(out);
	json_decref(none);
}

Test(watch, others)
{
	json_t *a = event("{\"event\":\"write\",\"name\":\"a\"}"),
	       *b = event("{\"event\":\"write\",\"name\":\"b\"}"),
	       *c = event("{\"event\":\"chmod\",\"name\":\"a\"}");

	cr_expect(!watch_is_same(a, b) && !watch_is_same(a, c) && watch_is_same(a, a));
	cr_expect_null(event("{\"event\":\"sync\"}"));
	cr_expect_null(event("{\"event\":\"write\"}"));
	cr_expect_null(event("{\"event\":\"write\",\"name\":1}"));
	cr_expect_null(event("{\"name\":\"a\"}"));
	cr_expect_null(watch_event(NULL));
	json_decref(a);
	json_decref(b);
	json_decref(c);
}
