/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/context.h"

#include "api/agent.h"
#include "api/daemon/daemon.h"
#include "api/daemon/text.h"
#include "core/own.h"
#include "core/random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SILENT_NS \
	((uint64_t)120000000000) /* for a cell of ours: the first of a fresh interpreter may be slow */
#define CHANGE_MS 150000         /* the agent itself gives up after two minutes */

static void advance(struct context *ctx);

/* --- cells of ours ------------------------------------------------------------------------------------- */

/* A JSON object of strings, not escaped to ASCII, is a Python literal. */
static char *format_code(const char *fmt, const json_t *env, const char *more)
{
	own_free char *literal = json_dumps(env, JSON_COMPACT);
	char *code = NULL;

	if (!literal || asprintf(&code, fmt, literal, more) < 0)
		return NULL;
	return code;
}

char *context_setup_code(const json_t *env, const char *cwd)
{
	json_t *name = json_string(cwd ? cwd : CONTEXT_CWD);
	own_free char *literal = json_dumps(name, JSON_COMPACT | JSON_ENCODE_ANY);

	json_decref(name);
	return literal ? format_code("__import__('os').environ.update(%s)\n"
	                             "__import__('os').chdir(%s)",
	                             env, literal)
	               : NULL;
}

char *context_env_code(const json_t *env)
{
	return format_code(
		"(lambda o, e: (setattr(o, '_thawbox_env', {k: o.environ.get(k) for k in "
		"e}), o.environ.update(e)))(__import__('os'), %s)%s",
		env, "");
}

static const char restore_code[] =
	"(lambda o: [o.environ.__setitem__(k, v) if v is not None else o.environ.pop(k, None) for "
	"k, v "
	"in o.__dict__.pop('_thawbox_env', {}).items()])(__import__('os'))";

/* Runs one; false: there is none to run. */
static bool run_silent(struct context *ctx, enum context_stage stage, const char *code)
{
	struct cell cell = { .code = code, .silent = true, .timeout_ns = SILENT_NS };

	if (!code)
		return false;
	cell.code_len = strlen(code);
	ctx->stage = stage;
	kernel_run(&ctx->kernel, &cell);
	return true;
}

/* --- the queue ----------------------------------------------------------------------------------------- */

static void run_code(struct context *ctx)
{
	struct run *run = ctx->running;

	ctx->stage = STAGE_CODE;
	ctx->box->daemon->counters.cells++;
	run->ops->started(run, ctx->count + 1);
	kernel_run(&ctx->kernel, &run->cell);
}

static bool prepare_env(struct context *ctx)
{
	own_free char *code =
		json_object_size(ctx->running->env) ? context_env_code(ctx->running->env) : NULL;

	ctx->needs_restore = run_silent(ctx, STAGE_ENV, code);
	return ctx->needs_restore;
}

static bool prepare_context(struct context *ctx)
{
	own_free char *code = ctx->needs_setup ? context_setup_code(ctx->box->env, ctx->cwd) : NULL;

	return run_silent(ctx, STAGE_SETUP, code);
}

/* Starts whatever is next, when nothing runs. */
static void advance(struct context *ctx)
{
	if (ctx->is_held || ctx->kernel.is_busy || ctx->box->machine.state == MACHINE_GONE)
		return;
	if (!ctx->running && ctx->needs_restore) {
		ctx->needs_restore = false;
		if (run_silent(ctx, STAGE_RESTORE, restore_code))
			return;
	}
	if (!ctx->running && !list_is_empty(&ctx->runs)) {
		ctx->running = container_of(ctx->runs.next, struct run, node);
		list_remove(&ctx->running->node);
		ctx->stage = STAGE_IDLE;
	}
	if (!ctx->running) {
		ctx->stage = STAGE_IDLE;
		return;
	}
	if (ctx->stage < STAGE_SETUP && prepare_context(ctx))
		return;
	if (ctx->stage < STAGE_ENV && prepare_env(ctx))
		return;
	run_code(ctx);
}

