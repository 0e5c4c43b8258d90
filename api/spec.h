/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FROM[:TO] of --put and --get: "\:" is a colon in a name and "\\" a backslash. Pure; any thread.
 */
#ifndef API_SPEC_H
#define API_SPEC_H

#include "api/paths.h"

struct spec {
	char from[PATHS_MAX];
	char to[PATHS_MAX]; /* "" when not given */
};

/* -EINVAL: empty name, more than one colon, or a trailing backslash. */
NODISCARD int spec_parse(const char *text, struct spec *spec, struct err *err);

/*
 * Absolute guest path of `name`: relative names are in /home/user; one that is empty or ends in "/"
 * gets the last component of `other`.
 */
NODISCARD int spec_guest_path(const char *name, const char *other, char out[PATHS_MAX],
                              struct err *err);

/*
 * Local path for a file that comes back: `name`, or in the folder `name` (one that exists, or ends
 * in "/") the last component of `guest`. -ENOENT when its folder is missing, -EACCES when it cannot
 * be written.
 */
NODISCARD int spec_local_path(const char *name, const char *guest, char out[PATHS_MAX],
                              struct err *err);

#endif
