/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/rpc.h"

#include "api/daemon/daemon.h"
#include "api/daemon/text.h"
#include "api/show.h"
#include "core/own.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ENVELOPE_HEAD   5u
#define ENVELOPE_PACKED 1u
#define ENVELOPE_LAST   2u
#define KEEPALIVE_S     90u

static const struct {
	const char *name;
	unsigned status;
} codes[] = {
	[RPC_CANCELED] = { "canceled", 499 },
	[RPC_UNKNOWN] = { "unknown", 500 },
	[RPC_INVALID_ARGUMENT] = { "invalid_argument", 400 },
	[RPC_DEADLINE_EXCEEDED] = { "deadline_exceeded", 504 },
	[RPC_NOT_FOUND] = { "not_found", 404 },
	[RPC_ALREADY_EXISTS] = { "already_exists", 409 },
	[RPC_PERMISSION_DENIED] = { "permission_denied", 403 },
	[RPC_RESOURCE_EXHAUSTED] = { "resource_exhausted", 429 },
	[RPC_FAILED_PRECONDITION] = { "failed_precondition", 400 },
	[RPC_ABORTED] = { "aborted", 409 },
	[RPC_UNIMPLEMENTED] = { "unimplemented", 501 },
	[RPC_INTERNAL] = { "internal", 500 },
	[RPC_UNAVAILABLE] = { "unavailable", 503 },
	[RPC_UNAUTHENTICATED] = { "unauthenticated", 401 },
};

enum rpc_code rpc_code_of(const char *name)
{
	static const struct {
		const char *name;
		enum rpc_code code;
	} names[] = {
		{ "FileNotFoundError", RPC_NOT_FOUND },
		{ "FileExistsError", RPC_ALREADY_EXISTS },
		{ "PermissionError", RPC_PERMISSION_DENIED },
		{ "NotADirectoryError", RPC_INVALID_ARGUMENT },
		{ "IsADirectoryError", RPC_INVALID_ARGUMENT },
		{ "ValueError", RPC_INVALID_ARGUMENT },
		{ "KeyError", RPC_UNAUTHENTICATED },    /* an unknown user */
		{ "ProtocolError", RPC_UNIMPLEMENTED }, /* an agent of an older template */
	};

	for (size_t i = 0; name && i < ARRAY_LEN(names); i++)
		if (!strcmp(names[i].name, name))
			return names[i].code;
	return RPC_INTERNAL;
}

static json_t *error_json(enum rpc_code code, const char *fmt, va_list ap)
{
	char text[768];

	vsnprintf(text, sizeof(text), fmt, ap);
	return json_pack("{s:s, s:o}", "code", codes[code].name, "message",
	                 show_utf8((const uint8_t *)text, strlen(text)));
}

void rpc_reply(struct request *req, json_t *message)
{
	reply_json(req, 200, message);
}

void rpc_fail(struct request *req, enum rpc_code code, const char *fmt, ...)
{
	json_t *json;
	va_list ap;

	va_start(ap, fmt);
	json = error_json(code, fmt, ap);
	va_end(ap);
	reply_json(req, codes[code].status, json);
}

bool rpc_is_call(const struct route *route)
{
	return strchr(route->path, '.');
}

/* --- requests ------------------------------------------------------------------------------------------ */

/* "type/sub" of "type/sub; charset=x". */
static bool has_type(struct request *req, const char *type)
{
	const char *text = request_header(req, "Content-Type");
	size_t n = text ? strcspn(text, "; ") : 0;

	return n == strlen(type) && !strncasecmp(text, type, n);
}

bool rpc_is_stream(struct request *req)
{
	if (has_type(req, "application/connect+json"))
		return true;
	reply_error(req, 415, "this call streams: its content type is application/connect+json");
	return false;
}

