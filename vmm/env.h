/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter's environment in the form of the wake (docs/protocol.md section 5), from a `thaw` line. Pure. */
#ifndef VMM_ENV_H
#define VMM_ENV_H

#include "core/err.h"

#include <jansson.h>
#include <stddef.h>

/* "NAME=VALUE" one after another, each with its NUL. Zeroed: empty. */
struct env {
	char *p; /* owned */
	size_t len;
};

/* Who the sandbox is, then what the caller wants on top. -EINVAL for what is no environment. env_free() in any case. */
NODISCARD int env_make(struct env *env, const json_t *line, struct err *err);
void env_free(struct env *env);

#endif
