/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/watch.h"

#include "api/daemon/daemon.h"
#include "api/daemon/envd.h"
#include "api/daemon/rpc.h"
#include "api/daemon/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ANSWER_NS ((uint64_t)60 * 1000000000) /* of the agent, to what is asked of a watcher */

struct watch {
	struct node node; /* of the box's */
	struct box *box;
	struct guest_stream stream;
	struct request *req; /* of a stream; of a watcher, who waits for an answer; NULL: nobody */
	struct loop_op timer, deadline_op;
	bool is_stream, has_started, has_said;
	unsigned keepalive_s;
	/* a watcher */
	char id[16];
	json_t *events;
	size_t bytes;              /* that the events took when they came */
	unsigned asked, answered;  /* syncs; */
	unsigned wanted;           /* and that which `req` waits for */
	enum rpc_code failed_code; /* why it has ended, */
	char failed[512];          /* and in words; "": it has not */
};

static struct loop *loop_of(struct watch *w)
{
	return &w->box->daemon->loop;
}

static void watch_free(struct watch *w)
{
	(void)loop_reap(loop_of(w), &w->timer);
	(void)loop_reap(loop_of(w), &w->deadline_op);
	guest_close(&w->stream);
	list_remove(&w->node);
	json_decref(w->events);
	free(w);
}

void watch_end_all(struct box *box)
{
	list_each(&box->watches, node)
	{
		watch_free(container_of(node, struct watch, node));
	}
}

/* --- events -------------------------------------------------------------------------------------------- */

json_t *watch_event(const json_t *event)
{
	static const struct {
		const char *agent, *envd;
	} types[] = {
		{ "create", "EVENT_TYPE_CREATE" }, { "write", "EVENT_TYPE_WRITE" },
		{ "remove", "EVENT_TYPE_REMOVE" }, { "rename", "EVENT_TYPE_RENAME" },
		{ "chmod", "EVENT_TYPE_CHMOD" },
	};
	const char *kind = text_member(event, "event"), *name = text_member(event, "name");
	const json_t *entry = json_object_get(event, "entry");

	for (size_t i = 0; kind && name && i < ARRAY_LEN(types); i++)
		if (!strcmp(types[i].agent, kind))
			return json_pack("{s:s, s:s, s:o*}", "name", name, "type", types[i].envd,
			                 "entry", json_is_object(entry) ? envd_entry(entry) : NULL);
	return NULL;
}

bool watch_is_same(const json_t *a, const json_t *b)
{
	return json_equal(json_object_get(a, "type"), json_object_get(b, "type")) &&
	       json_equal(json_object_get(a, "name"), json_object_get(b, "name"));
}

/* Answers whoever waits for the events of a watcher. */
static void give_events(struct watch *w)
{
	struct request *req = w->req;
	json_t *events = w->events;

	w->req = NULL;
	w->events = json_array();
	w->bytes = 0;
	(void)loop_reap(loop_of(w), &w->timer);
	guest_resume(&w->stream);
	rpc_reply(req, json_pack("{s:o}", "events", events));
}

static bool is_full(const struct watch *w)
{
	return json_array_size(w->events) >= WATCH_EVENTS_MAX || w->bytes >= WATCH_BYTES;
}

/* Keeps an event until somebody asks; above its bounds the guest has to wait. */
static void keep(struct watch *w, json_t *event, size_t bytes)
{
	size_t nr = json_array_size(w->events);

	if (nr && watch_is_same(json_array_get(w->events, nr - 1), event)) {
		json_array_set_new(w->events, nr - 1, event);
		return;
	}
	json_array_append_new(w->events, event);
	w->bytes += bytes;
	if (!is_full(w))
		return;
	guest_pause(&w->stream);
	if (w->req)
		give_events(w);
}

static void pass_on(struct watch *w, json_t *event)
{
	w->has_said = true;
	rpc_send(w->req, json_pack("{s:o}", "filesystem", event));
	if (!reply_has_room(w->req))
		guest_pause(&w->stream);
}

