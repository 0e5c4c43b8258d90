/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon makes of JSON, beside what it should be. */
#ifndef TESTS_UNIT_API_DAEMON_SAME_JSON_H
#define TESTS_UNIT_API_DAEMON_SAME_JSON_H

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>

/* `got` is what `made_from` has become, and is the text `want`. Takes both over. */
static inline void expect_json(json_t *made_from, json_t *got, const char *want)
{
	json_t *wanted = json_loads(want, 0, NULL);
	char *text = json_dumps(got, JSON_SORT_KEYS);

	cr_assert(made_from && wanted);
	cr_expect(json_equal(got, wanted), "%s", text);
	free(text);
	json_decref(made_from);
	json_decref(wanted);
	json_decref(got);
}

#endif
