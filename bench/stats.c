/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/stats.h"

#include "bench/host.h"
#include "core/own.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

struct figures {
	double min, p50, p90, p99, max;
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Nearest rank, so that each figure is one that was measured. */
static double rank(const double *sorted, unsigned n, unsigned percent)
{
	unsigned at = (n * percent + 99) / 100;

	return sorted[at ? at - 1 : 0];
}

/* Sorts `values`. */
static struct figures figures_of(double *values, unsigned n)
{
	qsort(values, n, sizeof(*values), compare);
	return (struct figures){ values[0], rank(values, n, 50), rank(values, n, 90),
		                 rank(values, n, 99), values[n - 1] };
}

static struct figures part_figures(const struct load_run *runs, unsigned n, enum load_part part)
{
	own_free double *values = calloc(n, sizeof(*values));

	BUG_ON(!values);
	for (unsigned i = 0; i < n; i++)
		values[i] = runs[i].ms[part];
	return figures_of(values, n);
}

/* From the release of each burst to its last result. */
static struct figures makespans(const struct load_spec *spec, const struct load_run *runs)
{
	unsigned bursts = spec->runs / spec->at_once;
	own_free double *values = calloc(bursts, sizeof(*values));

	BUG_ON(!values);
	for (unsigned i = 0; i < spec->runs; i++) {
		double *span = &values[i / spec->at_once];

		if (runs[i].ms[PART_RESULT] > *span)
			*span = runs[i].ms[PART_RESULT];
	}
	return figures_of(values, bursts);
}

static bool has_part(const struct load_spec *spec, unsigned part)
{
	return load_parts[part].modes & 1u << spec->mode;
}

static double per_second(const struct load_spec *spec, const struct load_totals *totals)
{
	return totals->wall_s > 0 ? spec->runs / totals->wall_s : 0;
}

/* --- table ------------------------------------------------------------------------------------- */

static void print_head(const struct load_spec *spec)
{
	uint64_t resident, total;
	char host[512];

	host_line(host, sizeof(host));
	if (host_cache_resident(spec->dir, &resident, &total, NULL) < 0)
		resident = 0; /* a run has just read it: 0 tells that something is wrong */
	printf("%s\nmode %s, ", host, load_mode_names[spec->mode]);
	if (load_is_pooled(spec->mode))
		printf("pool of %u, ", spec->pool);
	printf("cache %s (now %llu MiB of the template), ", spec->cold ? "cold" : "hot",
	       (unsigned long long)resident >> 20);
	if (spec->arrive > 0)
		printf("%g arrive a second", spec->arrive);
	else
		printf("%s%u%s", spec->burst ? "bursts of " : "", spec->at_once,
		       spec->burst ? "" : " at once");
	printf(", n %u\n", spec->runs);
}

static void print_figures(const char *name, struct figures f)
{
	printf("%-26s %7.2f  %7.2f  %7.2f  %7.2f  %7.2f\n", name, f.min, f.p50, f.p90, f.p99,
	       f.max);
}

void stats_table(const struct load_spec *spec, const struct load_run *runs,
                 const struct load_totals *totals)
{
	const char *since = spec->arrive > 0 ? "ms since the arrival"
	                    : spec->burst    ? "ms since the release"
	                                     : "ms since the start";

	print_head(spec);
	if (totals->wall_s > 0)
		printf("%.1f first results a second, destruction%s included\n",
		       per_second(spec, totals), load_is_pooled(spec->mode) ? " and refill" : "");
	if (load_is_pooled(spec->mode))
		printf("%llu found the pool empty and waited; %llu members died in it\n",
		       (unsigned long long)totals->misses, (unsigned long long)totals->lost);
	printf("\n%-26s %7s  %7s  %7s  %7s  %7s\n", since, "min", "p50", "p90", "p99", "max");
	for (unsigned i = 0; i < NR_PARTS; i++)
		if (has_part(spec, i))
			print_figures(load_parts[i].text,
			              part_figures(runs, spec->runs, (enum load_part)i));
	if (spec->burst)
		print_figures("a whole burst", makespans(spec, runs));
}

/* --- JSON and CSV ------------------------------------------------------------------------------ */

static json_t *parts_json(const struct load_spec *spec, const struct load_run *runs)
{
	json_t *parts = json_object();

	for (unsigned i = 0; i < NR_PARTS; i++)
		if (has_part(spec, i))
			json_object_set_new(
				parts, load_parts[i].name,
				json_real(part_figures(runs, spec->runs, (enum load_part)i).p50));
	return parts;
}

static json_t *figures_json(struct figures f)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f}", "min_ms", f.min, "p50_ms", f.p50, "p90_ms",
	                 f.p90, "p99_ms", f.p99, "max_ms", f.max);
}

void stats_json(const struct load_spec *spec, const struct load_run *runs,
                const struct load_totals *totals)
{
	bool pooled = load_is_pooled(spec->mode);
	char host[512];
	json_t *out = json_pack("{s:s, s:s, s:i, s:i}", "mode", load_mode_names[spec->mode],
	                        "cache", spec->cold ? "cold" : "hot", "n", (int)spec->runs,
	                        "at_once", (int)spec->at_once);

	host_line(host, sizeof(host));
	json_object_set_new(out, "pool", pooled ? json_integer(spec->pool) : json_null());
	json_object_set_new(out, "arrive_per_s",
	                    spec->arrive > 0 ? json_real(spec->arrive) : json_null());
	json_object_set_new(out, "results_per_s",
	                    totals->wall_s > 0 ? json_real(per_second(spec, totals)) : json_null());
	json_object_set_new(out, "misses",
	                    pooled ? json_integer((json_int_t)totals->misses) : json_null());
	json_object_set_new(out, "lost",
	                    pooled ? json_integer((json_int_t)totals->lost) : json_null());
	json_object_set_new(out, "makespan",
	                    spec->burst ? figures_json(makespans(spec, runs)) : json_null());
	json_object_update_new(out, figures_json(part_figures(runs, spec->runs, PART_RESULT)));
	json_object_set_new(out, "parts", parts_json(spec, runs));
	json_object_set_new(out, "host", json_string(host));
	(void)json_dumpf(out, stdout,
	                 JSON_INDENT(2) | JSON_REAL_PRECISION(5)); /* checked by fflush */
	putchar('\n');
	json_decref(out);
}

int stats_csv(const char *path, const struct load_spec *spec, const struct load_run *runs,
              struct err *err)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return err_set(err, -errno, "%s: %s", path, strerror(errno));
	(void)fputs("run", f); /* fclose tells, here and below */
	for (unsigned i = 0; i < NR_PARTS; i++)
		if (has_part(spec, i))
			(void)fprintf(f, ",%s_ms", load_parts[i].name);
	for (unsigned n = 0; n < spec->runs; n++) {
		(void)fprintf(f, "\n%u", n);
		for (unsigned i = 0; i < NR_PARTS; i++)
			if (has_part(spec, i))
				(void)fprintf(f, ",%.4f", runs[n].ms[i]);
	}
	(void)fputc('\n', f);
	if (fclose(f) != 0)
		return err_set(err, -errno, "%s: %s", path, strerror(errno));
	return 0;
}
