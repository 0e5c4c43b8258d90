/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/process.h"

#include "api/daemon/daemon.h"
#include "api/daemon/envd.h"
#include "api/daemon/rpc.h"
#include "api/daemon/text.h"
#include "core/own.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES   (32u << 10)
#define PROCESSES_MAX 256u /* of a box */

/* A client that reads its events. */
struct watcher {
	struct node node;
	struct process *process;
	struct request *req;
	struct loop_op keepalive_op, deadline_op;
	unsigned keepalive_s;
	bool has_said; /* something since the last look */
};

static struct loop *loop_of(struct process *p)
{
	return &p->box->daemon->loop;
}

/* --- those who watch ----------------------------------------------------------------------------------- */

static void watcher_free(struct watcher *w)
{
	(void)loop_reap(loop_of(w->process), &w->keepalive_op);
	(void)loop_reap(loop_of(w->process), &w->deadline_op);
	list_remove(&w->node);
	free(w);
}

static void say(struct watcher *w, json_t *event)
{
	w->has_said = true;
	rpc_send(w->req, json_pack("{s:o}", "event", event));
}

/* Reads on when every watcher has room. */
static void go_on(struct process *p)
{
	list_each(&p->watchers, node)
	{
		if (!reply_has_room(container_of(node, struct watcher, node)->req))
			return;
	}
	guest_resume(&p->stream);
}

static void on_watcher_drained(struct request *req)
{
	go_on(((struct watcher *)req->ctx)->process);
}

static void on_watcher_gone(struct request *req)
{
	struct watcher *w = req->ctx;
	struct process *p = w->process;

	watcher_free(w);
	go_on(p);
}

static void on_keepalive(struct loop_op *op, int res)
{
	struct watcher *w = container_of(op, struct watcher, keepalive_op);

	if (res == -ECANCELED)
		return;
	if (!w->has_said && w->process->pid)
		say(w, json_pack("{s:{}}", "keepalive"));
	w->has_said = false;
	loop_timer(loop_of(w->process), op, w->keepalive_s * (uint64_t)1000000000);
}

/* Ends one stream of events; the process is not touched. */
static void end_watcher(struct watcher *w, enum rpc_code code, const char *why)
{
	struct request *req = w->req;
	struct process *p = w->process;

	watcher_free(w);
	if (why)
		rpc_end_fail(req, code, "%s", why);
	else
		rpc_end(req);
	go_on(p);
}

static void on_watcher_deadline(struct loop_op *op, int res)
{
	if (res != -ECANCELED)
		end_watcher(container_of(op, struct watcher, deadline_op), RPC_DEADLINE_EXCEEDED,
		            "the deadline of this stream has passed; the process runs on");
}

static void on_watcher_leaving(struct request *req)
{
	end_watcher(req->ctx, RPC_ABORTED,
	            "the daemon is being replaced; the command runs on: connect to it again");
}

static const struct request_ops watcher_ops = { .drained = on_watcher_drained,
	                                        .leaving = on_watcher_leaving,
	                                        .gone = on_watcher_gone };

/* `timeout_ms`: after which the stream ends; 0: never. NULL: the request was cut. */
static struct watcher *watch(struct process *p, struct request *req, uint64_t timeout_ms)
{
	struct watcher *w = calloc(1, sizeof(*w));

	if (!w) {
		request_cut(req);
		return NULL;
	}
	w->process = p;
	w->req = req;
	w->keepalive_op.done = on_keepalive;
	w->deadline_op.done = on_watcher_deadline;
	w->keepalive_s = rpc_keepalive_s(req);
	list_append(&p->watchers, &w->node);
	req->ctx = w;
	req->ops = &watcher_ops;
	loop_timer(loop_of(p), &w->keepalive_op, w->keepalive_s * (uint64_t)1000000000);
	if (timeout_ms)
		loop_timer(loop_of(p), &w->deadline_op, timeout_ms * 1000000u);
	return w;
}

/* --- a process's life ---------------------------------------------------------------------------------- */

/* Those who still watch have been told, or are cut now. */
static void process_free(struct process *p)
{
	guest_close(&p->stream);
	process_input_end(p);
	while (!list_is_empty(&p->watchers)) {
		struct watcher *w = container_of(p->watchers.next, struct watcher, node);
		struct request *req = w->req;

		watcher_free(w);
		request_cut(req);
	}
	(void)loop_reap(loop_of(p), &p->deadline_op);
	list_remove(&p->node);
	json_decref(p->config);
	free(p);
}

