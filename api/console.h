/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest's serial console, followed line by line: the phases that it tells ("thawbox: phase ..."),
 * and its last lines for the case that something fails. The guest is hostile: lines are cut. One
 * thread.
 */
#ifndef API_CONSOLE_H
#define API_CONSOLE_H

#include <stdbool.h>
#include <stddef.h>

#define CONSOLE_LINE 256
#define CONSOLE_KEPT 20

struct console {
	int fd;       /* owned; -1 once it has ended */
	bool verbose; /* everything goes to standard error */
	char line[CONSOLE_LINE];
	size_t len;
	char kept[CONSOLE_KEPT][CONSOLE_LINE];
	unsigned nr_kept; /* all lines so far; the last are kept */
};

/* Reads what is there. Calls `phase` for each one told. */
void console_read(struct console *c, void (*phase)(void *ctx, const char *text), void *ctx);
/* Takes bytes as if they had come from the guest. */
void console_feed(struct console *c, const char *data, size_t len,
                  void (*phase)(void *ctx, const char *text), void *ctx);
/* Prints the last lines to standard error, indented. */
void console_print_kept(const struct console *c);
void console_close(struct console *c);

#endif
