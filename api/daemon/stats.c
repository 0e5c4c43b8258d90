/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics: the daemon's counters in Prometheus' text format. */
#include "api/daemon/daemon.h"
#include "core/own.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

/* Upper bounds of the thaw histogram, microseconds. */
static const uint64_t bounds[] = { 500,   1000,  2000,  3000,  4000,   6000,   8000,
	                           10000, 15000, 25000, 50000, 100000, 250000, 1000000 };

void stats_thaw(struct counters *c, uint64_t us)
{
	size_t i = 0;

	while (i < ARRAY_LEN(bounds) && us > bounds[i])
		i++;
	c->thaw_bucket[i]++;
	c->thaws++;
	c->thaw_sum_us += us;
}

/* --- from one daemon to the next ----------------------------------------------------------------------- */

#define FIELD(name) #name, offsetof(struct counters, name)

static const struct field {
	const char *name;
	size_t at;
} fields[] = {
	{ FIELD(created) },         { FIELD(create_failed) }, { FIELD(ended_killed) },
	{ FIELD(ended_expired) },   { FIELD(ended_lost) },    { FIELD(rotated) },
	{ FIELD(requests) },        { FIELD(denied) },        { FIELD(cells) },
	{ FIELD(cells_timed_out) }, { FIELD(processes) },     { FIELD(bytes_in) },
	{ FIELD(bytes_out) },       { FIELD(thaws) },         { FIELD(thaw_sum_us) },
};

static uint64_t *field_of(const struct counters *c, const struct field *field)
{
	return (uint64_t *)((uintptr_t)c + field->at);
}

/* One that is negative, or too large for a JSON integer, cannot be. */
static uint64_t saved_number(const json_t *value)
{
	return json_integer_value(value) > 0 ? (uint64_t)json_integer_value(value) : 0;
}

json_t *stats_save(const struct counters *c)
{
	json_t *all = json_object(), *buckets = json_array();

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		json_object_set_new(all, fields[i].name,
		                    json_integer((json_int_t)*field_of(c, &fields[i])));
	for (size_t i = 0; i < ARRAY_LEN(c->thaw_bucket); i++)
		json_array_append_new(buckets, json_integer((json_int_t)c->thaw_bucket[i]));
	json_object_set_new(all, "thaw_bucket", buckets);
	return all;
}

void stats_restore(struct counters *c, const json_t *saved)
{
	const json_t *buckets = json_object_get(saved, "thaw_bucket");

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		*field_of(c, &fields[i]) += saved_number(json_object_get(saved, fields[i].name));
	for (size_t i = 0; i < ARRAY_LEN(c->thaw_bucket); i++)
		c->thaw_bucket[i] += saved_number(json_array_get(buckets, i));
}

/* --- for Prometheus ------------------------------------------------------------------------------------ */

static void counter(FILE *f, const char *name, const char *help, uint64_t value)
{
	fprintf(f, "# HELP thawbox_%s %s\n# TYPE thawbox_%s counter\nthawbox_%s %" PRIu64 "\n",
	        name, help, name, name, value);
}

static void gauge(FILE *f, const char *name, const char *help, uint64_t value)
{
	fprintf(f, "# HELP thawbox_%s %s\n# TYPE thawbox_%s gauge\nthawbox_%s %" PRIu64 "\n", name,
	        help, name, name, value);
}

static void histogram(FILE *f, const struct counters *c)
{
	uint64_t sum = 0;

	fputs("# HELP thawbox_thaw_seconds From the monitor's receipt of a thaw to the guest's "
	      "first "
	      "instruction.\n# TYPE thawbox_thaw_seconds histogram\n",
	      f);
	for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
		sum += c->thaw_bucket[i];
		fprintf(f, "thawbox_thaw_seconds_bucket{le=\"%g\"} %" PRIu64 "\n",
		        (double)bounds[i] / 1e6, sum);
	}
	fprintf(f,
	        "thawbox_thaw_seconds_bucket{le=\"+Inf\"} %" PRIu64
	        "\nthawbox_thaw_seconds_sum %g\nthawbox_thaw_seconds_count %" PRIu64 "\n",
	        c->thaws, (double)c->thaw_sum_us / 1e6, c->thaws);
}

static void pools(FILE *f, const struct daemon *daemon)
{
	static const char *const kinds[] = { "ready", "making", "dying" };

	fputs("# HELP thawbox_pool_members Sandboxes that wait for a user, by state.\n"
	      "# TYPE thawbox_pool_members gauge\n",
	      f);
	for (unsigned i = 0; i < daemon->nr_stalls; i++) {
		struct pool_stats s = pool_stats(daemon->stalls[i]->pool);
		unsigned n[] = { s.ready, s.making, s.dying };

		for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
			fprintf(f, "thawbox_pool_members{template=\"%s\",state=\"%s\"} %u\n",
			        daemon->stalls[i]->template.name, kinds[k], n[k]);
	}
	fputs("# HELP thawbox_pool_misses_total Creates that found no member ready.\n"
	      "# TYPE thawbox_pool_misses_total counter\n",
	      f);
	for (unsigned i = 0; i < daemon->nr_stalls; i++)
		fprintf(f, "thawbox_pool_misses_total{template=\"%s\"} %" PRIu64 "\n",
		        daemon->stalls[i]->template.name, stall_misses(daemon->stalls[i]));
}

static void print(FILE *f, const struct daemon *daemon)
{
	const struct counters *c = &daemon->counters;

	fprintf(f,
	        "# HELP thawbox_creates_total Sandboxes asked for, by result.\n"
	        "# TYPE thawbox_creates_total counter\n"
	        "thawbox_creates_total{result=\"ok\"} %" PRIu64 "\n"
	        "thawbox_creates_total{result=\"failed\"} %" PRIu64 "\n",
	        c->created, c->create_failed);
	fprintf(f,
	        "# HELP thawbox_ends_total Sandboxes that ended, by reason.\n"
	        "# TYPE thawbox_ends_total counter\n"
	        "thawbox_ends_total{reason=\"killed\"} %" PRIu64 "\n"
	        "thawbox_ends_total{reason=\"expired\"} %" PRIu64 "\n"
	        "thawbox_ends_total{reason=\"lost\"} %" PRIu64 "\n",
	        c->ended_killed, c->ended_expired, c->ended_lost);
	gauge(f, "sandboxes", "Sandboxes that live.", daemon->nr_boxes - daemon->nr_dying);
	gauge(f, "sandboxes_ending", "Sandboxes whose machine is torn down.", daemon->nr_dying);
	counter(f, "template_rotations_total", "Templates that were baked again and serve since.",
	        c->rotated);
	histogram(f, c);
	pools(f, daemon);
	counter(f, "cells_total", "Cells begun.", c->cells);
	counter(f, "cells_timed_out_total", "Cells stopped at their deadline.", c->cells_timed_out);
	counter(f, "processes_total", "Commands begun.", c->processes);
	counter(f, "requests_total", "HTTP requests.", c->requests);
	counter(f, "denied_total", "HTTP requests without a right to what they asked for.",
	        c->denied);
	counter(f, "received_bytes_total", "Bytes of request bodies.", c->bytes_in);
	counter(f, "sent_bytes_total", "Bytes of streamed answers.", c->bytes_out);
	gauge(f, "open_requests", "HTTP requests under way.", daemon->http.nr_requests);
}

void stats_handle(struct request *req)
{
	own_free char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f) {
		reply_error(req, 503, "no memory");
		return;
	}
	print(f, daemon_of(req));
	fclose(f);
	reply_text(req, 200, "text/plain; version=0.0.4", text);
}
