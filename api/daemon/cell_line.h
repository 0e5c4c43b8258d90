/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the answer to /execute, as objects: what a cell of the guest says, in the words of E2B's code interpreter.
 * Pure.
 */
#ifndef API_DAEMON_CELL_LINE_H
#define API_DAEMON_CELL_LINE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Of a DISPLAY: {"type":"result","is_main_result","text","png",...,"extra"}. A new reference. */
json_t *cell_line_result(const json_t *display);

/*
 * The last one, of the cell's RESULT (untrusted): {"type":"end_of_execution","usage","truncated","files_changed"};
 * the SDKs of E2B read its type alone. `truncated` has of what something was cut, and how much; it and files_changed
 * are left out where there is nothing. A new reference.
 */
json_t *cell_line_end(const json_t *result);

/* How many bytes at the end of `data` begin a UTF-8 sequence that is not complete: 0 to 3. */
size_t cell_line_open_tail(const uint8_t *data, size_t len);

#endif