static void on_started(struct watch *w)
{
	w->has_started = true;
	if (w->is_stream) {
		w->has_said = true;
		rpc_send(w->req, json_pack("{s:{}}", "start"));
	} else {
		struct request *req = w->req;

		w->req = NULL;
		(void)loop_reap(loop_of(w), &w->timer);
		rpc_reply(req, json_pack("{s:s}", "watcherId", w->id));
	}
}

/* It is over: whoever waits is told, or is when he asks. */
static void end(struct watch *w, enum rpc_code code, const char *why)
{
	struct request *req = w->req;

	if (req)
		req->ops = NULL; /* the rest is its answer */
	if (w->is_stream) {
		watch_free(w);
		rpc_end_fail(req, code, "%s", why);
		return;
	}
	if (!w->has_started) {
		watch_free(w);
		rpc_fail(req, code, "%s", why);
		return;
	}
	guest_close(&w->stream);
	w->failed_code = code;
	(void)snprintf(w->failed, sizeof(w->failed), "%s", why);
	if (req)
		give_events(w); /* what there is; the next one is told */
}

static void on_result(struct watch *w, const struct frame *frame)
{
	json_t *result = frame_json(frame->data, frame->len), *error;
	const char *value;

	error = json_object_get(result, "error");
	value = text_member(error, "value");
	end(w, rpc_code_of(text_member(error, "name")), value ? value : "the guest ended it");
	json_decref(result);
}

static void on_event(struct watch *w, const struct frame *frame)
{
	json_t *said = frame->len <= WATCH_EVENT_MAX ? frame_json(frame->data, frame->len) : NULL;
	const char *kind = text_member(said, "event");
	json_t *event = watch_event(said);

	if (!kind) {
		end(w, RPC_INTERNAL, "the guest's agent told no event");
	} else if (!w->has_started) {
		on_started(w); /* the first one, whatever it is called */
	} else if (event && w->is_stream) {
		pass_on(w, json_incref(event));
	} else if (event) {
		keep(w, json_incref(event), frame->len);
	} else if (!strcmp(kind, "sync") && w->answered != w->asked) {
		w->answered++;
		if (w->req && w->answered == w->wanted)
			give_events(w);
	}
	json_decref(event);
	json_decref(said);
}

static void on_frame(struct guest_stream *s, const struct frame *frame)
{
	struct watch *w = container_of(s, struct watch, stream);

	if (frame->type == FRAME_EVENT)
		on_event(w, frame);
	else if (frame->type == FRAME_RESULT)
		on_result(w, frame);
}

/* The machine is gone, or the guest broke the protocol. */
static void on_closed(struct guest_stream *s, const struct err *why)
{
	struct watch *w = container_of(s, struct watch, stream);

	if (w->is_stream || !w->has_started || w->box->machine.state == MACHINE_GONE) {
		if (w->req)
			request_cut(w->req);
		watch_free(w);
	} else {
		end(w, RPC_INTERNAL, why->msg);
	}
}

static const struct guest_ops watch_guest_ops = { .frame = on_frame, .closed = on_closed };

/* --- clients ------------------------------------------------------------------------------------------- */

static void on_drained(struct request *req)
{
	guest_resume(&((struct watch *)req->ctx)->stream);
}

static void on_gone(struct request *req)
{
	struct watch *w = req->ctx;

	w->req = NULL;
	if (w->is_stream || !w->has_started)
		watch_free(w);
	else /* a watcher outlives its clients */
		(void)loop_reap(loop_of(w), &w->timer);
}

/* A stream ends; a watcher goes to the next daemon, and whoever asks it gets what there is. */
static void on_leaving(struct request *req)
{
	struct watch *w = req->ctx;

	if (w->is_stream)
		end(w, RPC_ABORTED, "the daemon is being replaced: watch the folder again");
	else if (w->has_started)
		give_events(w);
}

static const struct request_ops watch_ops = { .drained = on_drained,
	                                      .leaving = on_leaving,
	                                      .gone = on_gone };

static void on_deadline(struct loop_op *op, int res)
{
	if (res != -ECANCELED)
		end(container_of(op, struct watch, deadline_op), RPC_DEADLINE_EXCEEDED,
		    "the deadline of this stream has passed");
}

