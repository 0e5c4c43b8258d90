/* SPDX-License-Identifier: Apache-2.0 */
/* What clients do to a process that runs: input, signals, the size of its terminal. */
#include "api/daemon/daemon.h"
#include "api/daemon/process.h"
#include "api/daemon/rpc.h"
#include "api/daemon/text.h"
#include "api/show.h"
#include "core/own.h"

#include <signal.h>
#include <string.h>

#define INPUT_MAX ((size_t)4 << 20) /* of clients that do not wait for their answers */

/* A request that waits for room, or the stream of one that gives input piece by piece. */
struct input {
	struct node node;        /* of the process's */
	struct process *process; /* NULL: none yet, or it has ended */
	struct request *req;
	bool is_stream, has_started;
	struct bytes in; /* of envelopes */
	enum rpc_code code;
	const char *failure; /* NULL: none so far */
};

static void input_free(struct input *input)
{
	list_remove(&input->node);
	bytes_free(&input->in);
	free(input);
}

static void on_gone(struct request *req)
{
	input_free(req->ctx);
}

/* --- the message and the process it names ------------------------------------------------------------ */

/* NULL: it is answered. *message is the caller's in any case. */
static struct process *named(struct request *req, json_t **message)
{
	struct process *p = NULL;

	*message = rpc_message(req);
	if (*message && !(p = process_find(req->box, *message)))
		rpc_fail(req, RPC_NOT_FOUND, PROCESS_NOT_FOUND);
	return p;
}

/* Gives the process the bytes of {"stdin":base64} or {"pty":base64}. NULL, or what is wrong. */
static const char *give(struct process *p, const json_t *input, enum rpc_code *code)
{
	const char *text = text_member(input, p->is_pty ? "pty" : "stdin");
	own_free char *data = text ? strdup(text) : NULL;
	ssize_t n = data ? show_base64(data, strlen(data)) : -1;

	*code = RPC_INTERNAL;
	if (!text || !p->has_stdin)
		return p->is_pty ? "error writing to pty: it is a terminal, and takes input.pty"
		                 : "error writing to stdin: stdin not enabled or closed";
	*code = RPC_INVALID_ARGUMENT;
	if (n < 0)
		return "input is not base64";
	*code = RPC_RESOURCE_EXHAUSTED;
	if (p->stream.s.out.len - p->stream.s.out.pos > INPUT_MAX)
		return "the process has not read what it was sent before";
	guest_send(&p->stream, FRAME_DATA, data, (size_t)n);
	return NULL;
}

/* --- one piece ----------------------------------------------------------------------------------------- */

static const struct request_ops piece_ops = { .gone = on_gone };

void process_send_input(struct request *req)
{
	json_t *message;
	struct process *p = named(req, &message);
	struct input *input;
	enum rpc_code code;
	const char *wrong = p ? give(p, json_object_get(message, "input"), &code) : NULL;

	json_decref(message);
	if (wrong)
		rpc_fail(req, code, "%s", wrong);
	if (!p || wrong)
		return;
	input = guest_has_room(&p->stream) ? NULL : calloc(1, sizeof(*input));
	if (!input) {
		rpc_reply(req, json_object());
		return;
	}
	*input = (struct input){ .process = p, .req = req };
	list_append(&p->inputs, &input->node);
	req->ctx = input;
	req->ops = &piece_ops;
}

/* --- many pieces: one message with the process, then some with input ----------------------------------- */

static void fail(struct input *x, enum rpc_code code, const char *why)
{
	if (x->failure)
		return;
	x->code = code;
	x->failure = why;
}

static void on_message(struct input *x, const json_t *message)
{
	const json_t *start = json_object_get(message, "start"),
		     *data = json_object_get(message, "data");
	enum rpc_code code;
	const char *wrong;

	if (json_is_object(start) && !x->has_started) {
		x->has_started = true;
		x->process = process_find(x->req->box, start);
		if (x->process)
			list_append(&x->process->inputs, &x->node);
	}
	if (!x->has_started)
		fail(x, RPC_INVALID_ARGUMENT, "the first message must name the process");
	else if (!x->process)
		fail(x, RPC_NOT_FOUND, PROCESS_NOT_FOUND);
	if (x->failure || !json_is_object(data))
		return; /* a keepalive, for one */
	wrong = give(x->process, json_object_get(data, "input"), &code);
	if (wrong)
		fail(x, code, wrong);
}

