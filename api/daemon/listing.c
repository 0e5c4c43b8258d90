/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/listing.h"

#include "api/daemon/daemon.h"
#include "api/daemon/text.h"
#include "api/daemon/usage.h"
#include "core/own.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_MAX  100u
#define DISK_BYTES (8ull << 30) /* of each sandbox's private disk: docs/guest.md */

static json_t *item(const struct box *box)
{
	const json_t *info = box->stall->info;
	json_int_t cpus = json_integer_value(json_object_get(info, "vcpus"));
	char start[TEXT_TIME_MAX], end[TEXT_TIME_MAX];

	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:O, s:I, s:s, s:s, s:O, s:[]}",
	                 "sandboxID", box->id, "templateID", box->stall->template.name, "alias",
	                 box->stall->template.name, "clientID", "thawbox", "startedAt",
	                 text_time(box->start_us, start), "endAt", text_time(box->end_us, end),
	                 "cpuCount", cpus ? cpus : 1, "memoryMB",
	                 json_object_get(info, "memory_mb"), "diskSizeMB",
	                 (json_int_t)(DISK_BYTES >> 20), "state", "running", "envdVersion",
	                 ENVD_VERSION, "metadata", box->metadata, "volumeMounts");
}

json_t *listing_detail(const struct box *box)
{
	json_t *json = item(box);

	if (*box->token)
		json_object_set_new(json, "envdAccessToken", json_string(box->token));
	json_object_set_new(json, "domain", json_null());
	json_object_set_new(json, "allowInternetAccess", json_false());
	json_object_set_new(json, "lifecycle",
	                    json_pack("{s:b, s:s}", "autoResume", 0, "onTimeout", "kill"));
	return json;
}

json_t *listing_logs(const struct box *box)
{
	json_t *lines = json_array(), *entries = json_array();
	unsigned first = box->nr_lines > BOX_LOG_LINES ? box->nr_lines - BOX_LOG_LINES : 0;

	for (unsigned i = first; i < box->nr_lines; i++) {
		const struct box_line *line = &box->log[i % BOX_LOG_LINES];
		const char *text = line->text ? line->text : "";
		char when[TEXT_TIME_MAX];

		json_array_append_new(lines, json_pack("{s:s, s:s}", "timestamp",
		                                       text_time(line->us, when), "line", text));
		json_array_append_new(entries,
		                      json_pack("{s:s, s:s, s:s, s:{}}", "timestamp", when,
		                                "message", text, "level", "info", "fields"));
	}
	return json_pack("{s:o, s:o}", "logs", lines, "logEntries", entries);
}

/* --- list ---------------------------------------------------------------------------------------------- */

json_t *listing_parse_filter(const char *text)
{
	own_free char *copy = strdup(text);
	json_t *filter = json_object();
	char *at = copy, *pair;

	if (!copy)
		return filter;
	(void)text_percent_decode(copy);
	while ((pair = strsep(&at, "&"))) {
		char *value = strchr(pair, '=');

		if (!*pair)
			continue;
		if (value)
			*value++ = '\0';
		(void)text_percent_decode(pair);
		if (value)
			(void)text_percent_decode(value);
		if (!value || json_object_set_new(filter, pair, json_string(value))) {
			json_decref(filter);
			return NULL;
		}
	}
	return filter;
}

struct query {
	json_t *metadata;
	int64_t after_us;
	const char *template;
	bool is_ascending, wants_running;
	uint64_t limit;
	int64_t from_us;  /* of the token: */
	char from_id[40]; /* where this page begins, behind this one; "": at the first */
	const struct key *key;
};

/* False: it is answered. */
static bool parse_query(struct request *req, struct query *q)
{
	const char *metadata = request_query(req, "metadata"), *state = request_query(req, "state"),
		   *order = request_query(req, "order"), *limit = request_query(req, "limit"),
		   *after = request_query(req, "startedAfter"),
		   *token = request_query(req, "nextToken");
	const char *wrong = NULL;
	int end = 0;

	*q = (struct query){ .limit = LIMIT_MAX,
		             .after_us = INT64_MIN,
		             .template = request_query(req, "template"),
		             .is_ascending = order && !strcmp(order, "asc"),
		             .wants_running = !state || strstr(state, "running"),
		             .key = req->key };
	if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
		wrong = "order is asc or desc";
	if (limit && (!text_number(limit, LIMIT_MAX, &q->limit) || !q->limit))
		wrong = "limit is 1 to 100";
	if (after && !text_parse_time(after, &q->after_us))
		wrong = "startedAfter is a time as 2026-01-01T00:00:00Z";
	if (token && *token &&
	    (sscanf(token, "%18" SCNd64 "_%39[a-z0-9]%n", &q->from_us, q->from_id, &end) != 2 ||
	     token[end]))
		wrong = "nextToken is what X-Next-Token was";
	q->metadata = metadata ? listing_parse_filter(metadata) : NULL;
	if (metadata && !q->metadata)
		wrong = "metadata is key=value&key=value, encoded";
	if (wrong)
		reply_error(req, 400, "%s", wrong);
	return !wrong;
}

