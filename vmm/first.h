/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream to the default interpreter whose requests travel in the mailbox, the first of them with the
 * thaw. Where they cannot, its further bytes go over vsock. The peer sees one stream of frames.
 */
#ifndef VMM_FIRST_H
#define VMM_FIRST_H

#include "core/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define FIRST_MAX (64u << 10) /* bytes of a request that can travel in the mailbox */

struct first {
	int fd;       /* owned; -1: none */
	size_t len;   /* bytes taken from the peer */
	size_t frame; /* of these: one whole frame (0: not whole, or too large) */
	bool given;   /* the interpreter has that frame */
	bool broken;  /* the peer is gone: output goes nowhere */
	uint8_t buf[FIRST_MAX];
	uint8_t *cell; /* owned: the same request as a CELL; NULL: it is none */
	size_t cell_len;
};

/* Takes `fd` over and reads what the peer has written so far, without waiting. Loop's thread. */
void first_open(struct first *first, int fd);

/*
 * Forgets the request that stands first if the interpreter has it, and reads what there is, without waiting. 1: one
 * stands first, whole; 0: more must come; -EMSGSIZE: too large for the mailbox; -EPIPE: the peer is gone. Loop's
 * thread, while none is being answered.
 */
NODISCARD int first_next(struct first *first);

/* What goes into the mailbox: the cell, or the frame as it came. n 0: nothing. */
struct iovec first_request(const struct first *first);
/* That request is the interpreter's from now on. */
void first_give(struct first *first);
/* What the peer has written that the interpreter does not have. */
struct iovec first_rest(const struct first *first);

/*
 * Writes guest output to the peer, in order, all of it: waits while the peer does not read, which
 * holds the guest up. Ends early when the peer is gone or when stop(ctx) is true after a signal.
 * vCPU thread.
 */
void first_output(struct first *first, const struct iovec *iov, unsigned nr,
                  bool (*stop)(void *ctx), void *ctx);

void first_close(struct first *first);

#endif
