/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/port.h"

#include "api/daemon/answer.h"
#include "api/daemon/daemon.h"
#include "api/daemon/text.h"
#include "api/daemon/tunnel.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct visit {
	struct request *req;
	struct box *box;
	struct guest_stream stream;
	struct answer answer;
	struct bytes head;  /* of the request, while it is made */
	struct bytes early; /* of the answer, before it may begin */
	bool is_chunked;    /* so the request's body comes, and goes on */
	bool is_answering;
	struct tunnel tunnel; /* after an upgrade */
};

static void visit_free(struct visit *v)
{
	v->req->ctx = NULL;
	v->box->nr_ports--;
	tunnel_close(&v->tunnel);
	guest_close(&v->stream);
	answer_free(&v->answer);
	bytes_free(&v->head);
	bytes_free(&v->early);
	free(v);
}

/* --- what goes wrong ----------------------------------------------------------------------------------- */

/* There is no answer: one of ours. What of the request still comes is for nobody. */
static void refuse(struct visit *v, const char *message)
{
	struct request *req = v->req;
	unsigned port = req->port;

	visit_free(v);
	reply_json(req, 502,
	           json_pack("{s:s, s:s, s:i, s:i}", "sandboxId", req->box_id, "message", message,
	                     "port", (int)port, "code", 502));
	request_resume(req);
}

/* The server, or the guest, has broken off. */
static void fail(struct visit *v, const char *message)
{
	struct request *req = v->req;

	if (!v->is_answering) {
		refuse(v, message);
		return;
	}
	visit_free(v);
	request_cut(req);
}

/* --- the answer ---------------------------------------------------------------------------------------- */

/* The names in the server's Connection headers are between it and us as well. */
static bool is_named_hop(const struct answer *a, const char *name)
{
	const char *list;
	unsigned at = 0;

	while ((list = answer_next(a, "Connection", &at)))
		if (text_list_has(list, name))
			return true;
	return false;
}

static void pass_headers(struct visit *v)
{
	const struct answer *a = &v->answer;

	for (unsigned i = 0; i < a->nr_headers; i++) {
		const struct answer_header *h = &a->header[i];

		if (!answer_is_hop(h->name) && !is_named_hop(a, h->name) && *h->value)
			reply_header(v->req, h->name, h->value);
	}
}

/* The size of the body as the client is told it. */
static uint64_t body_size(const struct answer *a)
{
	if (a->status == 204 || a->status == 304)
		return 0;
	return a->has_length ? a->length : MHD_SIZE_UNKNOWN;
}

static void begin_answer(struct visit *v)
{
	struct request *req = v->req;
	const char *upgrade;
	unsigned at = 0;

	v->is_answering = true;
	pass_headers(v);
	if (v->answer.status == 101) {
		upgrade = answer_next(&v->answer, "Upgrade", &at);
		reply_header(req, "Upgrade", upgrade ? upgrade : "");
		guest_pause(&v->stream); /* until the client has read the head */
		reply_upgrade(req);
		return;
	}
	reply_body(req, v->answer.status, body_size(&v->answer));
	reply_write(req, v->early.p, v->early.len);
	bytes_free(&v->early);
}

static void finish(struct visit *v)
{
	struct request *req = v->req;

	visit_free(v);
	reply_end(req);
	request_resume(req); /* it may have answered before it read all */
}