int rpc_take_envelope(struct bytes *in, const void **data, size_t *len)
{
	for (;;) {
		size_t held = in->len - in->pos, n;
		const uint8_t *p;

		if (held < ENVELOPE_HEAD)
			return 0;
		p = in->p + in->pos; /* not before: there may be no buffer yet */
		n = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
		if (p[0] & ENVELOPE_PACKED || n > RPC_MESSAGE_MAX)
			return -EPROTO;
		if (held < ENVELOPE_HEAD + n)
			return 0;
		in->pos += ENVELOPE_HEAD + n;
		*data = p + ENVELOPE_HEAD;
		*len = n;
		if (!(p[0] & ENVELOPE_LAST))
			return 1;
	}
}

json_t *rpc_message(struct request *req)
{
	bool is_stream = has_type(req, "application/connect+json");
	const void *data = req->body.p;
	size_t len = req->body.len;
	json_t *message;

	if (!is_stream && !has_type(req, "application/json")) {
		reply_error(req, 415,
		            "the content type must be application/json or "
		            "application/connect+json: other codecs are not spoken here");
		return NULL;
	}
	if (is_stream && (rpc_take_envelope(&req->body, &data, &len) != 1 ||
	                  req->body.pos < req->body.len)) /* one message, and no more */
		len = 0;
	message = frame_json(data, len);
	if (!message && is_stream) {
		rpc_begin(req);
		rpc_end_fail(req, RPC_INVALID_ARGUMENT, "the body is no envelope with an object");
	} else if (!message) {
		rpc_fail(req, RPC_INVALID_ARGUMENT, "the body is no JSON object");
	}
	return message;
}

uint64_t rpc_timeout_ms(struct request *req)
{
	uint64_t ms;

	return text_number(request_header(req, "Connect-Timeout-Ms"), 9999999999, &ms) ? ms : 0;
}

unsigned rpc_keepalive_s(struct request *req)
{
	uint64_t s;

	return text_number(request_header(req, "Keepalive-Ping-Interval"), 3600, &s) && s
	               ? (unsigned)s
	               : KEEPALIVE_S;
}

bool rpc_user(struct request *req, char user[64])
{
	const char *text = request_header(req, "Authorization");
	own_free char *name = NULL;
	ssize_t n;

	memcpy(user, "user", sizeof("user"));
	if (!text)
		return true;
	name = strncasecmp(text, "Basic ", 6) ? NULL : strdup(text + 6);
	n = name ? show_base64(name, strlen(name)) : -1;
	if (n >= 0) {
		name[n] = '\0';
		name[strcspn(name, ":")] = '\0';
	}
	if (n < 0 || strlen(name) >= 64) {
		rpc_fail(req, RPC_UNAUTHENTICATED, "the header Authorization is no user's name");
		return false;
	}
	if (*name)
		memcpy(user, name, strlen(name) + 1);
	return true;
}

/* --- streams ------------------------------------------------------------------------------------------- */

void rpc_begin(struct request *req)
{
	reply_stream(req, 200, "application/connect+json");
}

static void send_envelope(struct request *req, uint8_t flags, json_t *message)
{
	own_free char *text = json_dumps(message, JSON_COMPACT);
	size_t n = text ? strlen(text) : 0;
	uint8_t head[ENVELOPE_HEAD] = { flags, (uint8_t)(n >> 24), (uint8_t)(n >> 16),
		                        (uint8_t)(n >> 8), (uint8_t)n };

	json_decref(message);
	if (!text) {
		request_abandon(req);
		return;
	}
	reply_write(req, head, sizeof(head));
	reply_write(req, text, n);
}

void rpc_send(struct request *req, json_t *message)
{
	send_envelope(req, 0, message);
}

void rpc_end(struct request *req)
{
	send_envelope(req, ENVELOPE_LAST, json_object());
	reply_end(req);
}

void rpc_end_fail(struct request *req, enum rpc_code code, const char *fmt, ...)
{
	json_t *json;
	va_list ap;

	va_start(ap, fmt);
	json = error_json(code, fmt, ap);
	va_end(ap);
	send_envelope(req, ENVELOPE_LAST, json_pack("{s:o}", "error", json));
	reply_end(req);
}
