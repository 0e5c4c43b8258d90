/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One interpreter of a box on the loop, and one cell at a time in it: what api/cell.h is to a program that
 * may wait. The same deadlines hold (api/deadline.h): interrupt, then kill the interpreter and give its context
 * to a spare, then end the box. Loop's thread.
 */
#ifndef API_DAEMON_KERNEL_H
#define API_DAEMON_KERNEL_H

#include "api/cell.h"
#include "api/daemon/machine.h"
#include "api/daemon/usage.h"
#include "api/deadline.h"

struct box;
struct kernel;

struct kernel_ops {
	void (*output)(struct kernel *k, enum frame_type type, const void *data, size_t len);
	void (*display)(struct kernel *k, const json_t *display);
	/*
	 * The cell has ended: `result` (borrowed) is a RESULT, its error made here where the interpreter could not, and
	 * its usage (api/daemon/usage.h) always.
	 * The context goes on, with another interpreter after a death (k->generation has risen).
	 */
	void (*done)(struct kernel *k, enum cell_end end, const json_t *result);
	/* The machine is gone in the middle of it. */
	void (*lost)(struct kernel *k);
};

enum kernel_ask {
	KERNEL_ASK_NOTHING,
	KERNEL_ASK_INTERRUPT,
	KERNEL_ASK_KILL,
	KERNEL_ASK_CONTEXT,
	KERNEL_ASK_SPARE
};

struct kernel {
	struct box *box;
	const char *context; /* its name in the guest; borrowed */
	const struct kernel_ops *ops;
	unsigned port;
	unsigned generation; /* how many interpreters this context has had before */
	struct guest_stream stream;

	/* of the cell that runs */
	bool is_busy, is_timed_out, has_died;
	bool is_interrupted; /* somebody does not want it any more */
	bool is_paused;
	uint64_t timeout_ns, max_output, output_bytes, display_bytes;
	struct usage_mark begin;
	struct deadline deadline;
	struct loop_op timer_op;
	uint64_t watch_at_ns, watch_ns; /* as in api/cell.c */
	uint64_t death_ns;
	struct guest_call call; /* what the agent has been asked */
	enum kernel_ask asked;
	json_t *last_words; /* a result that waits for output that is on its way */
	enum cell_end last_end;
};

void kernel_init(struct kernel *k, struct box *box, const char *context,
                 const struct kernel_ops *ops);
/* Forgets a cell that runs; ops are not called. Idempotent. */
void kernel_close(struct kernel *k);

/* Gives up the cell that runs, whose interpreter somebody has killed. Ops are not called. */
void kernel_abort(struct kernel *k);

/* Starts a cell; cell->timeout_ns and max_output are kept here. Not while one runs. */
void kernel_run(struct kernel *k, const struct cell *cell);
/* Nobody wants it any more: as its deadline, now. */
void kernel_interrupt(struct kernel *k);
/* Its output is not read until kernel_resume(). */
void kernel_pause(struct kernel *k);
void kernel_resume(struct kernel *k);
/* For the next daemon, while no cell runs: a new reference. */
json_t *kernel_save(const struct kernel *k, struct handover *h);
/* Of one that was initialised. -EPROTO. */
NODISCARD int kernel_restore(struct kernel *k, const json_t *saved, struct handover *h);
/* The context has a new interpreter at `port`. */
void kernel_moved(struct kernel *k, unsigned port);

#endif
