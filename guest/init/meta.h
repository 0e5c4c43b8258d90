/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <jansson.h>

/*
 * What clients write on files: strings by name, kept as extended attributes "user.e2b.NAME" of the file, which
 * programs in the sandbox see and set too. Any thread.
 */

/* Writes those of an object (NULL: none) to an open file. 0, -EINVAL for what are no strings, or -errno. */
int meta_write(int fd, const json_t *metadata);

/* Those of a file as an object, the caller's; NULL when there is none. */
json_t *meta_read(const char *path);
