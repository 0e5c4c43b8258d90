/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sandbox's machine on the daemon's loop: the monitor's control socket, and streams into its guest
 * (docs/protocol.md) that call back. A machine waits as its pool made it until the first operation, which
 * travels with the thaw when it is a cell (api/sandbox.h); streams that are opened meanwhile are held until
 * the thaw has been answered.
 *
 * Every byte of a stream is the guest's. Memory for one: what it sent and nobody has taken yet (one frame, at
 * most FRAME_MAX, or a JSON payload of at most GUEST_JSON_MAX), and what we sent and it has not taken: the
 * writer asks guest_has_room() and waits for ops->drained. A paused stream is not read: the guest has to wait.
 *
 * Loop's thread. A stream is embedded in its owner; guest_close() may be called in any of its callbacks.
 */
#ifndef API_DAEMON_MACHINE_H
#define API_DAEMON_MACHINE_H

#include "api/daemon/list.h"
#include "api/pool.h"
#include "core/loop.h"

#define GUEST_QUEUE_BYTES (256u << 10)
#define GUEST_JSON_MAX    (24u << 20)
#define GUEST_PORT_AGENT  0u
#define GUEST_PORT_KERNEL (~0u) /* of the default context, as the thaw names it */

enum machine_state {
	MACHINE_NONE,
	MACHINE_WAITS, /* as the pool made it */
	MACHINE_THAWS,
	MACHINE_RUNS,
	MACHINE_GONE,
};

struct machine {
	struct loop *loop;
	struct sandbox sb;
	enum machine_state state;
	const char *id;               /* borrowed, for the thaw */
	const json_t *env;            /* the same */
	struct sandbox_limits limits; /* the same */
	/* The machine has ended, for `why`. Its streams are told by machine_stop(). */
	void (*gone)(struct machine *m, const struct err *why);
	void (*thawed)(struct machine *m); /* the thaw was answered */
	struct loop_op control_op;
	struct loop_event gone_event;
	struct err why;
	struct node streams;
	unsigned nr_unopened;         /* of them */
	struct guest_stream *talking; /* in its `frame`; NULL as soon as that closes it */
};

struct guest_stream;

struct guest_ops {
	void (*frame)(struct guest_stream *s, const struct frame *frame);
	/* It has ended: no more frames. `why` is of the machine when that is gone, else -EPIPE or -EPROTO. */
	void (*closed)(struct guest_stream *s, const struct err *why);
	void (*drained)(struct guest_stream *s); /* may be NULL */
};

struct guest_stream {
	struct machine *m; /* NULL: closed */
	const struct guest_ops *ops;
	struct node node;
	struct stream s;
	unsigned port;
	bool is_unopened, is_paused, is_full;
	struct loop_op in_op, out_op;
	struct loop_event again_event; /* frames that are here already, or an end */
};

struct handover;

/* Takes over a sandbox that was claimed from a pool. */
void machine_start(struct machine *m, struct loop *loop, struct sandbox *sb);
/* Closes all streams, each with `why`; the sandbox is then the caller's, in m->sb, to be destroyed. */
void machine_stop(struct machine *m, const struct err *why);

/* Nothing of it is on the way: it can be handed over (api/daemon/handover.h). */
bool machine_rests(const struct machine *m);
/* For the next daemon: a new reference. Its streams are saved by their owners; those that nobody saves end. */
json_t *machine_save(const struct machine *m, struct handover *h);
/* As machine_start(), of what the daemon before has saved. -EPROTO: it is no such thing. */
NODISCARD int machine_restore(struct machine *m, struct loop *loop, const json_t *saved,
                              struct handover *h);

/* Ends one that nobody can take over. */
void machine_discard(const json_t *saved, struct handover *h);

/*
 * Opens a stream; never fails at once: `closed` comes. Not in a `closed` that came for
 * the machine's sake (MACHINE_GONE).
 */
void guest_open(struct guest_stream *s, struct machine *m, unsigned port,
                const struct guest_ops *ops);
/*
 * The stream of the default interpreter with its first cell, which travels with the thaw. False: it cannot (the
 * machine runs already, or the request is too long): open it and send the request.
 */
bool guest_open_first(struct guest_stream *s, struct machine *m, const json_t *request,
                      const struct guest_ops *ops);
/* Without a word to its owner. Idempotent; also on a zeroed one. */
void guest_close(struct guest_stream *s);
static inline bool guest_is_open(const struct guest_stream *s)
{
	return s->m;
}

/* One that is open, with what was read of it and not taken: a new reference; null: it is not. */
json_t *guest_save(const struct guest_stream *s, struct handover *h);
/* Opens it again; null leaves it closed. -EPROTO. */
NODISCARD int guest_restore(struct guest_stream *s, struct machine *m, const json_t *saved,
                            const struct guest_ops *ops, struct handover *h);

/* Queue. What the memory or the stream does not take ends it (`closed` comes). */
void guest_send(struct guest_stream *s, enum frame_type type, const void *data, size_t len);
/* `json` is stolen. */
void guest_send_json(struct guest_stream *s, json_t *json);
bool guest_has_room(struct guest_stream *s);
void guest_pause(struct guest_stream *s);
void guest_resume(struct guest_stream *s);

/* One request to the agent and its RESULT. Embedded in its owner, as a stream is. */
struct guest_call {
	struct loop *loop;
	struct guest_stream s;
	struct loop_op timer;
	/* Once: `result` is borrowed, or NULL and `err` says why (a refusal is a result). */
	void (*done)(struct guest_call *call, const json_t *result, const struct err *err);
};

/* `request` is stolen; `timeout_ms` as agent_call(). */
void guest_call(struct guest_call *call, struct machine *m, json_t *request, unsigned timeout_ms,
                void (*done)(struct guest_call *, const json_t *, const struct err *));
/* Gives it up: done() is not called. Idempotent; also on a zeroed one. */
void guest_call_cancel(struct guest_call *call);

#endif
