/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/http.h"

#include "api/sandbox.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECTION_BYTES (64u << 10)
#define CHUNK_BYTES      (32u << 10)
#define IDLE_S           650u /* a client's pool keeps a connection that long */

/* --- the loop ---------------------------------------------------------------------------------- */

/* MHD has something to do that its descriptor does not tell: a connection was resumed. */
static void run_soon(struct http *http)
{
	loop_post(http->loop, &http->run_event);
}

static void run(struct http *http)
{
	MHD_UNSIGNED_LONG_LONG ms;

	(void)MHD_run(http->mhd); /* what fails is one connection's, and closed */
	if (MHD_get_timeout(http->mhd, &ms) == MHD_YES) {
		if (!ms)
			run_soon(http);
		else if (!http->timer_op.busy)
			loop_timer(http->loop, &http->timer_op, ms * 1000000u);
	}
}

static void on_run(struct loop_event *event)
{
	run(container_of(event, struct http, run_event));
}

static void on_ready(struct loop_op *op, int res)
{
	struct http *http = container_of(op, struct http, ready_op);

	(void)res;
	run(http);
	loop_poll(http->loop, &http->ready_op, http->epoll_fd, POLLIN);
}

static void on_timer(struct loop_op *op, int res)
{
	(void)res;
	run(container_of(op, struct http, timer_op));
}

/* --- a request's life ---------------------------------------------------------------------------- */

static void abandon(struct request *req)
{
	const struct request_ops *ops = req->ops;

	req->ops = NULL;
	if (ops && ops->gone)
		ops->gone(req);
}

static void on_left(struct loop_op *op, int res)
{
	struct request *req = container_of(op, struct request, left_op);

	if (res == -ECANCELED)
		return;
	request_abandon(req);
}

static int fd_of(struct request *req)
{
	return MHD_get_connection_info(req->conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

static void suspend(struct request *req)
{
	if (req->is_suspended) /* MHD goes on with chunks that it has already read */
		return;
	MHD_suspend_connection(req->conn);
	req->is_suspended = true;
	loop_poll(req->http->loop, &req->left_op, fd_of(req), POLLRDHUP);
}

static void resume(struct request *req)
{
	if (!req->is_suspended)
		return;
	req->is_suspended = false;
	(void)loop_reap(req->http->loop, &req->left_op); /* it has fired, or it has not */
	MHD_resume_connection(req->conn);
	run_soon(req->http);
}

static bool is_loopback(struct MHD_Connection *conn)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *addr = info ? info->client_addr : NULL;

	if (!addr || addr->sa_family == AF_UNIX)
		return true;
	if (addr->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr) >>
		               24 ==
		       127;
	return addr->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
}

/* Called by MHD when it has a request's first line; the result is what it hands on as *req_cls. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *conn)
{
	struct http *http = cls;
	struct request *req = calloc(1, sizeof(*req));

	if (!req)
		return NULL;
	req->http = http;
	req->conn = conn;
	req->target = target ? strdup(target) : NULL; /* a line of one word has none */
	req->is_loopback = is_loopback(conn);
	req->left_op.done = on_left;
	list_append(&http->requests, &req->node);
	http->nr_requests++;
	return req;
}

/* False: no memory, or a first line that is none. */
static bool request_begin(struct request *req, const char *path, const char *method)
{
	req->start_ns = clock_ns();
	req->number = ++req->http->last_number;
	req->method = method;
	req->path = path ? strdup(path) : NULL;
	if (!req->path || !req->target)
		return false;
	req->has_begun = true;
	req->http->handlers->begin(req);
	return true;
}

static void request_free(struct request *req)
{
	(void)loop_reap(req->http->loop, &req->left_op);
	list_remove(&req->node);
	list_remove(&req->box_node);
	req->http->nr_requests--;
	if (req->response)
		MHD_destroy_response(req->response);
	bytes_free(&req->body);
	bytes_free(&req->out);
	free(req->target);
	free(req->path);
	free(req);
}

/*
 * MHD ends a connection in one run and lets go of its socket in a later one, which may be minutes away: with epoll it looks
 * at none that is idle, unless it is the one that has been so for longest or has a time limit of its own.
 */
