/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/thaw: how long it takes to a sandbox's first result, made in one of the four ways and under one of the
 * loads of bench/load.h. Each run is a process of its own.
 */
#include "api/paths.h"
#include "bench/load.h"
#include "bench/stats.h"
#include "core/own.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#define RUNS_MAX 100000u

struct options {
	struct load_spec load;
	bool json;
	const char *csv; /* path for one line a run, or NULL */
	const char *template;
};

static const char usage[] =
	"usage: bench/thaw [OPTION...]\n"
	"Measures the time to the result of a random sum, which is checked, in new sandboxes.\n"
	"  --mode MODE      exec: the monitor's program is started, as thawbox run does\n"
	"                   fresh: a zygote forks it, nothing else was made before (default)\n"
	"                   shell, standby: taken from a pool that is full when the clock starts\n"
	"                   warm: a standby that has run the template's warm-up, too\n"
	"  --pool N         members of that pool (default twice what starts together, 4 at least)\n"
	"  --runs N         how many (default 100)\n"
	"  --at-once N      that many start together, then the next (default 1)\n"
	"  --burst N        as --at-once, with one clock for all: it starts when they are "
	"released\n"
	"  --arrive RATE    they come at random (Poisson), that many a second, whether or not the "
	"ones\n"
	"                   before are done; the clock of each starts when it should have come\n"
	"  --cache hot|cold page cache: as it is after a run, or dropped before each run (default "
	"hot)\n"
	"  --cell CODE      another first cell; only its success is checked\n"
	"  --raises         that cell must end in an error: the time to its traceback\n"
	"  --age S          treat the snapshot as S seconds older than it is\n"
	"  --template T     name, or the directory of a snapshot (default code-interpreter)\n"
	"  --isolation LEVEL  what of the jail is tried: full (default), user, vm, none\n"
	"  --csv FILE       writes one line a run\n"
	"  --json           prints one object\n"
	"Examples: bench/thaw --runs 20 --cache cold\n"
	"          bench/thaw --mode standby --arrive 10 --runs 500\n"
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

static bool parse_real(const char *text, double max, double *x)
{
	char *end;

	*x = strtod(text, &end);
	return end != text && !*end && *x >= 0 && *x <= max;
}

static bool parse_mode(const char *text, enum load_mode *mode)
{
	for (unsigned i = 0; i < NR_LOAD_MODES; i++) {
		*mode = (enum load_mode)i;
		if (strcmp(text, load_mode_names[i]) == 0)
			return true;
	}
	return false;
}

/* One option; what is wrong with its value, or NULL. */
static const char *parse_one(int o, const char *value, struct options *opt)
{
	struct load_spec *load = &opt->load;

	switch (o) {
	case 'n':
		return parse_count(value, RUNS_MAX, &load->runs) ? NULL
		                                                 : "--runs must be 1 to 100000";
	case 'b':
		load->burst = true;
		return parse_count(value, LOAD_AT_ONCE_MAX, &load->at_once)
		               ? NULL
		               : "--burst must be 1 to 256";
	case 'a':
		return parse_count(value, LOAD_AT_ONCE_MAX, &load->at_once)
		               ? NULL
		               : "--at-once must be 1 to 256";
	case 'p':
		return parse_count(value, LOAD_POOL_MAX, &load->pool) ? NULL
		                                                      : "--pool must be 1 to 256";
	case 'r':
		return parse_real(value, 1e5, &load->arrive) && load->arrive >= 0.01
		               ? NULL
		               : "--arrive must be 0.01 to 100000 a second";
	case 'm':
		return parse_mode(value, &load->mode)
		               ? NULL
		               : "--mode must be exec, fresh, shell, standby or warm";
	case 'c':
		load->cold = strcmp(value, "cold") == 0;
		return load->cold || strcmp(value, "hot") == 0 ? NULL
		                                               : "--cache must be hot or cold";
	case 'g':
		return parse_real(value, 1e10, &load->age_s) ? NULL : "--age must be seconds";
	case 'e':
		load->cell = value;
		return NULL;
	case 'i':
		load->isolation.most = value;
		return NULL;
	case 'o':
		opt->csv = value;
		return NULL;
	default:
		opt->template = value;
		return NULL;
	}
}

