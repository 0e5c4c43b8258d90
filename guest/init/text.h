/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <jansson.h>

/* A JSON string of `text`, which need not be UTF-8 (names of files are bytes): what is not, is
 * shown as '?'. The caller owns it; NULL when out of memory. Any thread. */
json_t *text_json(const char *text);
