/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"

/*
 * The operations on files (docs/protocol.md section 4; docs/guest.md has all members). They act
 * with the agent's power, as the host owns the sandbox; what they make belongs to the user. Each
 * takes the request (borrowed) and gives the stream its RESULT now or later. The loop's thread.
 */
void files_write(struct stream *s, const json_t *request);
void files_read(struct stream *s, const json_t *request);
void files_stat(struct stream *s, const json_t *request);
void files_list(struct stream *s, const json_t *request);
void files_mkdir(struct stream *s, const json_t *request);
void files_remove(struct stream *s, const json_t *request);
void files_rename(struct stream *s, const json_t *request);
