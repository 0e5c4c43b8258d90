/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/thaw: the time from just before a monitor is started to the last byte of its first cell's RESULT,
 * which is checked. Each run is a process of its own; what ends it comes after the clock has stopped.
 */
#include "api/frames.h"
#include "api/paths.h"
#include "api/sandbox.h"
#include "bench/host.h"
#include "core/own.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RUNS_MAX    100000u
#define AT_ONCE_MAX 256u
#define RUN_MS_MAX  120000

/* What is reached on the way, in order; each in ms since the start. */
enum part {
	PART_SPAWN,
	PART_RECEIVED,
	PART_MEMORY,
	PART_VM,
	PART_STATE,
	PART_POPULATED,
	PART_RUN,
	PART_RESULT,
	NR_PARTS
};

static const struct {
	const char *name;
	const char *stamp; /* in the monitor's answer; NULL: taken here */
	const char *text;
} parts[NR_PARTS] = {
	[PART_SPAWN] = { "spawn", "process_start_ns", "monitor's main() entered" },
	[PART_RECEIVED] = { "received", "received_ns", "thaw command read" },
	[PART_MEMORY] = { "memory", "memory_ns", "guest memory mapped" },
	[PART_VM] = { "vm", "vm_ns", "VM made" },
	[PART_STATE] = { "state", "state_ns", "state applied" },
	[PART_POPULATED] = { "populated", "populated_ns", "working set made private" },
	[PART_RUN] = { "run", "run_ns", "first KVM_RUN" },
	[PART_RESULT] = { "result", NULL, "last byte of the result" },
};

struct options {
	unsigned runs;
	unsigned at_once;
	bool cold;
	bool json;
	double age_s;
	const char *cell; /* NULL: a random sum */
	const char *dir;
	const char *csv; /* path for one line a run, or NULL */
};

struct run {
	double ms[NR_PARTS];
};

