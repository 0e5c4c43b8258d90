/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The languages of cells. All but Python are run by an interpreter beside the guest's kernel: their cells are cells of
 * Python that hand theirs over (guest/python/thawbox_languages.py). Pure; any thread.
 */
#ifndef API_DAEMON_LANGUAGE_H
#define API_DAEMON_LANGUAGE_H

#include <jansson.h>
#include <stdbool.h>

/* One of ours: two that are the same are equal. */
struct language {
	const char *name; /* as answers have it, and the guest */
	const char *const *aliases;
};

/* Of a name or alias in any case; Python of NULL and "". NULL: there is no such language. */
const struct language *language_find(const char *name);

bool language_is_python(const struct language *language);

/* What the guest's kernel is given for a cell whose `code` is a JSON string: a new reference, or NULL without memory. */
json_t *language_cell(const struct language *language, json_t *code);

/* "python, bash ...": for messages. */
#define LANGUAGE_NAMES "python, bash, javascript and typescript"

#endif
