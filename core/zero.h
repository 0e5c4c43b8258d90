/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_ZERO_H
#define CORE_ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Whether all of the `n` bytes are zero; `n` is not 0. Any thread. */
static inline bool is_zero(const void *p, size_t n)
{
	const unsigned char *bytes = p;

	return bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0;
}

#endif