/* Of a stream: something is said from time to time. Of a watcher: the agent does not answer. */
static void on_timer(struct loop_op *op, int res)
{
	struct watch *w = container_of(op, struct watch, timer);
	struct request *req = w->req;

	if (res == -ECANCELED)
		return;
	if (w->is_stream) {
		if (!w->has_said && w->has_started)
			rpc_send(req, json_pack("{s:{}}", "keepalive"));
		w->has_said = false;
		loop_timer(loop_of(w), op, w->keepalive_s * (uint64_t)1000000000);
		return;
	}
	w->req = NULL;
	if (!w->has_started)
		watch_free(w);
	rpc_fail(req, RPC_DEADLINE_EXCEEDED, "the guest's agent did not answer in time");
}

static unsigned count(const struct box *box)
{
	unsigned nr = 0;

	for (const struct node *node = box->watches.next; node != &box->watches; node = node->next)
		nr++;
	return nr;
}

static struct watch *watch_make(struct box *box)
{
	struct watch *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->box = box;
	w->timer.done = on_timer;
	w->deadline_op.done = on_deadline;
	list_append(&box->watches, &w->node);
	return w;
}

static struct watch *watch_new(struct request *req, bool is_stream)
{
	struct watch *w = watch_make(req->box);

	if (!w)
		return NULL;
	w->req = req;
	w->is_stream = is_stream;
	w->keepalive_s = rpc_keepalive_s(req);
	w->events = json_array();
	(void)snprintf(w->id, sizeof(w->id), "w%u", ++w->box->last_watch);
	req->ctx = w;
	req->ops = &watch_ops;
	return w;
}

/* Asks the agent; its first event is the answer. */
static void open_watch(struct watch *w, const json_t *message, const char *user)
{
	const char *path = text_member(message, "path");
	uint64_t timeout_ms = w->is_stream ? rpc_timeout_ms(w->req) : 0;

	loop_timer(loop_of(w), &w->timer,
	           w->is_stream ? w->keepalive_s * (uint64_t)1000000000 : ANSWER_NS);
	if (timeout_ms)
		loop_timer(loop_of(w), &w->deadline_op, timeout_ms * 1000000u);
	guest_open(&w->stream, &w->box->machine, GUEST_PORT_AGENT, &watch_guest_ops);
	guest_send_json(&w->stream,
	                json_pack("{s:s, s:s, s:s, s:b, s:b, s:b}", "op", "watch", "path",
	                          path && *path ? path : "~", "user", user, "recursive",
	                          json_is_true(json_object_get(message, "recursive")), "entries",
	                          json_is_true(json_object_get(message, "includeEntry")),
	                          "network_mounts",
	                          json_is_true(json_object_get(message, "allowNetworkMounts"))));
}

static const char too_many[] = "the sandbox has as many watches of folders as it may: stop one";

void watch_stream(struct request *req)
{
	json_t *message = rpc_is_stream(req) ? rpc_message(req) : NULL;
	struct watch *w = NULL;
	char user[64];

	if (message && rpc_user(req, user)) {
		rpc_begin(req);
		w = count(req->box) < WATCHES_MAX ? watch_new(req, true) : NULL;
		if (w)
			open_watch(w, message, user);
		else
			rpc_end_fail(req, RPC_RESOURCE_EXHAUSTED, too_many);
	}
	json_decref(message);
}

void watch_create(struct request *req)
{
	json_t *message = rpc_message(req);
	struct watch *w = NULL;
	char user[64];

	if (message && rpc_user(req, user)) {
		w = count(req->box) < WATCHES_MAX ? watch_new(req, false) : NULL;
		if (w)
			open_watch(w, message, user);
		else
			rpc_fail(req, RPC_RESOURCE_EXHAUSTED, too_many);
	}
	json_decref(message);
}

/* --- watchers ------------------------------------------------------------------------------------------ */

/* The watcher that a request names. NULL: it is answered. */
static struct watch *named(struct request *req)
{
	json_t *message = rpc_message(req);
	const char *id = text_member(message, "watcherId");
	struct watch *found = NULL;

