/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/cell_line.h"

#include "api/daemon/text.h"

#include <string.h>

#define FILES_MAX 1024u /* the guest tells 256 */

size_t cell_line_open_tail(const uint8_t *data, size_t len)
{
	for (size_t n = 1; n <= 3 && n <= len; n++) {
		uint8_t c = data[len - n];

		if ((c & 0xc0) == 0x80)
			continue; /* inside of a sequence: its first byte is before it */
		if (c >= 0xf0)
			return n < 4 ? n : 0;
		if (c >= 0xe0)
			return n < 3 ? n : 0;
		return c >= 0xc0 && n < 2 ? n : 0;
	}
	return 0;
}

/* One pair of quotes around a text goes: 'a' is a. */
static json_t *unquoted(const json_t *value)
{
	const char *text = json_string_value(value);
	size_t n = json_string_length(value);

	if (n >= 2 && (*text == '\'' || *text == '"') && text[n - 1] == *text)
		return json_stringn(text + 1, n - 2);
	return json_incref((json_t *)(uintptr_t)value);
}

/* An object that came as text. */
static json_t *parsed(const json_t *value)
{
	const char *text = json_string_value(value);
	json_t *json = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;

	return json ? json : json_incref((json_t *)(uintptr_t)value);
}

json_t *cell_line_result(const json_t *display)
{
	static const char *const names[][2] = {
		{ "text/html", "html" },        { "text/markdown", "markdown" },
		{ "image/svg+xml", "svg" },     { "image/png", "png" },
		{ "image/jpeg", "jpeg" },       { "application/pdf", "pdf" },
		{ "text/latex", "latex" },      { "application/javascript", "javascript" },
		{ "application/json", "json" }, { "e2b/data", "data" },
		{ "e2b/chart", "chart" },
	};
	const char *kind = text_member(display, "kind"), *mime;
	json_t *line = json_pack("{s:s, s:b}", "type", "result", "is_main_result",
	                         kind && !strcmp(kind, "result"));
	json_t *extra = json_object(), *value;

	json_object_foreach(json_object_get(display, "data"), mime, value)
	{
		size_t i = 0;

		while (i < ARRAY_LEN(names) && strcmp(names[i][0], mime) != 0)
			i++;
		if (!strcmp(mime, "text/plain"))
			json_object_set_new(line, "text", unquoted(value));
		else if (i == ARRAY_LEN(names))
			json_object_set(extra, mime, value);
		else if (i >= 8) /* objects */
			json_object_set_new(line, names[i][1], parsed(value));
		else
			json_object_set(line, names[i][1], value);
	}
	json_object_set_new(line, "extra", extra);
	return line;
}

/* What is no file is left out. */
static json_t *files_changed(const json_t *told)
{
	json_t *files = json_array(), *file;
	size_t i;

	json_array_foreach(told, i, file)
	{
		const char *path = text_member(file, "path");
		json_int_t size = json_integer_value(json_object_get(file, "size"));

		if (path && size >= 0 && json_array_size(files) < FILES_MAX)
			json_array_append_new(files,
			                      json_pack("{s:s, s:I}", "path", path, "size", size));
	}
	return files;
}

static void set_count(json_t *object, const char *name, const json_t *value)
{
	if (json_integer_value(value) > 0)
		json_object_set_new(object, name, json_integer(json_integer_value(value)));
}

json_t *cell_line_end(const json_t *result)
{
	const json_t *cut = json_object_get(result, "cut"),
		     *files = json_object_get(result, "files_changed");
	json_t *line = json_pack("{s:s}", "type", "end_of_execution"), *truncated = json_object();

	if (json_is_object(json_object_get(result, "usage")))
		json_object_set(line, "usage", json_object_get(result, "usage"));
	set_count(truncated, "stdout", json_object_get(cut, "stdout"));
	set_count(truncated, "stderr", json_object_get(cut, "stderr"));
	set_count(truncated, "files_changed", json_object_get(result, "files_cut"));
	if (json_object_size(truncated))
		json_object_set(line, "truncated", truncated);
	if (json_is_array(files))
		json_object_set_new(line, "files_changed", files_changed(files));
	json_decref(truncated);
	return line;
}
