/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines: one line, one write, to one descriptor. The level is the only global of the monitor.
 * No guest data at level info or above.
 */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include "core/compiler.h"

#include <stdatomic.h>
#include <stdint.h>

enum log_level { LOG_LVL_ERR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DBG };

/* Lines up to `level` go to `fd` (not owned), each beginning with "<name>: ". Call before threads start. */
void log_open(int fd, enum log_level level, const char *name);

/* True when a line of that level would be written. Any thread. */
int log_enabled(enum log_level level);

/* Writes one line (cut at 512 bytes; control characters become '?'). Any thread; keeps errno. */
void log_at(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* At most 10 lines a second for each call site that a guest can reach. */
struct log_limit {
	_Atomic uint64_t second;
	_Atomic uint32_t count;
};
int log_limit_ok(struct log_limit *limit);

#define log_err(...)  log_at(LOG_LVL_ERR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LVL_INFO, __VA_ARGS__)
#define log_dbg(...)  log_at(LOG_LVL_DBG, __VA_ARGS__)

/* For what a guest can provoke as often as it likes. */
#define log_guest(...)                                                  \
	do {                                                            \
		static struct log_limit limit_;                         \
		if (log_enabled(LOG_LVL_WARN) && log_limit_ok(&limit_)) \
			log_at(LOG_LVL_WARN, __VA_ARGS__);              \
	} while (0)

#endif
