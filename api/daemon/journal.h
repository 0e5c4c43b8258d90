/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon says, on standard error: a line for each request and each event, for people or as JSON
 * (--log-json). No body, no output of a guest, no key. Loop's thread; one write a line.
 */
#ifndef API_DAEMON_JOURNAL_H
#define API_DAEMON_JOURNAL_H

#include "core/compiler.h"
#include "core/log.h"

#include <stdbool.h>

struct request;

/* `fd`: where it goes; the caller's. Until then it is standard error, in words for people. */
void journal_open(int fd, bool json, bool quiet);
/* `box`: the id of a sandbox, or NULL. */
void journal_event(enum log_level level, const char *box, const char *fmt, ...) PRINTF_LIKE(3, 4);
void journal_request(const struct request *req);

#endif
