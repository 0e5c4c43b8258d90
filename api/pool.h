/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of sandboxes that were begun before anybody asks for one: shells, or standbys (docs/thaw.md). One
 * zygote of its own forks them, one thread of its own makes, watches and reaps them. A member belongs to
 * nobody until it is taken, is used once, and never comes back: what is taken is thawed for its user, and
 * its place gets a new member.
 *
 * Failures: a member that died while it waited is replaced, and counted in `lost`. After 3 failures since the
 * last take that succeeded the pool rests: from then on each take that finds no member makes it try once, and
 * fails with the cause when that fails too.
 *
 * pool_take(), pool_destroy(), pool_wait_full() and pool_stats() may be called by any thread, several at
 * once; pool_open() and pool_close() by one, when no other call is under way.
 */
#ifndef API_POOL_H
#define API_POOL_H

#include "api/sandbox.h"

struct pool;

enum pool_kind {
	POOL_SHELL,
	POOL_STANDBY,
	POOL_WARM, /* standbys that have run the template's warm-up: real cells, too, find their pages */
};

struct pool_spec {
	enum pool_kind kind;
	unsigned size;              /* members kept ready */
	unsigned refill_at_once;    /* members in the making at a time; 0: 1 */
	unsigned max_dying;         /* bound of pool_destroy()'s queue; 0: as `size` */
	unsigned make_ms;           /* a member that takes longer has failed; 0: 30 s */
	const char *vmm;            /* as in struct sandbox_spec */
	struct isolation isolation; /* as in struct zygote_spec; borrowed while the pool is open */
	bool verbose;               /* as in struct sandbox_spec */
	const char *dir;            /* the snapshot */
	const char *overlay_dir;    /* as in struct thaw_spec */
};

struct pool_stats {
	unsigned ready, making, dying; /* now */
	uint64_t taken;                /* takes that succeeded */
	uint64_t misses;               /* takes that had to wait, or did so in vain */
	uint64_t lost;                 /* members that died while they waited */
	uint64_t failed; /* failures to make one; to die within a second is one, too */
};

/* Waits for the zygote alone: the pool is empty yet, and fills itself. On error *pool is NULL. */
NODISCARD int pool_open(struct pool **pool, const struct pool_spec *spec, struct err *err);
/* Kills and reaps all that is in the pool, and its zygote. NULL is allowed. What was taken stays its taker's. */
void pool_close(struct pool *pool);

/*
 * Takes a member and thaws it, as sandbox_take(), into *sb, which need not be initialised: the caller's, to be
 * ended by pool_destroy() or sandbox_close(). thaw->dir is NULL or the pool's. Where none is ready it waits
 * for the next, in the order of the calls, at most `timeout_ms` (-1: for ever). -ETIMEDOUT; the cause when none can be made. On
 * error *sb is empty.
 */
NODISCARD int pool_take(struct pool *pool, struct sandbox *sb, const struct thaw_spec *thaw,
                        const json_t *request, int timeout_ms, struct err *err);

/*
 * Takes a member as it is, for a sandbox_take() that may come much later: until then it costs what it cost in
 * the pool. Otherwise as pool_take(). That it is alive is as of its last look at it: sb->control_fd becomes
 * readable when it dies.
 */
NODISCARD int pool_claim(struct pool *pool, struct sandbox *sb, int timeout_ms, struct err *err);

/*
 * Kills a sandbox, of this pool or not, and has the pool reap it; *sb is empty afterwards. Waits only while
 * `max_dying` are on their way out.
 */
void pool_destroy(struct pool *pool, struct sandbox *sb);

/* Waits until every member is ready and nothing is on its way out. -ETIMEDOUT; the cause when the pool rests. */
NODISCARD int pool_wait_full(struct pool *pool, int timeout_ms, struct err *err);

struct pool_stats pool_stats(struct pool *pool);

#endif
