/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cell says, on the terminal: output as it comes, results as a REPL prints them, figures into
 * files. One thread.
 */
#ifndef API_SHOW_H
#define API_SHOW_H

#include "api/cell.h"

#include <stdbool.h>

struct show {
	const char *figures; /* the folder for figure-N.png; NULL: figures are only counted */
	const char *prompt;  /* before a result: "Out[3]: ", or NULL */
	unsigned nr_figures;
	bool mid_line; /* standard output does not stand at the beginning of a line */
};

/* Members of a cell_sink whose ctx is a `struct show`. */
void show_output(void *ctx, enum frame_type type, const void *data, size_t len);
void show_display(void *ctx, json_t *display);

/* The traceback of a failed cell, and what was cut, on standard error. */
void show_result(struct show *show, const struct cell_result *result);

/* Guest bytes as a JSON string: what is not UTF-8 becomes U+FFFD. A new reference or NULL. */
json_t *show_utf8(const uint8_t *data, size_t len);

/* Decodes base64 (line breaks are skipped) in place; bytes, or -1 when it is not base64. */
ssize_t show_base64(char *text, size_t len);

#endif