/* 0, -EPROTO or -ENOMEM. */
static int take_answer(struct visit *v, const uint8_t *data, size_t len)
{
	struct request *req = v->req;

	while (len && v->answer.stage != ANSWER_DONE) {
		const uint8_t *body;
		size_t body_len;
		ssize_t n = answer_feed(&v->answer, data, len, &body, &body_len);

		if (n < 0)
			return (int)n;
		if (v->is_answering)
			reply_write(req, body, body_len);
		else if (body_len && bytes_append(&v->early, body, body_len))
			return -ENOMEM;
		if (!req->ctx) /* no memory: it was given up, and `v` with it */
			return 0;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* After anything that the server said: begins the answer, ends it, or makes the server wait. */
static void go_on(struct visit *v)
{
	struct request *req = v->req;
	bool is_done = v->answer.stage == ANSWER_DONE;

	if (!answer_has_head(&v->answer))
		return;
	if (!v->is_answering && (req->is_complete || is_done))
		begin_answer(v);
	if (req->is_cut) { /* no memory */
		if (req->ctx)
			visit_free(v);
		return;
	}
	if (is_done)
		finish(v);
	else if (v->is_answering ? !reply_has_room(req) : v->early.len >= REPLY_QUEUE_BYTES)
		guest_pause(&v->stream);
}

static void on_frame_data(struct visit *v, const struct frame *frame)
{
	struct request *req = v->req;
	int rc;

	if (v->tunnel.loop) {
		if (!tunnel_from_guest(&v->tunnel, frame->data, frame->len))
			v->tunnel.over(&v->tunnel);
		return;
	}
	rc = take_answer(v, frame->data, frame->len);
	if (!req->ctx)
		return;
	if (rc)
		fail(v, "What the server on the port says is not HTTP/1.1");
	else
		go_on(v);
}

/* The server has closed its half. */
static void on_frame_end(struct visit *v)
{
	if (v->tunnel.loop) {
		if (!tunnel_guest_ended(&v->tunnel))
			v->tunnel.over(&v->tunnel);
	} else if (answer_end(&v->answer)) {
		fail(v, "The server on the port closed the connection before it had answered");
	} else {
		go_on(v);
	}
}

static void on_result(struct visit *v, const struct frame *frame)
{
	json_t *result = frame_json(frame->data, frame->len);
	const char *name = text_member(json_object_get(result, "error"), "name");
	struct request *req = v->req;

	if (name && !strcmp(name, "ProtocolError") && !v->is_answering) {
		visit_free(v);
		reply_not_offered(req,
		                  "the ports of sandboxes from a template of an older version");
		request_resume(req);
	} else if (name && !strcmp(name, "ConnectionRefusedError")) {
		fail(v, "The sandbox is running but port is not open");
	} else if (name && !strcmp(name, "TimeoutError")) {
		fail(v, "The server on the port does not accept connections");
	} else if (v->tunnel.loop && v->tunnel.guest_ended) {
		guest_close(&v->stream); /* what is on its way to the client still gets there */
	} else if (v->tunnel.loop) {
		v->tunnel.over(&v->tunnel);
	} else {
		fail(v, "The server on the port closed the connection before it had answered");
	}
	json_decref(result);
}

static void on_frame(struct guest_stream *s, const struct frame *frame)
{
	struct visit *v = container_of(s, struct visit, stream);

	if (frame->type == FRAME_DATA)
		on_frame_data(v, frame);
	else if (frame->type == FRAME_END)
		on_frame_end(v);
	else if (frame->type == FRAME_RESULT)
		on_result(v, frame);
}

/* The machine is gone, or the guest broke the protocol. */
static void on_closed(struct guest_stream *s, const struct err *why)
{
	struct visit *v = container_of(s, struct visit, stream);
	struct request *req = v->req;

	(void)why;
	visit_free(v);
	request_cut(req);
}

static void on_guest_drained(struct guest_stream *s)
{
	struct visit *v = container_of(s, struct visit, stream);

	if (v->tunnel.loop)
		tunnel_guest_drained(&v->tunnel);
	else
		request_resume(v->req);
}

static const struct guest_ops guest_ops = { .frame = on_frame,
	                                    .closed = on_closed,
	                                    .drained = on_guest_drained };

/* --- the request --------------------------------------------------------------------------------------- */

static void on_data(struct request *req, const void *data, size_t len)
{
	struct visit *v = req->ctx;
	char size[24];

	daemon_of(req)->counters.bytes_in += len;
	if (v->is_chunked) {
		int n = snprintf(size, sizeof(size), "%zx\r\n", len);

		guest_send(&v->stream, FRAME_DATA, size, (size_t)n);
	}
	guest_send(&v->stream, FRAME_DATA, data, len);
	if (v->is_chunked)
		guest_send(&v->stream, FRAME_DATA, "\r\n", 2);
	if (!guest_has_room(&v->stream))
		request_hold(req);
}

static void on_complete(struct request *req)
{
	struct visit *v = req->ctx;

	if (v->is_chunked)
		guest_send(&v->stream, FRAME_DATA, "0\r\n\r\n", 5);
	go_on(v); /* it may have answered already */
	if (!req->is_cut && req->ctx)
		guest_resume(&v->stream);
}

static void on_client_drained(struct request *req)
{
	guest_resume(&((struct visit *)req->ctx)->stream);
}

static void on_gone(struct request *req)
{
	visit_free(req->ctx);
}

/* A stream of bytes has no last word; that of a WebSocket has. */
static void on_leaving(struct request *req)
{
	struct visit *v = req->ctx;

	if (v->tunnel.loop)
		tunnel_leave(&v->tunnel);
}

static void on_tunnel_over(struct tunnel *t)
{
	struct visit *v = container_of(t, struct visit, tunnel);
	struct request *req = v->req;

	daemon_of(req)->counters.bytes_in += t->bytes_in;
	req->sent_bytes += t->bytes_out;
	visit_free(v);
	request_cut(req);
}

static void on_upgraded(struct request *req, int fd, const void *extra, size_t len)
{
	struct visit *v = req->ctx;
	bool is_over;

	tunnel_open(&v->tunnel, &daemon_of(req)->loop, &v->stream, fd, on_tunnel_over);
	v->tunnel.is_websocket = text_is(request_header(req, "Upgrade"), "websocket");
	if (len)
		tunnel_from_client(&v->tunnel, extra, len);
	is_over = v->early.len && !tunnel_from_guest(&v->tunnel, v->early.p, v->early.len);
	bytes_free(&v->early);
	if (is_over)
		on_tunnel_over(&v->tunnel);
	else
		guest_resume(&v->stream);
}

static const struct request_ops visit_ops = { .data = on_data,
	                                      .complete = on_complete,
	                                      .drained = on_client_drained,
	                                      .upgraded = on_upgraded,
	                                      .leaving = on_leaving,
	                                      .gone = on_gone };

/* --- its head ------------------------------------------------------------------------------------------ */

/* What is meant for the daemon, or is a secret of it or of its users, is not for the code in the guest. */
static bool is_private(struct request *req, const char *name, const char *value)
{
	static const char *const names[] = { "E2b-Sandbox-Id", "E2b-Sandbox-Port",
		                             "E2B-Traffic-Access-Token" };
	const struct keys *keys = &daemon_of(req)->keys;

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (text_is(name, names[i]))
			return true;
	if (text_is(name, "X-API-KEY")) /* an app of the guest's may have one of its own */
		return !strncmp(value, "e2b_", 4) || (keys->nr && keys_find(keys, value));
	return text_is(name, "X-Access-Token") && !strcmp(value, req->box->token);
}

static bool is_text(const char *text)
{
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' && *p != '\t')
			return false;
	return true;
}

static int append(struct bytes *out, const char *a, const char *b, const char *c)
{
	const char *parts[] = { a, b, c };
	int rc = 0;

	for (size_t i = 0; !rc && i < ARRAY_LEN(parts); i++)
		rc = bytes_append(out, parts[i], strlen(parts[i]));
	return rc;
}

/* MHD_KeyValueIterator. */
static enum MHD_Result add_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
	struct visit *v = cls;
	const char *connection = request_header(v->req, "Connection");

	(void)kind;
	value = value ? value : "";
	if (answer_is_hop(name) || text_is(name, "Expect") || is_private(v->req, name, value) ||
	    text_list_has(connection, name) || !is_text(name) || !is_text(value))
		return MHD_YES;
	return append(&v->head, name, ": ", value) || append(&v->head, "\r\n", "", "") ? MHD_NO
	                                                                               : MHD_YES;
}

/* How the body will come is what MHD goes by itself. */
static int add_framing(struct visit *v)
{
	const char *length = request_header(v->req, "Content-Length");
	uint64_t n;

	v->is_chunked = request_header(v->req, "Transfer-Encoding") != NULL;
	if (v->is_chunked)
		return append(&v->head, "Transfer-Encoding: chunked\r\n", "", "");
	if (length && text_number(length, UINT64_MAX, &n))
		return append(&v->head, "Content-Length: ", length, "\r\n");
	return 0;
}

static int make_head(struct visit *v)
{
	struct request *req = v->req;
	const char *upgrade = request_header(req, "Upgrade");
	int rc = append(&v->head, req->method, " ", req->target);

	v->answer.is_to_head = !strcmp(req->method, "HEAD");
	v->answer.may_upgrade = upgrade && is_text(upgrade) && !strcmp(req->method, "GET") &&
	                        text_list_has(request_header(req, "Connection"), "Upgrade");
	rc = rc ? rc : append(&v->head, " HTTP/1.1\r\n", "", "");
	(void)MHD_get_connection_values(req->conn, MHD_HEADER_KIND, add_header, v);
	if (!request_header(req, "Host"))
		rc = rc ? rc : append(&v->head, "Host: localhost\r\n", "", "");
	rc = rc ? rc : add_framing(v);
	if (upgrade && v->answer.may_upgrade)
		rc = rc ? rc
		        : append(&v->head, "Connection: Upgrade\r\nUpgrade: ", upgrade, "\r\n");
	else
		rc = rc ? rc : append(&v->head, "Connection: close\r\n", "", "");
	return rc ? rc : append(&v->head, "\r\n", "", "");
}

/* A method is letters, a target has no blank: libmicrohttpd takes more. False: it is answered. */
static bool check(struct request *req)
{
	bool is_plain = *req->method && (*req->target == '/' || !strcmp(req->target, "*"));

	for (const char *p = req->method; *p; p++)
		is_plain = is_plain && (isalnum((unsigned char)*p) || *p == '-' || *p == '_');
	for (const char *p = req->target; *p; p++)
		is_plain = is_plain && (unsigned char)*p > ' ' && *p != 0x7f;
	if (!req->port)
		reply_error(req, 400, "the port of a sandbox is 1 to 65535");
	else if (!is_plain)
		reply_error(req, 400, "the request's first line is not METHOD /PATH HTTP/1.1");
	else if (req->box->nr_ports >= PORTS_MAX)
		reply_error(req, 503,
		            "the sandbox has %u connections to its ports, as many as it may",
		            PORTS_MAX);
	return !req->status;
}

static void visit(struct request *req)
{
	struct visit *v = check(req) ? calloc(1, sizeof(*v)) : NULL;

	if (!v) {
		if (!req->status)
			reply_error(req, 503, "no memory");
		return;
	}
	v->req = req;
	v->box = req->box;
	v->box->nr_ports++;
	req->ctx = v;
	if (make_head(v)) {
		visit_free(v);
		reply_error(req, 503, "no memory");
		return;
	}
	req->ops = &visit_ops;
	guest_open(&v->stream, &v->box->machine, GUEST_PORT_AGENT, &guest_ops);
	guest_send_json(&v->stream,
	                json_pack("{s:s, s:i}", "op", "connect", "port", (int)req->port));
	guest_send(&v->stream, FRAME_DATA, v->head.p, v->head.len);
	bytes_free(&v->head);
}

const struct route port_route = { "", "", visit, 0, ROUTE_STREAMS };
