/* SPDX-License-Identifier: Apache-2.0 */
#include "api/console.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static char phases[256];

static void on_phase(void *ctx, const char *text)
{
	(void)ctx;
	strcat(phases, text);
	strcat(phases, "|");
}

static void feed(struct console *c, const char *text)
{
	console_feed(c, text, strlen(text), on_phase, NULL);
}

Test(console, phases_are_told_line_by_line)
{
	struct console c = { .fd = -1 };

	feed(&c, "[ 1.0] Linux\r\nthawbox: pha");
	cr_assert_str_eq(phases, "");
	feed(&c, "se import numpy\r\nthawbox: phase park\n\n");
	cr_assert_str_eq(phases, "import numpy|park|");
	cr_assert_eq(c.nr_kept, 3);
}

Test(console, long_and_binary_lines_are_cut_and_made_harmless)
{
	struct console c = { .fd = -1 };
	char line[4 * CONSOLE_LINE];

	memset(line, '\033', sizeof(line));
	console_feed(&c, line, sizeof(line), on_phase, NULL);
	feed(&c, "\n");
	cr_assert_eq(c.nr_kept, 1);
	cr_assert_eq(strlen(c.kept[0]), CONSOLE_LINE - 1);
	cr_assert_null(strchr(c.kept[0], '\033'));
}

Test(console, the_last_lines_are_kept)
{
	struct console c = { .fd = -1 };
	char line[16];

	for (int i = 0; i < 100; i++) {
		snprintf(line, sizeof(line), "%d\n", i);
		feed(&c, line);
	}
	cr_assert_str_eq(c.kept[99 % CONSOLE_KEPT], "99");
	cr_assert_str_eq(c.kept[80 % CONSOLE_KEPT], "80");
}
