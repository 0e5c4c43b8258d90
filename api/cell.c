/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cell.h"

#include "api/agent.h"
#include "api/deadline.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SLACK_BYTES   (1u << 20)   /* a kernel's own words around max_output */
#define DISPLAY_BYTES (256u << 20) /* of all displays of a cell */
#define WATCH_MOST_NS (10 * CELL_WATCH_NS)
#define LAST_WORDS_MS 100 /* for output that was on its way when a kernel was killed */
#define AGENT_MS      5000
#define NOTICE_MS     1000  /* from the end of a stream to the agent knowing of the death */
#define SPARE_MS      30000 /* where no spare is left one must be forked */
#define QUESTION_MS   10000

enum ask { ASK_INTERRUPT, ASK_KILL, ASK_CONTEXT };

/* A cell under way. */
struct run {
	struct sandbox *sb;
	const struct cell *cell;
	const struct cell_sink *sink;
	struct cell_result *result;
	struct deadline deadline;
	struct stream aux; /* what the agent has been asked */
	enum ask asked;
	uint64_t watch_at_ns; /* when to ask whether the interpreter lives; 0: no need */
	uint64_t watch_ns;    /* from one such question to the next */
	bool timed_out;
	unsigned user_interrupts;
	uint64_t output_bytes;
	uint64_t display_bytes;
};

void cell_result_free(struct cell_result *r)
{
	json_decref(r->result);
	*r = (struct cell_result){ 0 };
}

uint64_t cell_watch_next(uint64_t ns)
{
	return ns < WATCH_MOST_NS / 2 ? 2 * ns : WATCH_MOST_NS;
}

json_t *cell_request(const struct cell *cell)
{
	json_t *request =
		json_pack("{s:s, s:s%, s:b, s:I}", "op", "run", "code", cell->code, cell->code_len,
	                  "silent", cell->silent, "max_output", (json_int_t)cell->max_output);

	/* Only where they are wanted: without them it travels as a CELL (docs/protocol.md, section 5). */
	if (request && cell->usage)
		json_object_set_new(request, "usage", json_true());
	if (request && cell->files_changed)
		json_object_set_new(request, "files_changed", json_true());
	return request;
}

static int broken(struct sandbox *sb, const char *what, struct err *err)
{
	char why[128];

	(void)snprintf(why, sizeof(why), "the guest broke the protocol: %s", what);
	sandbox_kill(sb, why);
	return sandbox_why_lost(sb, err);
}

void cell_set_error(json_t **result, const char *name, const char *value)
{
	json_t *error;

	if (!*result)
		*result = json_pack("{s:n, s:{s:i, s:i}}", "execution_count", "cut", "stdout", 0,
		                    "stderr", 0);
	error = json_object_get(*result, "error");
	if (!json_is_object(error)) {
		error = json_pack("{s:s}", "traceback", "");
		json_object_set_new(*result, "error", error);
	}
	json_object_set_new(*result, "status", json_string("error"));
	json_object_set_new(error, "name", json_string(name));
	json_object_set_new(error, "value", json_string(value));
}

/* A RESULT made on this side, on top of what the kernel said, if it said something. */
static int set_error(struct cell_result *r, enum cell_end end, const char *name, const char *value)
{
	r->end = end;
	r->ok = false;
	cell_set_error(&r->result, name, value);
	return 1;
}

static int finish_timeout(struct run *run, const char *what_happened)
{
	char value[160];

	(void)snprintf(value, sizeof(value), "the cell ran longer than %g s: %s",
	               (double)run->cell->timeout_ns / 1e9, what_happened);
	return set_error(run->result, CELL_TIMEOUT, "TimeoutError", value);
}

static int on_result(struct run *run, const struct frame *frame, struct err *err)
{
	json_t *result = frame_json(frame->data, frame->len);
	const char *status = json_string_value(json_object_get(result, "status"));

	if (!status) {
		json_decref(result);
		return broken(run->sb, "a result that is not one", err);
	}
	run->result->result = result;
	run->result->ok = !strcmp(status, "ok");
	if (run->timed_out)
		return finish_timeout(run, "interrupted; its variables are kept");
	return 1;
}

static int on_display(struct run *run, const struct frame *frame, struct err *err)
{
	json_t *display = frame_json(frame->data, frame->len);

	run->display_bytes += frame->len;
	if (!json_is_object(json_object_get(display, "data")) ||
	    run->display_bytes > DISPLAY_BYTES) {
		json_decref(display);
		return broken(run->sb, "displays", err);
	}
	if (run->sink->display)
		run->sink->display(run->sink->ctx, display);
	json_decref(display);
	return 0;
}

