/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"

#include <sys/types.h>

/*
 * The interpreter kernels: the parent that forks them, the contexts that they serve, the spares
 * (docs/protocol.md sections 4 and 6). The loop's thread.
 */

/* Starts the kernel parent `argv` with descriptor 3. Returns 0 or -errno, then also said on the
 * console; the agent works without. */
int kernels_start(const char *const *argv);

/* A child was reaped: the parent, a kernel that a dead parent left to us, or neither. */
void kernels_reaped(pid_t pid, int status);

/* The operations of these names. */
void kernels_interrupt(struct stream *s, const json_t *request);
void kernels_kill(struct stream *s, const json_t *request);
void kernels_context(struct stream *s, const json_t *request);