static void send_output(struct process *p, const char *kind, const struct frame *frame)
{
	bool has_room = true;

	list_each(&p->watchers, node)
	{
		struct watcher *w = container_of(node, struct watcher, node);

		for (size_t at = 0; at < frame->len; at += CHUNK_BYTES) {
			size_t n = frame->len - at < CHUNK_BYTES ? frame->len - at : CHUNK_BYTES;
			own_free char *text = text_base64(frame->data + at, n);

			say(w, json_pack("{s:{s:s*}}", "data", kind, text));
		}
		has_room = reply_has_room(w->req) && has_room;
	}
	if (!has_room)
		guest_pause(&p->stream);
}

static void on_started(struct process *p, const struct frame *frame)
{
	json_t *event = frame_json(frame->data, frame->len);

	p->pid = json_integer_value(json_object_get(event, "pid"));
	json_decref(event);
	list_each(&p->watchers, node)
	{
		say(container_of(node, struct watcher, node),
		    json_pack("{s:{s:I}}", "start", "pid", p->pid));
	}
	box_log(p->box, "process %lld started", (long long)p->pid);
	meter_look(&p->box->meter, p->box->machine.sb.pid);
}

/* "signal: killed", as Go has it. */
static void signal_words(int sig, char out[64])
{
	const char *words = strsignal(sig);
	int n = snprintf(out, 64, "signal: %s", words ? words : "unknown");

	for (int i = 0; i < n && i < 64 && out[i]; i++)
		out[i] = (char)tolower((unsigned char)out[i]);
}

static json_t *end_event(const json_t *result)
{
	json_int_t code = json_integer_value(json_object_get(result, "exit"));
	json_int_t sig = json_integer_value(json_object_get(result, "signal"));
	char words[64];

	if (sig > 0 && sig < NSIG)
		signal_words((int)sig, words);
	else
		(void)snprintf(words, sizeof(words), "exit status %lld", (long long)code);
	return json_pack("{s:{s:I, s:b, s:s, s:s*}}", "end", "exitCode", sig ? -1 : code, "exited",
	                 !sig, "status", words, "error", sig || code ? words : NULL);
}

/* It could not be started: why, in the words of envd where clients look for them. */
static void fail_start(struct process *p, const json_t *result)
{
	const json_t *error = json_object_get(result, "error");
	const char *name = text_member(error, "name"), *value = text_member(error, "value");
	const char *cwd = text_member(p->config, "cwd");
	enum rpc_code code = rpc_code_of(name);
	char text[512];

	value = value ? value : "the guest refused";
	(void)snprintf(text, sizeof(text), "%s", value);
	if (code == RPC_NOT_FOUND && cwd && strstr(value, cwd))
		(void)snprintf(text, sizeof(text), "cwd '%s' does not exist", cwd);
	if (code == RPC_NOT_FOUND || code == RPC_PERMISSION_DENIED)
		code = RPC_INVALID_ARGUMENT;
	while (!list_is_empty(&p->watchers)) {
		struct watcher *w = container_of(p->watchers.next, struct watcher, node);
		struct request *req = w->req;

		watcher_free(w);
		rpc_end_fail(req, code, "%s", text);
	}
}

static void on_result(struct process *p, const struct frame *frame)
{
	json_t *result = frame_json(frame->data, frame->len);
	const char *name = text_member(json_object_get(result, "error"), "name");
	bool is_late = name && !strcmp(name, "TimeoutError"); /* ours, or of its grace */

	if (!p->pid && !envd_is_ok(result)) {
		fail_start(p, result);
	} else if (envd_is_ok(result) || is_late) {
		while (!list_is_empty(&p->watchers)) {
			struct watcher *w = container_of(p->watchers.next, struct watcher, node);
			struct request *req = w->req;

			say(w, end_event(result));
			watcher_free(w);
			rpc_end(req);
		}
		box_log(p->box, "process %lld ended", (long long)p->pid);
	}
	meter_look(&p->box->meter, p->box->machine.sb.pid);
	json_decref(result);
	process_free(p);
}

static void on_frame(struct guest_stream *s, const struct frame *frame)
{
	struct process *p = container_of(s, struct process, stream);

	switch (frame->type) {
	case FRAME_EVENT:
		on_started(p, frame);
		break;
	case FRAME_STDOUT:
		send_output(p, p->is_pty ? "pty" : "stdout", frame);
		break;
	case FRAME_STDERR:
		send_output(p, "stderr", frame);
		break;
	case FRAME_RESULT:
		on_result(p, frame);
		break;
	default:
		break;
	}
}

