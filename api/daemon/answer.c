/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/answer.h"

#include "api/daemon/text.h"

#include <errno.h>
#include <string.h>

#define CHUNK_LINE_MAX 1024u /* of a chunk's size and what may stand behind it */

void answer_free(struct answer *a)
{
	bytes_free(&a->head);
}

bool answer_is_hop(const char *name)
{
	static const char *const names[] = {
		"Connection",
		"Keep-Alive",
		"Proxy-Connection",
		"Proxy-Authenticate",
		"Proxy-Authorization",
		"TE",
		"Trailer",
		"Transfer-Encoding",
		"Upgrade",
		"Content-Length",
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (text_is(name, names[i]))
			return true;
	return false;
}

const char *answer_next(const struct answer *a, const char *name, unsigned *at)
{
	while (*at < a->nr_headers) {
		const struct answer_header *h = &a->header[(*at)++];

		if (text_is(h->name, name))
			return h->value;
	}
	return NULL;
}

/* --- the head ------------------------------------------------------------------------------------------ */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* "HTTP/1.1 200 OK" */
static int parse_status(struct answer *a, const char *line)
{
	if (strncmp(line, "HTTP/1.", 7) != 0 || !is_digit(line[7]) || line[8] != ' ' ||
	    line[9] < '1' || line[9] > '9' || !is_digit(line[10]) || !is_digit(line[11]) ||
	    (line[12] && line[12] != ' '))
		return -EPROTO;
	a->status = (unsigned)(100 * (line[9] - '0') + 10 * (line[10] - '0') + line[11] - '0');
	return 0;
}

static bool is_token(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] == 0x7f || strchr("\"(),/:;<=>?@[\\]{}", text[i]))
			return false;
	return len;
}

static int parse_header(struct answer *a, char *line)
{
	char *colon = strchr(line, ':'), *value, *end;

	if (!colon || !is_token(line, (size_t)(colon - line)) ||
	    a->nr_headers == ANSWER_HEADERS_MAX)
		return -EPROTO;
	*colon = '\0';
	value = colon + 1;
	value += strspn(value, " \t");
	end = value + strlen(value);
	while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
		*--end = '\0';
	for (char *p = value; *p; p++) {
		if (*p == '\t')
			*p = ' ';
		else if ((unsigned char)*p < ' ' || *p == 0x7f)
			return -EPROTO;
	}
	a->header[a->nr_headers++] = (struct answer_header){ line, value };
	return 0;
}

static int parse_length(struct answer *a)
{
	const char *value;
	unsigned at = 0;

	while ((value = answer_next(a, "Content-Length", &at))) {
		uint64_t n;

		if (!text_number(value, INT64_MAX, &n) || (a->has_length && n != a->length))
			return -EPROTO;
		a->length = n;
		a->has_length = true;
	}
	return 0;
}

/* How the body ends: RFC 9112, 6.3. */
static int choose_stage(struct answer *a)
{
	unsigned at = 0;
	const char *coding = answer_next(a, "Transfer-Encoding", &at);

	if (coding && (!text_is(coding, "chunked") || answer_next(a, "Transfer-Encoding", &at)))
		return -EPROTO;
	if (!coding && parse_length(a))
		return -EPROTO;
	a->left = a->length;
	if (a->is_to_head || a->status == 204 || a->status == 304)
		a->stage = ANSWER_DONE;
	else if (a->status == 101 || (!coding && !a->has_length))
		a->stage = ANSWER_REST;
	else if (coding)
		a->stage = ANSWER_CHUNK_SIZE;
	else
		a->stage = a->left ? ANSWER_LENGTH : ANSWER_DONE;
	return 0;
}

