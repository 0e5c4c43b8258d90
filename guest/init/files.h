/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"
#include "user.h"

#include <limits.h>

/* What every request on a file says. */
struct target {
	struct user user;
	char path[PATH_MAX];
};

/* Reads the members "user" and "path". False: the stream has its error. The loop's thread. */
bool files_target(struct stream *s, const json_t *request, struct target *t);

/* The entry of a path, as docs/guest.md has it: name and owner are its own; type, size and mode those
 * of what a link leads to. The caller's; NULL and errno. Any thread. */
json_t *files_describe(const char *path);

/* True for the names under which uploads are written, and whether of files that were not there. Pure. */
bool files_is_temp(const char *name, bool *is_new);

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
