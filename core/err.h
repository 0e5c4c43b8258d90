/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one error type. Cold paths take a `struct err *` as last parameter and return its code; hot
 * paths return -errno only. Causes are chained in the message, outermost first:
 * "thaw t: state: section UART: length 12, want 40". The remedy says what the user can do.
 */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#include "core/compiler.h"

struct err {
	int code; /* -errno; 0: no error */
	char msg[384];
	char remedy[256]; /* "" when there is none to give */
};

/* Sets code and message, clears the remedy. `code` is -errno. Returns `code`. `e` may be NULL. Any thread. */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/*
 * Puts "<text>: " before the message that is there; keeps code and remedy. Returns the code; without
 * an `e` it is not known here, and -1 is returned: who may be called without keeps it.
 */
int err_wrap(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Sets the remedy, unless a deeper cause has set one. Returns as err_wrap(). */
int err_remedy(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The remedy that the code itself suggests where none was set: the host is short of something, or broken. */
void err_hint(struct err *e);

#endif