/* One thread's share: every at_once-th run, so that as many stand at the barrier each time. */
struct worker {
	const struct options *opt;
	struct run *runs;
	unsigned first;
	pthread_barrier_t *start;
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

static int take_result(const struct frame *frame, struct err *err)
{
	json_t *result = frame_json(frame->data, frame->len);
	const char *status = json_string_value(json_object_get(result, "status"));
	const char *value =
		json_string_value(json_object_get(json_object_get(result, "error"), "value"));
	int rc = 0;

	if (!status || strcmp(status, "ok") != 0)
		rc = err_set(err, -EREMOTEIO, "the cell failed: %s",
		             value ? value : "no reason given");
	json_decref(result);
	return rc;
}

/* Reads frames up to RESULT; *end_ns is when its last byte was here, before it is looked into. */
static int await_result(struct sandbox *sb, uint64_t *end_ns, char *value, size_t size,
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
				return take_result(&frame, err);
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

static int take_parts(const struct sandbox *sb, uint64_t end_ns, struct run *run, struct err *err)
{
	const json_t *timing = json_object_get(sb->thawed, "timing");

	for (unsigned i = 0; i < NR_PARTS; i++) {
		json_int_t at = (json_int_t)end_ns;

		if (parts[i].stamp)
			at = json_integer_value(json_object_get(timing, parts[i].stamp));
		if (at < (json_int_t)sb->start_ns)
			return err_set(err, -EPROTO, "the monitor's timing lacks %s",
			               parts[i].stamp);
		run->ms[i] = (double)(at - (json_int_t)sb->start_ns) / 1e6;
	}
	return 0;
}

static int run_once(const struct options *opt, struct run *run, struct err *err)
{
	char sum[32], want[16], value[64] = "";
	struct sandbox_spec spec = { .intr_fd = -1 };
	struct thaw_spec thaw = { .dir = opt->dir, .overlay_dir = "/tmp", .age_s = opt->age_s };
	struct sandbox sb;
	uint64_t end_ns = 0;
	json_t *request;
	int rc;

	random_sum(sum, sizeof(sum), want, sizeof(want));
	request = json_pack("{s:s, s:s}", "op", "run", "code", opt->cell ? opt->cell : sum);
	if (!request)
		return err_set(err, -EINVAL, "the cell is not UTF-8");
	rc = sandbox_thaw(&sb, &spec, &thaw, request, err);
	json_decref(request);
	if (rc)
		return rc;
	rc = await_result(&sb, &end_ns, value, sizeof(value), err);
	if (!rc && !opt->cell && strcmp(value, want) != 0)
		rc = err_set(err, -EREMOTEIO, "%s gave \"%s\"", sum, value);
	rc = rc ? rc : sandbox_wait_thawed(&sb, RUN_MS_MAX, err);
	rc = rc ? rc : take_parts(&sb, end_ns, run, err);
	sandbox_close(&sb);
	return rc;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	bool failed = false;

	for (unsigned i = w->first; i < w->opt->runs; i += w->opt->at_once) {
		pthread_barrier_wait(w->start);
		if (w->first == 0 && w->opt->cold && !failed)
			failed = host_cache_drop(w->opt->dir, &w->err) < 0;
		pthread_barrier_wait(w->start);
		/* A worker that has failed keeps coming to the barriers: the others wait there. */
		if (!failed)
			failed = run_once(w->opt, &w->runs[i], &w->err) < 0;
	}
	return NULL;
}

static int run_all(const struct options *opt, struct run *runs, struct err *err)
{
	static struct worker workers[AT_ONCE_MAX];
	pthread_barrier_t start;
	unsigned started = 0;
	struct run warm;
	int rc = 0;

	/* "Hot" is what the second and every later user sees. */
	if (!opt->cold && (rc = run_once(opt, &warm, err)) < 0)
		return rc;
	pthread_barrier_init(&start, NULL, opt->at_once);
	for (; started < opt->at_once; started++) {
		struct worker *w = &workers[started];

		*w = (struct worker){ .opt = opt, .runs = runs, .first = started, .start = &start };
		if (pthread_create(&w->thread, NULL, work, w) != 0) {
			(void)fprintf(stderr, "thaw: cannot start %u threads\n", opt->at_once);
			exit(1); /* the others stand at a barrier that is never full */
		}
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(workers[i].thread, NULL);
		if (!rc && workers[i].err.code) {
			*err = workers[i].err;
			rc = err->code;
		}
	}
	pthread_barrier_destroy(&start);
	return rc;
}

/* --- figures ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct figures {
	double p50, p90, p99, max;
};

/* Nearest rank, so that each figure is one that was measured. */
static double rank(const double *sorted, unsigned n, unsigned percent)
{
	unsigned at = (n * percent + 99) / 100;

	return sorted[at ? at - 1 : 0];
}

static struct figures figures_of(const struct run *runs, unsigned n, enum part part)
{
	double *sorted = calloc(n, sizeof(*sorted));
	struct figures f;

	BUG_ON(!sorted);
	for (unsigned i = 0; i < n; i++)
		sorted[i] = runs[i].ms[part];
	qsort(sorted, n, sizeof(*sorted), compare);
	f = (struct figures){ rank(sorted, n, 50), rank(sorted, n, 90), rank(sorted, n, 99),
		              sorted[n - 1] };
	free(sorted);
	return f;
}

static void print_table(const struct options *opt, const struct run *runs)
{
	char host[512];
	uint64_t resident, total;

	host_line(host, sizeof(host));
	if (host_cache_resident(opt->dir, &resident, &total, NULL) < 0)
		resident = 0; /* a run has just read it: 0 tells that something is wrong */
	printf("%s\n", host);
	printf("mode fresh, cache %s (now %llu MiB of the template), %u at once, n %u\n",
	       opt->cold ? "cold" : "hot", (unsigned long long)resident >> 20, opt->at_once,
	       opt->runs);
	printf("\nms since the start           p50      p90      p99      max\n");
	for (unsigned i = 0; i < NR_PARTS; i++) {
		struct figures f = figures_of(runs, opt->runs, (enum part)i);

		printf("%-24s %7.2f  %7.2f  %7.2f  %7.2f\n", parts[i].text, f.p50, f.p90, f.p99,
		       f.max);
	}
}

static void print_json(const struct options *opt, const struct run *runs)
{
	struct figures f = figures_of(runs, opt->runs, PART_RESULT);
	json_t *per_part = json_object();
	char host[512];
	json_t *out;

	host_line(host, sizeof(host));
	for (unsigned i = 0; i < NR_PARTS; i++)
		json_object_set_new(per_part, parts[i].name,
		                    json_real(figures_of(runs, opt->runs, (enum part)i).p50));
	out = json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:o, s:s}", "mode", "fresh",
	                "cache", opt->cold ? "cold" : "hot", "n", (int)opt->runs, "at_once",
	                (int)opt->at_once, "p50_ms", f.p50, "p90_ms", f.p90, "p99_ms", f.p99,
	                "max_ms", f.max, "parts", per_part, "host", host);
	(void)json_dumpf(out, stdout,
	                 JSON_INDENT(2) | JSON_REAL_PRECISION(5)); /* checked by fflush */
	putchar('\n');
	json_decref(out);
}

