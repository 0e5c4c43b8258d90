/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

struct agent agent = { .user = "user", .passwd = "/etc/passwd", .group = "/etc/group" };

void say(const char *fmt, ...)
{
	char line[512];
	va_list ap;
	int n;

	/* One write: lines of several processes on a console must not mix. */
	n = snprintf(line, sizeof(line), "thawbox: ");
	va_start(ap, fmt);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	if (write(2, line, (size_t)n) < 0)
		return; /* no console: nobody to tell */
}
