/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/cell_line.h"
#include "api/daemon/context.h"
#include "api/daemon/daemon.h"
#include "api/daemon/text.h"
#include "api/show.h"
#include "core/own.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define KEEPALIVE_NS ((uint64_t)5000000000)
#define CODE_MAX     (16u << 20)
#define LINE_NS      ((uint64_t)50000000) /* how long the beginning of a line waits for its end */
#define LINE_MAX     (64u << 10)

/* --- executions ---------------------------------------------------------------------------------------- */

struct execution {
	struct run run;
	struct request *req;
	json_t *code;        /* of the cell */
	unsigned count;      /* that was told */
	unsigned generation; /* of the context's interpreter, when the cell began */
	bool has_said;       /* something since the last look */
	struct loop_op keepalive_op;
	struct bytes tail[2]; /* of stdout and stderr: the beginning of a line, or of a character */
	struct loop_op line_op;
};

static void execution_free(struct execution *x)
{
	(void)loop_reap(x->req->http->loop, &x->keepalive_op);
	(void)loop_reap(x->req->http->loop, &x->line_op);
	bytes_free(&x->tail[0]);
	bytes_free(&x->tail[1]);
	json_decref(x->run.env);
	json_decref(x->code);
	free(x);
}

/* ASCII alone, and never an empty line: clients cut the stream where they like. */
static void say(struct execution *x, json_t *line)
{
	size_t n;
	own_free char *text = text_json_line(line, &n);

	if (!text)
		return;
	x->has_said = true;
	reply_write(x->req, text, n);
	if (!reply_has_room(x->req) && x->run.context)
		kernel_pause(&x->run.context->kernel);
}

static void say_count(struct execution *x, unsigned count)
{
	x->count = count;
	say(x,
	    json_pack("{s:s, s:i}", "type", "number_of_executions", "execution_count", (int)count));
}

static void say_text(struct execution *x, const char *type, const void *data, size_t len)
{
	char when[TEXT_TIME_MAX];

	if (len)
		say(x, json_pack("{s:s, s:o, s:s}", "type", type, "text", show_utf8(data, len),
		                 "timestamp", text_time(clock_us(), when)));
}

static void on_keepalive(struct loop_op *op, int res)
{
	struct execution *x = container_of(op, struct execution, keepalive_op);

	if (res == -ECANCELED)
		return;
	if (!x->has_said)
		say(x, json_pack("{s:s}", "type", "keepalive"));
	x->has_said = false;
	loop_timer(x->req->http->loop, op, KEEPALIVE_NS);
}

static void on_started(struct run *run, unsigned count)
{
	struct execution *x = container_of(run, struct execution, run);

	x->generation = run->context->kernel.generation;
	meter_look(&x->req->box->meter, x->req->box->machine.sb.pid);
	say_count(x, count);
}

/* Says what is held of a stream; `all`: also a character that is not complete. */
static void say_tail(struct execution *x, enum frame_type type, bool all)
{
	struct bytes *tail = &x->tail[type == FRAME_STDERR];
	size_t open = all ? 0 : cell_line_open_tail(tail->p, tail->len), said = tail->len - open;

	if (!said)
		return;
	say_text(x, type == FRAME_STDERR ? "stderr" : "stdout", tail->p, said);
	memmove(tail->p, tail->p + said, open);
	tail->len = open;
}

static void say_tails(struct execution *x, bool all)
{
	say_tail(x, FRAME_STDOUT, all);
	say_tail(x, FRAME_STDERR, all);
}

static void on_line_timer(struct loop_op *op, int res)
{
	if (res != -ECANCELED)
		say_tails(container_of(op, struct execution, line_op), false);
}

/*
 * A print() may arrive in pieces, as its text and its newline are written apart: clients shall see it as one. So
 * the beginning of a line waits a little for the rest, and never longer than for what comes behind it.
 */
static void on_output(struct run *run, enum frame_type type, const void *data, size_t len)
{
	struct execution *x = container_of(run, struct execution, run);
	struct bytes *tail = &x->tail[type == FRAME_STDERR];

	say_tail(x, type == FRAME_STDERR ? FRAME_STDOUT : FRAME_STDERR, false);
	if (!len || bytes_append(tail, data, len))
		return;
	if (tail->p[tail->len - 1] == '\n' || tail->len > LINE_MAX)
		say_tail(x, type, false);
	else if (!x->line_op.busy)
		loop_timer(x->req->http->loop, &x->line_op, LINE_NS);
}

