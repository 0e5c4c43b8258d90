/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/box.h"

#include "api/daemon/context.h"
#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"
#include "api/daemon/process.h"
#include "api/daemon/text.h"
#include "api/daemon/watch.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define CLAIM_MS 60000

int64_t clock_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* Random bytes; the kernel gives this many or none. */
static void random_bytes(void *out, size_t n)
{
	BUG_ON(getrandom(out, n, 0) != (ssize_t)n);
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
	free(box);
	daemon->nr_boxes--;
	daemon_check_stop(daemon);
}

static void destroy(struct job *job)
{
	struct box *box = container_of(job, struct box, job);

	pool_destroy(box->stall->pool, &box->sb);
}

static void on_destroyed(struct job *job)
{
	struct box *box = container_of(job, struct box, job);

	box->daemon->nr_dying--;
	box_free(box);
}

static void destroy_later(struct box *box)
{
	box->daemon->nr_dying++;
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

static void claim(struct job *job)
{
	struct box *box = container_of(job, struct box, job);

	if (pool_claim(box->stall->pool, &box->sb, CLAIM_MS, &box->err) && !box->err.code)
		box->err.code = -EIO; /* on_claimed() goes by it */
}

static void on_claimed(struct job *job)
{
	struct box *box = container_of(job, struct box, job);
	struct daemon *daemon = box->daemon;
	struct err err = box->err;

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
	box->machine.id = box->id;
	box->machine.env = box->env;
	box->machine.gone = on_machine_gone;
	box->machine.thawed = on_thawed;
	list_append(&daemon->boxes, &box->node);
	box_set_ttl(box, (uint64_t)box->end_us); /* seconds, until now */
	box_log(box, "created from template %s", box->stall->template.name);
	box->made(box, &err);
}

struct box *box_create(struct daemon *daemon, const struct box_spec *spec)
{
	struct box *box = calloc(1, sizeof(*box));

	if (!box)
		return NULL;
	box->daemon = daemon;
	box->stall = spec->stall;
	box->key = spec->key;
	if (box->key)
		box->key->live++;
	box->end_us = (int64_t)spec->ttl_s;
	box->metadata = spec->metadata ? json_incref(spec->metadata) : json_object();
	box->env = spec->env ? json_incref(spec->env) : json_object();
	box->made = spec->made;
	box->ctx = spec->ctx;
	box->ttl_op.done = on_expired;
	list_init(&box->requests);
	list_init(&box->processes);
	list_init(&box->contexts);
	list_init(&box->watches);
	make_id(box->id);
	if (!spec->is_open)
		make_token(box->token);
	if (spec->is_private)
		make_token(box->traffic_token);
	daemon->nr_boxes++;
	box->job = (struct job){ .work = claim, .done = on_claimed };
	jobs_add(&daemon->jobs, &box->job);
	return box;
}
