/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdlib.h>
#include <string.h>

json_t *text_json(const char *text)
{
	json_t *json = json_string(text);
	char *copy;

	if (json)
		return json;
	copy = strdup(text);
	if (!copy)
		return NULL;
	for (char *p = copy; *p; p++) {
		if (*p & 0x80)
			*p = '?';
	}
	json = json_string(copy);
	free(copy);
	return json;
}
