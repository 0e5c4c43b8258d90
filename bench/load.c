/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/load.h"

#include "api/frames.h"
#include "api/pool.h"
#include "api/sandbox.h"
#include "api/zygote.h"
#include "bench/host.h"
#include "core/own.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define RUN_MS_MAX 120000
/* Of arrivals: one that finds them all busy starts late, which its latency tells. */
#define IN_FLIGHT_MAX 64u

const char *const load_mode_names[NR_LOAD_MODES] = { "exec", "fresh", "shell", "standby", "warm" };

#define BOTH_FRESH  (1u << LOAD_EXEC | 1u << LOAD_FRESH)
#define BUT_STANDBY (BOTH_FRESH | 1u << LOAD_SHELL)
#define ALL         (BUT_STANDBY | 1u << LOAD_STANDBY | 1u << LOAD_WARM)

const struct load_part_info load_parts[NR_PARTS] = {
	[PART_SPAWN] = { "spawn", "process_start_ns", BOTH_FRESH, "monitor's process runs" },
	[PART_RECEIVED] = { "received", "received_ns", ALL, "thaw command read" },
	[PART_MEMORY] = { "memory", "memory_ns", BOTH_FRESH, "guest memory mapped" },
	[PART_VM] = { "vm", "vm_ns", BOTH_FRESH, "VM made" },
	[PART_STATE] = { "state", "state_ns", BUT_STANDBY, "state applied" },
	[PART_POPULATED] = { "populated", "populated_ns", BUT_STANDBY, "working set made private" },
	[PART_RUN] = { "run", "run_ns", ALL, "first KVM_RUN" },
	[PART_RESULT] = { "result", NULL, ALL, "last byte of the result" },
};

/* What the runs of a load share. */
struct load {
	const struct load_spec *spec;
	struct load_run *runs;
	struct zygote zygote; /* of LOAD_FRESH */
	struct pool *pool;    /* of the pooled modes */

	pthread_barrier_t start; /* of those at once */
	uint64_t release_ns; /* when they have last been released; written between two barriers */

	uint64_t *arrival_ns; /* of each run */
	atomic_uint next;     /* the run that arrives next */
};

struct worker {
	struct load *load;
	unsigned first; /* its share of those at once: every at_once-th run from here */
	pthread_t thread;
	struct err err;
};

/* --- one run ----------------------------------------------------------------------------------- */

/* A cell whose value nobody could have computed before, and that value. */
static void random_sum(char *code, size_t code_size, char *want, size_t want_size)
{
	unsigned a = arc4random_uniform(1000000), b = arc4random_uniform(1000000);

	(void)snprintf(code, code_size, "%u+%u", a, b);
	(void)snprintf(want, want_size, "%u", a + b);
}

/* Keeps what a DISPLAY of kind "result" says in text/plain. */
static void take_display(const struct frame *frame, char *value, size_t size)
{
	json_t *display = frame_json(frame->data, frame->len);
	const char *kind = json_string_value(json_object_get(display, "kind"));
	const char *text =
		json_string_value(json_object_get(json_object_get(display, "data"), "text/plain"));

	if (kind && text && strcmp(kind, "result") == 0)
		(void)snprintf(value, size, "%s", text);
	json_decref(display);
}

static int take_result(const struct frame *frame, bool raises, struct err *err)
{
	json_t *result = frame_json(frame->data, frame->len);
	const char *status = json_string_value(json_object_get(result, "status"));
	const char *value =
		json_string_value(json_object_get(json_object_get(result, "error"), "value"));
	int rc = 0;

	if (raises && status && strcmp(status, "ok") == 0)
		rc = err_set(err, -EREMOTEIO, "the cell did not fail");
	else if (!raises && (!status || strcmp(status, "ok") != 0))
		rc = err_set(err, -EREMOTEIO, "the cell failed: %s",
		             value ? value : "no reason given");
	json_decref(result);
	return rc;
}

/* Reads frames up to RESULT; *end_ns is when its last byte was here, before it is looked into. */
static int await_result(struct sandbox *sb, bool raises, uint64_t *end_ns, char *value, size_t size,
                        struct err *err)
{
	struct stream *streams[] = { &sb->kernel };
	struct frame frame;
	int rc;

	for (;;) {
		while ((rc = frame_next(&sb->kernel.in, &frame)) == 1) {
			*end_ns = clock_ns();
			if (frame.type == FRAME_DISPLAY)
				take_display(&frame, value, size);
			else if (frame.type == FRAME_RESULT)
				return take_result(&frame, raises, err);
		}
		if (rc < 0)
			return err_set(err, rc, "the guest's stream breaks the protocol");
		if (sb->kernel.eof)
			return sandbox_why_lost(sb, err);
		rc = sandbox_wait(sb, streams, 1, NULL, 0, RUN_MS_MAX, err);
		if (rc == 0)
			return err_set(err, -ETIMEDOUT, "no result within %d s", RUN_MS_MAX / 1000);
		if (rc < 0)
			return rc;
	}
}