static void on_output(struct kernel *k, enum frame_type type, const void *data, size_t len)
{
	struct context *ctx = container_of(k, struct context, kernel);

	if (ctx->running && ctx->stage == STAGE_CODE)
		ctx->running->ops->output(ctx->running, type, data, len);
}

static void on_display(struct kernel *k, const json_t *display)
{
	struct context *ctx = container_of(k, struct context, kernel);

	if (ctx->running && ctx->stage == STAGE_CODE)
		ctx->running->ops->display(ctx->running, display);
}

/* Another interpreter has taken its place: what the old one knew is gone. */
static void notice_death(struct context *ctx)
{
	if (ctx->generation == ctx->kernel.generation)
		return;
	ctx->generation = ctx->kernel.generation;
	ctx->needs_setup = true;
	ctx->needs_restore = false;
	ctx->count = 0;
}

static void on_done(struct kernel *k, enum cell_end end, const json_t *result)
{
	struct context *ctx = container_of(k, struct context, kernel);
	struct run *run = ctx->running;
	json_int_t count = json_integer_value(json_object_get(result, "execution_count"));

	if (ctx->stage == STAGE_SETUP)
		ctx->needs_setup = false;
	if (ctx->stage == STAGE_CODE) {
		ctx->count = count > 0 ? (unsigned)count : ctx->count + 1;
		ctx->running = NULL;
	}
	notice_death(ctx);
	if (ctx->stage == STAGE_CODE && run)
		run->ops->done(run, end, result);
	advance(ctx);
}

static void on_lost(struct kernel *k)
{
	struct context *ctx = container_of(k, struct context, kernel);
	struct run *run = ctx->running;

	ctx->running = NULL;
	if (run)
		run->ops->lost(run);
}

static const struct kernel_ops kernel_ops = {
	.output = on_output, .display = on_display, .done = on_done, .lost = on_lost
};

void context_add(struct context *ctx, struct run *run)
{
	run->context = ctx;
	list_append(&ctx->runs, &run->node);
	advance(ctx);
}

void context_cancel(struct run *run)
{
	struct context *ctx = run->context;

	list_remove(&run->node);
	if (ctx->running != run)
		return;
	ctx->running = NULL; /* what it still says is for nobody */
	kernel_resume(&ctx->kernel);
	if (ctx->stage == STAGE_CODE)
		kernel_interrupt(&ctx->kernel);
}

/* --- contexts ------------------------------------------------------------------------------------------ */

static struct context *context_new(struct box *box, const struct language *language, const char *id,
                                   const char *cwd)
{
	struct context *ctx = calloc(1, sizeof(*ctx));

	if (!ctx)
		return NULL;
	ctx->box = box;
	ctx->language = language;
	(void)snprintf(ctx->id, sizeof(ctx->id), "%s", id);
	ctx->cwd = cwd ? strdup(cwd) : NULL;
	list_init(&ctx->runs);
	list_append(&box->contexts, &ctx->node);
	kernel_init(&ctx->kernel, box, ctx->id, &kernel_ops);
	return ctx;
}

/* All that wait are told that it is gone. */
static void end_runs(struct context *ctx, const char *name, const char *value)
{
	json_t *result = NULL;

	cell_set_error(&result, name, value);
	if (ctx->running) {
		struct run *run = ctx->running;

		ctx->running = NULL;
		run->ops->done(run, CELL_KERNEL_DIED, result);
	}
	while (!list_is_empty(&ctx->runs)) {
		struct run *run = container_of(ctx->runs.next, struct run, node);

		list_remove(&run->node);
		run->ops->done(run, CELL_KERNEL_DIED, result);
	}
	json_decref(result);
}

/* The machine is gone. */
static void lose_runs(struct context *ctx)
{
	while (!list_is_empty(&ctx->runs)) {
		struct run *run = container_of(ctx->runs.next, struct run, node);

		list_remove(&run->node);
		run->ops->lost(run);
	}
}

static void context_free(struct context *ctx)
{
	kernel_close(&ctx->kernel);
	guest_call_cancel(&ctx->call);
	list_remove(&ctx->node);
	free(ctx->cwd);
	free(ctx);
}

