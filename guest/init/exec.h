/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"

#include <sys/types.h>

/*
 * The operation "exec" (docs/protocol.md section 4; docs/guest.md has all members): a command with
 * pipes or a terminal, streamed both ways. The loop's thread.
 */
void exec_start(struct stream *s, const json_t *request);

/* A child was reaped. True if it was a command of here. */
bool exec_reaped(pid_t pid, int status);
