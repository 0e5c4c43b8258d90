/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_PER_SECOND 10

static struct {
	int fd;
	enum log_level level;
	const char *name;
} out = { .fd = STDERR_FILENO, .level = LOG_LVL_WARN, .name = "thawbox" };

void log_open(int fd, enum log_level level, const char *name)
{
	out.fd = fd;
	out.level = level;
	out.name = name;
}

int log_enabled(enum log_level level)
{
	return level <= out.level;
}

void log_at(enum log_level level, const char *fmt, ...)
{
	static const char *const word[] = { "error", "warning", "info", "debug" };
	char line[512];
	int saved = errno;
	va_list ap;
	int head, body;
	size_t len;

	if (!log_enabled(level))
		return;
	head = snprintf(line, sizeof(line), "%s: %s: ", out.name, word[level]);
	if (head < 0 || (size_t)head >= sizeof(line) - 1)
		return;
	va_start(ap, fmt);
	body = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, fmt, ap);
	va_end(ap);
	if (body < 0)
		return;
	len = (size_t)head + (size_t)body;
	if (len > sizeof(line) - 2)
		len = sizeof(line) - 2;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[len++] = '\n';
	if (write(out.fd, line, len) < 0) {
		/* nowhere to report it */
	}
	errno = saved;
}

int log_limit_ok(struct log_limit *limit)
{
	struct timespec now;
	uint64_t second;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	second = (uint64_t)now.tv_sec;
	if (atomic_exchange(&limit->second, second) != second)
		atomic_store(&limit->count, 0);
	return atomic_fetch_add(&limit->count, 1) < LIMIT_PER_SECOND;
}
