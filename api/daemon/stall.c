/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/stall.h"

#include "api/daemon/daemon.h"
#include "api/daemon/handover.h"
#include "api/daemon/journal.h"
#include "api/daemon/text.h"
#include "api/pool.h"
#include "core/own.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>

#define FULL_MS 30000 /* for the pool of a snapshot that is to be served */

/* --- one of them --------------------------------------------------------------------------------------- */

static void stall_free(struct stall *stall)
{
	list_remove(&stall->node);
	pool_close(stall->pool);
	template_close(&stall->template);
	json_decref(stall->info);
	free(stall);
}

static struct stall *stall_new(struct daemon *daemon, unsigned place)
{
	struct stall *stall = calloc(1, sizeof(*stall));

	if (stall) {
		stall->daemon = daemon;
		stall->place = place;
		stall->template.lock_fd = -1;
	}
	return stall;
}

static int parse_kind(const char *text, enum pool_kind *kind, struct err *err)
{
	static const char *const names[] = { "shell", "standby", "warm" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (!strcmp(text, names[i])) {
			*kind = (enum pool_kind)i;
			return 0;
		}
	}
	return err_set(err, -EINVAL, "--pool-kind %s: it is shell, standby or warm", text);
}

/* The snapshot that is current, and a pool of it. Any thread. */
static int open_current(struct stall *stall, const char *name, struct err *err)
{
	const struct options *opts = &stall->daemon->opts;
	struct pool_spec spec = { .size = (unsigned)opts->pool_size,
		                  .max_dying = (unsigned)opts->pool_size + 8,
		                  .verbose = getenv("THAWBOX_DEBUG") != NULL };
	int rc = parse_kind(opts->pool_kind, &spec.kind, err);

	rc = rc ? rc : template_open(&stall->template, name, 0, err);
	if (rc)
		return rc;
	spec.dir = stall->template.dir;
	spec.overlay_dir = stall->template.home;
	rc = pool_open(&stall->pool, &spec, err);
	if (rc)
		return err_wrap(err, "template %s", name);
	stall->info = template_info(&stall->template);
	return 0;
}

static int open_one(struct daemon *daemon, const char *name, struct err *err)
{
	struct stall *stall;

	if (daemon->nr_stalls == STALLS_MAX)
		return err_set(err, -EINVAL, "--template: at most %d", STALLS_MAX);
	stall = stall_new(daemon, daemon->nr_stalls);
	if (!stall)
		return err_set(err, -ENOMEM, "no memory for template %s", name);
	daemon->stalls[daemon->nr_stalls++] = stall;
	return open_current(stall, name, err);
}

int stalls_open(struct daemon *daemon, struct err *err)
{
	const struct arg_list *names = &daemon->opts.templates;
	int rc = 0;

	list_init(&daemon->old_stalls);
	daemon->rotation.fd = -1;
	if (!names->nr)
		return open_one(daemon, TEMPLATE_DEFAULT, err);
	for (unsigned i = 0; !rc && i < names->nr; i++)
		rc = open_one(daemon, names->at[i], err);
	return rc;
}

void stalls_close(struct daemon *daemon)
{
	for (unsigned i = 0; i < daemon->nr_stalls; i++) {
		struct stall *stall = daemon->stalls[i];

		pool_close(stall->pool);
		stall->pool = NULL;
		if (!stall->nr_boxes)
			stall_free(stall);
	}
	daemon->nr_stalls = 0;
}

struct stall *stall_find(struct daemon *daemon, const char *name)
{
	for (unsigned i = 0; name && i < daemon->nr_stalls; i++)
		if (!strcmp(daemon->stalls[i]->template.name, name))
			return daemon->stalls[i];
	return NULL;
}

/* --- who uses it --------------------------------------------------------------------------------------- */

static void close_pool(struct job *job)
{
	pool_close(container_of(job, struct stall, job)->pool);
}

static void settle(struct stall *stall);

static void on_pool_closed(struct job *job)
{
	struct stall *stall = container_of(job, struct stall, job);

	stall->pool = NULL;
	stall->nr_calls = 0;
	settle(stall);
}

/* Of an old one: ends what nobody uses any more. */
static void settle(struct stall *stall)
{
	if (!stall->is_old || stall->nr_calls)
		return;
	if (stall->pool) {
		stall->nr_calls = 1; /* this job */
		stall->job = (struct job){ .work = close_pool, .done = on_pool_closed };
		jobs_add(&stall->daemon->jobs, &stall->job);
	} else if (!stall->nr_boxes) {
		stall_free(stall);
	}
}

