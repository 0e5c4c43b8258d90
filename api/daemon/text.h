/* SPDX-License-Identifier: Apache-2.0 */
/* Small translations between what HTTP clients write and what we hold. Pure; any thread. */
#ifndef API_DAEMON_TEXT_H
#define API_DAEMON_TEXT_H

#include "core/compiler.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Base64 with the standard alphabet, padded: the caller's string, or NULL. */
char *text_base64(const void *data, size_t len);

/* Hex digits, lower case: `out` has room for 2 * len + 1. */
void text_hex(const uint8_t *data, size_t len, char *out);

/* Undoes %XX in place; bytes are left as they are where it is none. Returns the new length. */
size_t text_percent_decode(char *text);

#define TEXT_TIME_MAX 40
/* "2026-01-01T00:00:00.123456Z" of microseconds since 1970. */
const char *text_time(int64_t us, char out[TEXT_TIME_MAX]);
/* The other way, also with an offset instead of Z and with fewer or more digits. False: it is no such time. */
bool text_parse_time(const char *text, int64_t *us);

/* A number in decimal and nothing else, at most `max`. */
bool text_number(const char *text, uint64_t max, uint64_t *out);

/* One line of JSON (taken) in ASCII with its newline, *len bytes without a NUL: the caller's, or NULL without memory. */
char *text_json_line(json_t *json, size_t *len);

/* A string member, or NULL. */
const char *text_member(const json_t *json, const char *name);

/* True when `json` is an object whose values are all strings (or NULL or null: there is none). */
bool text_is_string_map(const json_t *json);

/* ASCII without case: `text` is `word`. */
bool text_is(const char *text, const char *word);
/* The same for one of the words of a header that is a list with commas; NULL: there is none. */
bool text_list_has(const char *list, const char *word);

#endif
