/* SPDX-License-Identifier: Apache-2.0 */
/*
 * envd's /files: content in and out of a sandbox, streamed both ways. Of an upload the daemon holds what its
 * guest has not taken, at most GUEST_QUEUE_BYTES and one buffer of HTTP's; of a download REPLY_QUEUE_BYTES and
 * one frame. Loop's thread.
 */
#ifndef API_DAEMON_FILES_H
#define API_DAEMON_FILES_H

#include <jansson.h>

struct box;
struct request;

void files_read(struct request *req);
void files_write(struct request *req);

/* A refusal of the guest as an HTTP status, and as the answer to a request about `path`. */
unsigned files_status(const json_t *result);
void files_refuse(struct request *req, const json_t *result, const char *path);

/* The box that the signature of a URL without headers belongs to; NULL: it is answered (401). */
struct box *files_find_signed(struct request *req);

#define SIGNATURE_MAX 48
/* "v1_...": of a path as the query has it, "read" or "write", a user (or ""), a token and an expiry (or NULL). Pure. */
void files_sign(const char *path, const char *op, const char *user, const char *token,
                const char *expiry, char out[SIGNATURE_MAX]);

#endif