void context_end_all(struct box *box)
{
	list_each(&box->contexts, node)
	{
		struct context *ctx = container_of(node, struct context, node);

		if (ctx->running)
			on_lost(&ctx->kernel);
		lose_runs(ctx);
		context_free(ctx);
	}
}

/* --- their changes ------------------------------------------------------------------------------------- */

static void changed(struct context *ctx, const struct err *err)
{
	void (*tell)(struct context *, const struct err *) = ctx->changed;

	ctx->changed = NULL;
	ctx->is_held = false;
	tell(ctx, err);
}

/* An answer with a port: the context has a new interpreter. */
static void on_spare(struct guest_call *call, const json_t *answer, const struct err *why)
{
	struct context *ctx = container_of(call, struct context, call);
	json_int_t port = json_integer_value(json_object_get(answer, "port"));
	struct err err = *why;

	if (answer)
		err.code = agent_refused(answer, &err);
	if (answer && !err.code && (port <= 0 || port >= UINT32_MAX))
		(void)err_set(&err, -EPROTO, "the guest's agent named no port");
	if (!err.code) {
		kernel_moved(&ctx->kernel, (unsigned)port);
		notice_death(ctx);
	}
	changed(ctx, &err);
}

static void on_created(struct guest_call *call, const json_t *answer, const struct err *why)
{
	struct context *ctx = container_of(call, struct context, call);
	unsigned before = ctx->generation;

	on_spare(call, answer, why);
	if (ctx->generation == before) /* there is none, and it was told */
		context_free(ctx);
	else
		advance(ctx);
}

static struct context *create(struct box *box, const struct language *language, const char *id,
                              const char *cwd, void (*tell)(struct context *, const struct err *),
                              struct request *req)
{
	struct context *ctx = context_new(box, language, id, cwd);

	if (!ctx)
		return NULL;
	ctx->is_held = true;
	ctx->changed = tell;
	ctx->req = req;
	guest_call(&ctx->call, &box->machine,
	           json_pack("{s:s, s:s, s:b}", "op", "context", "context", ctx->id, "create", 1),
	           CHANGE_MS, on_created);
	return ctx;
}

struct context *context_create(struct box *box, const struct language *language, const char *cwd,
                               void (*tell)(struct context *, const struct err *),
                               struct request *req)
{
	uint64_t bits[2];
	char id[CONTEXT_ID_MAX];
	struct err err;

	if (!context_default(box, language_find(NULL))) /* comes first in every list */
		return NULL;
	BUG_ON(random_fill(bits, sizeof(bits), &err) < 0);
	(void)snprintf(id, sizeof(id), "%016" PRIx64 "%08" PRIx32, bits[0], (uint32_t)bits[1]);
	return create(box, language, id, cwd, tell, req);
}

/* Nobody but the runs that wait has asked for it. */
static void on_default_made(struct context *ctx, const struct err *err)
{
	if (err->code && ctx->box->machine.state == MACHINE_GONE)
		lose_runs(ctx);
	else if (err->code)
		end_runs(ctx, "RuntimeError", err->msg);
}

struct context *context_default(struct box *box, const struct language *language)
{
	struct context *ctx;

	list_each(&box->contexts, node)
	{
		ctx = container_of(node, struct context, node);
		if (ctx->is_default && ctx->language == language)
			return ctx;
	}
	ctx = language_is_python(language)
	              ? context_new(box, language, "default", NULL)
	              : create(box, language, language->name, NULL, on_default_made, NULL);
	if (ctx)
		ctx->is_default = true;
	return ctx;
}

struct context *context_peek(const struct box *box, const char *id)
{
	list_each(&box->contexts, node)
	{
		struct context *ctx = container_of(node, struct context, node);

		if (!strcmp(ctx->id, id))
			return ctx;
	}
	return NULL;
}

struct context *context_find(struct box *box, const char *id)
{
	const struct language *language = language_find(id);
	struct context *ctx = context_peek(box, id);

