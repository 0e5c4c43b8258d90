/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of a long job on standard error: a bar with phase, elapsed and estimated time on a
 * terminal, one line a phase elsewhere. The estimate is how long the phases took the last time,
 * kept in a small file. One thread.
 */
#ifndef API_PROGRESS_H
#define API_PROGRESS_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define PROGRESS_PHASES_MAX 128

struct progress_phase {
	char text[64];
	double at_s; /* since the begin */
};

struct progress {
	uint64_t begin_ns;
	bool bar;   /* a terminal: redraw one line */
	bool drawn; /* the line is on the screen */
	unsigned nr, nr_last;
	struct progress_phase phase[PROGRESS_PHASES_MAX];
	struct progress_phase last[PROGRESS_PHASES_MAX]; /* of the last time */
	double last_total_s;                             /* 0: unknown */
};

/* `file` holds the last times; missing is fine. */
void progress_begin(struct progress *p, const char *file, bool bar);
/* The next phase. Control characters in `text` become '?'. */
void progress_phase(struct progress *p, const char *text);
/* Redraws; call about four times a second. */
void progress_tick(struct progress *p);
/* Takes the line off the screen. */
void progress_clear(struct progress *p);
/* Seconds since the begin. */
double progress_elapsed(const struct progress *p);
/* Remembers the phases in `file`, for the next time. */
void progress_save(const struct progress *p, const char *file);

/* The part done, 0 to 1, `elapsed_s` after the begin; negative: unknown. Pure. */
double progress_fraction(const struct progress *p, double elapsed_s);

#endif
