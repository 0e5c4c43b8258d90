/* SPDX-License-Identifier: Apache-2.0 */
#include "api/show.h"

#include "api/cmd.h"
#include "api/paths.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void show_output(void *ctx, enum frame_type type, const void *data, size_t len)
{
	struct show *show = ctx;

	if (!len)
		return;
	cmd_write(type == FRAME_STDOUT ? 1 : 2, data, len);
	if (type == FRAME_STDOUT || show->prompt)
		show->mid_line = ((const char *)data)[len - 1] != '\n';
}

static int digit64(char c)
{
	return c >= 'A' && c <= 'Z'   ? c - 'A'
	       : c >= 'a' && c <= 'z' ? c - 'a' + 26
	       : c >= '0' && c <= '9' ? c - '0' + 52
	       : c == '+'             ? 62
	       : c == '/'             ? 63
	                              : -1;
}

ssize_t show_base64(char *text, size_t len)
{
	unsigned bits = 0, nr_bits = 0;
	size_t out = 0;

	for (size_t i = 0; i < len && text[i] != '='; i++) {
		int d = digit64(text[i]);

		if (text[i] == '\n' || text[i] == '\r')
			continue;
		if (d < 0)
			return -1;
		bits = bits << 6 | (unsigned)d;
		nr_bits += 6;
		if (nr_bits >= 8) {
			nr_bits -= 8;
			text[out++] = (char)(bits >> nr_bits);
			bits &= (1u << nr_bits) - 1;
		}
	}
	return (ssize_t)out;
}

static void save_figure(struct show *show, const json_t *png)
{
	size_t len = json_string_length(png);
	own_free char *bytes = malloc(len + 1);
	char path[PATHS_MAX];
	own_fd int fd = -1;
	ssize_t n;

	if (!bytes)
		return;
	memcpy(bytes, json_string_value(png), len);
	n = show_base64(bytes, len);
	if (n < 0) {
		cmd_note("a figure came damaged and is not saved");
		return;
	}
	if (paths_format(path, NULL, "%s/figure-%u.png", show->figures, show->nr_figures))
		return;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0) {
		cmd_note("%s: %s", path, strerror(errno));
		return;
	}
	cmd_write(fd, bytes, (size_t)n);
	cmd_note("figure saved: %s", path);
}

void show_display(void *ctx, json_t *display)
{
	struct show *show = ctx;
	const json_t *data = json_object_get(display, "data");
	const json_t *png = json_object_get(data, "image/png");
	const json_t *text = json_object_get(data, "text/plain");
	const char *kind = json_string_value(json_object_get(display, "kind"));
	bool is_result = kind && !strcmp(kind, "result");

	if (json_is_string(png)) {
		show->nr_figures++;
		if (show->figures)
			save_figure(show, png);
		if (!is_result)
			return; /* its text is only "<Figure size ...>" */
	}
	if (!json_is_string(text))
		return;
	if (show->mid_line)
		cmd_write(1, "\n", 1);
	if (is_result && show->prompt)
		cmd_write(1, show->prompt, strlen(show->prompt));
	cmd_write(1, json_string_value(text), json_string_length(text));
	cmd_write(1, "\n", 1);
	show->mid_line = false;
}

static void show_cut(const json_t *result, const char *stream)
{
	json_int_t n = json_integer_value(json_object_get(json_object_get(result, "cut"), stream));
	char size[32];

	if (n > 0)
		cmd_note("%s of %s were cut from the middle (--max-output allows more)",
		         cmd_bytes((uint64_t)n, size), stream);
}

void show_result(struct show *show, const struct cell_result *result)
{
	const json_t *error = json_object_get(result->result, "error");
	const json_t *traceback = json_object_get(error, "traceback");
	const char *name = json_string_value(json_object_get(error, "name"));
	const char *value = json_string_value(json_object_get(error, "value"));
	size_t len = json_string_length(traceback);

	if (show->mid_line && cmd_is_terminal(1))
		cmd_write(1, "\n", 1);
	show->mid_line = false;
	show_cut(result->result, "stdout");
	show_cut(result->result, "stderr");
	if (!json_is_object(error))
		return;
	if (len) {
		cmd_write(2, json_string_value(traceback), len);
		if (json_string_value(traceback)[len - 1] != '\n')
			cmd_write(2, "\n", 1);
	}
	if (!len || result->end != CELL_DONE)
		cmd_note("%s: %s", name ? name : "error", value ? value : "");
}

/* Bytes of the valid UTF-8 sequence at p, or 0. */
static size_t sequence(const uint8_t *p, size_t left)
{
	size_t n = *p < 0x80   ? 1
	           : *p < 0xc2 ? 0
	           : *p < 0xe0 ? 2
	           : *p < 0xf0 ? 3
	           : *p < 0xf5 ? 4
	                       : 0;

	if (!n || n > left)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) ||
	    (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

json_t *show_utf8(const uint8_t *data, size_t len)
{
	static const char replacement[3] = { '\xef', '\xbf', '\xbd' };
	own_free char *clean = malloc(3 * len + 1);
	size_t out = 0;

	if (!clean)
		return NULL;
	for (size_t i = 0; i < len;) {
		size_t n = sequence(data + i, len - i);

		if (n)
			memcpy(clean + out, data + i, n);
		else
			memcpy(clean + out, replacement, sizeof(replacement));
		out += n ? n : 3;
		i += n ? n : 1;
	}
	return json_stringn(clean, out);
}