	list_each(&req->box->watches, node)
	{
		struct watch *w = container_of(node, struct watch, node);

		if (id && !w->is_stream && w->has_started && !strcmp(w->id, id))
			found = w;
	}
	if (message && !found)
		rpc_fail(req, RPC_NOT_FOUND,
		         "there is no such watcher: it was stopped, or never made");
	json_decref(message);
	return found;
}

/* What has happened up to now: the agent says when it has told it all. */
static void ask_for_rest(struct watch *w, struct request *req)
{
	w->req = req;
	w->wanted = ++w->asked;
	req->ctx = w;
	req->ops = &watch_ops;
	loop_timer(loop_of(w), &w->timer, ANSWER_NS);
	guest_send_json(&w->stream, json_pack("{s:s}", "op", "sync"));
}

void watch_get_events(struct request *req)
{
	struct watch *w = named(req);

	if (!w)
		return;
	if (*w->failed && !json_array_size(w->events)) {
		rpc_fail(req, w->failed_code, "%s", w->failed);
	} else if (w->req) { /* another client waits for them */
		rpc_reply(req, json_pack("{s:[]}", "events"));
	} else if (*w->failed || w->stream.is_paused) {
		w->req = req;
		give_events(w);
	} else {
		ask_for_rest(w, req);
	}
}

void watch_remove(struct request *req)
{
	struct watch *w = named(req);
	struct request *other = w ? w->req : NULL;

	if (!w)
		return;
	watch_free(w);
	if (other)
		rpc_fail(other, RPC_NOT_FOUND, "the watcher was stopped");
	rpc_reply(req, json_object());
}

/* --- from one daemon to the next ----------------------------------------------------------------------- */

json_t *watch_save_all(const struct box *box, struct handover *h)
{
	json_t *all = json_array();

	list_each((struct node *)(uintptr_t)&box->watches, node)
	{
		const struct watch *w = container_of(node, struct watch, node);

		if (!w->is_stream && w->has_started)
			json_array_append_new(all, json_pack("{s:s, s:O, s:I, s:i, s:i, s:s, s:o}",
			                                     "id", w->id, "events", w->events,
			                                     "bytes", (json_int_t)w->bytes, "asked",
			                                     (int)w->asked, "answered",
			                                     (int)w->answered, "failed", w->failed,
			                                     "stream", guest_save(&w->stream, h)));
	}
	return json_pack("{s:i, s:o}", "last", (int)box->last_watch, "all", all);
}

static int restore_one(struct watch *w, const json_t *saved, struct handover *h)
{
	const char *id = text_member(saved, "id"), *failed = text_member(saved, "failed");
	json_t *events = json_object_get(saved, "events");
	int rc;

	w->events = json_is_array(events) ? json_incref(events) : json_array();
	w->has_started = true;
	w->bytes = (size_t)json_integer_value(json_object_get(saved, "bytes"));
	w->asked = (unsigned)json_integer_value(json_object_get(saved, "asked"));
	w->answered = (unsigned)json_integer_value(json_object_get(saved, "answered"));
	w->failed_code = RPC_INTERNAL;
	(void)snprintf(w->id, sizeof(w->id), "%s", id ? id : "");
	(void)snprintf(w->failed, sizeof(w->failed), "%s", failed ? failed : "");
	rc = guest_restore(&w->stream, &w->box->machine, json_object_get(saved, "stream"),
	                   &watch_guest_ops, h);
	if (!rc && is_full(w))
		guest_pause(&w->stream);
	if (!rc && !guest_is_open(&w->stream) && !*w->failed)
		end(w, RPC_INTERNAL, "the guest ended it");
	return rc;
}

int watch_restore_all(struct box *box, const json_t *saved, struct handover *h)
{
	const json_t *one;
	int rc = 0;
	size_t i;

	box->last_watch = (unsigned)json_integer_value(json_object_get(saved, "last"));
	json_array_foreach(json_object_get(saved, "all"), i, one)
	{
		struct watch *w = i < WATCHES_MAX ? watch_make(box) : NULL;

		rc = w ? restore_one(w, one, h) : -EPROTO;
		if (rc)
			return rc;
	}
	return rc;
}
