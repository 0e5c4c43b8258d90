/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/box.h"

#include "api/cgroup.h"
#include "api/daemon/context.h"
#include "api/daemon/daemon.h"
#include "api/daemon/handover.h"
#include "api/daemon/journal.h"
#include "api/daemon/process.h"
#include "api/daemon/text.h"
#include "api/daemon/watch.h"
#include "core/random.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CLAIM_MS 60000

int64_t clock_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* A kernel that runs gives them: what would a token without be? */
static void random_bytes(void *out, size_t n)
{
	struct err err;

	BUG_ON(random_fill(out, n, &err) < 0);
}

static void make_id(char out[BOX_ID_LEN + 1])
{
	uint8_t bytes[BOX_ID_LEN];

	random_bytes(bytes, sizeof(bytes));
	out[0] = 'i';
	for (unsigned i = 1; i < BOX_ID_LEN;
	     i++) /* 100 bits of it; that some are likelier is no matter */
		out[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[bytes[i] % 36];
	out[BOX_ID_LEN] = '\0';
}

static void make_token(char out[49])
{
	uint8_t bytes[24];

	random_bytes(bytes, sizeof(bytes));
	text_hex(bytes, sizeof(bytes), out);
}

void box_log(struct box *box, const char *fmt, ...)
{
	struct box_line *line = &box->log[box->nr_lines++ % BOX_LOG_LINES];
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	free(line->text);
	*line = (struct box_line){ .us = clock_us(), .text = strdup(text) };
}

json_t *box_env(const struct box *box, const json_t *more)
{
	json_t *env = box->env ? json_copy(box->env) : json_object();

	if (json_is_object(more))
		json_object_update(env, (json_t *)(uintptr_t)more);
	return env;
}

struct box *box_find(struct daemon *daemon, const char *id)
{
	list_each(&daemon->boxes, node)
	{
		struct box *box = container_of(node, struct box, node);

		if (!strcmp(box->id, id))
			return box;
	}
	return NULL;
}

void daemon_check_stop(struct daemon *daemon)
{
	if (daemon->is_stopping && !daemon->nr_boxes)
		loop_stop(&daemon->loop);
}

/* --- its end ------------------------------------------------------------------------------------- */

static void box_free(struct box *box)
{
	struct daemon *daemon = box->daemon;

	if (box->key)
		box->key->live--;
	for (unsigned i = 0; i < BOX_LOG_LINES; i++)
		free(box->log[i].text);
	json_decref(box->metadata);
	json_decref(box->env);
	stall_release(box->stall);
	free(box);
	daemon->nr_boxes--;
	daemon_check_stop(daemon);
}

static void destroy(struct job *job)
{
	struct box *box = container_of(job, struct box, job);

	pool_destroy(box->reaper->pool, &box->sb);
}

static void on_destroyed(struct job *job)
{
	struct box *box = container_of(job, struct box, job);

	stall_called(box->reaper);
	box->daemon->nr_dying--;
	box_free(box);
}

static void destroy_later(struct box *box)
{
	box->daemon->nr_dying++;
	box->reaper = stall_reaper(box->stall);
	stall_call(box->reaper);
	box->job = (struct job){ .work = destroy, .done = on_destroyed };
	jobs_add(&box->daemon->jobs, &box->job);
}

/* Whoever waits for an answer of the box gets none: this is how clients see that it is gone. */
static void cut_requests(struct box *box)
{
	list_each(&box->requests, node)
	{
		struct request *req = container_of(node, struct request, box_node);

		list_remove(&req->box_node);
		req->box = NULL;
		if (!req->status || (req->is_stream && !req->has_ended))
			request_abandon(req);
	}
}

void box_end(struct box *box, const char *why)
{
	struct err err = { 0 };

	(void)err_set(&err, -ECONNABORTED, "the sandbox has ended: %s", why);
	list_remove(&box->node);
	(void)loop_reap(&box->daemon->loop, &box->ttl_op);
	machine_stop(&box->machine, &err);
	cut_requests(box);
	process_end_all(box);
	context_end_all(box);
	watch_end_all(box);
	box->sb = box->machine.sb;
	destroy_later(box);
}

static void on_machine_gone(struct machine *m, const struct err *why)
{
	struct box *box = container_of(m, struct box, machine);

	box->daemon->counters.ended_lost++;
	journal_event(LOG_LVL_WARN, box->id, "lost: %s", why->msg);
	box_end(box, why->msg);
}

static void on_thawed(struct machine *m)
{
	struct box *box = container_of(m, struct box, machine);
	double ms = json_number_value(json_object_get(m->sb.thawed, "create_ms"));

	stats_thaw(&box->daemon->counters, (uint64_t)(ms * 1000));
	box_log(box, "thawed in %.2f ms", ms);
}

static void on_expired(struct loop_op *op, int res)
{
	struct box *box = container_of(op, struct box, ttl_op);

	if (res == -ECANCELED)
		return;
	box->daemon->counters.ended_expired++;
	journal_event(LOG_LVL_INFO, box->id, "its time is over");
	box_end(box, "its time is over");
}

void box_set_ttl(struct box *box, uint64_t seconds)
{
	box->end_us = clock_us() + (int64_t)seconds * 1000000;
	(void)loop_reap(&box->daemon->loop, &box->ttl_op);
	loop_timer(&box->daemon->loop, &box->ttl_op, seconds * 1000000000u);
}

/* --- its making ----------------------------------------------------------------------------------- */

/* `metadata` and `env` are borrowed, or NULL. */
static struct box *box_new(struct daemon *daemon, struct stall *stall, struct key *key,
                           json_t *metadata, json_t *env)
{
	struct box *box = calloc(1, sizeof(*box));

	if (!box)
		return NULL;
	box->daemon = daemon;
	box->stall = stall;
	stall_hold(stall);
	box->key = key;
	if (key)
		key->live++;
	box->metadata = metadata ? json_incref(metadata) : json_object();
	box->env = env ? json_incref(env) : json_object();
	box->ttl_op.done = on_expired;
	list_init(&box->requests);
	list_init(&box->processes);
	list_init(&box->contexts);
	list_init(&box->watches);
	daemon->nr_boxes++;
	return box;
}

/* It has a machine from now on. */
static void join(struct box *box)
{
	box->machine.id = box->id;
	box->machine.env = box->env;
	box->machine.gone = on_machine_gone;
	box->machine.thawed = on_thawed;
	list_append(&box->daemon->boxes, &box->node);
}

#define CPU_PERIOD_US 100000 /* cgroup's own default */

/* -EOPNOTSUPP: its monitor has no cgroup. */
static int limit_cpu(struct box *box)
{
	char limit[64];

	if (box->sb.cgroup) {
		(void)snprintf(limit, sizeof(limit), "cpu.max=%d %d",
		               (int)(box->cpu_share * CPU_PERIOD_US), CPU_PERIOD_US);
		return cgroup_limit(box->sb.cgroup, limit, &box->err);
	}
	(void)err_set(&box->err, -EOPNOTSUPP,
	              "a share of the processor needs a cgroup for each sandbox");
	return err_remedy(&box->err, "start thawboxd with THAWBOX_CGROUP=DIR in its environment, a "
	                             "directory of cgroup v2 that is delegated to it");
}

static void claim(struct job *job)
{
	struct box *box = container_of(job, struct box, job);
	int rc = pool_claim(box->stall->pool, &box->sb, CLAIM_MS, &box->err);

	if (!rc && box->cpu_share > 0) {
		rc = limit_cpu(box);
		if (rc)
			pool_destroy(box->stall->pool, &box->sb);
	}
	if (rc && !box->err.code)
		box->err.code = -EIO; /* on_claimed() goes by it */
}

static void on_claimed(struct job *job)
{
	struct box *box = container_of(job, struct box, job);
	struct daemon *daemon = box->daemon;
	struct err err = box->err;

	stall_called(box->stall);
	if (err.code) {
		daemon->counters.create_failed++;
		box->made(box, &err);
		box_free(box);
		return;
	}
	daemon->counters.created++;
	box->claimed_ns = clock_ns();
	box->start_us = clock_us();
	machine_start(&box->machine, &daemon->loop, &box->sb);
	join(box);
	meter_start(&box->meter, box->machine.sb.pid);
	box_set_ttl(box, (uint64_t)box->end_us); /* seconds, until now */
	box_log(box, "created from template %s", box->stall->template.name);
	box->made(box, &err);
}

struct box *box_create(struct daemon *daemon, const struct box_spec *spec)
{
	struct box *box = box_new(daemon, spec->stall, spec->key, spec->metadata, spec->env);

	if (!box)
		return NULL;
	box->end_us = (int64_t)spec->ttl_s;
	box->made = spec->made;
	box->ctx = spec->ctx;
	box->machine.limits = spec->limits;
	box->cpu_share = spec->cpu_share;
	make_id(box->id);
	if (!spec->is_open)
		make_token(box->token);
	if (spec->is_private)
		make_token(box->traffic_token);
	stall_call(box->stall);
	box->job = (struct job){ .work = claim, .done = on_claimed };
	jobs_add(&daemon->jobs, &box->job);
	return box;
}

/* --- from one daemon to the next ------------------------------------------------------------------- */

bool box_rests(const struct box *box)
{
	return machine_rests(&box->machine) && context_all_rest(box);
}

static json_t *save_log(const struct box *box)
{
	unsigned first = box->nr_lines > BOX_LOG_LINES ? box->nr_lines - BOX_LOG_LINES : 0;
	json_t *log = json_array();

	for (unsigned i = first; i < box->nr_lines; i++) {
		const struct box_line *line = &box->log[i % BOX_LOG_LINES];

		json_array_append_new(log, json_pack("[I, s]", (json_int_t)line->us,
		                                     line->text ? line->text : ""));
	}
	return log;
}

static void restore_log(struct box *box, const json_t *log)
{
	const json_t *line;
	size_t i;

	json_array_foreach(log, i, line)
	{
		const char *text = json_string_value(json_array_get(line, 1));

		if (i >= BOX_LOG_LINES)
			break;
		box->log[box->nr_lines++] =
			(struct box_line){ .us = json_integer_value(json_array_get(line, 0)),
			                   .text = text ? strdup(text) : NULL };
	}
}

json_t *box_save(const struct box *box, struct handover *h)
{
	return json_pack(
		"{s:s, s:s, s:s, s:s*, s:s, s:s, s:O, s:O, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, "
		"s:o}",
		"id", box->id, "token", box->token, "traffic_token", box->traffic_token, "key",
		box->key ? box->key->name : NULL, "template", box->stall->template.name,
		"template_id", box->stall->template.id, "metadata", box->metadata, "env", box->env,
		"start_us", (json_int_t)box->start_us, "end_us", (json_int_t)box->end_us,
		"claimed_ns", (json_int_t)box->claimed_ns, "log", save_log(box), "machine",
		machine_save(&box->machine, h), "contexts", context_save_all(box, h), "processes",
		process_save_all(box, h), "watches", watch_save_all(box, h), "meter",
		meter_save(&box->meter));
}

static bool copy_member(const json_t *saved, const char *name, char *out, size_t size)
{
	const char *text = text_member(saved, name);

	return text && (size_t)snprintf(out, size, "%s", text) < size;
}

static int restore_names(struct box *box, const json_t *saved)
{
	return copy_member(saved, "id", box->id, sizeof(box->id)) &&
	                       copy_member(saved, "token", box->token, sizeof(box->token)) &&
	                       copy_member(saved, "traffic_token", box->traffic_token,
	                                   sizeof(box->traffic_token))
	               ? 0
	               : -EPROTO;
}

static struct key *find_key(struct daemon *daemon, const char *name)
{
	for (unsigned i = 0; name && i < daemon->keys.nr; i++)
		if (!strcmp(daemon->keys.at[i]->name, name))
			return daemon->keys.at[i];
	return NULL;
}

/* The machine is there: a failure ends the box in the usual way. */
static int restore_parts(struct box *box, const json_t *saved, struct handover *h)
{
	int64_t now = clock_us(), end;
	int rc;

	join(box);
	restore_log(box, json_object_get(saved, "log"));
	end = json_integer_value(json_object_get(saved, "end_us"));
	box->end_us = end;
	loop_timer(&box->daemon->loop, &box->ttl_op, end > now ? (uint64_t)(end - now) * 1000u : 1);
	rc = context_restore_all(box, json_object_get(saved, "contexts"), h);
	rc = rc ? rc : process_restore_all(box, json_object_get(saved, "processes"), h);
	rc = rc ? rc : watch_restore_all(box, json_object_get(saved, "watches"), h);
	if (rc)
		box_end(box, "the daemon before this one left it in a state that is not known");
	return rc;
}

int box_restore(struct daemon *daemon, const json_t *saved, struct handover *h)
{
	struct stall *stall =
		stall_of(daemon, text_member(saved, "template"), text_member(saved, "template_id"));
	struct box *box;
	int rc;

	if (!stall) {
		machine_discard(json_object_get(saved, "machine"), h);
		return -ENOENT;
	}
	box = box_new(daemon, stall, find_key(daemon, text_member(saved, "key")),
	              json_object_get(saved, "metadata"), json_object_get(saved, "env"));
	if (!box)
		return -ENOMEM;
	box->start_us = json_integer_value(json_object_get(saved, "start_us"));
	box->claimed_ns = (uint64_t)json_integer_value(json_object_get(saved, "claimed_ns"));
	meter_restore(&box->meter, json_object_get(saved, "meter"));
	rc = restore_names(box, saved);
	rc = rc ? rc
	        : machine_restore(&box->machine, &daemon->loop, json_object_get(saved, "machine"),
	                          h);
	if (rc) {
		box_free(box);
		return rc;
	}
	return restore_parts(box, saved, h);
}
