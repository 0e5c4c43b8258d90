/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"

/* Starts the operation that `request` (an object, borrowed) names; the stream gets its RESULT now
 * or later. docs/protocol.md section 4. The loop's thread. */
void op_start(struct stream *s, const json_t *request);

/* The one who asked for "shutdown" has been answered: main() decides what that means. */
void op_on_shutdown(void (*fn)(void));
