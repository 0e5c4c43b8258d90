/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/kernel.h"

#include "api/agent.h"
#include "api/daemon/box.h"
#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SLACK_BYTES   (1u << 20)            /* an interpreter's own words around max_output */
#define DISPLAY_BYTES (64u << 20)           /* of all displays of a cell */
#define LAST_WORDS_NS ((uint64_t)100000000) /* for output that was on its way when it was killed */
#define NOTICE_NS \
	((uint64_t)1000000000) /* from the end of a stream to the agent knowing of the death */
#define ASK_AGAIN_NS ((uint64_t)20000000)
#define AGENT_MS     15000
#define SPARE_MS     60000 /* where no spare is left one must be forked */

static void arm(struct kernel *k);
static void ask(struct kernel *k, enum kernel_ask what);

static struct loop *loop_of(struct kernel *k)
{
	return &k->box->daemon->loop;
}

/* --- its end ------------------------------------------------------------------------------------------- */

static void stop(struct kernel *k)
{
	(void)loop_reap(loop_of(k), &k->timer_op);
	guest_call_cancel(&k->call);
	k->asked = KERNEL_ASK_NOTHING;
	k->is_busy = false;
	json_decref(k->last_words);
	k->last_words = NULL;
}

/* Puts into a RESULT what its cell has used. */
static void add_usage(struct kernel *k, json_t *result)
{
	const json_t *cut = json_object_get(result, "cut");
	json_int_t out = json_integer_value(json_object_get(cut, "stdout")),
		   errs = json_integer_value(json_object_get(cut, "stderr"));
	uint64_t said = k->output_bytes + k->display_bytes + (out > 0 ? (uint64_t)out : 0) +
	                (errs > 0 ? (uint64_t)errs : 0);
	struct usage_mark now = usage_mark(k->box->machine.sb.pid);

	json_object_set_new(result, "usage",
	                    usage_between(&k->begin, &now, said, json_object_get(result, "usage")));
}

static void finish(struct kernel *k, enum cell_end end, json_t *result)
{
	add_usage(k, result);
	stop(k);
	k->ops->done(k, end, result);
	json_decref(result);
}

/* The machine has ended under it, or is of no use any more. */
static void lost(struct kernel *k)
{
	stop(k);
	k->ops->lost(k);
}

/* The box ends with its interpreter: whoever waits is cut by that. */
static void end_box(struct kernel *k, const char *why)
{
	(void)loop_reap(loop_of(k), &k->timer_op);
	k->box->daemon->counters.ended_lost++;
	journal_event(LOG_LVL_WARN, k->box->id, "ended: %s", why);
	box_end(k->box, why);
}

static void finish_timeout(struct kernel *k, json_t *result, const char *what_happened)
{
	char value[160];

	(void)snprintf(value, sizeof(value), "the cell ran longer than %g s: %s",
	               (double)k->timeout_ns / 1e9, what_happened);
	cell_set_error(&result, "TimeoutError", value);
	k->box->daemon->counters.cells_timed_out++;
	finish(k, CELL_TIMEOUT, result);
}

/* --- what it says -------------------------------------------------------------------------------------- */

static void on_result(struct kernel *k, const struct frame *frame)
{
	json_t *result = frame_json(frame->data, frame->len);

	if (!json_is_string(json_object_get(result, "status"))) {
		json_decref(result);
		end_box(k, "the guest broke the protocol: a result that is not one");
	} else if (k->is_timed_out && !k->is_interrupted) {
		finish_timeout(k, result, "interrupted; its variables are kept");
	} else {
		finish(k, CELL_DONE, result);
	}
}

static void on_display(struct kernel *k, const struct frame *frame)
{
	json_t *display = frame_json(frame->data, frame->len);

	k->display_bytes += frame->len;
	if (json_is_object(json_object_get(display, "data")) && k->display_bytes <= DISPLAY_BYTES)
		k->ops->display(k, display);
	else
		end_box(k, "the guest broke the protocol: displays");
	json_decref(display);
}

static void on_frame(struct guest_stream *s, const struct frame *frame)
{
	struct kernel *k = container_of(s, struct kernel, stream);

	switch (frame->type) {
	case FRAME_STDOUT:
	case FRAME_STDERR:
		k->output_bytes += frame->len;
		if (k->max_output && k->output_bytes > k->max_output + SLACK_BYTES && k->is_busy)
			end_box(k,
			        "the guest broke the protocol: more output than it was asked for");
		else if (k->is_busy) /* else of threads that a cell left behind */
			k->ops->output(k, frame->type, frame->data, frame->len);
		break;
	case FRAME_DISPLAY:
		if (k->is_busy)
			on_display(k, frame);
		break;
	case FRAME_RESULT:
		if (k->is_busy)
			on_result(k, frame);
		break;
	default:
		end_box(k, "the guest broke the protocol: a frame that has no place in a cell");
	}
}