/* 1: the cell is finished. */
static int on_frame(struct run *run, const struct frame *frame, struct err *err)
{
	switch (frame->type) {
	case FRAME_STDOUT:
	case FRAME_STDERR:
		run->output_bytes += frame->len;
		if (run->cell->max_output &&
		    run->output_bytes > run->cell->max_output + SLACK_BYTES)
			return broken(run->sb, "more output than it was asked for", err);
		if (run->sink->output)
			run->sink->output(run->sink->ctx, frame->type, frame->data, frame->len);
		return 0;
	case FRAME_DISPLAY:
		return on_display(run, frame, err);
	case FRAME_RESULT:
		return on_result(run, frame, err);
	default:
		return broken(run->sb, "a frame that has no place in a cell", err);
	}
}

static int take_frames(struct run *run, struct err *err)
{
	struct frame frame;
	int rc;

	for (;;) {
		rc = frame_next(&run->sb->kernel.in, &frame);
		if (rc < 0)
			return broken(run->sb, "a damaged frame", err);
		if (!rc)
			return 0;
		rc = on_frame(run, &frame, err);
		if (rc)
			return rc;
	}
}

static void set_port(struct sandbox *sb, const json_t *answer)
{
	json_int_t port = json_integer_value(json_object_get(answer, "port"));

	if (port > 0 && port <= UINT32_MAX)
		sb->port = (unsigned)port;
}

/* What became of the interpreter. The agent may hear of its end a moment after we do. */
static int ask_what_happened(struct sandbox *sb, json_t **ctx, struct err *err)
{
	uint64_t until = clock_ns() + (uint64_t)NOTICE_MS * 1000000u;
	int rc;

	do {
		json_decref(*ctx);
		*ctx = NULL;
		rc = agent_call(sb, json_pack("{s:s, s:s}", "op", "context", "context", "default"),
		                AGENT_MS, ctx, err);
	} while (!rc && json_is_true(json_object_get(*ctx, "alive")) && clock_ns() < until &&
	         !poll(NULL, 0, 20));
	return rc;
}

const char *cell_describe_death(const json_t *ctx, char value[CELL_WORDS_MAX])
{
	long long sig = json_integer_value(json_object_get(ctx, "signal"));
	long long code = json_integer_value(json_object_get(ctx, "exit"));
	static const char after[] = "the context was restarted, its variables are gone";

	if (json_is_true(json_object_get(ctx, "oom"))) {
		(void)snprintf(value, CELL_WORDS_MAX, "killed: out of memory; %s", after);
		return "MemoryError";
	}
	if (json_is_true(json_object_get(ctx, "alive")))
		(void)snprintf(value, CELL_WORDS_MAX, "the interpreter closed its connection; %s",
		               after);
	else if (sig)
		(void)snprintf(value, CELL_WORDS_MAX,
		               "the interpreter was ended by signal %lld; %s", sig, after);
	else
		(void)snprintf(value, CELL_WORDS_MAX, "the interpreter exited with code %lld; %s",
		               code, after);
	return "KernelDied";
}

static int describe_death(struct run *run, const json_t *ctx)
{
	char value[CELL_WORDS_MAX];
	const char *name = cell_describe_death(ctx, value);

	return set_error(run->result, CELL_KERNEL_DIED, name, value);
}

/* The kernel's stream ended without a result: says why, and has a spare take over. */
static int on_death(struct run *run, struct err *err)
{
	json_t *ctx = NULL, *spare = NULL;
	int rc;

	stream_close(&run->sb->kernel);
	rc = ask_what_happened(run->sb, &ctx, err);
	rc = rc ? rc
	        : agent_call(run->sb, json_pack("{s:s, s:s}", "op", "kill", "context", "default"),
	                     SPARE_MS, &spare, err);
	if (!rc) {
		set_port(run->sb, spare);
		rc = describe_death(run, ctx);
	} else if (rc == -ETIMEDOUT || (rc == -EREMOTEIO && !run->sb->fail.code)) {
		sandbox_kill(run->sb, "its interpreter ended and no other could be started");
		rc = sandbox_why_lost(run->sb, err);
	}
	json_decref(ctx);
	json_decref(spare);
	return rc;
}

/* Asks the agent about the default context; its answer comes on run->aux. */
static int ask_agent(struct run *run, enum ask what, struct err *err)
{
	static const char *const ops[] = { "interrupt", "kill", "context" };

	stream_close(&run->aux);
	run->asked = what;
	return agent_begin(run->sb, &run->aux,
	                   json_pack("{s:s, s:s}", "op", ops[what], "context", "default"), err);
}

