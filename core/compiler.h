/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes and the few macros that every file may use. */
#ifndef CORE_COMPILER_H
#define CORE_COMPILER_H

#include <stddef.h>

#define NODISCARD         __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define ARRAY_LEN(a)      (sizeof(a) / sizeof((a)[0]))

/* The object of `type` whose member `member` is at `ptr`. */
#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Our own invariants only, never anything that a guest or a file can reach. */
#define BUG_ON(cond)                               \
	do {                                       \
		if (__builtin_expect(!!(cond), 0)) \
			__builtin_trap();          \
	} while (0)

#endif
