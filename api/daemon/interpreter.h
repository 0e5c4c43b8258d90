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

/*
 * The last line of a cell, of its RESULT (untrusted): {"type":"end_of_execution","usage","truncated","files_changed"};
 * the SDKs of E2B read its type alone. `truncated` has of what something was cut, and how much; it and files_changed
 * are left out where there is nothing. A new reference. Pure.
 */
json_t *interpreter_end(const json_t *result);

/* How many bytes at the end of `data` begin a UTF-8 sequence that is not complete: 0 to 3. Pure. */
size_t interpreter_open_tail(const uint8_t *data, size_t len);

#endif
