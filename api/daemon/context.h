/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts of a box: an interpreter each, whose variables stay from one cell to the next. Cells of one context run
 * one after another, in the order they came; contexts run side by side. The default one has the box's
 * environment from the thaw; one that is made or restarted gets it from a silent cell before its first.
 * Loop's thread.
 */
#ifndef API_DAEMON_CONTEXT_H
#define API_DAEMON_CONTEXT_H

#include "api/daemon/kernel.h"
#include "api/daemon/language.h"
#include "api/daemon/list.h"

#include <jansson.h>

#define CONTEXT_ID_MAX 40
#define CONTEXT_CWD    "/home/user"

struct run;

struct run_ops {
	void (*started)(struct run *run,
	                unsigned count); /* its turn has come; it is the context's count-th */
	void (*output)(struct run *run, enum frame_type type, const void *data, size_t len);
	void (*display)(struct run *run, const json_t *display);
	void (*done)(struct run *run, enum cell_end end, const json_t *result);
	void (*lost)(struct run *run); /* the machine is gone */
};

/* A cell that waits for its turn, or runs. Its owner's; left alone after done() or lost(). */
struct run {
	struct node node;
	struct context *context;
	const struct run_ops *ops;
	struct cell cell; /* its code is the owner's */
	json_t *env;      /* for this cell alone: owned, or NULL */
};

enum context_stage { STAGE_IDLE, STAGE_SETUP, STAGE_ENV, STAGE_CODE, STAGE_RESTORE };

struct context {
	struct node node; /* of the box's */
	struct box *box;
	char id[CONTEXT_ID_MAX];
	const struct language *language;
	char *cwd; /* NULL: CONTEXT_CWD */
	bool is_default, needs_setup, needs_restore;
	bool is_held; /* it is being made or restarted: nothing runs */
	unsigned count, generation;
	struct kernel kernel;
	struct node runs; /* that wait */
	struct run *running;
	enum context_stage stage;
	/* a change of the context that is under way */
	struct guest_call call;
	void (*changed)(struct context *ctx, const struct err *err);
	struct request *req; /* of `changed` */
};

/*
 * The default one of a language, made where it is not; Python's is there first, the others have their language's name as
 * id, and runs may be added while their interpreter comes up. NULL: no memory.
 */
struct context *context_default(struct box *box, const struct language *language);
/* That of an id, where it is there, or NULL. */
struct context *context_peek(const struct box *box, const char *id);
/* That of an id (also "default", and names of other languages, which are made where they are not), or NULL. */
struct context *context_find(struct box *box, const char *id);

/* Each tells its end by `changed`; err->code 0: it is done. One at a time (`is_held`). */
struct context *context_create(struct box *box, const struct language *language, const char *cwd,
                               void (*changed)(struct context *, const struct err *),
                               struct request *req);
void context_restart(struct context *ctx, void (*changed)(struct context *, const struct err *),
                     struct request *req);
/* After `changed` the context is gone. */
void context_remove(struct context *ctx, void (*changed)(struct context *, const struct err *),
                    struct request *req);

void context_add(struct context *ctx, struct run *run);
/* Its owner has lost interest: it leaves the queue, or is interrupted. */
void context_cancel(struct run *run);

/* Frees all of a box whose machine has been stopped. */
void context_end_all(struct box *box);

/* No cell runs or waits in any of a box, and none is being changed. */
bool context_all_rest(const struct box *box);
/* All of a box for the next daemon: a new reference. */
json_t *context_save_all(const struct box *box, struct handover *h);
/* -EPROTO; those that are there by then are the box's. */
NODISCARD int context_restore_all(struct box *box, const json_t *saved, struct handover *h);

/* The cell that gives an interpreter its environment and folder: the caller's text, or NULL. Pure. */
char *context_setup_code(const json_t *env, const char *cwd);
/* The same for one cell's environment, and what undoes it. */
char *context_env_code(const json_t *env);

#endif
