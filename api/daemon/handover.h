/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one daemon leaves to the next: a JSON text, and descriptors that it names by the numbers that they had. Two ways
 * lead there: the daemon executes its program again, in its own process; or it gives all to the descriptor store of
 * systemd (sd_notify(3): FDSTORE, BARRIER) and ends, and systemd starts the next one with them.
 * One thread, before there are others or after they have ended.
 */
#ifndef API_DAEMON_HANDOVER_H
#define API_DAEMON_HANDOVER_H

#include "api/frames.h"
#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>

/* A descriptor and the number that the text has for it; fd -1: it was taken. */
struct handed {
	int name, fd;
};

/* Zeroed: nothing. */
struct handover {
	json_t *state;
	struct handed *at;
	unsigned nr;
	bool is_leaving;    /* it is being written: the descriptors are somebody else's */
	bool has_failed;    /* no memory for all of it */
	bool is_from_store; /* which has it still */
};

/* --- to leave it --------------------------------------------------------------------------------------- */

/* The text's number for a descriptor, which stays the caller's and open; -1 for -1. A new reference. */
json_t *handover_fd(struct handover *h, int fd);
/* What is held of `b`, for handover_take_bytes(): a new reference. Pure. */
json_t *handover_bytes(const struct bytes *b);

/*
 * Executes `program` with `argv` in this process; where it is not there any more, the one that runs. Returns only on
 * failure: then descriptors are left open for children.
 */
NODISCARD int handover_exec(struct handover *h, const char *program, char **argv, struct err *err);

/* systemd has told where its notifications go. */
bool handover_has_store(void);
/* Gives it all to systemd's store, and waits until it has it. */
NODISCARD int handover_store(struct handover *h, struct err *err);

/* --- to find it ---------------------------------------------------------------------------------------- */

/* What the environment tells of, which is not for our children: 1, or 0 when there is none. */
NODISCARD int handover_receive(struct handover *h, struct err *err);
/* The descriptor of that number: the caller's, closed on exec; or -1. */
int handover_take_fd(struct handover *h, const json_t *name);
NODISCARD int handover_take_bytes(const json_t *text, struct bytes *b);
/* Frees it, closes what nobody took, and has systemd forget its copies. Idempotent; also of one that was written. */
void handover_close(struct handover *h);

/* "thawbox-12": what a descriptor is called in the store; -1: not one of ours. Pure. */
int handover_parse_name(const char *name, size_t len);

#endif