	if (ctx)
		return ctx;
	if (!strcmp(id, "default"))
		return context_default(box, language_find(NULL));
	return language && !language_is_python(language) && !strcmp(id, language->name)
	               ? context_default(box, language)
	               : NULL;
}

static void on_restarted(struct guest_call *call, const json_t *answer, const struct err *why)
{
	struct context *ctx = container_of(call, struct context, call);

	on_spare(call, answer, why);
	advance(ctx);
}

static void hold(struct context *ctx, void (*tell)(struct context *, const struct err *),
                 struct request *req)
{
	ctx->is_held = true;
	ctx->changed = tell;
	ctx->req = req;
	ctx->stage = STAGE_IDLE;
	kernel_abort(&ctx->kernel);
	guest_close(&ctx->kernel.stream);
}

void context_restart(struct context *ctx, void (*tell)(struct context *, const struct err *),
                     struct request *req)
{
	struct run *run = ctx->running;
	json_t *result = NULL;

	hold(ctx, tell, req);
	ctx->running = NULL;
	if (run) {
		cell_set_error(&result, "ContextRestarting", "Context was restarted");
		run->ops->done(run, CELL_KERNEL_DIED, result);
		json_decref(result);
	}
	guest_call(&ctx->call, &ctx->box->machine,
	           json_pack("{s:s, s:s}", "op", "kill", "context", ctx->id), CHANGE_MS,
	           on_restarted);
}

static void on_removed(struct guest_call *call, const json_t *answer, const struct err *why)
{
	struct context *ctx = container_of(call, struct context, call);
	struct err err = *why;

	if (answer)
		err.code = agent_refused(answer, &err);
	changed(ctx, &err);
	if (!err.code)
		context_free(ctx);
}

void context_remove(struct context *ctx, void (*tell)(struct context *, const struct err *),
                    struct request *req)
{
	hold(ctx, tell, req);
	end_runs(ctx, "ContextRestarting", "Context was removed");
	guest_call(&ctx->call, &ctx->box->machine,
	           json_pack("{s:s, s:s, s:b}", "op", "kill", "context", ctx->id, "close", 1),
	           CHANGE_MS, on_removed);
}

/* --- from one daemon to the next ----------------------------------------------------------------------- */

bool context_all_rest(const struct box *box)
{
	list_each((struct node *)(uintptr_t)&box->contexts, node)
	{
		const struct context *ctx = container_of(node, struct context, node);

		if (ctx->is_held || ctx->running || ctx->kernel.is_busy ||
		    !list_is_empty(&ctx->runs))
			return false;
	}
	return true;
}

json_t *context_save_all(const struct box *box, struct handover *h)
{
	json_t *all = json_array();

	list_each((struct node *)(uintptr_t)&box->contexts, node)
	{
		const struct context *ctx = container_of(node, struct context, node);

		json_array_append_new(
			all, json_pack("{s:s, s:s, s:s*, s:b, s:b, s:i, s:o}", "id", ctx->id,
		                       "language", ctx->language->name, "cwd", ctx->cwd, "default",
		                       ctx->is_default, "needs_setup", ctx->needs_setup, "count",
		                       (int)ctx->count, "kernel", kernel_save(&ctx->kernel, h)));
	}
	return all;
}

int context_restore_all(struct box *box, const json_t *saved, struct handover *h)
{
	const json_t *one;
	int rc = 0;
	size_t i;

	json_array_foreach(saved, i, one)
	{
		const char *id = text_member(one, "id");
		const struct language *language = language_find(text_member(one, "language"));
		struct context *ctx = id && language && !rc ? context_new(box, language, id,
		                                                          text_member(one, "cwd"))
		                                            : NULL;

		if (!ctx)
			return rc ? rc : -EPROTO;
		ctx->is_default = json_is_true(json_object_get(one, "default"));
		ctx->needs_setup = json_is_true(json_object_get(one, "needs_setup"));
		ctx->count = (unsigned)json_integer_value(json_object_get(one, "count"));
		rc = kernel_restore(&ctx->kernel, json_object_get(one, "kernel"), h);
		ctx->generation = ctx->kernel.generation;
	}
	return rc;
}