/* The context has gone to a spare: what the killed kernel had written is still on its way. */
static int on_killed(struct run *run, const json_t *answer, struct err *err)
{
	struct stream *kernel = &run->sb->kernel;
	uint64_t until = clock_ns() + (uint64_t)LAST_WORDS_MS * 1000000u;
	int rc = 0;

	while (!rc && !kernel->eof && clock_ns() < until) {
		rc = sandbox_wait(run->sb, &kernel, 1, NULL, 0, LAST_WORDS_MS, err);
		rc = rc < 0 ? rc : take_frames(run, err);
	}
	stream_close(kernel);
	if (rc < 0)
		return rc;
	set_port(run->sb, answer);
	if (run->timed_out)
		return finish_timeout(run,
		                      "killed; the context was restarted, its variables are gone");
	return set_error(run->result, CELL_KERNEL_DIED, "KeyboardInterrupt",
	                 "killed; the context was restarted, its variables are gone");
}

static int on_answer(struct run *run, const json_t *answer, struct err *err)
{
	if (agent_refused(answer, NULL))
		return 0; /* the next step of the deadline follows */
	switch (run->asked) {
	case ASK_INTERRUPT:
		deadline_answered(&run->deadline, clock_ns());
		return 0;
	case ASK_KILL:
		return on_killed(run, answer, err);
	case ASK_CONTEXT:
		if (!json_is_true(json_object_get(answer, "alive")))
			return on_death(run, err);
		run->watch_ns = cell_watch_next(run->watch_ns);
		run->watch_at_ns = clock_ns() + run->watch_ns;
		return 0;
	}
	return 0;
}

static int take_aux(struct run *run, struct err *err)
{
	struct frame frame;
	json_t *answer;
	int rc;

	if (run->aux.fd < 0)
		return 0;
	rc = frame_next(&run->aux.in, &frame);
	if (rc < 0)
		return broken(run->sb, "a damaged frame", err);
	if (!rc) {
		if (run->aux.eof)
			stream_close(&run->aux);
		return 0;
	}
	answer = frame.type == FRAME_RESULT ? frame_json(frame.data, frame.len) : NULL;
	rc = on_answer(run, answer, err);
	json_decref(answer);
	stream_close(&run->aux);
	return rc;
}

static int act(struct run *run, enum deadline_act what, struct err *err)
{
	switch (what) {
	case DEADLINE_INTERRUPT:
		return ask_agent(run, ASK_INTERRUPT, err);
	case DEADLINE_KILL_CONTEXT:
		return ask_agent(run, ASK_KILL, err);
	case DEADLINE_KILL_MACHINE:
		sandbox_kill(run->sb, "it was killed after a cell's deadline");
		return finish_timeout(run, run->deadline.brief
		                                   ? "stopped"
		                                   : "the sandbox did not answer and was killed");
	case DEADLINE_NOTHING:
		break;
	}
	return 0;
}

/* The first interrupt is for the cell, the next for the context, the third for the machine. */
static int on_user_interrupt(struct run *run, struct err *err)
{
	if (run->sink->interrupted && !run->sink->interrupted(run->sink->ctx))
		run->user_interrupts = 2;
	switch (run->user_interrupts++) {
	case 0:
		return ask_agent(run, ASK_INTERRUPT, err);
	case 1:
		run->deadline = (struct deadline){ .at_ns = clock_ns() + DEADLINE_MOST_NS,
			                           .last = DEADLINE_KILL_CONTEXT };
		return ask_agent(run, ASK_KILL, err);
	default:
		sandbox_kill(run->sb, "interrupted");
		return sandbox_why_lost(run->sb, err);
	}
}

/* Nothing but the agent can tell that an interpreter has died in a cell that came by the mailbox. */
static int watch(struct run *run, uint64_t now_ns, struct err *err)
{
	if (!run->watch_at_ns || now_ns < run->watch_at_ns || run->aux.fd >= 0)
		return 0;
	run->watch_at_ns = 0; /* until the answer is there */
	return ask_agent(run, ASK_CONTEXT, err);
}

static int wait_ms(const struct run *run, uint64_t now_ns)
{
	int deadline = deadline_wait_ms(&run->deadline, now_ns), next;

	if (!run->watch_at_ns || run->aux.fd >= 0)
		return deadline;
	next = run->watch_at_ns > now_ns ? (int)((run->watch_at_ns - now_ns) / 1000000u) + 1 : 0;
	return deadline >= 0 && deadline < next ? deadline : next;
}