void stall_hold(struct stall *stall)
{
	stall->nr_boxes++;
}

void stall_release(struct stall *stall)
{
	stall->nr_boxes--;
	settle(stall);
}

void stall_call(struct stall *stall)
{
	stall->nr_calls++;
}

void stall_called(struct stall *stall)
{
	stall->nr_calls--;
	settle(stall);
}

struct stall *stall_reaper(const struct stall *stall)
{
	return stall->daemon->stalls[stall->place];
}

uint64_t stall_misses(const struct stall *stall)
{
	return stall->misses + (stall->pool ? pool_stats(stall->pool).misses : 0);
}

/* --- templates that are baked again -------------------------------------------------------------------- */

static void open_fresh(struct job *job)
{
	struct rotation *r = container_of(job, struct rotation, job);
	struct daemon *daemon = r->fresh->daemon;
	const char *name = daemon->stalls[r->fresh->place]->template.name;
	int rc = open_current(r->fresh, name, &r->err);

	rc = rc ? rc : pool_wait_full(r->fresh->pool, FULL_MS, &r->err);
	r->err.code = rc;
}

static void take_place(struct stall *fresh)
{
	struct daemon *daemon = fresh->daemon;
	struct stall *old = daemon->stalls[fresh->place];

	fresh->misses = stall_misses(old);
	daemon->stalls[fresh->place] = fresh;
	daemon->counters.rotated++;
	journal_event(LOG_LVL_INFO, NULL, "template %s: %s serves now; %u sandboxes of %s go on",
	              fresh->template.name, fresh->template.id, old->nr_boxes, old->template.id);
	old->is_old = true;
	list_append(&daemon->old_stalls, &old->node);
	settle(old);
}

/* It is not asked for again until somebody wants a look. */
static void refuse(struct stall *fresh, const struct err *err)
{
	struct stall *old = fresh->daemon->stalls[fresh->place];

	if (template_current(old->template.name, old->refused))
		old->refused[0] = '\0';
	if (fresh->template.id[0])
		memcpy(old->refused, fresh->template.id, sizeof(old->refused));
	journal_event(LOG_LVL_ERR, NULL, "template %s: %s cannot be served: %s; %s goes on",
	              old->template.name, old->refused, err->msg, old->template.id);
	stall_free(fresh);
}

static void look(struct daemon *daemon);

static void on_fresh(struct job *job)
{
	struct rotation *r = container_of(job, struct rotation, job);
	struct daemon *daemon = r->fresh->daemon;
	struct stall *fresh = r->fresh;

	r->fresh = NULL;
	r->is_busy = false;
	if (r->err.code)
		refuse(fresh, &r->err);
	else if (daemon->leave != LEAVE_NOT || daemon->is_stopping)
		stall_free(fresh);
	else
		take_place(fresh);
	look(daemon);
}

static void begin_rotation(struct daemon *daemon, unsigned place)
{
	struct rotation *r = &daemon->rotation;

	r->fresh = stall_new(daemon, place);
	if (!r->fresh)
		return; /* the next look tries again */
	r->is_busy = true;
	r->err = (struct err){ 0 };
	r->job = (struct job){ .work = open_fresh, .done = on_fresh };
	jobs_add(&daemon->jobs, &r->job);
}

/* One at a time: its end looks again. */
static void look(struct daemon *daemon)
{
	char id[TEMPLATE_ID_MAX];

	for (unsigned i = 0; i < daemon->nr_stalls; i++) {
		const struct stall *stall = daemon->stalls[i];

		if (daemon->rotation.is_busy || daemon->leave != LEAVE_NOT || daemon->is_stopping)
			return;
		if (!template_current(stall->template.name, id) &&
		    strcmp(id, stall->template.id) != 0 && strcmp(id, stall->refused) != 0)
			begin_rotation(daemon, i);
	}
}

/* A folder that is watched already stays so: one that was removed and made again is another. */
static int watch_folders(struct daemon *daemon)
{
	const uint32_t events = IN_MOVED_TO | IN_CREATE | IN_ONLYDIR;
	char path[PATHS_MAX];
	int rc = 0;

	for (unsigned i = 0; i < daemon->nr_stalls; i++) {
		const struct template *t = &daemon->stalls[i]->template;

		if (!paths_format(path, NULL, "%s/templates", t->home) &&
		    inotify_add_watch(daemon->rotation.fd, path, events) < 0)
			rc = -errno;
		if (!paths_format(path, NULL, "%s/templates/%s", t->home, t->name) &&
		    inotify_add_watch(daemon->rotation.fd, path, events) < 0 && errno != ENOENT)
			rc = -errno;
	}
	return rc;
}

