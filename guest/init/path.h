/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>

/*
 * Makes an absolute, cleaned path of what a client named: "~" and relative paths start at `home`;
 * "." and ".." and double slashes are resolved by text alone, as E2B's clients expect. `out` has
 * `size` bytes. Returns 0, -EINVAL for an empty path, -ENAMETOOLONG. Pure, any thread.
 */
int path_resolve(const char *home, const char *path, char *out, size_t size);

/* Splits an absolute cleaned path into its folder (at least "/") and its name; both point into
 * `out`, of at least strlen(path) + 3 bytes. */
void path_split(const char *path, char *out, const char **dir, const char **name);