static void close_soon(struct http *http, struct MHD_Connection *conn)
{
	(void)MHD_set_connection_option(conn, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
	run_soon(http);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **req_cls,
                         enum MHD_RequestTerminationCode how)
{
	struct http *http = cls;
	struct request *req = *req_cls;

	if (!req)
		return;
	*req_cls = NULL;
	if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK) {
		req->is_cut = true;
		close_soon(http, conn);
	}
	abandon(req);
	if (req->has_begun)
		http->handlers->done(req);
	request_free(req);
}

static enum MHD_Result queue_response(struct request *req)
{
	struct MHD_Response *response = req->response;
	enum MHD_Result rc;

	req->response = NULL;
	rc = MHD_queue_response(req->conn, req->status, response);
	MHD_destroy_response(response); /* our reference */
	return rc;
}

static void take_body(struct request *req, const char *data, size_t len)
{
	if (req->status) /* it is answered: what still comes is for nobody */
		return;
	if (req->ops && req->ops->data) {
		req->ops->data(req, data, len);
		return;
	}
	if (req->body.len + len > req->body_max || bytes_append(&req->body, data, len)) {
		char text[96];

		(void)snprintf(text, sizeof(text), "the body is over the limit of %zu bytes",
		               req->body_max);
		bytes_free(&req->body);
		reply_json(req, 413, json_pack("{s:i, s:s}", "code", 413, "message", text));
	}
}

static void complete(struct request *req)
{
	req->is_complete = true;
	if (req->status)
		return;
	if (req->ops && req->ops->complete)
		req->ops->complete(req);
	else
		req->http->handlers->complete(req);
}

/* Called by MHD at the headers, for each piece of the body, at its end, and after each resume. */
static enum MHD_Result on_access(void *cls, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *len, void **req_cls)
{
	struct request *req = *req_cls;

	(void)cls;
	(void)conn;
	(void)version;
	if (!req || req->is_cut)
		return MHD_NO;
	if (!req->has_begun && req->http->is_quiet)
		return MHD_NO;
	if (!req->has_begun)
		return request_begin(req, url, method) ? MHD_YES : MHD_NO;
	if (*len) {
		take_body(req, data, *len);
		*len = 0;
		if (req->is_cut)
			return MHD_NO;
		if (req->is_held)
			suspend(req);
		return MHD_YES;
	}
	if (!req->is_complete)
		complete(req);
	if (req->is_cut)
		return MHD_NO;
	if (req->response)
		return queue_response(req);
	if (!req->status)
		suspend(req);
	return MHD_YES;
}

const char *request_header(struct request *req, const char *name)
{
	return MHD_lookup_connection_value(req->conn, MHD_HEADER_KIND, name);
}

const char *request_query(struct request *req, const char *name)
{
	const char *value = NULL;
	size_t len = 0;

	if (MHD_lookup_connection_value_n(req->conn, MHD_GET_ARGUMENT_KIND, name, strlen(name),
	                                  &value, &len) != MHD_YES ||
	    !value || strlen(value) != len)
		return NULL;
	return value;
}

void request_hold(struct request *req)
{
	req->is_held = true;
}

void request_resume(struct request *req)
{
	if (!req->is_held)
		return;
	req->is_held = false;
	resume(req);
}

/* MHD closes the connection when it runs. */
static void close_upgraded(struct request *req)
{
	if (!req->upgraded)
		return;
	(void)MHD_upgrade_action(req->upgraded, MHD_UPGRADE_ACTION_CLOSE);
	req->upgraded = NULL;
	run_soon(req->http);
}

/*
 * Clients take a stream that ends in the middle for a server's mistake, and a reset for what it is (E2B's then ask whether the
 * sandbox is gone). What has been sent is read before it. Not of Unix sockets, which have none.
 */
static void reset(struct request *req)
{
	static const struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	(void)connect(fd_of(req), &nobody, sizeof(nobody));
}

void request_cut(struct request *req)
{
	if (req->is_stream && !req->upgraded)
		reset(req);
	req->ops = NULL;
	req->is_cut = true;
	req->is_held = false;
	resume(req);
	close_upgraded(req);
}