/* Takes the envelopes that are complete. */
static void take_messages(struct input *x)
{
	while (!x->failure) {
		const void *data;
		size_t len;
		int rc = rpc_take_envelope(&x->in, &data, &len);
		json_t *message;

		if (rc < 0)
			fail(x, RPC_INVALID_ARGUMENT, "an envelope is too long, or compressed");
		if (rc <= 0)
			return;
		message = frame_json(data, len);
		if (message)
			on_message(x, message);
		else
			fail(x, RPC_INVALID_ARGUMENT, "an envelope holds no object");
		json_decref(message);
	}
}

static void on_data(struct request *req, const void *data, size_t len)
{
	struct input *x = req->ctx;

	daemon_of(req)->counters.bytes_in += len;
	if (x->failure)
		return;
	if (bytes_append(&x->in, data, len))
		fail(x, RPC_RESOURCE_EXHAUSTED, "no memory");
	take_messages(x);
	if (x->process && !guest_has_room(&x->process->stream))
		request_hold(req);
}

static void finish(struct input *x)
{
	struct request *req = x->req;

	rpc_begin(req);
	if (x->failure) {
		rpc_end_fail(req, x->code, "%s", x->failure);
	} else {
		rpc_send(req, json_object());
		rpc_end(req);
	}
	input_free(x);
}

static void on_complete(struct request *req)
{
	struct input *x = req->ctx;

	if (!x->has_started || x->in.pos < x->in.len)
		fail(x, RPC_INVALID_ARGUMENT, "the stream ends in the middle of a message");
	finish(x);
}

static const struct request_ops stream_ops = { .data = on_data,
	                                       .complete = on_complete,
	                                       .gone = on_gone };

void process_stream_input(struct request *req)
{
	struct input *x = rpc_is_stream(req) ? calloc(1, sizeof(*x)) : NULL;

	if (!x) {
		if (!req->status)
			reply_error(req, 503, "no memory");
		return;
	}
	*x = (struct input){ .req = req, .is_stream = true };
	req->ctx = x;
	req->ops = &stream_ops;
}

void process_input_drained(struct process *p)
{
	list_each(&p->inputs, node)
	{
		struct input *input = container_of(node, struct input, node);
		struct request *req = input->req;

		if (input->is_stream) {
			request_resume(req);
		} else {
			input_free(input);
			rpc_reply(req, json_object());
		}
	}
}

void process_input_end(struct process *p)
{
	list_each(&p->inputs, node)
	{
		struct input *input = container_of(node, struct input, node);

		list_remove(node);
		input->process = NULL;
		if (input->is_stream) {
			request_resume(input->req); /* its next message finds nobody */
		} else {
			struct request *req = input->req;

			input_free(input);
			rpc_reply(req, json_object());
		}
	}
}

/* --- the others ---------------------------------------------------------------------------------------- */

void process_close_stdin(struct request *req)
{
	json_t *message;
	struct process *p = named(req, &message);

	json_decref(message);
	if (!p)
		return;
	if (p->is_pty) {
		rpc_fail(req, RPC_UNKNOWN, "a terminal has no end of input: send Ctrl-D");
		return;
	}
	if (p->has_stdin)
		guest_send(&p->stream, FRAME_END, NULL, 0);
	p->has_stdin = false;
	rpc_reply(req, json_object());
}

void process_send_signal(struct request *req)
{
	json_t *message;
	struct process *p = named(req, &message);
	const char *name = text_member(message, "signal");
	int sig = name && !strcmp(name, "SIGNAL_SIGKILL")   ? SIGKILL
	          : name && !strcmp(name, "SIGNAL_SIGTERM") ? SIGTERM
	                                                    : 0;

	if (p && !sig) {
		rpc_fail(req, RPC_INVALID_ARGUMENT, "signal is SIGNAL_SIGKILL or SIGNAL_SIGTERM");
	} else if (p) {
		guest_send_json(&p->stream, json_pack("{s:s, s:i}", "op", "signal", "signal", sig));
		rpc_reply(req, json_object());
	}
	json_decref(message);
}

void process_update(struct request *req)
{
	json_t *message;
	struct process *p = named(req, &message);
	const json_t *size = json_object_get(json_object_get(message, "pty"), "size");

	if (p && !p->is_pty) {
		rpc_fail(req, RPC_INVALID_ARGUMENT, "the process has no terminal");
	} else if (p) {
		guest_send_json(&p->stream, json_pack("{s:s, s:O*, s:O*}", "op", "resize", "rows",
		                                      json_object_get(size, "rows"), "cols",
		                                      json_object_get(size, "cols")));
		rpc_reply(req, json_object());
	}
	json_decref(message);
}
