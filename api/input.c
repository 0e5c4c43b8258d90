/* SPDX-License-Identifier: Apache-2.0 */
#include "api/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int input_add(struct input *in, const char *line)
{
	size_t n = strlen(line);
	bool add = !n || line[n - 1] != '\n';

	if (in->len + n + 2 > in->cap) {
		size_t cap = 2 * (in->len + n + 2);
		char *p = realloc(in->text, cap);

		if (!p)
			return -ENOMEM;
		in->text = p;
		in->cap = cap;
	}
	memcpy(in->text + in->len, line, n);
	in->len += n;
	if (add)
		in->text[in->len++] = '\n';
	in->text[in->len] = '\0';
	return 0;
}

void input_clear(struct input *in)
{
	in->len = 0;
	if (in->text)
		in->text[0] = '\0';
}

bool input_blank(const struct input *in)
{
	return !in->len || strspn(in->text, " \t\n") == in->len;
}

/* What a walk over the source leaves open. */
struct open {
	int brackets;
	bool triple;    /* inside a triple-quoted string */
	bool continued; /* the last line ends in a backslash */
	char last;      /* the last character that is neither blank nor comment */
};

static const char *skip_string(const char *p, struct open *open)
{
	char quote = *p;
	bool triple = p[1] == quote && p[2] == quote;

	for (p += triple ? 3 : 1; *p; p++) {
		if (*p == '\\' && p[1])
			p++;
		else if (!triple && (*p == quote || *p == '\n'))
			return *p == quote ? p + 1
			                   : p; /* an open one is Python's to complain about */
		else if (triple && *p == quote && p[1] == quote && p[2] == quote)
			return p + 3;
	}
	open->triple = triple;
	return p;
}

static struct open walk(const char *p)
{
	struct open open = { 0 };

	while (*p) {
		if (*p == '"' || *p == '\'') {
			p = skip_string(p, &open);
			open.last = '"';
			continue;
		}
		if (*p == '#') {
			p += strcspn(p, "\n");
			continue;
		}
		open.continued = *p == '\\' && p[1] == '\n' && !p[2];
		if (strchr("([{", *p))
			open.brackets++;
		else if (strchr(")]}", *p))
			open.brackets--;
		if (!strchr(" \t\n\\", *p))
			open.last = *p;
		p++;
		if (open.continued)
			break;
	}
	return open;
}

/* The last line is empty: how a block is ended. */
static bool ends_empty(const struct input *in)
{
	size_t end = in->len - 1; /* at the last newline */
	size_t start = end;

	while (start && in->text[start - 1] != '\n')
		start--;
	return strspn(in->text + start, " \t") == end - start;
}

/* Some line is indented, or opens a block: more of it may come. */
static bool is_block(const struct input *in, char last)
{
	return last == ':' || in->text[0] == '@' || strstr(in->text, "\n ") ||
	       strstr(in->text, "\n\t");
}

bool input_complete(const struct input *in)
{
	struct open open;

	if (input_blank(in))
		return true;
	if (in->text[0] == '%' &&
	    in->text[1] == '%') /* a cell magic takes all up to an empty line */
		return ends_empty(in);
	if (in->text[0] == '%' || in->text[0] == '!')
		return true;
	open = walk(in->text);
	if (open.triple || open.continued)
		return false;
	if (open.brackets > 0)
		return false;
	return !is_block(in, open.last) || ends_empty(in);
}
