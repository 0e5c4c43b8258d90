/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/language.h"

#include "api/daemon/text.h"
#include "core/own.h"

static const char *const python_aliases[] = { "python3", "py", NULL };
static const char *const bash_aliases[] = { "sh", "shell", NULL };
static const char *const javascript_aliases[] = { "js", "node", NULL };
static const char *const typescript_aliases[] = { "ts", NULL };

static const struct language languages[] = { { "python", python_aliases },
	                                     { "bash", bash_aliases },
	                                     { "javascript", javascript_aliases },
	                                     { "typescript", typescript_aliases } };

static bool has_name(const struct language *language, const char *name)
{
	if (text_is(name, language->name))
		return true;
	for (const char *const *alias = language->aliases; *alias; alias++)
		if (text_is(name, *alias))
			return true;
	return false;
}

const struct language *language_find(const char *name)
{
	if (!name || !*name)
		return &languages[0];
	for (size_t i = 0; i < sizeof(languages) / sizeof(languages[0]); i++)
		if (has_name(&languages[i], name))
			return &languages[i];
	return NULL;
}

bool language_is_python(const struct language *language)
{
	return language == &languages[0];
}

/* A JSON string that is not escaped to ASCII is a Python literal. */
json_t *language_cell(const struct language *language, json_t *code)
{
	own_free char *literal = NULL;

	if (language_is_python(language))
		return json_incref(code);
	literal = json_dumps(code, JSON_COMPACT | JSON_ENCODE_ANY);
	return literal ? json_sprintf("__import__('thawbox_languages').run('%s', %s)",
	                              language->name, literal)
	               : NULL;
}