static bool is_wanted(const struct box *box, const struct query *q)
{
	const char *name = box->stall->template.name, *key;
	json_t *value;

	if (!q->wants_running || (q->key && box->key != q->key) || box->start_us < q->after_us)
		return false;
	if (q->template && strcmp(q->template, name) != 0 &&
	    strcmp(q->template, box->stall->template.id) != 0)
		return false;
	json_object_foreach(q->metadata, key, value)
	{
		if (!json_equal(value, json_object_get(box->metadata, key)))
			return false;
	}
	return true;
}

static int by_start(const void *a, const void *b)
{
	const struct box *x = *(struct box *const *)a, *y = *(struct box *const *)b;

	if (x->start_us != y->start_us)
		return x->start_us < y->start_us ? -1 : 1;
	return strcmp(x->id, y->id);
}

/* Whether it comes behind the one that ended the last page. */
static bool is_behind(const struct box *box, const struct query *q)
{
	int order;

	if (!*q->from_id)
		return true;
	order = box->start_us < q->from_us   ? -1
	        : box->start_us > q->from_us ? 1
	                                     : strcmp(box->id, q->from_id);
	return q->is_ascending ? order > 0 : order < 0;
}

/* The array of a page; *last is its last when another follows. */
static json_t *page(struct box **all, size_t nr, const struct query *q, const struct box **last)
{
	json_t *items = json_array();

	*last = NULL;
	for (size_t i = 0; i < nr; i++) {
		const struct box *box = all[q->is_ascending ? i : nr - 1 - i];

		if (!is_behind(box, q))
			continue;
		if (json_array_size(items) == q->limit)
			return items; /* there is more */
		json_array_append_new(items, item(box));
		*last = box;
	}
	*last = NULL;
	return items;
}

void listing_handle(struct request *req)
{
	struct daemon *daemon = daemon_of(req);
	own_free struct box **all = calloc(daemon->nr_boxes + 1, sizeof(struct box *));
	const struct box *last;
	char text[72];
	struct query q;
	json_t *items;
	size_t nr = 0;

	if (!parse_query(req, &q) || !all) {
		if (!req->status)
			reply_error(req, 503, "no memory");
		json_decref(q.metadata);
		return;
	}
	list_each(&daemon->boxes, node)
	{
		struct box *box = container_of(node, struct box, node);

		if (is_wanted(box, &q))
			all[nr++] = box;
	}
	qsort(all, nr, sizeof(struct box *), by_start);
	items = page(all, nr, &q, &last);
	json_decref(q.metadata);
	if (last) {
		(void)snprintf(text, sizeof(text), "%" PRId64 "_%s", last->start_us, last->id);
		reply_header(req, "X-Next-Token", text);
	}
	(void)snprintf(text, sizeof(text), "%zu", nr);
	reply_header(req, "X-Total-Running", text);
	reply_json(req, 200, items);
}

/* --- what one uses --------------------------------------------------------------------------------------- */

static json_t *sample(struct box *box, int64_t now_us)
{
	pid_t pid = box->machine.sb.pid;
	json_int_t cpus = json_integer_value(json_object_get(box->stall->info, "vcpus"));
	json_int_t mb = json_integer_value(json_object_get(box->stall->info, "memory_mb"));
	uint64_t now = clock_ns(), cpu = usage_cpu_ns(pid);
	uint64_t since = box->cpu_seen_ns ? box->cpu_seen_ns : box->claimed_ns;
	double used = now > since && cpu > box->cpu_ns
	                      ? 100.0 * (double)(cpu - box->cpu_ns) / (double)(now - since)
	                      : 0;
	uint64_t resident = usage_pages(pid).resident * (uint64_t)sysconf(_SC_PAGESIZE),
		 total = (uint64_t)mb << 20;
	char when[TEXT_TIME_MAX];

	box->cpu_ns = cpu;
	box->cpu_seen_ns = now;
	meter_look(&box->meter, pid);
	return json_pack("{s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "timestamp",
	                 text_time(now_us, when), "timestampUnix", (json_int_t)(now_us / 1000000),
	                 "cpuCount", cpus ? cpus : 1, "cpuUsedPct", used, "memUsed",
	                 (json_int_t)(resident < total ? resident : total), "memTotal",
	                 (json_int_t)total, "memCache", (json_int_t)0, "diskUsed", (json_int_t)0,
	                 "diskTotal", (json_int_t)DISK_BYTES, "vcpuSeconds",
	                 meter_cpu_s(&box->meter, pid), "memGiBSeconds", box->meter.gib_s);
}

void listing_metrics(struct request *req, struct box *box)
{
	const char *start = request_query(req, "start"), *end = request_query(req, "end");
	uint64_t from = 0, to = UINT64_MAX;
	int64_t now = clock_us();
	json_t *samples;

	if ((start && !text_number(start, INT64_MAX, &from)) ||
	    (end && !text_number(end, INT64_MAX, &to))) {
		reply_error(req, 400, "start and end are seconds since 1970");
		return;
	}
	samples = json_array();
	if (from <= (uint64_t)now / 1000000 && to >= (uint64_t)now / 1000000)
		json_array_append_new(samples, sample(box, now));
	reply_json(req, 200, samples);
}
