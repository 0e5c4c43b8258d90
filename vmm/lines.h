/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of text from a stream socket, and the descriptors that come with them (SCM_RIGHTS): the control
 * socket's way in, for a monitor and for a zygote. One thread.
 */
#ifndef VMM_LINES_H
#define VMM_LINES_H

#include "core/compiler.h"

#include <stdbool.h>
#include <stddef.h>

#define LINES_MAX (64u << 10) /* bytes of a line */
#define LINES_FDS 10u         /* the parts of a snapshot */

struct lines {
	int fd;                 /* borrowed */
	int sent_fd[LINES_FDS]; /* owned: came since the last lines_drop_fds(); -1: none */
	unsigned nr_sent;
	size_t len, used;
	char buf[LINES_MAX + 1];
};

void lines_init(struct lines *lines, int fd);
/*
 * Reads once. `flags` for recvmsg(2). 1: something came; 0: nothing now; -EPIPE: the peer has closed; -E2BIG:
 * a line is too long; -errno.
 */
NODISCARD int lines_read(struct lines *lines, int flags);
/* The next whole line, without its end, valid until the next lines_read(). NULL: none. */
const char *lines_next(struct lines *lines, size_t *len);
/* Closes the descriptors that nobody took. */
void lines_drop_fds(struct lines *lines);

/* Writes `text` and a newline, without waiting. 0, or -EPIPE: a peer that lets its socket fill up is gone. */
NODISCARD int lines_write(int fd, const char *text);

#endif
