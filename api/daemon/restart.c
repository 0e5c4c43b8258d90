/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/restart.h"

#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"
#include "api/daemon/text.h"

#include <errno.h>
#include <string.h>

#define REST_NS ((uint64_t)40000000000) /* an interrupted cell may take all steps of its deadline */

static unsigned count_live(const struct daemon *daemon)
{
	unsigned nr = 0;

	list_each((struct node *)(uintptr_t)&daemon->boxes, node)
	{
		nr++;
	}
	return nr;
}

static bool is_given_up(const struct daemon *daemon)
{
	return daemon->is_late || daemon->is_stopping;
}

/* Nobody uses it just now. */
static bool is_unused(void *ctx)
{
	const struct daemon *daemon = ctx;

	return is_given_up(daemon) || !daemon->http.nr_requests;
}

/* Nothing is under way in any sandbox, none is being made or torn down. */
static bool all_rest(void *ctx)
{
	const struct daemon *daemon = ctx;

	if (is_given_up(daemon))
		return true;
	if (daemon->nr_boxes != count_live(daemon))
		return false;
	list_each((struct node *)(uintptr_t)&daemon->http.requests, node)
	{
		if (!container_of(node, struct request, node)->is_cut)
			return false; /* its answer is still being sent */
	}
	list_each((struct node *)(uintptr_t)&daemon->boxes, node)
	{
		if (!box_rests(container_of(node, struct box, node)))
			return false;
	}
	return true;
}

static void on_late(struct loop_op *op, int res)
{
	if (res != -ECANCELED)
		container_of(op, struct daemon, stop_timer)->is_late = true;
}

/* Serves until done() or for so long. */
static int serve_until(struct daemon *daemon, bool (*done)(void *), uint64_t ns)
{
	int rc;

	daemon->is_late = false;
	daemon->stop_timer.done = on_late;
	loop_timer(&daemon->loop, &daemon->stop_timer, ns);
	rc = loop_run_until(&daemon->loop, done, daemon);
	(void)loop_reap(&daemon->loop, &daemon->stop_timer);
	return rc;
}

static void end_restless(struct daemon *daemon)
{
	list_each(&daemon->boxes, node)
	{
		struct box *box = container_of(node, struct box, node);

		if (box_rests(box))
			continue;
		journal_event(LOG_LVL_WARN, box->id,
		              "ended: it did not come to rest for the restart");
		box_end(box, "it did not come to rest for a restart of the daemon");
	}
}

int restart_settle(struct daemon *daemon)
{
	int rc = 0;

	journal_event(LOG_LVL_INFO, NULL, "leaving %u sandboxes to the next daemon",
	              count_live(daemon));
	if (daemon->opts.grace_ns)
		rc = serve_until(daemon, is_unused, daemon->opts.grace_ns);
	if (rc || daemon->is_stopping)
		return rc;
	http_quiesce(&daemon->http);
	rc = serve_until(daemon, all_rest, REST_NS);
	if (!rc && !daemon->is_stopping)
		end_restless(daemon);
	return rc;
}

int restart_save(const struct daemon *daemon, int listen_fd, struct handover *h, struct err *err)
{
	json_t *boxes = json_array();

	*h = (struct handover){ 0 };
	list_each((struct node *)(uintptr_t)&daemon->boxes, node)
	{
		const struct box *box = container_of(node, struct box, node);

		if (json_array_append_new(boxes, box_save(box, h)))
			h->has_failed = true;
	}
	h->state = json_pack("{s:o, s:o, s:o, s:o}", "boxes", boxes, "templates",
	                     stalls_save(daemon, h), "counters", stats_save(&daemon->counters),
	                     "listen", handover_fd(h, listen_fd));
	return h->state && !h->has_failed ? 0 : err_set(err, -ENOMEM, "restart: no memory");
}

int restart_take_listening(struct handover *h)
{
	return handover_take_fd(h, json_object_get(h->state, "listen"));
}

void restart_adopt(struct daemon *daemon, struct handover *h)
{
	const json_t *saved;
	size_t i;

	stats_restore(&daemon->counters, json_object_get(h->state, "counters"));
	stalls_restore(daemon, json_object_get(h->state, "templates"), h);
	json_array_foreach(json_object_get(h->state, "boxes"), i, saved)
	{
		const char *id = text_member(saved, "id");
		int rc = box_restore(daemon, saved, h);

		if (rc)
			journal_event(LOG_LVL_WARN, id, "not taken over: %s",
			              rc == -ENOENT ? "its template is not served any more"
			                            : strerror(-rc));
	}
	stalls_settle(daemon);
	if (h->state)
		journal_event(LOG_LVL_INFO, NULL, "took over %u sandboxes", count_live(daemon));
	handover_close(h);
}
