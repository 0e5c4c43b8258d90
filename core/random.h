/* SPDX-License-Identifier: Apache-2.0 */
/* Random bytes of the host's kernel, all of them or an error. Any thread; waits only for the kernel's first seed after boot. */
#ifndef CORE_RANDOM_H
#define CORE_RANDOM_H

#include "core/compiler.h"
#include "core/err.h"

#include <stddef.h>

/* 0 or -errno; on error the bytes are zeros, never what lay there before. */
NODISCARD int random_fill(void *out, size_t n, struct err *err);

#endif