static void on_display(struct run *run, const json_t *display)
{
	struct execution *x = container_of(run, struct execution, run);

	say_tails(x, false);
	say(x, cell_line_result(display));
}

static void say_error(struct execution *x, const json_t *error)
{
	const char *traceback = text_member(error, "traceback"), *name = text_member(error, "name"),
		   *value = text_member(error, "value");
	char text[400];

	name = name ? name : "Error";
	value = value ? value : "";
	if (!traceback || !*traceback) {
		(void)snprintf(text, sizeof(text), "%s: %s", name, value);
		traceback = text;
	}
	say(x, json_pack("{s:s, s:s, s:s, s:s}", "type", "error", "name", name, "value", value,
	                 "traceback", traceback));
}

static void say_cut(struct execution *x, const json_t *cut)
{
	long long out = json_integer_value(json_object_get(cut, "stdout"));
	long long errs = json_integer_value(json_object_get(cut, "stderr"));
	char text[200];

	if (!out && !errs)
		return;
	(void)snprintf(text, sizeof(text),
	               "thawbox: the output was too long: of its middle %lld bytes of stdout and "
	               "%lld of stderr are missing\n",
	               out, errs);
	say_text(x, "stderr", text, strlen(text));
}

/* The last line, with members beyond E2B's: by what the cell ended, and whether the context's variables are gone. */
static json_t *end_line(const json_t *result, enum cell_end end, bool restarted)
{
	static const char *const names[] = {
		[CELL_DONE] = "done", [CELL_TIMEOUT] = "timeout", [CELL_KERNEL_DIED] = "died"
	};
	json_t *line = cell_line_end(result);

	json_object_set_new(line, "ended", json_string(names[end]));
	json_object_set_new(line, "context_restarted",
	                    json_boolean(restarted || end == CELL_KERNEL_DIED));
	return line;
}

static void on_done(struct run *run, enum cell_end end, const json_t *result)
{
	struct execution *x = container_of(run, struct execution, run);
	bool restarted = run->context->kernel.generation != x->generation;
	json_int_t count = json_integer_value(json_object_get(result, "execution_count"));
	const json_t *error = json_object_get(result, "error");
	struct request *req = x->req;

	x->run.context = NULL; /* nothing of it is to be paused any more */
	say_tails(x, true);
	say_cut(x, json_object_get(result, "cut"));
	if (count > 0 && (unsigned)count != x->count)
		say_count(x, (unsigned)count);
	if (json_is_object(error))
		say_error(x, error);
	if (end != CELL_DONE)
		box_log(req->box, "a cell ended with %s", text_member(error, "name"));
	say(x, end_line(result, end, restarted));
	execution_free(x);
	meter_look(&req->box->meter, req->box->machine.sb.pid);
	reply_end(req);
}

static void on_lost(struct run *run)
{
	struct execution *x = container_of(run, struct execution, run);
	struct request *req = x->req;

	execution_free(x);
	request_cut(req);
}

static const struct run_ops run_ops = { .started = on_started,
	                                .output = on_output,
	                                .display = on_display,
	                                .done = on_done,
	                                .lost = on_lost };

static void on_drained(struct request *req)
{
	struct execution *x = req->ctx;

	kernel_resume(&x->run.context->kernel);
}

/* The client has left: nobody wants what the cell would still do. */
static void on_gone(struct request *req)
{
	struct execution *x = req->ctx;

	context_cancel(&x->run);
	execution_free(x);
}

/* The next daemon knows nothing of this cell, which is interrupted as if its client had left. */
static void on_leaving(struct request *req)
{
	struct execution *x = req->ctx;
	json_t *result = NULL;

	cell_set_error(&result, "DaemonReplaced",
	               x->count ? "the daemon is being replaced: the cell was interrupted, its "
	                          "variables are kept"
	                        : "the daemon is being replaced: the cell did not run");
	context_cancel(&x->run);
	x->run.context = NULL;
	say_tails(x, true);
	say_error(x, json_object_get(result, "error"));
	json_decref(result);
	say(x, json_pack("{s:s, s:s, s:b}", "type", "end_of_execution", "ended", "aborted",
	                 "context_restarted", 0));
	execution_free(x);
	reply_end(req);
}

