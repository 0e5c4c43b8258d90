/* SPDX-License-Identifier: Apache-2.0 */
/* E2B's envd: the handlers of its routes, which filesystem.c lists. Loop's thread. */
#ifndef API_DAEMON_ENVD_H
#define API_DAEMON_ENVD_H

#include "api/daemon/files.h"
#include "api/daemon/process.h"
#include "api/daemon/watch.h"

#include <jansson.h>
#include <stdbool.h>

/* A RESULT says ok. */
bool envd_is_ok(const json_t *result);
/* The agent's entry as envd's EntryInfo: a new reference. Pure. */
json_t *envd_entry(const json_t *entry);

#endif