/* 1: finished, 0: go on, < 0: error. */
static int step(struct run *run, struct err *err)
{
	struct stream *streams[] = { &run->sb->kernel, &run->aux };
	enum deadline_act due;
	int rc = take_frames(run, err);

	if (!rc)
		rc = take_aux(run, err);
	if (rc)
		return rc;
	if (run->sb->kernel.eof && !(run->asked == ASK_KILL && run->aux.fd >= 0))
		return on_death(run, err);
	due = deadline_due(&run->deadline, clock_ns());
	if (due != DEADLINE_NOTHING) {
		run->timed_out = run->timed_out || run->user_interrupts < 2;
		return act(run, due, err);
	}
	rc = watch(run, clock_ns(), err);
	if (rc)
		return rc;
	rc = sandbox_wait(run->sb, streams, ARRAY_LEN(streams), NULL, 0, wait_ms(run, clock_ns()),
	                  err);
	if (rc == -EINTR && run->cell->keep_on_intr)
		return on_user_interrupt(run, err);
	return rc < 0 ? rc : 0;
}

static int begin(struct run *run, struct err *err)
{
	struct sandbox *sb = run->sb;
	json_t *request;
	int rc;

	if (sb->first_pending) { /* on its way since the thaw */
		sb->first_pending = false;
		run->result->begin_ns = sb->start_ns;
		return 0;
	}
	request = cell_request(run->cell);
	if (!request)
		return err_set(err, -EINVAL, "the code is not valid UTF-8");
	rc = sandbox_open_kernel(sb, err);
	run->result->begin_ns = clock_ns();
	if (!rc && stream_send(&sb->kernel, FRAME_REQUEST, request))
		rc = err_set(err, -EMSGSIZE, "the code is over the limit of %u MiB",
		             FRAME_WHOLE_MAX >> 20);
	json_decref(request);
	return rc;
}

int cell_run(struct sandbox *sb, const struct cell *cell, const struct cell_sink *sink,
             struct cell_result *result, struct err *err)
{
	struct run run = {
		.sb = sb, .cell = cell, .sink = sink, .result = result, .aux = STREAM_NONE
	};
	int rc;

	*result = (struct cell_result){ 0 };
	rc = begin(&run, err);
	run.deadline = deadline_start(result->begin_ns, cell->timeout_ns, cell->last);
	run.watch_ns = CELL_WATCH_NS;
	run.watch_at_ns = result->begin_ns + CELL_WATCH_NS;
	while (!rc)
		rc = step(&run, err);
	stream_close(&run.aux);
	result->end_ns = clock_ns();
	if (rc < 0)
		cell_result_free(result);
	return rc < 0 ? rc : 0;
}

/*
 * Takes frames until the RESULT of a question: 1 when it is there, 0 when more must come. Output of
 * threads that a cell left behind goes to the sink.
 */
static int take_answer(struct sandbox *sb, const struct cell_sink *sink, json_t **answer,
                       struct err *err)
{
	struct frame frame;

	for (;;) {
		int rc = frame_next(&sb->kernel.in, &frame);

		if (rc < 0)
			return broken(sb, "a damaged frame", err);
		if (!rc)
			return 0;
		if (frame.type == FRAME_RESULT) {
			*answer = frame_json(frame.data, frame.len);
			return *answer ? 1 : broken(sb, "a result that is not one", err);
		}
		if (sink && sink->output &&
		    (frame.type == FRAME_STDOUT || frame.type == FRAME_STDERR))
			sink->output(sink->ctx, frame.type, frame.data, frame.len);
	}
}

/* A question to the kernel between cells. `request` is stolen. */
static int ask_kernel(struct sandbox *sb, json_t *request, const struct cell_sink *sink,
                      json_t **answer, struct err *err)
{
	struct stream *kernel = &sb->kernel;
	int rc = sandbox_open_kernel(sb, err);

	if (!rc && stream_send(kernel, FRAME_REQUEST, request))
		rc = err_set(err, -EINVAL, "the request is not valid UTF-8");
	json_decref(request);
	while (!rc) {
		rc = take_answer(sb, sink, answer, err);
		if (rc)
			break;
		if (kernel->eof)
			return err_set(err, -EPIPE, "the interpreter ended");
		rc = sandbox_wait(sb, &kernel, 1, NULL, 0, QUESTION_MS, err);
		if (!rc)
			return err_set(err, -ETIMEDOUT, "the interpreter did not answer in %d s",
			               QUESTION_MS / 1000);
		rc = rc < 0 ? rc : 0;
	}
	return rc < 0 ? rc : 0;
}

int cell_usage(struct sandbox *sb, const struct cell_sink *sink, json_t **usage, struct err *err)
{
	return ask_kernel(sb, json_pack("{s:s}", "op", "usage"), sink, usage, err);
}

int cell_complete(struct sandbox *sb, const char *code, size_t cursor, json_t **matches,
                  struct err *err)
{
	return ask_kernel(sb,
	                  json_pack("{s:s, s:s, s:I}", "op", "complete", "code", code, "cursor",
	                            (json_int_t)cursor),
	                  NULL, matches, err);
}