/* The machine is gone, or broken: whoever watches is cut off. */
static void on_closed(struct guest_stream *s, const struct err *why)
{
	(void)why;
	process_free(container_of(s, struct process, stream));
}

static void on_drained(struct guest_stream *s)
{
	process_input_drained(container_of(s, struct process, stream));
}

static const struct guest_ops process_ops = { .frame = on_frame,
	                                      .closed = on_closed,
	                                      .drained = on_drained };

void process_end_all(struct box *box)
{
	list_each(&box->processes, node)
	{
		process_free(container_of(node, struct process, node));
	}
}

/* --- start --------------------------------------------------------------------------------------------- */

static json_t *exec_request(struct process *p, const json_t *message, const char *user)
{
	const json_t *size = json_object_get(json_object_get(message, "pty"), "size");
	json_t *argv = json_array(), *request;

	json_array_append(argv, json_object_get(p->config, "cmd"));
	json_array_extend(argv, json_object_get(p->config, "args"));
	request = json_pack("{s:s, s:o, s:o, s:s, s:b, s:b, s:O*}", "op", "exec", "argv", argv,
	                    "env", box_env(p->box, json_object_get(p->config, "envs")), "user",
	                    user, "stdin", p->has_stdin, "events", 1, "cwd",
	                    json_object_get(p->config, "cwd"));
	if (p->is_pty)
		json_object_set_new(request, "pty",
		                    json_pack("{s:O*, s:O*}", "rows", json_object_get(size, "rows"),
		                              "cols", json_object_get(size, "cols")));
	return request;
}

/* At its deadline it is killed, and the stream of whoever started it ends at once. */
static void on_deadline(struct loop_op *op, int res)
{
	struct process *p = container_of(op, struct process, deadline_op);

	if (res == -ECANCELED)
		return;
	p->is_killed = true;
	guest_send_json(&p->stream, json_pack("{s:s, s:i}", "op", "signal", "signal", SIGKILL));
	box_log(p->box, "process %lld: its deadline has passed", (long long)p->pid);
	while (!list_is_empty(&p->watchers))
		end_watcher(container_of(p->watchers.next, struct watcher, node),
		            RPC_DEADLINE_EXCEEDED, "the command's deadline has passed: killed");
}

static bool check_config(const json_t *config)
{
	const json_t *args = json_object_get(config, "args"), *arg;
	const char *cmd = text_member(config, "cmd");
	size_t i;

	json_array_foreach(args, i, arg)
	{
		if (!json_is_string(arg))
			return false;
	}
	return cmd && *cmd && (!args || json_is_array(args)) &&
	       text_is_string_map(json_object_get(config, "envs"));
}

static unsigned count(const struct box *box)
{
	unsigned nr = 0;

	for (const struct node *node = box->processes.next; node != &box->processes;
	     node = node->next)
		nr++;
	return nr;
}

static struct process *process_new(struct box *box, json_t *config, const char *tag)
{
	struct process *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->box = box;
	p->config = json_incref(config);
	p->deadline_op.done = on_deadline;
	(void)snprintf(p->tag, sizeof(p->tag), "%s", tag ? tag : "");
	list_init(&p->watchers);
	list_init(&p->inputs);
	list_append(&box->processes, &p->node);
	return p;
}

/* `at_ns`: CLOCK_MONOTONIC; 0: never. */
static void set_deadline(struct process *p, uint64_t at_ns)
{
	uint64_t now = clock_ns();

	p->deadline_ns = at_ns;
	if (at_ns)
		loop_timer(loop_of(p), &p->deadline_op, at_ns > now ? at_ns - now : 1);
}