/* What has happened is told by the links themselves. */
static void on_change(struct loop_op *op, int res)
{
	struct rotation *r = container_of(op, struct rotation, op);
	struct daemon *daemon = container_of(r, struct daemon, rotation);
	char events[4096];

	if (res == -ECANCELED)
		return;
	while (read(r->fd, events, sizeof(events)) > 0)
		;
	(void)watch_folders(daemon); /* it was said before that it cannot be */
	look(daemon);
	loop_poll(&daemon->loop, op, r->fd, POLLIN);
}

void stalls_watch(struct daemon *daemon)
{
	struct rotation *r = &daemon->rotation;
	int rc;

	r->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	rc = r->fd < 0 ? -errno : watch_folders(daemon);
	if (rc)
		journal_event(LOG_LVL_WARN, NULL,
		              "templates cannot be watched (%s): one that is baked again is served "
		              "after a SIGHUP",
		              strerror(-rc));
	r->op.done = on_change;
	if (r->fd >= 0)
		loop_poll(&daemon->loop, &r->op, r->fd, POLLIN);
	look(daemon);
}

void stalls_look(struct daemon *daemon)
{
	for (unsigned i = 0; i < daemon->nr_stalls; i++)
		daemon->stalls[i]->refused[0] = '\0';
	look(daemon);
}

void stalls_unwatch(struct daemon *daemon)
{
	(void)loop_reap(&daemon->loop, &daemon->rotation.op);
	own_close_fd(&daemon->rotation.fd);
	daemon->rotation.fd = -1;
}

/* --- from one daemon to the next ----------------------------------------------------------------------- */

static json_t *save(const struct stall *stall, struct handover *h)
{
	return json_pack("{s:s, s:s, s:I, s:o*}", "name", stall->template.name, "id",
	                 stall->template.id, "misses",
	                 (json_int_t)(stall->is_old ? 0 : stall_misses(stall)), "lock",
	                 stall->nr_boxes ? handover_fd(h, stall->template.lock_fd) : NULL);
}

json_t *stalls_save(const struct daemon *daemon, struct handover *h)
{
	json_t *all = json_array();

	for (unsigned i = 0; i < daemon->nr_stalls; i++)
		json_array_append_new(all, save(daemon->stalls[i], h));
	list_each((struct node *)(uintptr_t)&daemon->old_stalls, node)
	{
		json_array_append_new(all, save(container_of(node, struct stall, node), h));
	}
	return all;
}

/* A snapshot that is not current any more, for its sandboxes. */
static void restore_old(struct stall *serving, const json_t *saved, struct handover *h)
{
	own_fd int lock_fd = handover_take_fd(h, json_object_get(saved, "lock"));
	const char *id = text_member(saved, "id");
	struct stall *stall = id ? stall_new(serving->daemon, serving->place) : NULL;
	struct err err = { 0 };

	if (!stall)
		return;
	if (template_adopt(&stall->template, serving->template.name, id, lock_fd, &err)) {
		free(stall);
		return;
	}
	(void)fd_take(&lock_fd);
	stall->info = template_info(&stall->template);
	if (!stall->info) /* its folder was taken away */
		stall->info = json_incref(serving->info);
	stall->is_old = true;
	list_append(&serving->daemon->old_stalls, &stall->node);
}

void stalls_restore(struct daemon *daemon, const json_t *saved, struct handover *h)
{
	const json_t *one;
	size_t i;

	json_array_foreach(saved, i, one)
	{
		struct stall *serving = stall_find(daemon, text_member(one, "name"));
		const char *id = text_member(one, "id");

		if (!serving)
			continue;
		serving->misses += (uint64_t)json_integer_value(json_object_get(one, "misses"));
		if (id && strcmp(id, serving->template.id) != 0)
			restore_old(serving, one, h);
	}
}

struct stall *stall_of(struct daemon *daemon, const char *name, const char *id)
{
	struct stall *serving = stall_find(daemon, name);

	list_each(&daemon->old_stalls, node)
	{
		struct stall *stall = container_of(node, struct stall, node);

		if (serving && id && stall->place == serving->place &&
		    !strcmp(stall->template.id, id))
			return stall;
	}
	return serving;
}

void stalls_settle(struct daemon *daemon)
{
	list_each(&daemon->old_stalls, node)
	{
		settle(container_of(node, struct stall, node));
	}
}