static const struct request_ops execute_ops = { .drained = on_drained,
	                                        .leaving = on_leaving,
	                                        .gone = on_gone };

static void fail(struct request *req, unsigned status, const char *text)
{
	reply_text(req, status, "text/plain; charset=utf-8", text);
}

static void fail_language(struct request *req, const char *language)
{
	char text[200];

	(void)snprintf(
		text, sizeof(text),
		"thawbox has no interpreter for language '%.60s' yet: it runs " LANGUAGE_NAMES,
		language);
	fail(req, 404, text); /* of others the JavaScript SDK does not show the words */
}

/* Of the request's body; NULL: it is answered. */
static struct context *wanted_context(struct request *req, const json_t *body)
{
	const char *id = text_member(body, "context_id"), *name = text_member(body, "language");
	const struct language *language = language_find(name);
	struct context *ctx;
	char text[120];

	if (id && name) {
		fail(req, 400, "give context_id or language, not both");
		return NULL;
	}
	if (!language) {
		fail_language(req, name);
		return NULL;
	}
	ctx = id ? context_find(req->box, id) : context_default(req->box, language);
	(void)snprintf(text, sizeof(text), "Context %.40s not found", id ? id : "default");
	if (!ctx)
		fail(req, 404, text);
	return ctx;
}

static bool is_set(const json_t *body, const char *name)
{
	return json_is_true(json_object_get(body, name));
}

/* A number that the request may bring: `most` where it is missing or larger (0: no bound). False: it is no number above 0. */
static bool take_bound(const json_t *body, const char *name, uint64_t most, uint64_t *out)
{
	const json_t *value = json_object_get(body, name);
	json_int_t n = json_integer_value(value);

	*out = most;
	if (!value || json_is_null(value))
		return true;
	if (n <= 0 || n > UINT32_MAX)
		return false;
	if (!most || (uint64_t)n < most)
		*out = (uint64_t)n;
	return true;
}

/* The bounds of a cell: the daemon's options, and what the request asks for within them. */
static bool take_bounds(const struct options *opts, const json_t *body, struct cell *cell)
{
	uint64_t timeout_ms;

	if (!take_bound(body, "max_output", opts->max_output, &cell->max_output) ||
	    !take_bound(body, "timeout_ms", opts->cell_timeout_ns / 1000000, &timeout_ms))
		return false;
	cell->timeout_ns = timeout_ms * 1000000;
	return true;
}

static void start(struct request *req, const json_t *body, struct context *ctx)
{
	bool wants_files = is_set(body, "files_changed");
	const struct options *opts = &daemon_of(req)->opts;
	json_t *env = json_object_get(body, "env_vars");
	struct execution *x = calloc(1, sizeof(*x));

	if (!x) {
		fail(req, 503, "no memory");
		return;
	}
	x->req = req;
	x->code = language_cell(ctx->language, json_object_get(body, "code"));
	x->run.ops = &run_ops;
	x->run.env = json_is_object(env) ? json_incref(env) : NULL;
	x->run.cell = (struct cell){ .code = json_string_value(x->code),
		                     .code_len = json_string_length(x->code),
		                     .files_changed = wants_files,
		                     .usage = wants_files || is_set(body, "usage") };
	if (!x->code) {
		execution_free(x);
		fail(req, 503, "no memory");
		return;
	}
	if (!take_bounds(opts, body, &x->run.cell)) {
		execution_free(x);
		fail(req, 400, "timeout_ms and max_output must be integers above 0");
		return;
	}
	x->keepalive_op.done = on_keepalive;
	x->line_op.done = on_line_timer;
	req->ctx = x;
	req->ops = &execute_ops;
	reply_stream(req, 200, "application/x-ndjson");
	loop_timer(req->http->loop, &x->keepalive_op, KEEPALIVE_NS);
	context_add(ctx, &x->run);
}

static void execute(struct request *req)
{
	json_t *body = req->body.len ? frame_json(req->body.p, req->body.len) : NULL;
	struct context *ctx;

	if (!json_is_string(json_object_get(body, "code")) ||
	    !text_is_string_map(json_object_get(body, "env_vars")))
		fail(req, 400, "the body must be an object with code, and env_vars of strings");
	else if ((ctx = wanted_context(req, body)))
		start(req, body, ctx);
	json_decref(body);
}

