/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to each request before its handler and after it: whose it is, what it is for, the log. */
#include "api/daemon/daemon.h"
#include "api/daemon/files.h"
#include "api/daemon/journal.h"
#include "api/daemon/port.h"
#include "api/daemon/rpc.h"
#include "api/daemon/text.h"
#include "api/show.h"

#include <errno.h>
#include <nettle/memops.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct daemon *daemon_of(struct request *req)
{
	return container_of(req->http, struct daemon, http);
}

void reply_error(struct request *req, unsigned status, const char *fmt, ...)
{
	char text[768];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	reply_json(req, status,
	           json_pack("{s:i, s:o}", "code", (int)status, "message",
	                     show_utf8((const uint8_t *)text, strlen(text))));
}

void reply_err(struct request *req, unsigned status, const struct err *err)
{
	reply_error(req, status, "%s%s%s", err->msg, *err->remedy ? "; " : "", err->remedy);
}

void reply_not_offered(struct request *req, const char *what)
{
	reply_error(req, 501, "thawbox does not offer %s yet: see docs/e2b.md", what);
}

json_t *request_json(struct request *req)
{
	json_t *json = req->body.len ? frame_json(req->body.p, req->body.len) : json_object();

	if (!json)
		reply_error(req, 400, "the body is not a JSON object");
	return json;
}

/* --- whose it is ----------------------------------------------------------------------------------- */

static bool is_equal(const char *a, const char *b)
{
	size_t n = strlen(a);

	return n == strlen(b) && memeql_sec(a, b, n);
}

static void deny(struct request *req, unsigned status, const char *message)
{
	daemon_of(req)->counters.denied++;
	reply_error(req, status, "%s", message);
}

static bool check_key(struct request *req)
{
	const struct keys *keys = &daemon_of(req)->keys;
	const char *text = request_header(req, "X-API-KEY");

	if (!text || !*text) {
		deny(req, 401,
		     "the header X-API-KEY is missing: set E2B_API_KEY (`thawbox key create` makes "
		     "keys; where the daemon has none, any will do)");
		return false;
	}
	if (!keys->nr)
		return true;
	req->key = keys_find(keys, text);
	if (!req->key)
		deny(req, 401,
		     "this API key is not known; `thawbox key list` shows the names of those that "
		     "are");
	return req->key;
}

/* What a request to a box must show. */
static bool check_token(struct request *req)
{
	const struct box *box = req->box;
	const char *token = request_header(req, "X-Access-Token");
	const char *traffic = request_header(req, "E2B-Traffic-Access-Token");
	bool is_open = req->route && req->route->flags & ROUTE_OPEN;

	if (req->port == PORT_ENVD && !is_open && *box->token &&
	    !(token && is_equal(token, box->token))) {
		deny(req, 401, "the header X-Access-Token is missing, or not this sandbox's");
		return false;
	}
	if (req->port != PORT_ENVD && *box->traffic_token &&
	    !(traffic && is_equal(traffic, box->traffic_token))) {
		deny(req, 403,
		     "the header E2B-Traffic-Access-Token is missing, or not this "
		     "sandbox's");
		return false;
	}
	return true;
}

/* --- what it is for -------------------------------------------------------------------------------- */

static void find_route(struct request *req, const struct route *table)
{
	char methods[ROUTE_METHODS_MAX];
	bool wrong_method;

	req->route = route_find(table, req->method, req->path, req->param, &wrong_method);
	if (!req->route && wrong_method) {
		route_methods(table, req->path, methods);
		reply_header(req, "Allow", methods);
	}
	if (!req->route)
		reply_error(req, wrong_method ? 405 : 404, "there is no %s %s here", req->method,
		            req->path);
}

static void reply_gone(struct request *req)
{
	reply_json(req, 502,
	           json_pack("{s:s, s:s, s:i}", "sandboxId", req->box_id, "message",
	                     "The sandbox was not found", "code", 502));
}

static void enter_box(struct request *req, struct box *box, unsigned port)
{
	req->box = box;
	req->port = port;
	list_append(&box->requests, &req->box_node);
}

static void begin_box(struct request *req, const struct target *target)
{
	struct box *box = box_find(daemon_of(req), target->id);

	(void)snprintf(req->box_id, sizeof(req->box_id), "%s", target->id);
	if (!box) {
		reply_gone(req);
		return;
	}
	enter_box(req, box, target->port);
	if (target->port == PORT_ENVD)
		find_route(req, envd_routes);
	else if (target->port == PORT_INTERPRETER)
		find_route(req, interpreter_routes);
	else
		req->route = &port_route;
	if (!req->status)
		(void)check_token(req); /* it is answered where that fails */
}

/* A signed URL carries no id: the signature fits the token of one box. */
static void begin_signed(struct request *req)
{
	struct box *box = files_find_signed(req);

	if (!box) /* answered */
		return;
	memcpy(req->box_id, box->id, sizeof(box->id));
	enter_box(req, box, PORT_ENVD);
	find_route(req, envd_routes);
}

static void begin_control(struct request *req)
{
	find_route(req, control_routes);
	if (req->status || req->route->flags & ROUTE_OPEN)
		return;
	(void)check_key(req); /* it is answered where that fails */
}

static void begin(struct request *req)
{
	struct target target;

	daemon_of(req)->counters.requests++;
	if (route_target(request_header(req, "E2b-Sandbox-Id"),
	                 request_header(req, "E2b-Sandbox-Port"), request_header(req, "Host"),
	                 &target))
		begin_box(req, &target);
	else if (!strcmp(req->path, "/files"))
		begin_signed(req);
	else
		begin_control(req);
	if (req->status)
		return;
	req->body_max = req->route->body_max ? req->route->body_max : ROUTE_BODY_MAX;
	if (req->route->flags & ROUTE_STREAMS)
		req->route->handle(req);
}

static void complete(struct request *req)
{
	if (req->route->flags & ROUTE_STREAMS)
		return; /* it knows */
	daemon_of(req)->counters.bytes_in += req->body.len;
	req->route->handle(req);
}

static void done(struct request *req)
{
	daemon_of(req)->counters.bytes_out += req->sent_bytes;
	journal_request(req);
}

/* Nobody knows whether it has happened: a client that can ask twice asks the next daemon. */
static void left(struct request *req)
{
	static const char words[] = "the daemon is being replaced: ask again; this request may or "
				    "may not have had its effect";

	if (req->route && rpc_is_call(req->route))
		rpc_fail(req, RPC_ABORTED, "%s", words);
	else
		reply_error(req, 503, "%s", words);
}

const struct http_handlers server_handlers = {
	.begin = begin, .complete = complete, .done = done, .left = left
};
