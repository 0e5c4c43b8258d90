/* SPDX-License-Identifier: Apache-2.0 */
/*
 * envd's process.Process: commands, with pipes or a terminal. A process belongs to its box, not to the client
 * that started it: it runs on when that one leaves, and others may watch it. What it writes goes to those who
 * watch, and is read no faster than the slowest of them takes it; when nobody watches, it is dropped.
 * Loop's thread.
 */
#ifndef API_DAEMON_PROCESS_H
#define API_DAEMON_PROCESS_H

struct box;
struct request;

void process_start(struct request *req);
void process_connect(struct request *req);
void process_list(struct request *req);
void process_send_input(struct request *req);
void process_close_stdin(struct request *req);
void process_send_signal(struct request *req);
void process_update(struct request *req);

/* Forgets all of a box whose machine has been stopped. */
void process_end_all(struct box *box);

#endif