static int take_parts(const struct sandbox *sb, enum load_mode mode, struct load_run *run,
                      struct err *err)
{
	const json_t *timing = json_object_get(sb->thawed, "timing");

	for (unsigned i = 0; i < NR_PARTS; i++) {
		const char *stamp = load_parts[i].stamp;
		json_int_t at = (json_int_t)run->end_ns;

		if (!(load_parts[i].modes & 1u << mode))
			continue;
		if (stamp)
			at = json_integer_value(json_object_get(timing, stamp));
		if (at < (json_int_t)sb->start_ns)
			return err_set(err, -EPROTO, "the monitor's timing lacks %s", stamp);
		run->ms[i] = (double)(at - (json_int_t)run->start_ns) / 1e6;
	}
	return 0;
}

static int make(struct load *load, struct sandbox *sb, const json_t *request, struct err *err)
{
	const struct load_spec *spec = load->spec;
	struct thaw_spec thaw = { .dir = spec->dir, .overlay_dir = "/tmp", .age_s = spec->age_s };
	struct sandbox_spec how = { .isolation = spec->isolation, .intr_fd = -1 };

	if (load->pool)
		return pool_take(load->pool, sb, &thaw, request, RUN_MS_MAX, err);
	if (spec->mode == LOAD_FRESH)
		how.zygote = &load->zygote;
	return sandbox_thaw(sb, &how, &thaw, request, err);
}

/* `start_ns` 0: the clock starts just before the monitor is started, or taken. */
static int run_once(struct load *load, uint64_t start_ns, struct load_run *run, struct err *err)
{
	const struct load_spec *spec = load->spec;
	char sum[32], want[16], value[64] = "";
	struct sandbox sb;
	json_t *request;
	int rc;

	random_sum(sum, sizeof(sum), want, sizeof(want));
	request = json_pack("{s:s, s:s}", "op", "run", "code", spec->cell ? spec->cell : sum);
	if (!request)
		return err_set(err, -EINVAL, "the cell is not UTF-8");
	rc = make(load, &sb, request, err);
	json_decref(request);
	if (rc)
		return rc;
	rc = await_result(&sb, spec->raises, &run->end_ns, value, sizeof(value), err);
	run->start_ns = start_ns ? start_ns : sb.start_ns;
	if (!rc && !spec->cell && strcmp(value, want) != 0)
		rc = err_set(err, -EREMOTEIO, "%s gave \"%s\"", sum, value);
	rc = rc ? rc : sandbox_wait_thawed(&sb, RUN_MS_MAX, err);
	rc = rc ? rc : take_parts(&sb, spec->mode, run, err);
	if (load->pool)
		pool_destroy(load->pool, &sb);
	else
		sandbox_close(&sb);
	return rc;
}

/* --- closed loop: some at once, then the next -------------------------------------------------- */

static int wait_full(struct load *load, struct err *err)
{
	return load->pool ? pool_wait_full(load->pool, RUN_MS_MAX, err) : 0;
}

/* Before each start, with no clock running. */
static int make_ready(struct load *load, struct err *err)
{
	int rc = wait_full(load, err);

	if (!rc && load->spec->cold)
		rc = host_cache_drop(load->spec->dir, err);
	return rc;
}

static void *work_at_once(void *arg)
{
	struct worker *w = arg;
	struct load *load = w->load;
	const struct load_spec *spec = load->spec;
	bool failed = false;

	for (unsigned i = w->first; i < spec->runs; i += spec->at_once) {
		pthread_barrier_wait(&load->start);
		if (w->first == 0) {
			failed = failed || make_ready(load, &w->err) < 0;
			load->release_ns = clock_ns();
		}
		pthread_barrier_wait(&load->start);
		/* A worker that has failed keeps coming to the barriers: the others wait there. */
		if (!failed)
			failed = run_once(load, spec->burst ? load->release_ns : 0, &load->runs[i],
			                  &w->err) < 0;
	}
	return NULL;
}

/* --- open loop: they arrive -------------------------------------------------------------------- */

/* Exponential with mean 1, by nothing but comparisons (von Neumann, 1951). */
static double exponential(void)
{
	for (unsigned whole = 0;; whole++) {
		uint32_t first = arc4random(), last = first, next;
		unsigned falling = 1;

		while ((next = arc4random()) <= last) {
			last = next;
			falling++;
		}
		if (falling % 2)
			return whole + first / ((double)UINT32_MAX + 1);
	}
}

