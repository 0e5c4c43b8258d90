/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *text_base64(const void *data, size_t len)
{
	const uint8_t *p = data;
	char *out = malloc((len + 2) / 3 * 4 + 1), *to = out;

	if (!out)
		return NULL;
	for (size_t i = 0; i < len; i += 3) {
		uint32_t bits = (uint32_t)p[i] << 16 | (i + 1 < len ? (uint32_t)p[i + 1] << 8 : 0) |
		                (i + 2 < len ? p[i + 2] : 0u);

		*to++ = digits[bits >> 18 & 63];
		*to++ = digits[bits >> 12 & 63];
		*to++ = digits[bits >> 6 & 63];
		*to++ = digits[bits & 63];
	}
	for (size_t pad = (3 - len % 3) % 3; pad; pad--)
		to[-(ptrdiff_t)pad] = '=';
	*to = '\0';
	return out;
}

void text_hex(const uint8_t *data, size_t len, char *out)
{
	for (size_t i = 0; i < len; i++) {
		out[2 * i] = "0123456789abcdef"[data[i] >> 4];
		out[2 * i + 1] = "0123456789abcdef"[data[i] & 15];
	}
	out[2 * len] = '\0';
}

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

size_t text_percent_decode(char *text)
{
	char *to = text;

	for (const char *p = text; *p; p++) {
		int high = *p == '%' ? hex_value(p[1]) : -1;
		int low = high >= 0 ? hex_value(p[2]) : -1;

		if (low >= 0 && (high | low)) { /* a NUL stays as it was written */
			*to++ = (char)(high << 4 | low);
			p += 2;
		} else {
			*to++ = *p;
		}
	}
	*to = '\0';
	return (size_t)(to - text);
}

const char *text_time(int64_t us, char out[TEXT_TIME_MAX])
{
	time_t t = (time_t)(us / 1000000);
	struct tm tm;
	char date[24];

	gmtime_r(&t, &tm);
	if (!strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm))
		date[0] = '\0';
	(void)snprintf(out, TEXT_TIME_MAX, "%s.%06dZ", date, (int)(us % 1000000));
	return out;
}

/* ".123" as microseconds; *end is what follows. */
static int64_t parse_fraction(const char *p, const char **end)
{
	int64_t us = 0, scale = 100000;

	for (p++; isdigit((unsigned char)*p); p++) {
		us += scale * (*p - '0');
		scale /= 10;
	}
	*end = p;
	return us;
}

/* "Z" or "+hh:mm" in seconds east; false: neither. */
static bool parse_zone(const char *p, int64_t *seconds)
{
	int hours, minutes, n = 0;

	*seconds = 0;
	if (!strcmp(p, "Z") || !strcmp(p, "z"))
		return true;
	/* A "+" in a query that was not escaped arrives as a space. */
	if ((*p != '+' && *p != '-' && *p != ' ') ||
	    sscanf(p + 1, "%2d:%2d%n", &hours, &minutes, &n) != 2 || p[1 + n] != '\0')
		return false;
	*seconds = (*p == '-' ? -60 : 60) * (int64_t)(60 * hours + minutes);
	return true;
}

bool text_parse_time(const char *text, int64_t *us)
{
	struct tm tm = { 0 };
	const char *p = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	int64_t fraction = 0, east;

	if (p && *p == '.')
		fraction = parse_fraction(p, &p);
	if (!p || !parse_zone(p, &east))
		return false;
	*us = ((int64_t)timegm(&tm) - east) * 1000000 + fraction;
	return true;
}

bool text_number(const char *text, uint64_t max, uint64_t *out)
{
	char *end;

	if (!text || !isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && !*end && *out <= max;
}

char *text_json_line(json_t *json, size_t *len)
{
	char *text = json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII);

	json_decref(json);
	*len = text ? strlen(text) + 1 : 0;
	if (text)
		text[*len - 1] = '\n'; /* in the place of the NUL */
	return text;
}

const char *text_member(const json_t *json, const char *name)
{
	return json_string_value(json_object_get(json, name));
}

bool text_is_string_map(const json_t *json)
{
	const char *name;
	json_t *value;

	if (!json || json_is_null(json))
		return true;
	if (!json_is_object(json))
		return false;
	json_object_foreach((json_t *)(uintptr_t)json, name, value)
	{
		if (!json_is_string(value))
			return false;
	}
	return true;
}

bool text_is(const char *text, const char *word)
{
	return text && strcasecmp(text, word) == 0;
}

bool text_list_has(const char *list, const char *word)
{
	size_t n = strlen(word);

	while (list && *list) {
		size_t len;

		list += strspn(list, " \t,");
		len = strcspn(list, " \t,");
		if (len == n && !strncasecmp(list, word, n))
			return true;
		list += len;
	}
	return false;
}