static void start(struct request *req, const json_t *message)
{
	uint64_t timeout_ms = rpc_timeout_ms(req);
	struct process *p = NULL;
	char user[64];

	if (!rpc_user(req, user))
		return;
	rpc_begin(req);
	if (!check_config(json_object_get(message, "process"))) {
		rpc_end_fail(req, RPC_INVALID_ARGUMENT,
		             "process must have cmd, and args and envs of strings");
		return;
	}
	if (count(req->box) < PROCESSES_MAX)
		p = process_new(req->box, json_object_get(message, "process"),
		                text_member(message, "tag"));
	if (!p) {
		rpc_end_fail(req, RPC_RESOURCE_EXHAUSTED,
		             "the sandbox runs %u commands, which is the limit", PROCESSES_MAX);
		return;
	}
	daemon_of(req)->counters.processes++;
	p->is_pty = json_is_object(json_object_get(message, "pty"));
	p->has_stdin = p->is_pty || !json_is_false(json_object_get(message, "stdin"));
	if (watch(p, req, 0) && timeout_ms)
		set_deadline(p, clock_ns() + timeout_ms * 1000000u);
	guest_open(&p->stream, &p->box->machine, GUEST_PORT_AGENT, &process_ops);
	guest_send_json(&p->stream, exec_request(p, message, user));
}

void process_start(struct request *req)
{
	json_t *message = rpc_is_stream(req) ? rpc_message(req) : NULL;

	if (message)
		start(req, message);
	json_decref(message);
}

/* --- the others ---------------------------------------------------------------------------------------- */

struct process *process_find(const struct box *box, const json_t *message)
{
	const json_t *selector = json_object_get(message, "process");
	json_int_t pid = json_integer_value(json_object_get(selector, "pid"));
	const char *tag = text_member(selector, "tag");

	list_each((struct node *)(uintptr_t)&box->processes, node)
	{
		struct process *p = container_of(node, struct process, node);

		if (p->pid && !p->is_killed && (tag ? !strcmp(p->tag, tag) : p->pid == pid))
			return p;
	}
	return NULL;
}

void process_connect(struct request *req)
{
	json_t *message = rpc_is_stream(req) ? rpc_message(req) : NULL;
	struct process *p = message ? process_find(req->box, message) : NULL;
	struct watcher *w;

	if (message)
		rpc_begin(req);
	if (message && !p)
		rpc_end_fail(req, RPC_NOT_FOUND, PROCESS_NOT_FOUND);
	if (p && (w = watch(p, req, rpc_timeout_ms(req))))
		say(w, json_pack("{s:{s:I}}", "start", "pid", p->pid));
	json_decref(message);
}

void process_list(struct request *req)
{
	json_t *list = json_array(), *message = rpc_message(req);

	list_each(&req->box->processes, node)
	{
		const struct process *p = container_of(node, struct process, node);

		if (p->pid && !p->is_killed)
			json_array_append_new(list, json_pack("{s:O, s:I, s:s*}", "config",
			                                      p->config, "pid", p->pid, "tag",
			                                      *p->tag ? p->tag : NULL));
	}
	if (message)
		rpc_reply(req, json_pack("{s:O}", "processes", list));
	json_decref(list);
	json_decref(message);
}

/* --- from one daemon to the next ----------------------------------------------------------------------- */

json_t *process_save_all(const struct box *box, struct handover *h)
{
	json_t *all = json_array();

	list_each((struct node *)(uintptr_t)&box->processes, node)
	{
		const struct process *p = container_of(node, struct process, node);

		json_array_append_new(all, json_pack("{s:I, s:O, s:s, s:b, s:b, s:b, s:I, s:o}",
		                                     "pid", p->pid, "config", p->config, "tag",
		                                     p->tag, "pty", p->is_pty, "stdin",
		                                     p->has_stdin, "killed", p->is_killed,
		                                     "deadline", (json_int_t)p->deadline_ns,
		                                     "stream", guest_save(&p->stream, h)));
	}
	return all;
}

int process_restore_all(struct box *box, const json_t *saved, struct handover *h)
{
	const json_t *one;
	int rc = 0;
	size_t i;

	json_array_foreach(saved, i, one)
	{
		const json_t *stream = json_object_get(one, "stream");
		struct process *p;

		if (!json_is_object(stream)) /* it had just ended */
			continue;
		p = process_new(box, json_object_get(one, "config"), text_member(one, "tag"));
		if (!p)
			return -ENOMEM;
		p->pid = json_integer_value(json_object_get(one, "pid"));
		p->is_pty = json_is_true(json_object_get(one, "pty"));
		p->has_stdin = json_is_true(json_object_get(one, "stdin"));
		p->is_killed = json_is_true(json_object_get(one, "killed"));
		set_deadline(p, p->is_killed ? 0
		                             : (uint64_t)json_integer_value(
						       json_object_get(one, "deadline")));
		rc = guest_restore(&p->stream, &box->machine, stream, &process_ops, h);
		if (rc)
			return rc;
	}
	return rc;
}