static int write_csv(const struct options *opt, const struct run *runs, struct err *err)
{
	FILE *f = fopen(opt->csv, "we");

	if (!f)
		return err_set(err, -errno, "%s: %s", opt->csv, strerror(errno));
	for (unsigned i = 0; i < NR_PARTS; i++)
		(void)fprintf(f, "%s%s_ms", i ? "," : "", parts[i].name); /* fclose tells */
	for (unsigned n = 0; n < opt->runs; n++)
		for (unsigned i = 0; i < NR_PARTS; i++)
			(void)fprintf(f, "%c%.4f", i ? ',' : '\n', runs[n].ms[i]); /* as above */
	(void)fputc('\n', f);                                                      /* as above */
	if (fclose(f) != 0)
		return err_set(err, -errno, "%s: %s", opt->csv, strerror(errno));
	return 0;
}

/* --- command line ------------------------------------------------------------------------------ */

static const char usage[] =
	"usage: bench/thaw [OPTION...]\n"
	"Measures process start to result of a random sum, which is checked, in fresh sandboxes.\n"
	"  --runs N         how many (default 100)\n"
	"  --mode fresh     nothing is made before the clock starts (the only mode so far)\n"
	"  --cache hot|cold page cache: as it is after a run, or dropped before each run (default "
	"hot)\n"
	"  --at-once N      that many start together (default 1)\n"
	"  --cell CODE      another first cell; only its success is checked\n"
	"  --age S          treat the snapshot as S seconds older than it is\n"
	"  --template T     name, or the directory of a snapshot (default code-interpreter)\n"
	"  --csv FILE       writes one line a run\n"
	"  --json           prints one object\n"
	"Examples: bench/thaw --runs 20 --cache cold\n"
	"          bench/thaw --cell 'import pandas as pd; pd.DataFrame({\"a\": [1, 2]}).sum()'\n";

static int usage_error(const char *what, const char *value)
{
	(void)fprintf(stderr, "thaw: %s: %s\n%s", what, value, usage);
	return 2;
}

static bool parse_count(const char *text, unsigned max, unsigned *n)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	*n = (unsigned)v;
	return *text >= '0' && *text <= '9' && !*end && v >= 1 && v <= max;
}

