/* SPDX-License-Identifier: Apache-2.0 */
#include "api/console.h"

#include "api/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char phase_mark[] = "thawbox: phase ";

static void end_line(struct console *c, void (*phase)(void *ctx, const char *text), void *ctx)
{
	const char *mark;

	c->line[c->len] = '\0';
	c->len = 0;
	if (!c->line[0])
		return;
	memcpy(c->kept[c->nr_kept++ % CONSOLE_KEPT], c->line, sizeof(c->line));
	mark = strstr(c->line, phase_mark);
	if (mark)
		phase(ctx, mark + sizeof(phase_mark) - 1);
}

void console_feed(struct console *c, const char *data, size_t len,
                  void (*phase)(void *ctx, const char *text), void *ctx)
{
	for (size_t i = 0; i < len; i++) {
		if (data[i] == '\n')
			end_line(c, phase, ctx);
		else if (c->len < CONSOLE_LINE - 1 && data[i] != '\r')
			c->line[c->len++] = (char)((unsigned char)data[i] < 0x20 ? '?' : data[i]);
	}
}

void console_read(struct console *c, void (*phase)(void *ctx, const char *text), void *ctx)
{
	char buf[4096];
	ssize_t n = read(c->fd, buf, sizeof(buf));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		console_close(c);
		return;
	}
	if (c->verbose)
		cmd_write(2, buf, (size_t)n);
	console_feed(c, buf, (size_t)n, phase, ctx);
}

void console_print_kept(const struct console *c)
{
	unsigned nr = c->nr_kept < CONSOLE_KEPT ? c->nr_kept : CONSOLE_KEPT;

	if (!nr || c->verbose)
		return;
	fprintf(stderr, "  last lines of the guest's console:\n");
	for (unsigned i = c->nr_kept - nr; i != c->nr_kept; i++)
		fprintf(stderr, "  | %s\n", c->kept[i % CONSOLE_KEPT]);
}

void console_close(struct console *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}