/* The whole head is there, with the empty line and a NUL: cut into strings. */
static int parse_head(struct answer *a)
{
	char *text = (char *)a->head.p, *line = text, *end;
	int rc = 0;

	if (strlen(text) != a->head.len - 1)
		return -EPROTO;
	for (; !rc && (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		if (end > line && end[-1] == '\r')
			end[-1] = '\0';
		if (line == text)
			rc = parse_status(a, line);
		else if (*line)
			rc = parse_header(a, line);
	}
	return rc;
}

static int end_head(struct answer *a)
{
	int rc = bytes_append(&a->head, "", 1);

	rc = rc ? rc : parse_head(a);
	if (rc)
		return rc;
	if (a->status >= 200 || (a->status == 101 && a->may_upgrade))
		return choose_stage(a);
	if (a->status == 101 || ++a->nr_interim > ANSWER_INTERIM_MAX)
		return -EPROTO;
	a->head.len = 0; /* an interim answer: the next one counts */
	a->nr_headers = 0;
	return 0;
}

static ssize_t take_head(struct answer *a, const uint8_t *data, size_t len)
{
	size_t n = 0;
	bool is_end = false;
	int rc;

	while (n < len && !is_end) {
		uint8_t c = data[n++];

		is_end = c == '\n' && !a->line_len && a->head.len + n > 2;
		if (c == '\n')
			a->line_len = 0;
		else if (c != '\r')
			a->line_len++;
	}
	if (a->head.len + n > ANSWER_HEAD_MAX)
		return -EPROTO;
	rc = bytes_append(&a->head, data, n);
	if (!rc && is_end)
		rc = end_head(a);
	return rc ? rc : (ssize_t)n;
}

/* --- chunks -------------------------------------------------------------------------------------------- */

static int hex_value(uint8_t c)
{
	if (is_digit((char)c))
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte of a chunk's size line. */
static int take_size(struct answer *a, uint8_t c)
{
	int value = hex_value(c);

	if (++a->tail_len > CHUNK_LINE_MAX)
		return -EPROTO;
	if (c == '\n') {
		if (!a->line_len)
			return -EPROTO;
		a->stage = a->left ? ANSWER_CHUNK_DATA : ANSWER_TRAILER;
		a->line_len = a->tail_len = 0;
	} else if (value >= 0 && a->line_len == a->tail_len - 1) { /* nothing else so far */
		if (a->left >> 56)
			return -EPROTO;
		a->left = a->left << 4 | (uint64_t)value;
		a->line_len++;
	} else if (!a->line_len || (c != '\r' && c != ';' && c != ' ' && c != '\t' &&
	                            a->line_len == a->tail_len - 1)) {
		return -EPROTO;
	}
	return 0;
}

static int take_chunk_end(struct answer *a, uint8_t c)
{
	if (c == '\n') {
		a->stage = ANSWER_CHUNK_SIZE;
		a->left = a->line_len = a->tail_len = 0;
		return 0;
	}
	return c == '\r' && !a->line_len++ ? 0 : -EPROTO;
}

/* Headers behind the body are for nobody. */
static int take_trailer(struct answer *a, uint8_t c)
{
	if (++a->tail_len > ANSWER_HEAD_MAX)
		return -EPROTO;
	if (c == '\n' && !a->line_len)
		a->stage = ANSWER_DONE;
	else if (c == '\n')
		a->line_len = 0;
	else if (c != '\r')
		a->line_len++;
	return 0;
}

/* --- the body ------------------------------------------------------------------------------------------ */

static ssize_t take_body(struct answer *a, const uint8_t *data, size_t len, const uint8_t **body,
                         size_t *body_len)
{
	size_t n = a->stage == ANSWER_REST || len < a->left ? len : (size_t)a->left;

	*body = data;
	*body_len = n;
	if (a->stage == ANSWER_REST)
		return (ssize_t)n;
	a->left -= n;
	if (!a->left)
		a->stage = a->stage == ANSWER_LENGTH ? ANSWER_DONE : ANSWER_CHUNK_END;
	return (ssize_t)n;
}

static ssize_t take_lines(struct answer *a, const uint8_t *data, size_t len)
{
	size_t n = 0;
	int rc = 0;

	while (!rc && n < len && a->stage != ANSWER_CHUNK_DATA && a->stage != ANSWER_DONE) {
		uint8_t c = data[n++];

		rc = a->stage == ANSWER_CHUNK_SIZE  ? take_size(a, c)
		     : a->stage == ANSWER_CHUNK_END ? take_chunk_end(a, c)
		                                    : take_trailer(a, c);
	}
	return rc ? rc : (ssize_t)n;
}

ssize_t answer_feed(struct answer *a, const uint8_t *data, size_t len, const uint8_t **body,
                    size_t *body_len)
{
	*body_len = 0;
	switch (a->stage) {
	case ANSWER_HEAD:
		return take_head(a, data, len);
	case ANSWER_LENGTH:
	case ANSWER_CHUNK_DATA:
	case ANSWER_REST:
		return take_body(a, data, len, body, body_len);
	case ANSWER_CHUNK_SIZE:
	case ANSWER_CHUNK_END:
	case ANSWER_TRAILER:
		return take_lines(a, data, len);
	case ANSWER_DONE:
	default:
		return (ssize_t)len;
	}
}

int answer_end(struct answer *a)
{
	if (a->stage == ANSWER_REST && a->status != 101)
		a->stage = ANSWER_DONE;
	return a->stage == ANSWER_DONE ? 0 : -EPROTO;
}
