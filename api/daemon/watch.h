/* SPDX-License-Identifier: Apache-2.0 */
/*
 * envd's watching of folders: as a stream of events (WatchDir), or by a watcher that keeps them until they are
 * asked for (CreateWatcher). The guest's agent tells them (docs/protocol.md, section 4); whoever takes none makes it
 * wait, and what its kernel then cannot keep ends the watch with an error. Loop's thread.
 *
 * Of a watcher that nobody asks, WATCH_EVENTS_MAX events and WATCH_BYTES of what the guest wrote are held, and one
 * frame.
 */
#ifndef API_DAEMON_WATCH_H
#define API_DAEMON_WATCH_H

#include "core/compiler.h"

#include <jansson.h>
#include <stdbool.h>

#define WATCHES_MAX      64u /* of a box */
#define WATCH_EVENTS_MAX 4096u
#define WATCH_BYTES      (1u << 20)
#define WATCH_EVENT_MAX  (32u << 10) /* bytes of one event as the guest writes it */

struct box;
struct handover;
struct request;

/* Handlers of envd's routes. */
void watch_stream(struct request *req);
void watch_create(struct request *req);
void watch_get_events(struct request *req);
void watch_remove(struct request *req);

/* Forgets all of a box whose machine has been stopped. */
void watch_end_all(struct box *box);

/* The watchers of a box for the next daemon, which nobody asks just now: a new reference. */
json_t *watch_save_all(const struct box *box, struct handover *h);
/* -EPROTO; those that are there by then are the box's. */
NODISCARD int watch_restore_all(struct box *box, const json_t *saved, struct handover *h);

/* The agent's event as envd's FilesystemEvent: a new reference; NULL: it is none of those. Pure. */
json_t *watch_event(const json_t *event);

/* True: of two events in a row that are the same, the later one tells all (its entry is newer). Pure. */
bool watch_is_same(const json_t *a, const json_t *b);

#endif
