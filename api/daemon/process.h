/* SPDX-License-Identifier: Apache-2.0 */
/*
 * envd's process.Process: commands, with pipes or a terminal. A process belongs to its box, not to the client
 * that started it: it runs on when that one leaves, and others may watch it. What it writes goes to those who
 * watch, and is read no faster than the slowest of them takes it; when nobody watches, it is dropped. What it is
 * given and has not taken is bounded: a client is answered, or read on from, only when there is room.
 * Loop's thread.
 */
#ifndef API_DAEMON_PROCESS_H
#define API_DAEMON_PROCESS_H

#include "api/daemon/list.h"
#include "api/daemon/machine.h"

#include <jansson.h>

#define PROCESS_NOT_FOUND "process not found: it has ended, or was never started here"

struct box;
struct request;

struct process {
	struct node node; /* of the box's */
	struct box *box;
	struct guest_stream stream;
	json_int_t pid; /* 0: it has not started yet */
	json_t *config; /* {"cmd","args","envs","cwd"} */
	char tag[64];
	bool is_pty, has_stdin;
	bool is_killed; /* its deadline has passed: its client was told that it is gone */
	struct loop_op deadline_op;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
	struct node watchers; /* who read its events */
	struct node inputs;   /* who wait until it has taken what they gave it, or give it more */
};

/* The one that {"process":{"pid":N}} or {"process":{"tag":"x"}} names, or NULL. */
struct process *process_find(const struct box *box, const json_t *message);

/* process_input.c: the queue has room again; the process has ended. */
void process_input_drained(struct process *p);
void process_input_end(struct process *p);

/* Handlers of envd's routes. */
void process_start(struct request *req);
void process_connect(struct request *req);
void process_list(struct request *req);
void process_send_input(struct request *req);
void process_stream_input(struct request *req);
void process_close_stdin(struct request *req);
void process_send_signal(struct request *req);
void process_update(struct request *req);

/* Forgets all of a box whose machine has been stopped. */
void process_end_all(struct box *box);

/* All of a box for the next daemon, which nobody watches any more: a new reference. */
json_t *process_save_all(const struct box *box, struct handover *h);
/* -EPROTO; those that are there by then are the box's. */
NODISCARD int process_restore_all(struct box *box, const json_t *saved, struct handover *h);

#endif
