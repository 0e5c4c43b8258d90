/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership of locals: `own_fd int fd = -1;` is closed, `own_free char *p = NULL;` is freed when it
 * goes out of scope. Hand over with fd_take() and ptr_take().
 */
#ifndef CORE_OWN_H
#define CORE_OWN_H

#include <stdlib.h>
#include <unistd.h>

static inline void own_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void own_free_ptr(void *p)
{
	free(*(void **)p);
}

#define own_fd   __attribute__((cleanup(own_close_fd)))
#define own_free __attribute__((cleanup(own_free_ptr)))

/* The descriptor, which the caller now owns; the variable is left at -1. */
static inline int fd_take(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

/* The pointer, which the caller now owns; the variable is left at NULL. */
#define ptr_take(p)                         \
	({                                  \
		__typeof__(p) taken_ = (p); \
		(p) = NULL;                 \
		taken_;                     \
	})

#endif
