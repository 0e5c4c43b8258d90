/* SPDX-License-Identifier: Apache-2.0 */
/* What bench/thaw tells of a load's runs: a table, an object, one line a run. One thread. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include "bench/load.h"

/* To standard output; whether it got there is for the caller's fflush(3) to find out. */
void stats_table(const struct load_spec *spec, const struct load_run *runs,
                 const struct load_totals *totals);
void stats_json(const struct load_spec *spec, const struct load_run *runs,
                const struct load_totals *totals);
/* One line a run, in the order of the runs. */
NODISCARD int stats_csv(const char *path, const struct load_spec *spec, const struct load_run *runs,
                        struct err *err);

#endif