/* --- contexts ------------------------------------------------------------------------------------------ */

static json_t *context_json(const struct context *ctx)
{
	return json_pack("{s:s, s:s, s:s}", "id", ctx->id, "language", ctx->language->name, "cwd",
	                 ctx->cwd ? ctx->cwd : CONTEXT_CWD);
}

static void on_changer_gone(struct request *req)
{
	struct context *ctx = req->ctx;

	ctx->req = NULL;
}

static const struct request_ops change_ops = { .gone = on_changer_gone };

static void on_changed(struct context *ctx, const struct err *err)
{
	struct request *req = ctx->req;

	ctx->req = NULL;
	if (!req)
		return;
	if (ctx->box->machine.state == MACHINE_GONE)
		request_cut(req);
	else if (err->code)
		fail(req, 500, err->msg);
	else if (req->route->path[strlen(req->route->path) - 1] == 's') /* POST /contexts */
		reply_json(req, 200, context_json(ctx));
	else
		reply_json(req, 200, json_null());
}

static void wait_for_change(struct request *req, struct context *ctx)
{
	req->ctx = ctx;
	req->ops = &change_ops;
}

static void contexts_create(struct request *req)
{
	json_t *body = req->body.len ? frame_json(req->body.p, req->body.len) : json_object();
	const char *name = text_member(body, "language"), *cwd = text_member(body, "cwd");
	const struct language *language = language_find(name);
	struct context *ctx;

	if (!body) {
		fail(req, 400, "the body must be an object");
	} else if (!language) {
		fail_language(req, name);
	} else {
		ctx = context_create(req->box, language, cwd, on_changed, req);
		if (ctx)
			wait_for_change(req, ctx);
		else
			fail(req, 503, "no memory");
	}
	json_decref(body);
}

/* E2B's clients expect a default context of JavaScript, too: it is made when it is used. */
static void add_unmade(json_t *list, const struct box *box)
{
	const char *name = language_find("javascript")->name;

	if (!context_peek(box, name))
		json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "id", name, "language",
		                                      name, "cwd", CONTEXT_CWD));
}

static void contexts_list(struct request *req)
{
	json_t *list = json_array();

	(void)context_default(req->box, language_find(NULL)); /* is always there, as the first */
	list_each(&req->box->contexts, node)
	{
		json_array_append_new(list, context_json(container_of(node, struct context, node)));
		if (json_array_size(list) == 1)
			add_unmade(list, req->box);
	}
	reply_json(req, 200, list);
}

/* Of the path; NULL: it is answered. */
static struct context *named(struct request *req)
{
	struct context *ctx = context_find(req->box, req->param[0]);
	char text[120];

	(void)snprintf(text, sizeof(text), "Context %.40s not found", req->param[0]);
	if (!ctx)
		fail(req, 404, text);
	else if (ctx->is_held)
		fail(req, 409, "the context is being changed by another request");
	return ctx && !ctx->is_held ? ctx : NULL;
}

static void contexts_restart(struct request *req)
{
	struct context *ctx = named(req);

	if (!ctx)
		return;
	wait_for_change(req, ctx);
	context_restart(ctx, on_changed, req);
}

static void contexts_remove(struct request *req)
{
	struct context *ctx = named(req);

	if (!ctx)
		return;
	if (ctx->is_default) {
		fail(req, 400, "the default context cannot be removed: restart it");
		return;
	}
	wait_for_change(req, ctx);
	context_remove(ctx, on_changed, req);
}

static void health(struct request *req)
{
	reply_json(req, 200, json_string("OK"));
}

const struct route interpreter_routes[] = {
	{ "GET", "/health", health, 0, ROUTE_OPEN },
	{ "POST", "/execute", execute, CODE_MAX, 0 },
	{ "POST", "/contexts", contexts_create, 0, 0 },
	{ "GET", "/contexts", contexts_list, 0, 0 },
	{ "POST", "/contexts/{}/restart", contexts_restart, 0, 0 },
	{ "DELETE", "/contexts/{}", contexts_remove, 0, 0 },
	{ 0 },
};
