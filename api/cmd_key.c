/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox key: API keys of thawboxd. */
#include "api/cmd.h"
#include "api/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char create_help[] =
	"The key is printed once and kept as a hash alone. A daemon that runs takes it with its "
	"next "
	"SIGHUP.\n"
	"\n"
	"Examples:\n"
	"  thawbox key create alice\n"
	"  export E2B_API_KEY=$(thawbox key create ci --max-sandboxes 8 --rate 2)\n";

/* Where the keys are, and those that are there. An exit code; EXIT_OK: go on. */
static int open_keys(struct keys *keys, char path[PATHS_MAX], const char *given)
{
	struct err err = { 0 };
	int rc = given ? paths_format(path, &err, "%s", given) : keys_path(path, &err);

	rc = rc ? rc : keys_load(keys, path, &err);
	return rc ? cmd_fail(EXIT_CELL, &err) : EXIT_OK;
}

static int save(struct keys *keys, const char *path, struct err *err)
{
	char dir[PATHS_MAX], *slash;
	int rc = paths_format(dir, err, "%s", path);

	slash = strrchr(dir, '/');
	if (!rc && slash && slash != dir) {
		*slash = '\0';
		rc = paths_make_dirs(dir, err);
	}
	return rc ? rc : keys_save(keys, path, err);
}

static int create_main(int argc, char **argv)
{
	const char *given = NULL, *rate = NULL;
	uint64_t max_sandboxes = 0;
	const struct arg args[] = {
		{ "keys", 'k', ARG_TEXT, &given, "FILE",
		  "another file than keys.json beside the templates" },
		{ "max-sandboxes", 'm', ARG_NUMBER, &max_sandboxes, "N", "at a time (no limit)" },
		{ "rate", 'r', ARG_TEXT, &rate, "N", "creates a second (no limit)" },
	};
	struct arg_rest rest;
	struct key like = { 0 };
	char path[PATHS_MAX], text[KEY_MAX], *end = NULL;
	struct keys keys = { 0 };
	struct err err = { 0 };
	int code = cmd_parse(&cmd_key_create, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != 1 || !keys_name_ok(rest.at[0]))
		return cmd_usage(&cmd_key_create, "give one name of letters, digits, . _ -");
	like.max_sandboxes = max_sandboxes;
	like.rate = rate ? strtod(rate, &end) : 0;
	if (rate && (*end || !(like.rate > 0)))
		return cmd_usage(&cmd_key_create, "--rate is a number above zero");
	(void)snprintf(like.name, sizeof(like.name), "%s", rest.at[0]);
	code = open_keys(&keys, path, given);
	if (code)
		return code;
	if (keys_add(&keys, &like, text, &err) || save(&keys, path, &err))
		code = cmd_fail(EXIT_CELL, &err);
	else
		printf("%s\n", text);
	keys_free(&keys);
	return code;
}

static void print_key(const struct key *key)
{
	time_t created = (time_t)key->created;
	char when[32], most[24] = "no limit";
	struct tm tm;

	localtime_r(&created, &tm);
	if (!strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm))
		when[0] = '\0';
	if (key->max_sandboxes)
		(void)snprintf(most, sizeof(most), "%llu", (unsigned long long)key->max_sandboxes);
	printf("%-24s %s  sandboxes: %s", key->name, when, most);
	if (key->rate > 0)
		printf("  creates a second: %g", key->rate);
	printf("\n");
}

static int list_main(int argc, char **argv)
{
	const char *given = NULL;
	const struct arg args[] = { { "keys", 'k', ARG_TEXT, &given, "FILE", "another file" } };
	struct arg_rest rest;
	char path[PATHS_MAX];
	struct keys keys = { 0 };
	int code = cmd_parse(&cmd_key_list, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr)
		return cmd_usage(&cmd_key_list, "it takes no names");
	code = open_keys(&keys, path, given);
	if (code)
		return code;
	for (unsigned i = 0; i < keys.nr; i++)
		print_key(keys.at[i]);
	if (!keys.nr)
		cmd_note("no keys; make one: thawbox key create NAME");
	keys_free(&keys);
	return EXIT_OK;
}

static int remove_main(int argc, char **argv)
{
	const char *given = NULL;
	const struct arg args[] = { { "keys", 'k', ARG_TEXT, &given, "FILE", "another file" } };
	struct arg_rest rest;
	char path[PATHS_MAX];
	struct err err = { 0 };
	struct keys keys = { 0 };
	int code = cmd_parse(&cmd_key_remove, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != 1)
		return cmd_usage(&cmd_key_remove, "give one name");
	code = open_keys(&keys, path, given);
	if (code)
		return code;
	if (keys_remove(&keys, rest.at[0], &err) || save(&keys, path, &err))
		code = cmd_fail(EXIT_CELL, &err);
	else
		printf("key %s removed\n", rest.at[0]);
	keys_free(&keys);
	return code;
}

const struct cmd cmd_key_create = { "key create", "[options] NAME", "Make an API key for thawboxd.",
	                            create_help, create_main };
const struct cmd cmd_key_list = { "key list", "", "List the API keys, by name.",
	                          "Example:\n  thawbox key list\n", list_main };
const struct cmd cmd_key_remove = {
	"key remove", "NAME", "Remove an API key.",
	"A daemon that runs forgets it with its next SIGHUP. Sandboxes made with it go on.\n\n"
	"Example:\n  thawbox key remove alice\n",
	remove_main
};
