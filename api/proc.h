/* SPDX-License-Identifier: Apache-2.0 */
/* A helper program run to its end. */
#ifndef API_PROC_H
#define API_PROC_H

#include "core/err.h"

#include <stddef.h>

/*
 * Runs argv[0] (a path) with standard input empty and standard error ours; its standard output goes
 * to `out`, NUL terminated, -EFBIG when it does not fit. Waits. Returns its exit code (128 + signal),
 * or -errno when it could not be run.
 */
NODISCARD int proc_capture(const char *const *argv, char *out, size_t size, struct err *err);

#endif
