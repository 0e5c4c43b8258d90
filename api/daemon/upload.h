/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of a POST to /files on its way into a guest: multipart/form-data with a file a part, or one file raw,
 * with gzip or without. Nothing is kept but what the guest has not taken yet (api/daemon/files.h), also when a
 * small body unpacks to a large one. Loop's thread.
 */
#ifndef API_DAEMON_UPLOAD_H
#define API_DAEMON_UPLOAD_H

#include <jansson.h>
#include <stdbool.h>

struct request;

/* At the headers of a request that may write. */
void upload_begin(struct request *req);

/* Undoes in place what browsers and httpx do to a file's name in a header: %22, %0D and %0A. Pure. */
void upload_decode_name(char *name);

/* Adds what a header X-Metadata-NAME says. False: it is out of bounds, or not printable ASCII. Pure. */
bool upload_add_metadata(json_t *metadata, const char *name, const char *value);

#endif
