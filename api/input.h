/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is typed at a Python prompt, until it is complete: brackets and triple quotes closed, no
 * trailing backslash, and a block ended by an empty line. Pure but for memory; any thread.
 */
#ifndef API_INPUT_H
#define API_INPUT_H

#include "core/compiler.h"

#include <stdbool.h>
#include <stddef.h>

struct input {
	char *text; /* owned, NUL terminated once something was added */
	size_t len, cap;
};

/* Adds a line; a newline is put at its end where it has none. -ENOMEM. */
NODISCARD int input_add(struct input *in, const char *line);
/* Forgets what was typed; keeps the memory. */
void input_clear(struct input *in);

bool input_blank(const struct input *in);
bool input_complete(const struct input *in);

#endif
