/* SPDX-License-Identifier: Apache-2.0 */
#include "api/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int bad_value(const struct arg *arg, const char *value, const char *want, struct err *err)
{
	return err_set(err, -EINVAL, "--%s: '%s' is not %s", arg->name, value, want);
}

static int parse_number(const struct arg *arg, const char *value, struct err *err)
{
	char *end;

	errno = 0;
	*(uint64_t *)arg->to = strtoull(value, &end, 10);
	if (errno || *end || end == value || *value == '-')
		return bad_value(arg, value, "a whole number", err);
	return 0;
}

static int parse_bytes(const struct arg *arg, const char *value, struct err *err)
{
	static const char units[] = "KMGT";
	bool rate = arg->kind == ARG_RATE;
	const char *want =
		rate ? "a rate such as 500, 64K/s or 50M/s" : "a size such as 64K, 8M or 1G";
	unsigned shift = 0;
	uint64_t n;
	char *end;

	errno = 0;
	n = strtoull(value, &end, 10);
	if (errno || end == value || *value == '-')
		return bad_value(arg, value, want, err);
	if (*end && strchr(units, *end & ~0x20)) {
		shift = 10 * (unsigned)(strchr(units, *end & ~0x20) - units + 1);
		end++;
		if (*end == 'i')
			end++;
	}
	if (*end == 'B')
		end++;
	if (rate && end[0] == '/' && end[1] == 's')
		end += 2;
	if (*end || n > UINT64_MAX >> shift >> 1)
		return bad_value(arg, value, want, err);
	*(uint64_t *)arg->to = n << shift;
	return 0;
}

static int parse_seconds(const struct arg *arg, const char *value, struct err *err)
{
	double s, unit;
	char *end;

	errno = 0;
	s = strtod(value, &end);
	unit = !*end || !strcmp(end, "s") ? 1
	       : !strcmp(end, "ms")       ? 1e-3
	       : !strcmp(end, "m")        ? 60
	       : !strcmp(end, "h")        ? 3600
	       : !strcmp(end, "d")        ? 86400
	                                  : 0;
	if (errno || end == value || unit == 0 || !(s * unit > 0) || s * unit > 1e9)
		return bad_value(arg, value, "a time such as 30, 0.5, 500ms, 5m or 7d", err);
	*(uint64_t *)arg->to = (uint64_t)(s * unit * 1e9);
	return 0;
}

static int take_value(const struct arg *arg, const char *value, struct err *err)
{
	struct arg_list *list = arg->to;

	switch (arg->kind) {
	case ARG_FLAG:
		*(bool *)arg->to = true;
		return 0;
	case ARG_LEVEL:
		if (strcmp(value, "none") != 0 && strcmp(value, "vm") != 0 &&
		    strcmp(value, "user") != 0 && strcmp(value, "full") != 0)
			return err_set(err, -EINVAL, "--%s %s: want none, vm, user or full",
			               arg->name, value);
		*(const char **)arg->to = value;
		return 0;
	case ARG_TEXT:
		*(const char **)arg->to = value;
		return 0;
	case ARG_LIST:
		if (list->nr == ARRAY_LEN(list->at))
			return err_set(err, -EINVAL, "--%s: given more than %zu times", arg->name,
			               ARRAY_LEN(list->at));
		list->at[list->nr++] = value;
		return 0;
	case ARG_NUMBER:
		return parse_number(arg, value, err);
	case ARG_BYTES:
	case ARG_RATE:
		return parse_bytes(arg, value, err);
	case ARG_SECONDS:
		return parse_seconds(arg, value, err);
	}
	return -EINVAL;
}

static const struct arg *find_long(const struct arg *args, size_t nr, const char *name, size_t len)
{
	for (size_t i = 0; i < nr; i++)
		if (strlen(args[i].name) == len && !strncmp(args[i].name, name, len))
			return &args[i];
	return NULL;
}

static const struct arg *find_short(const struct arg *args, size_t nr, char letter)
{
	for (size_t i = 0; i < nr; i++)
		if (args[i].letter && args[i].letter == letter)
			return &args[i];
	return NULL;
}

/* One option at argv[i]: returns how many elements it took, or -errno. */
static int take_option(const struct arg *args, size_t nr, int argc, char **argv, int i,
                       struct err *err)
{
	const char *word = argv[i], *value = NULL;
	const struct arg *arg;
	int rc;

	if (word[1] == '-') {
		size_t len = strcspn(word + 2, "=");

		arg = find_long(args, nr, word + 2, len);
		if (word[2 + len] == '=')
			value = word + 2 + len + 1;
	} else {
		arg = find_short(args, nr, word[1]);
		if (word[2] && arg && arg->kind != ARG_FLAG)
			value = word + 2;
		else if (word[2])
			arg = NULL;
	}
	if (!arg)
		return err_set(err, -EINVAL, "unknown option %s", word);
	if (arg->kind == ARG_FLAG) {
		if (value)
			return err_set(err, -EINVAL, "--%s takes no value", arg->name);
		rc = take_value(arg, NULL, err);
		return rc ? rc : 1;
	}
	if (!value && i + 1 == argc)
		return err_set(err, -EINVAL, "--%s needs a value: --%s %s", arg->name, arg->name,
		               arg->value);
	rc = take_value(arg, value ? value : argv[i + 1], err);
	return rc ? rc : value ? 1 : 2;
}

int args_parse(const struct arg *args, size_t nr, int argc, char **argv, bool stop_at_operand,
               struct arg_rest *rest, struct err *err)
{
	int i = 1, out = 1;

	*rest = (struct arg_rest){ .at = argv + 1 };
	while (i < argc) {
		int n;

		if (!strcmp(argv[i], "--")) {
			rest->dashes = true;
			i++;
			break;
		}
		if (argv[i][0] != '-' || !argv[i][1]) {
			if (stop_at_operand)
				break;
			argv[out++] = argv[i++];
			continue;
		}
		n = take_option(args, nr, argc, argv, i, err);
		if (n < 0)
			return n;
		i += n;
	}
	while (i < argc)
		argv[out++] = argv[i++];
	rest->nr = out - 1;
	return 0;
}

void args_help(const struct arg *args, size_t nr, FILE *to)
{
	for (size_t i = 0; i < nr; i++) {
		char left[64];
		int n = snprintf(left, sizeof(left), "  %c%c%c --%s%s%s",
		                 args[i].letter ? '-' : ' ', args[i].letter ? args[i].letter : ' ',
		                 args[i].letter ? ',' : ' ', args[i].name, args[i].value ? " " : "",
		                 args[i].value ? args[i].value : "");

		if (!args[i].help)
			continue;
		fprintf(to, "%-30s %s\n", left, args[i].help);
		(void)n; /* a cut name would still be told by the parser's own message */
	}
}