void request_abandon(struct request *req)
{
	abandon(req);
	request_cut(req);
}

/* --- answers ------------------------------------------------------------------------------------- */

/* A response that has no body yet, with the headers that were asked for before. */
static void answer(struct request *req, unsigned status, struct MHD_Response *response)
{
	if (!response) { /* no memory */
		request_cut(req);
		return;
	}
	BUG_ON(req->status);
	req->status = status;
	req->response = response;
	if (!req->is_held)
		resume(req);
}

/* Those of reply_header(), which stand as "name\0value\0" where the body of a stream will. */
static void add_headers(struct request *req, struct MHD_Response *response)
{
	const char *p = (const char *)req->out.p, *end;

	if (!req->out.len)
		return;
	end = p + req->out.len;
	while (response && p < end) {
		const char *value = p + strlen(p) + 1;

		(void)MHD_add_response_header(response, p, value);
		p = value + strlen(value) + 1;
	}
	req->out.len = 0;
}

static void answer_with(struct request *req, unsigned status, const char *type, void *text,
                        size_t len, enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(len, text, mode);

	if (response && type)
		(void)MHD_add_response_header(response, "Content-Type", type);
	add_headers(req, response);
	req->ops = NULL;
	answer(req, status, response);
}

void reply_header(struct request *req, const char *name, const char *value)
{
	if (bytes_append(&req->out, name, strlen(name) + 1) ||
	    bytes_append(&req->out, value, strlen(value) + 1))
		req->out.len = 0;
}

void reply_empty(struct request *req, unsigned status)
{
	answer_with(req, status, NULL, (char[]){ "" }, 0, MHD_RESPMEM_PERSISTENT);
}

void reply_json(struct request *req, unsigned status, json_t *json)
{
	char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);

	json_decref(json);
	if (text)
		answer_with(req, status, "application/json", text, strlen(text),
		            MHD_RESPMEM_MUST_FREE);
	else
		request_cut(req);
}

void reply_text(struct request *req, unsigned status, const char *type, const char *text)
{
	answer_with(req, status, type, (void *)(uintptr_t)text, strlen(text),
	            MHD_RESPMEM_MUST_COPY);
}

/* MHD's socket takes more of a streamed answer. */
static ssize_t on_pull(void *cls, uint64_t pos, char *buf, size_t max)
{
	struct request *req = cls;
	size_t held = req->out.len - req->out.pos, n = held < max ? held : max;

	(void)pos;
	if (req->is_cut)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (n) {
		memcpy(buf, req->out.p + req->out.pos, n);
		req->out.pos += n;
		req->sent_bytes += n;
		if (req->is_full && reply_has_room(req)) {
			req->is_full = false;
			if (req->ops && req->ops->drained)
				req->ops->drained(req);
		}
		return (ssize_t)n;
	}
	if (req->out.cap > REPLY_QUEUE_BYTES) /* an idle stream holds no more than it must */
		bytes_free(&req->out);
	if (req->has_ended)
		return MHD_CONTENT_READER_END_OF_STREAM;
	suspend(req);
	return 0;
}

void reply_body(struct request *req, unsigned status, uint64_t size)
{
	struct MHD_Response *response =
		MHD_create_response_from_callback(size, CHUNK_BYTES, on_pull, req, NULL);

	add_headers(req, response);
	req->is_stream = true;
	answer(req, status, response);
}

void reply_stream(struct request *req, unsigned status, const char *type)
{
	reply_header(req, "Content-Type", type);
	reply_body(req, status, MHD_SIZE_UNKNOWN);
}

/* The client has its 101. */
static void on_upgrade(void *cls, struct MHD_Connection *conn, void *req_cls, const char *extra,
                       size_t len, MHD_socket fd, struct MHD_UpgradeResponseHandle *upgraded)
{
	struct request *req = cls;

	(void)conn;
	(void)req_cls;
	req->upgraded = upgraded;
	if (req->ops && req->ops->upgraded && !req->is_cut)
		req->ops->upgraded(req, fd, extra, len);
	else
		close_upgraded(req);
}

