/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/journal.h"

#include "api/daemon/daemon.h"
#include "api/daemon/text.h"
#include "api/show.h"
#include "core/own.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int to_fd = STDERR_FILENO;
static bool is_json, is_quiet;

static const char *const names[] = { "error", "warn", "info", "debug" };

void journal_open(int fd, bool json, bool quiet)
{
	to_fd = fd;
	is_json = json;
	is_quiet = quiet;
}

static void write_line(const char *line, size_t len)
{
	ssize_t n = write(to_fd, line, len);

	(void)n; /* there is nobody to tell */
}

/* Takes `line`. */
static void write_json(json_t *line)
{
	size_t len;
	own_free char *text = text_json_line(line, &len);

	if (text)
		write_line(text, len);
}

/* A line of text; control characters, which a client may have put into a path, become "?". */
static void write_text(enum log_level level, const char *box, const char *text)
{
	char line[1024], when[TEXT_TIME_MAX];
	int n = snprintf(line, sizeof(line) - 1, "%s %-5s %s%s%s", text_time(clock_us(), when),
	                 names[level], box && *box ? box : "", box && *box ? ": " : "", text);
	size_t len = n < 0 ? 0 : (size_t)n < sizeof(line) - 2 ? (size_t)n : sizeof(line) - 2;

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[len] = '\n';
	write_line(line, len + 1);
}

void journal_event(enum log_level level, const char *box, const char *fmt, ...)
{
	char text[640], when[TEXT_TIME_MAX];
	va_list ap;

	if (is_quiet && level > LOG_LVL_WARN)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (is_json)
		write_json(json_pack("{s:s, s:s, s:s*, s:o}", "time", text_time(clock_us(), when),
		                     "level", names[level], "sandbox", box, "message",
		                     show_utf8((const uint8_t *)text, strlen(text))));
	else
		write_text(level, box, text);
}

void journal_request(const struct request *req)
{
	double ms = (double)(clock_ns() - req->start_ns) / 1e6;
	const struct key *key = req->key;
	char text[640], when[TEXT_TIME_MAX];

	if (is_quiet)
		return;
	if (is_json) {
		write_json(json_pack("{s:s, s:s, s:I, s:s, s:o, s:i, s:b, s:f, s:s*, s:s*}", "time",
		                     text_time(clock_us(), when), "level", "info", "request",
		                     (json_int_t)req->number, "method", req->method, "path",
		                     show_utf8((const uint8_t *)req->path, strlen(req->path)),
		                     "status", (int)req->status, "cut", req->is_cut, "ms", ms,
		                     "sandbox", *req->box_id ? req->box_id : NULL, "key",
		                     key ? key->name : NULL));
		return;
	}
	(void)snprintf(text, sizeof(text), "#%llu %s %.300s -> %u%s in %.1f ms",
	               (unsigned long long)req->number, req->method, req->path, req->status,
	               req->is_cut ? ", cut" : "", ms);
	write_text(LOG_LVL_INFO, req->box_id, text);
}