static void plan_arrivals(struct load *load)
{
	double at = (double)clock_ns() + 20e6; /* the threads come first */

	for (unsigned i = 0; i < load->spec->runs; i++) {
		load->arrival_ns[i] = (uint64_t)at;
		at += exponential() / load->spec->arrive * 1e9;
	}
}

static void *work_arrivals(void *arg)
{
	struct worker *w = arg;
	struct load *load = w->load;
	unsigned i;

	(void)prctl(PR_SET_TIMERSLACK, 1UL); /* without: 50 us late, and honest about it */
	while (!w->err.code && (i = atomic_fetch_add(&load->next, 1)) < load->spec->runs) {
		uint64_t at = load->arrival_ns[i];
		struct timespec ts = { .tv_sec = (time_t)(at / 1000000000u),
			               .tv_nsec = (long)(at % 1000000000u) };

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
			;
		(void)run_once(load, at, &load->runs[i], &w->err); /* w->err has it */
	}
	return NULL;
}

/* --- all of them ------------------------------------------------------------------------------- */

static int run_workers(struct load *load, unsigned nr, void *(*work)(void *), struct err *err)
{
	static struct worker workers[LOAD_AT_ONCE_MAX];
	int rc = 0;

	for (unsigned i = 0; i < nr; i++) {
		workers[i] = (struct worker){ .load = load, .first = i };
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
			(void)fprintf(stderr, "thaw: cannot start %u threads\n", nr);
			exit(1); /* the others stand at a barrier that is never full */
		}
	}
	for (unsigned i = 0; i < nr; i++) {
		pthread_join(workers[i].thread, NULL);
		if (!rc && workers[i].err.code) {
			*err = workers[i].err;
			rc = err->code;
		}
	}
	return rc;
}

static int run_at_once(struct load *load, struct err *err)
{
	int rc;

	pthread_barrier_init(&load->start, NULL, load->spec->at_once);
	rc = run_workers(load, load->spec->at_once, work_at_once, err);
	pthread_barrier_destroy(&load->start);
	return rc;
}

static int run_arrivals(struct load *load, struct err *err)
{
	own_free uint64_t *arrival_ns = calloc(load->spec->runs, sizeof(*arrival_ns));
	unsigned runs = load->spec->runs;

	if (!arrival_ns)
		return err_set(err, -ENOMEM, "no memory for %u arrivals", runs);
	load->arrival_ns = arrival_ns;
	plan_arrivals(load);
	return run_workers(load, runs < IN_FLIGHT_MAX ? runs : IN_FLIGHT_MAX, work_arrivals, err);
}

static int measure(struct load *load, struct load_totals *totals, struct err *err)
{
	const struct load_spec *spec = load->spec;
	struct pool_stats stats = { 0 };
	struct load_run warm;
	uint64_t begin_ns;
	int rc = wait_full(load, err);

	/* "Hot" is what the second and every later user sees. */
	if (!rc && !spec->cold)
		rc = run_once(load, 0, &warm, err);
	rc = rc ? rc : wait_full(load, err);
	if (rc)
		return rc;
	begin_ns = clock_ns();
	rc = spec->arrive > 0 ? run_arrivals(load, err) : run_at_once(load, err);
	rc = rc ? rc : wait_full(load, err); /* as many have been made as were taken */
	if (!spec->cold)                     /* else most of it went into dropping the cache */
		totals->wall_s = (double)(clock_ns() - begin_ns) / 1e9;
	if (load->pool)
		stats = pool_stats(load->pool);
	totals->misses = stats.misses;
	totals->lost = stats.lost;
	return rc;
}

static enum pool_kind kind_of(enum load_mode mode)
{
	return mode == LOAD_SHELL ? POOL_SHELL : mode == LOAD_WARM ? POOL_WARM : POOL_STANDBY;
}

int load_run(const struct load_spec *spec, struct load_run *runs, struct load_totals *totals,
             struct err *err)
{
	const struct zygote_spec zygote = { .isolation = spec->isolation, .overlay_dir = "/tmp" };
	const struct pool_spec pool = { .kind = kind_of(spec->mode),
		                        .size = spec->pool,
		                        .isolation = spec->isolation,
		                        .dir = spec->dir,
		                        .overlay_dir = "/tmp" };
	struct load load = { .spec = spec, .runs = runs };
	int rc = 0;

	*totals = (struct load_totals){ 0 };
	if (load_is_pooled(spec->mode))
		rc = pool_open(&load.pool, &pool, err);
	else if (spec->mode == LOAD_FRESH)
		rc = zygote_open(&load.zygote, &zygote, spec->dir, err);
	rc = rc ? rc : measure(&load, totals, err);
	pool_close(load.pool);
	if (spec->mode == LOAD_FRESH)
		zygote_close(&load.zygote);
	return rc;
}