/* 0, or the exit code of a wrong command line; -1 after --help. */
static int parse(int argc, char **argv, struct options *opt, const char **template)
{
	static const struct option options[] = {
		{ "runs", 1, NULL, 'n' },
		{ "mode", 1, NULL, 'm' },
		{ "cache", 1, NULL, 'c' },
		{ "at-once", 1, NULL, 'a' },
		{ "cell", 1, NULL, 'e' },
		{ "age", 1, NULL, 'g' },
		{ "csv", 1, NULL, 'o' },
		{ "template", 1, NULL, 't' },
		{ "json", 0, NULL, 'j' },
		{ "help", 0, NULL, 'h' },
		{ 0 },
	};
	char *end;
	int o;

	while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (o) {
		case 'n':
			if (!parse_count(optarg, RUNS_MAX, &opt->runs))
				return usage_error("--runs must be 1 to 100000", optarg);
			break;
		case 'a':
			if (!parse_count(optarg, AT_ONCE_MAX, &opt->at_once))
				return usage_error("--at-once must be 1 to 256", optarg);
			break;
		case 'm':
			if (strcmp(optarg, "fresh") != 0)
				return usage_error("--mode must be fresh", optarg);
			break;
		case 'c':
			opt->cold = strcmp(optarg, "cold") == 0;
			if (!opt->cold && strcmp(optarg, "hot") != 0)
				return usage_error("--cache must be hot or cold", optarg);
			break;
		case 'g':
			opt->age_s = strtod(optarg, &end);
			if (end == optarg || *end || !(opt->age_s >= 0 && opt->age_s < 1e10))
				return usage_error("--age must be seconds", optarg);
			break;
		case 'e':
			opt->cell = optarg;
			break;
		case 'o':
			opt->csv = optarg;
			break;
		case 't':
			*template = optarg;
			break;
		case 'j':
			opt->json = true;
			break;
		case 'h':
			(void)fputs(usage, stdout); /* nobody to tell */
			return -1;
		default:
			return usage_error("wrong option", argv[optind - 1]);
		}
	}
	return optind < argc ? usage_error("unexpected argument", argv[optind]) : 0;
}

static int measure(const struct options *opt, struct err *err)
{
	own_free struct run *runs = calloc(opt->runs, sizeof(*runs));
	int rc;

	if (!runs)
		return err_set(err, -ENOMEM, "no memory for %u runs", opt->runs);
	rc = run_all(opt, runs, err);
	if (rc)
		return rc;
	if (opt->json)
		print_json(opt, runs);
	else
		print_table(opt, runs);
	return opt->csv ? write_csv(opt, runs, err) : 0;
}

/* A name stands for its current snapshot; what holds a slash is a snapshot itself. */
static int find_template(const char *template, char dir[PATHS_MAX], struct err *err)
{
	char home[PATHS_MAX];
	int rc;

	if (strchr(template, '/'))
		return paths_format(dir, err, "%s", template);
	rc = paths_home(home, err);
	rc = rc ? rc : paths_format(dir, err, "%s/templates/%s/current", home, template);
	if (!rc && access(dir, F_OK) < 0) {
		rc = err_set(err, -errno, "no template %s (%s: %s)", template, dir,
		             strerror(errno));
		err_remedy(err, "build it: thawbox template build %s", template);
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct options opt = { .runs = 100, .at_once = 1 };
	const char *template = "code-interpreter";
	char dir[PATHS_MAX];
	struct err err = { 0 };
	int rc = parse(argc, argv, &opt, &template);

	if (rc)
		return rc < 0 ? 0 : rc;
	if (opt.runs % opt.at_once)
		return usage_error("--runs must be a multiple of --at-once", "");
	rc = find_template(template, dir, &err);
	opt.dir = dir;
	rc = rc ? rc : measure(&opt, &err);
	if (!rc && fflush(stdout) != 0)
		rc = err_set(&err, -errno, "standard output: %s", strerror(errno));
	if (!rc)
		return 0;
	(void)fprintf(stderr, "thaw: %s\n%s%s", err.msg, err.remedy, err.remedy[0] ? "\n" : "");
	return 1;
}