static void on_closed(struct guest_stream *s, const struct err *why)
{
	struct kernel *k = container_of(s, struct kernel, stream);

	if (why->code == -EPROTO) {
		end_box(k, why->msg);
	} else if (!k->is_busy) {
		return; /* it died between cells: the next one finds out */
	} else if (k->box->machine.state == MACHINE_GONE) {
		lost(k);
	} else if (k->last_words) {
		json_t *result = json_incref(k->last_words);

		finish(k, k->last_end, result);
	} else if (k->asked != KERNEL_ASK_KILL) {
		k->has_died = true;
		k->death_ns = clock_ns();
		ask(k, KERNEL_ASK_CONTEXT);
	}
}

static const struct guest_ops stream_ops = { .frame = on_frame, .closed = on_closed };

/* --- what the agent says of it ------------------------------------------------------------------------- */

void kernel_moved(struct kernel *k, unsigned port)
{
	guest_close(&k->stream);
	k->port = port;
	k->generation++;
}

static void set_port(struct kernel *k, const json_t *answer)
{
	json_int_t port = json_integer_value(json_object_get(answer, "port"));

	guest_close(&k->stream);
	kernel_moved(k, port > 0 && port < UINT32_MAX ? (unsigned)port : GUEST_PORT_KERNEL);
}

/* What became of one whose stream ended. The agent may hear of its end a moment after we do. */
static void on_context(struct kernel *k, const json_t *answer)
{
	bool is_alive = json_is_true(json_object_get(answer, "alive"));

	if (!k->has_died && is_alive) { /* a look at one that runs */
		k->watch_ns = cell_watch_next(k->watch_ns);
		k->watch_at_ns = clock_ns() + k->watch_ns;
	} else if (is_alive && clock_ns() - k->death_ns < NOTICE_NS) {
		k->watch_at_ns = clock_ns() + ASK_AGAIN_NS;
	} else {
		char value[CELL_WORDS_MAX];
		const char *name = cell_describe_death(answer, value);

		cell_set_error(&k->last_words, name, value);
		k->last_end = CELL_KERNEL_DIED;
		ask(k, KERNEL_ASK_SPARE);
	}
}

/* It was killed, and the context has a spare: what it had written before is still on its way. */
static void on_killed(struct kernel *k, const json_t *answer)
{
	json_int_t port = json_integer_value(json_object_get(answer, "port"));
	char value[160];

	(void)snprintf(value, sizeof(value),
	               "the cell ran longer than %g s: killed; the context was "
	               "restarted, its variables are gone",
	               (double)k->timeout_ns / 1e9);
	cell_set_error(&k->last_words, "TimeoutError", value);
	k->last_end = CELL_TIMEOUT;
	k->port = port > 0 && port < UINT32_MAX ? (unsigned)port : GUEST_PORT_KERNEL;
	k->generation++;
	if (guest_is_open(&k->stream)) {
		(void)loop_reap(loop_of(k), &k->timer_op);
		loop_timer(loop_of(k), &k->timer_op, LAST_WORDS_NS);
	} else {
		finish(k, k->last_end, json_incref(k->last_words));
	}
}

static void on_answer(struct guest_call *call, const json_t *answer, const struct err *err)
{
	struct kernel *k = container_of(call, struct kernel, call);
	enum kernel_ask asked = k->asked;
	struct err refusal = { 0 };

	k->asked = KERNEL_ASK_NOTHING;
	if (k->box->machine.state == MACHINE_GONE) {
		lost(k);
		return;
	}
	if (!answer || agent_refused(answer, &refusal)) {
		if (asked == KERNEL_ASK_SPARE || k->has_died) {
			end_box(k, answer ? refusal.msg : err->msg);
			return;
		}
		arm(k); /* the next step of the deadline follows */
		return;
	}
	if (asked == KERNEL_ASK_INTERRUPT) {
		deadline_answered(&k->deadline, clock_ns());
	} else if (asked == KERNEL_ASK_CONTEXT) {
		on_context(k, answer);
	} else if (asked == KERNEL_ASK_KILL) {
		on_killed(k, answer);
		return;
	} else if (asked == KERNEL_ASK_SPARE) {
		set_port(k, answer);
		finish(k, k->last_end, json_incref(k->last_words));
		return;
	}
	arm(k);
}

static void ask(struct kernel *k, enum kernel_ask what)
{
	static const char *const ops[] = { "", "interrupt", "kill", "context", "kill" };

	guest_call_cancel(&k->call);
	k->asked = what;
	k->watch_at_ns = 0;
	guest_call(&k->call, &k->box->machine,
	           json_pack("{s:s, s:s}", "op", ops[what], "context", k->context),
	           what == KERNEL_ASK_SPARE ? SPARE_MS : AGENT_MS, on_answer);
}

/* --- time ---------------------------------------------------------------------------------------------- */