void reply_upgrade(struct request *req)
{
	struct MHD_Response *response = MHD_create_response_for_upgrade(on_upgrade, req);

	add_headers(req, response);
	req->is_stream = true;
	answer(req, MHD_HTTP_SWITCHING_PROTOCOLS, response);
}

void reply_write(struct request *req, const void *data, size_t len)
{
	if (req->is_cut || req->has_ended)
		return;
	if (bytes_append(&req->out, data, len)) {
		request_abandon(req);
		return;
	}
	if (!req->is_held)
		resume(req);
}

bool reply_has_room(struct request *req)
{
	bool has_room = req->out.len - req->out.pos < REPLY_QUEUE_BYTES;

	if (!has_room)
		req->is_full = true;
	return has_room;
}

void reply_end(struct request *req)
{
	req->ops = NULL;
	req->has_ended = true;
	if (!req->is_held)
		resume(req);
}

/* --- open and close -------------------------------------------------------------------------------- */

static int start(struct http *http, const struct http_spec *spec)
{
	unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE |
	                 MHD_USE_ITC | (spec->tls_cert ? MHD_USE_TLS : 0u);
	struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)spec->tls_cert },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)spec->tls_key },
		{ MHD_OPTION_END, 0, NULL },
	};
	const union MHD_DaemonInfo *info;

	http->mhd = MHD_start_daemon(
		flags, 0, NULL, NULL, on_access, http, MHD_OPTION_LISTEN_SOCKET, spec->listen_fd,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_URI_LOG_CALLBACK,
		on_target, http, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
		MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_LIMIT,
		spec->connections_max, MHD_OPTION_ARRAY, spec->tls_cert ? tls : tls + 2,
		MHD_OPTION_END);
	if (!http->mhd)
		return -EINVAL;
	info = MHD_get_daemon_info(http->mhd, MHD_DAEMON_INFO_EPOLL_FD);
	http->epoll_fd = info ? info->epoll_fd : -1;
	return http->epoll_fd < 0 ? -ENOSYS : 0;
}

int http_open(struct http *http, struct loop *loop, const struct http_handlers *handlers,
              const struct http_spec *spec, struct err *err)
{
	int rc;

	*http = (struct http){ .loop = loop,
		               .handlers = handlers,
		               .ready_op = { .done = on_ready },
		               .timer_op = { .done = on_timer },
		               .run_event = { .fire = on_run } };
	list_init(&http->requests);
	rc = start(http, spec);
	if (rc) {
		if (http->mhd)
			MHD_stop_daemon(http->mhd);
		(void)err_set(err, rc, "libmicrohttpd cannot serve on this socket");
		return spec->tls_cert
		               ? err_remedy(err, "are --tls-cert and --tls-key in PEM, and a pair?")
		               : err->code;
	}
	loop_poll(loop, &http->ready_op, http->epoll_fd, POLLIN);
	return 0;
}

/* One that nobody has answered to the end. A client that has not taken what there was would hold us up. */
static void quiesce(struct request *req)
{
	bool is_answering = req->status, takes_all = req->is_suspended;

	if ((takes_all || req->upgraded) && req->ops && req->ops->leaving)
		req->ops->leaving(req);
	if (req->is_cut || req->has_ended || (!is_answering && req->status))
		return;
	abandon(req);
	if (!is_answering && !req->is_cut && req->is_complete)
		req->http->handlers->left(req);
	else
		request_cut(req);
}

void http_quiesce(struct http *http)
{
	http->is_quiet = true;
	(void)MHD_quiesce_daemon(http->mhd);
	list_each(&http->requests, node)
	{
		struct request *req = container_of(node, struct request, node);

		if (!req->status || (req->is_stream && !req->has_ended))
			quiesce(req);
	}
}

void http_close(struct http *http)
{
	if (!http->mhd)
		return;
	list_each(&http->requests, node)
	{
		request_abandon(container_of(node, struct request, node));
	}
	(void)MHD_run(http->mhd); /* closes them */
	(void)loop_reap(http->loop, &http->ready_op);
	(void)loop_reap(http->loop, &http->timer_op);
	loop_unpost(http->loop, &http->run_event);
	MHD_stop_daemon(http->mhd);
	loop_unpost(http->loop, &http->run_event);
	*http = (struct http){ 0 };
}
