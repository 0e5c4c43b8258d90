/* SPDX-License-Identifier: Apache-2.0 */
#include "api/progress.h"

#include "api/cmd.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define BAR_CELLS 24

static void load(struct progress *p, const char *file)
{
	json_t *last = json_load_file(file, 0, NULL), *phase;
	size_t i;

	json_array_foreach(json_object_get(last, "phases"), i, phase)
	{
		const char *text = json_string_value(json_object_get(phase, "text"));

		if (!text || p->nr_last == PROGRESS_PHASES_MAX)
			continue;
		(void)snprintf(p->last[p->nr_last].text, sizeof(p->last[0].text), "%s", text);
		p->last[p->nr_last++].at_s = json_number_value(json_object_get(phase, "at_s"));
	}
	p->last_total_s = json_number_value(json_object_get(last, "total_s"));
	json_decref(last);
}

void progress_begin(struct progress *p, const char *file, bool bar)
{
	*p = (struct progress){ .begin_ns = clock_ns(), .bar = bar };
	load(p, file);
}

double progress_elapsed(const struct progress *p)
{
	return (double)(clock_ns() - p->begin_ns) / 1e9;
}

/* Where the last time stood when it was in the phase that we are in, plus the time spent in it. */
double progress_fraction(const struct progress *p, double elapsed_s)
{
	const struct progress_phase *now = p->nr ? &p->phase[p->nr - 1] : NULL;
	double at = elapsed_s, next = p->last_total_s;

	if (p->last_total_s <= 0)
		return -1;
	for (unsigned i = 0; now && i < p->nr_last; i++) {
		if (strcmp(p->last[i].text, now->text) != 0)
			continue;
		if (i + 1 < p->nr_last)
			next = p->last[i + 1].at_s;
		at = p->last[i].at_s + (elapsed_s - now->at_s);
	}
	if (at > next)
		at = next; /* slower than the last time: the bar waits at the end of the phase */
	return at >= p->last_total_s ? 0.99 : at / p->last_total_s;
}

static void draw(struct progress *p)
{
	double elapsed = progress_elapsed(p), part = progress_fraction(p, elapsed);
	const char *text = p->nr ? p->phase[p->nr - 1].text : "";
	unsigned s = (unsigned)elapsed;
	char bar[BAR_CELLS + 1];

	if (part < 0) {
		fprintf(stderr, "\r\033[K  %u:%02u  %s", s / 60, s % 60, text);
	} else {
		unsigned total = (unsigned)(p->last_total_s + 0.5);

		for (unsigned i = 0; i < BAR_CELLS; i++)
			bar[i] = (double)i < part * BAR_CELLS ? '#' : '.';
		bar[BAR_CELLS] = '\0';
		fprintf(stderr, "\r\033[K  [%s] %2.0f%%  %u:%02u of about %u:%02u  %s", bar,
		        part * 100, s / 60, s % 60, total / 60, total % 60, text);
	}
	fflush(stderr);
	p->drawn = true;
}

void progress_phase(struct progress *p, const char *text)
{
	struct progress_phase *phase;

	if (p->nr == PROGRESS_PHASES_MAX)
		p->nr--; /* a guest that talks too much costs the last line only */
	phase = &p->phase[p->nr++];
	(void)snprintf(phase->text, sizeof(phase->text), "%s", text);
	for (char *c = phase->text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	phase->at_s = progress_elapsed(p);
	if (p->bar)
		draw(p);
	else
		fprintf(stderr, "  %5.1f s  %s\n", phase->at_s, phase->text);
}

void progress_tick(struct progress *p)
{
	if (p->bar)
		draw(p);
}

void progress_clear(struct progress *p)
{
	if (p->drawn)
		fprintf(stderr, "\r\033[K");
	p->drawn = false;
}

void progress_save(const struct progress *p, const char *file)
{
	json_t *phases = json_array();
	json_t *all = json_pack("{s:f, s:o}", "total_s", progress_elapsed(p), "phases", phases);

	for (unsigned i = 0; i < p->nr; i++)
		json_array_append_new(phases, json_pack("{s:s, s:f}", "text", p->phase[i].text,
		                                        "at_s", p->phase[i].at_s));
	(void)json_dump_file(all, file, JSON_INDENT(1)); /* without it there is no estimate */
	json_decref(all);
}