static void act(struct kernel *k, enum deadline_act what)
{
	switch (what) {
	case DEADLINE_INTERRUPT:
		ask(k, KERNEL_ASK_INTERRUPT);
		break;
	case DEADLINE_KILL_CONTEXT:
		ask(k, KERNEL_ASK_KILL);
		break;
	case DEADLINE_KILL_MACHINE:
		end_box(k, "it did not answer after a cell's deadline");
		return;
	case DEADLINE_NOTHING:
		break;
	}
	arm(k);
}

static void on_timer(struct loop_op *op, int res)
{
	struct kernel *k = container_of(op, struct kernel, timer_op);
	uint64_t now = clock_ns();
	enum deadline_act due;

	if (res == -ECANCELED || !k->is_busy)
		return;
	if (k->last_words && k->asked == KERNEL_ASK_NOTHING) { /* no more of them came */
		guest_close(&k->stream);
		finish(k, k->last_end, json_incref(k->last_words));
		return;
	}
	due = k->has_died ? DEADLINE_NOTHING : deadline_due(&k->deadline, now);
	if (due != DEADLINE_NOTHING) {
		k->is_timed_out = true;
		act(k, due);
		return;
	}
	/* Nothing but the agent can tell that an interpreter has died in a cell that came by the mailbox. */
	if (k->watch_at_ns && now >= k->watch_at_ns && k->asked == KERNEL_ASK_NOTHING)
		ask(k, KERNEL_ASK_CONTEXT);
	arm(k);
}

/* For the next thing that is to be done at a time. */
static void arm(struct kernel *k)
{
	uint64_t at = k->has_died ? 0 : k->deadline.at_ns, now = clock_ns();

	if (k->deadline.last == DEADLINE_KILL_MACHINE)
		at = 0;
	if (k->watch_at_ns && (!at || k->watch_at_ns < at))
		at = k->watch_at_ns;
	(void)loop_reap(loop_of(k), &k->timer_op);
	if (k->is_busy && at)
		loop_timer(loop_of(k), &k->timer_op, at > now ? at - now : 1);
}

/* --- cells --------------------------------------------------------------------------------------------- */

void kernel_init(struct kernel *k, struct box *box, const char *context,
                 const struct kernel_ops *ops)
{
	*k = (struct kernel){ .box = box,
		              .context = context,
		              .ops = ops,
		              .port = GUEST_PORT_KERNEL,
		              .timer_op = { .done = on_timer } };
}

void kernel_close(struct kernel *k)
{
	stop(k);
	guest_close(&k->stream);
}

void kernel_abort(struct kernel *k)
{
	stop(k);
}

void kernel_run(struct kernel *k, const struct cell *cell)
{
	json_t *request = cell_request(cell);

	BUG_ON(k->is_busy);
	k->is_busy = true;
	k->is_timed_out = k->has_died = k->is_interrupted = k->is_paused = false;
	k->timeout_ns = cell->timeout_ns;
	k->max_output = cell->max_output;
	k->output_bytes = k->display_bytes = 0;
	k->begin = usage_mark(k->box->machine.sb.pid);
	k->watch_ns = CELL_WATCH_NS;
	k->watch_at_ns = clock_ns() + CELL_WATCH_NS;
	k->deadline = deadline_start(clock_ns(), cell->timeout_ns, false);
	if (k->port == GUEST_PORT_KERNEL && !guest_is_open(&k->stream) &&
	    guest_open_first(&k->stream, &k->box->machine, request, &stream_ops)) {
		json_decref(request);
	} else {
		if (!guest_is_open(&k->stream))
			guest_open(&k->stream, &k->box->machine, k->port, &stream_ops);
		guest_send_json(&k->stream, request);
	}
	arm(k);
}

void kernel_interrupt(struct kernel *k)
{
	if (!k->is_busy || k->deadline.last != DEADLINE_NOTHING)
		return;
	k->is_interrupted = true;
	k->deadline.at_ns = clock_ns();
	arm(k);
}

void kernel_pause(struct kernel *k)
{
	k->is_paused = true;
	guest_pause(&k->stream);
}

void kernel_resume(struct kernel *k)
{
	if (!k->is_paused)
		return;
	k->is_paused = false;
	guest_resume(&k->stream);
}

json_t *kernel_save(const struct kernel *k, struct handover *h)
{
	return json_pack("{s:I, s:i, s:o}", "port", (json_int_t)k->port, "generation",
	                 (int)k->generation, "stream", guest_save(&k->stream, h));
}

int kernel_restore(struct kernel *k, const json_t *saved, struct handover *h)
{
	k->port = (unsigned)json_integer_value(json_object_get(saved, "port"));
	k->generation = (unsigned)json_integer_value(json_object_get(saved, "generation"));
	return guest_restore(&k->stream, &k->box->machine, json_object_get(saved, "stream"),
	                     &stream_ops, h);
}
