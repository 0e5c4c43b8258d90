/* SPDX-License-Identifier: Apache-2.0 */
/*
 * E2B's code interpreter: /execute, whose answer is a line of JSON for each thing that a cell says, and
 * /contexts. Loop's thread.
 */
#ifndef API_DAEMON_INTERPRETER_H
#define API_DAEMON_INTERPRETER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* A DISPLAY as a line's object: {"type":"result","is_main_result","text","png",...,"extra"}. A new reference. Pure. */
json_t *interpreter_result(const json_t *display);

/* How many bytes at the end of `data` begin a UTF-8 sequence that is not complete: 0 to 3. Pure. */
size_t interpreter_open_tail(const uint8_t *data, size_t len);

#endif