/* What does not go together; NULL: nothing. */
static const char *conflict(const struct load_spec *load)
{
	if (load->runs % load->at_once)
		return "--runs must be a multiple of --at-once, or --burst";
	if (load->arrive > 0 && (load->at_once > 1 || load->burst))
		return "--arrive goes without --at-once and --burst";
	if (load->arrive > 0 && load->cold)
		return "--arrive goes without --cache cold: nobody can drop it between arrivals";
	if (load->pool && !load_is_pooled(load->mode))
		return "--pool is for --mode shell and standby";
	if (load->raises && !load->cell)
		return "--raises is for a --cell";
	if (load->mode >= LOAD_STANDBY && load->cold)
		return "--mode standby goes without --cache cold: those that wait hold the pages";
	if (load->mode >= LOAD_STANDBY && load->age_s > 0)
		return "--mode standby goes without --age: its guest has run since";
	return NULL;
}

/* 0, or the exit code of a wrong command line; -1 after --help. */
static int parse(int argc, char **argv, struct options *opt)
{
	static const struct option options[] = {
		{ "runs", 1, NULL, 'n' },      { "mode", 1, NULL, 'm' },
		{ "pool", 1, NULL, 'p' },      { "cache", 1, NULL, 'c' },
		{ "burst", 1, NULL, 'b' },     { "at-once", 1, NULL, 'a' },
		{ "arrive", 1, NULL, 'r' },    { "cell", 1, NULL, 'e' },
		{ "age", 1, NULL, 'g' },       { "template", 1, NULL, 't' },
		{ "isolation", 1, NULL, 'i' }, { "csv", 1, NULL, 'o' },
		{ "json", 0, NULL, 'j' },      { "raises", 0, NULL, 'x' },
		{ "help", 0, NULL, 'h' },      { 0 },
	};
	const char *wrong;
	int o;

	while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (o == '?')
			return usage_error("wrong option", argv[optind - 1]);
		if (o == 'h') {
			(void)fputs(usage, stdout); /* nobody to tell */
			return -1;
		}
		if (o == 'j' || o == 'x') {
			*(o == 'j' ? &opt->json : &opt->load.raises) = true;
			continue;
		}
		wrong = parse_one(o, optarg, opt);
		if (wrong)
			return usage_error(wrong, optarg);
	}
	if (optind < argc)
		return usage_error("unexpected argument", argv[optind]);
	wrong = conflict(&opt->load);
	return wrong ? usage_error("these do not go together", wrong) : 0;
}

static int measure(const struct options *opt, struct err *err)
{
	const struct load_spec *load = &opt->load;
	own_free struct load_run *runs = calloc(load->runs, sizeof(*runs));
	struct load_totals totals;
	int rc;

	if (!runs)
		return err_set(err, -ENOMEM, "no memory for %u runs", load->runs);
	rc = load_run(load, runs, &totals, err);
	if (rc)
		return rc;
	(opt->json ? stats_json : stats_table)(load, runs, &totals);
	return opt->csv ? stats_csv(opt->csv, load, runs, err) : 0;
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
	struct options opt = { .load = { .mode = LOAD_FRESH, .runs = 100, .at_once = 1 },
		               .template = "code-interpreter" };
	char dir[PATHS_MAX];
	struct err err = { 0 };
	int rc = parse(argc, argv, &opt);

	if (rc)
		return rc < 0 ? 0 : rc;
	if (!opt.load.pool && load_is_pooled(opt.load.mode))
		opt.load.pool = opt.load.at_once > 2 ? 2 * opt.load.at_once : 4;
	if (opt.load.pool > LOAD_POOL_MAX)
		opt.load.pool = LOAD_POOL_MAX;
	rc = find_template(opt.template, dir, &err);
	opt.load.dir = dir;
	rc = rc ? rc : measure(&opt, &err);
	if (!rc && fflush(stdout) != 0)
		rc = err_set(&err, -errno, "standard output: %s", strerror(errno));
	if (!rc)
		return 0;
	(void)fprintf(stderr, "thaw: %s\n%s%s", err.msg, err.remedy, err.remedy[0] ? "\n" : "");
	return 1;
}
