/* SPDX-License-Identifier: Apache-2.0 */
#include "api/pool.h"

#include "api/zygote.h"
#include "core/own.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#define FAILURES_MAX 3
#define YOUNG_NS     ((uint64_t)1000000000) /* who dies so soon after it was ready was not made well */
#define NS_PER_MS    ((uint64_t)1000000)

enum place {
	FREE,
	MAKING, /* the manager's alone, as is one that it looks at again */
	READY,  /* whose lock it is may take it */
	DYING,  /* killed; the manager's alone */
};

struct member {
	enum place place; /* under the pool's lock */
	struct sandbox sb;
	uint64_t since_ns; /* of MAKING, then of READY */
};

/* One pool_take() that found no member; the oldest is served first. */
struct waiter {
	struct waiter *next;
};

struct pool {
	/* const after open */
	struct pool_spec spec;
	char *dir, *overlay_dir, *vmm; /* copies, for `spec` */
	unsigned nr_members;           /* size + max_dying */
	int wake_fd;                   /* eventfd: the manager shall look around */
	pthread_t manager;

	/* the manager's */
	struct zygote zygote;
	struct pollfd *fds; /* of the members, and wake_fd behind them */

	pthread_mutex_t lock;   /* of what follows */
	pthread_cond_t changed; /* of anything that somebody may wait for */
	struct member *member;
	unsigned count[DYING + 1]; /* of members by place */
	struct waiter *waiters, **waiters_end;
	bool asked; /* a take wants one more attempt of a pool that rests */
	bool closing;
	unsigned in_a_row; /* failures since the last take */
	uint64_t taken, misses, lost, failed;
	struct err cause; /* of the last failure */
};

static void move(struct pool *pool, struct member *m, enum place to)
{
	pool->count[m->place]--;
	pool->count[to]++;
	m->place = to;
	pthread_cond_broadcast(&pool->changed);
}

static struct member *find(struct pool *pool, enum place place)
{
	for (unsigned i = 0; i < pool->nr_members; i++)
		if (pool->member[i].place == place)
			return &pool->member[i];
	return NULL;
}

/* Oldest first: none waits for ever. */
static struct member *find_oldest_ready(struct pool *pool)
{
	struct member *oldest = NULL;

	for (unsigned i = 0; i < pool->nr_members; i++) {
		struct member *m = &pool->member[i];

		if (m->place == READY && (!oldest || m->since_ns < oldest->since_ns))
			oldest = m;
	}
	return oldest;
}

static void wake(struct pool *pool)
{
	eventfd_t one = 1;

	(void)eventfd_write(pool->wake_fd, one); /* fails only where it is readable already */
}

static void note_failure(struct pool *pool, const struct err *cause)
{
	pool->cause = *cause;
	pool->failed++;
	pool->in_a_row++;
}

/* --- the manager: makes, watches, reaps ------------------------------------------------------- */

/* Its process is on its way out from now on. */
static void bury(struct pool *pool, struct member *m)
{
	sandbox_kill(&m->sb, "it was destroyed");
	if (m->sb.pid_fd >= 0) {
		move(pool, m, DYING);
		return;
	}
	sandbox_close(&m->sb); /* there is nothing to wait for */
	move(pool, m, FREE);
}

/* A zygote that is gone is replaced: what it had forked is not hurt. */
static int revive_zygote(struct pool *pool, struct err *err)
{
	const struct zygote_spec spec = { .vmm = pool->vmm,
		                          .isolation = pool->spec.isolation,
		                          .overlay_dir = pool->overlay_dir,
		                          .verbose = pool->spec.verbose };

	if (pool->zygote.pid && !zygote_is_lost(&pool->zygote))
		return 0;
	if (pool->zygote.pid)
		zygote_close(&pool->zygote);
	return zygote_open(&pool->zygote, &spec, pool->dir, err);
}

static int begin(struct pool *pool, struct sandbox *sb, struct err *err)
{
	const struct sandbox_spec spec = { .zygote = &pool->zygote,
		                           .isolation = pool->spec.isolation,
		                           .verbose = pool->spec.verbose,
		                           .intr_fd = -1 };
	const struct member_spec member = { .overlay_dir = pool->overlay_dir,
		                            .warm = pool->spec.kind == POOL_WARM };
	int rc;

	sandbox_init(sb);
	rc = revive_zygote(pool, err);
	rc = rc ? rc : sandbox_start(sb, &spec, err);
	if (rc)
		return rc;
	return pool->spec.kind == POOL_SHELL ? sandbox_begin_shell(sb, &member, err)
	                                     : sandbox_begin_standby(sb, &member, err);
}

/* Called with the lock, which it gives away while it works. */
static void make_one(struct pool *pool)
{
	struct member *m = find(pool, FREE);
	struct err err = { 0 };
	int rc;

	move(pool, m, MAKING);
	m->since_ns = clock_ns();
	pool->asked = false;
	pthread_mutex_unlock(&pool->lock);
	rc = begin(pool, &m->sb, &err);
	pthread_mutex_lock(&pool->lock);
	if (!rc)
		return;
	note_failure(pool, &err);
	bury(pool, m);
}

static bool wants_one(const struct pool *pool)
{
	if (pool->closing || !pool->count[FREE] ||
	    pool->count[MAKING] >= pool->spec.refill_at_once ||
	    pool->count[MAKING] + pool->count[READY] >= pool->spec.size)
		return false;
	return pool->in_a_row < FAILURES_MAX || pool->asked;
}

/* One in the making has said something, or its time is up. Called with the lock, as make_one(). */
static void look_at_making(struct pool *pool, struct member *m, uint64_t now)
{
	bool late = now - m->since_ns >= pool->spec.make_ms * NS_PER_MS;
	struct err err = { 0 };
	int rc;

	pthread_mutex_unlock(&pool->lock);
	rc = sandbox_wait_ready(&m->sb, 0, &err);
	pthread_mutex_lock(&pool->lock);
	if (!rc) {
		m->since_ns = now;
		move(pool, m, READY);
	} else if (rc != -ETIMEDOUT || late) {
		if (rc == -ETIMEDOUT)
			(void)err_set(&err, rc, "it was not ready within %u ms",
			              pool->spec.make_ms);
		note_failure(pool, &err);
		bury(pool, m);
	}
}

/* One that waits says nothing, unless it dies. Called with the lock, as make_one(). */
static void look_at_ready(struct pool *pool, struct member *m, uint64_t now)
{
	struct err err = { 0 };
	int rc;

	move(pool, m, MAKING); /* so that nobody takes it meanwhile */
	pthread_mutex_unlock(&pool->lock);
	rc = sandbox_wait(&m->sb, NULL, 0, NULL, 0, 0, &err);
	pthread_mutex_lock(&pool->lock);
	if (rc >= 0) {
		move(pool, m, READY);
		return;
	}
	pool->lost++;
	if (now - m->since_ns < YOUNG_NS)
		note_failure(pool, &err);
	bury(pool, m);
}

static void look_at(struct pool *pool, struct member *m, bool said_something, uint64_t now)
{
	if (m->place == DYING && said_something) {
		sandbox_close(&m->sb); /* it has ended: this waits for nothing */
		move(pool, m, FREE);
	} else if (m->place == READY && said_something) {
		look_at_ready(pool, m, now);
	} else if (m->place == MAKING) {
		look_at_making(pool, m, now);
	}
}

/* What each member is waited for by. Returns for how long, in ms; -1: for ever. */
static int prepare_poll(struct pool *pool, uint64_t now)
{
	uint64_t until = UINT64_MAX;

	for (unsigned i = 0; i < pool->nr_members; i++) {
		const struct member *m = &pool->member[i];
		int fd = m->place == FREE    ? -1
		         : m->place == DYING ? m->sb.pid_fd
		                             : m->sb.control_fd;

		pool->fds[i] = (struct pollfd){ .fd = fd, .events = POLLIN };
		if (m->place == MAKING && m->since_ns + pool->spec.make_ms * NS_PER_MS < until)
			until = m->since_ns + pool->spec.make_ms * NS_PER_MS;
	}
	pool->fds[pool->nr_members] = (struct pollfd){ .fd = pool->wake_fd, .events = POLLIN };
	if (until == UINT64_MAX)
		return -1;
	return until > now ? (int)((until - now + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

/* Waits until something has happened, and looks at it. Called with the lock, as make_one(). */
static void look_around(struct pool *pool)
{
	int timeout_ms = prepare_poll(pool, clock_ns());
	eventfd_t ignored;
	uint64_t now;
	int n;

	pthread_mutex_unlock(&pool->lock);
	n = poll(pool->fds, pool->nr_members + 1, timeout_ms);
	if (n > 0 && pool->fds[pool->nr_members].revents)
		(void)eventfd_read(pool->wake_fd, &ignored);
	pthread_mutex_lock(&pool->lock);
	now = clock_ns();
	for (unsigned i = 0; n >= 0 && i < pool->nr_members; i++) {
		struct member *m = &pool->member[i];
		/* Of a member that came into this place meanwhile nothing is known. */
		bool same =
			pool->fds[i].fd == (m->place == DYING ? m->sb.pid_fd : m->sb.control_fd);

		if (same)
			look_at(pool, m, pool->fds[i].revents, now);
	}
}

static void kill_all(struct pool *pool)
{
	for (unsigned i = 0; i < pool->nr_members; i++) {
		struct member *m = &pool->member[i];

		if (m->place == MAKING || m->place == READY)
			bury(pool, m);
	}
}

static void *manage(void *arg)
{
	struct pool *pool = arg;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		if (pool->closing)
			kill_all(pool);
		if (pool->closing && pool->count[FREE] == pool->nr_members)
			break;
		if (wants_one(pool))
			make_one(pool);
		else
			look_around(pool);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

/* --- its users -------------------------------------------------------------------------------- */

static bool rests(const struct pool *pool)
{
	return pool->in_a_row >= FAILURES_MAX;
}

static int why_rests(const struct pool *pool, struct err *err)
{
	*err = pool->cause;
	(void)err_wrap(err, "the pool cannot make sandboxes");
	return err->code;
}

/* UINT64_MAX: never. */
static uint64_t deadline(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * NS_PER_MS;
}

/* Waits for any change. False: it is `until`. Called with the lock. */
static bool await_change(struct pool *pool, uint64_t until)
{
	struct timespec ts = { .tv_sec = (time_t)(until / 1000000000u),
		               .tv_nsec = (long)(until % 1000000000u) };

	if (until == UINT64_MAX)
		return pthread_cond_wait(&pool->changed, &pool->lock) == 0;
	return pthread_cond_timedwait(&pool->changed, &pool->lock, &ts) != ETIMEDOUT;
}

static void leave(struct pool *pool, struct waiter *me)
{
	struct waiter **at = &pool->waiters;

	while (*at != me)
		at = &(*at)->next;
	*at = me->next;
	if (!*at)
		pool->waiters_end = at;
	pthread_cond_broadcast(&pool->changed); /* who is first now may look */
}

/* Called with the lock. NULL: *err says why. */
static struct member *await_ready(struct pool *pool, int timeout_ms, struct err *err)
{
	uint64_t until = deadline(timeout_ms), seen = pool->failed;
	struct waiter me = { 0 };
	struct member *m;

	*pool->waiters_end = &me;
	pool->waiters_end = &me.next;
	pool->misses++;
	pool->asked = rests(pool);
	wake(pool);
	while (!(m = pool->waiters == &me ? find_oldest_ready(pool) : NULL)) {
		if (rests(pool) && pool->failed != seen) {
			(void)why_rests(pool, err);
			break;
		}
		if (!await_change(pool, until)) {
			(void)err_set(err, -ETIMEDOUT, "no sandbox was ready within %d ms",
			              timeout_ms);
			(void)err_remedy(err, "make the pool larger than %u, or wait longer",
			                 pool->spec.size);
			break;
		}
	}
	leave(pool, &me);
	return m;
}

static int claim(struct pool *pool, struct sandbox *sb, int timeout_ms, struct err *err)
{
	struct member *m;

	sandbox_init(sb);
	pthread_mutex_lock(&pool->lock);
	m = pool->waiters ? NULL : find_oldest_ready(pool); /* never before one who waits */
	if (!m)
		m = await_ready(pool, timeout_ms, err);
	if (m) {
		*sb = m->sb;
		sandbox_init(&m->sb);
		move(pool, m, FREE);
	}
	pthread_mutex_unlock(&pool->lock);
	return m ? 0 : err->code;
}

/* One was had: making the next one begins only now, and does not hold this one up. */
static void note_taken(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->taken++;
	pool->in_a_row = 0;
	pthread_mutex_unlock(&pool->lock);
	wake(pool);
}

int pool_claim(struct pool *pool, struct sandbox *sb, int timeout_ms, struct err *err)
{
	int rc = claim(pool, sb, timeout_ms, err);

	if (!rc)
		note_taken(pool);
	return rc;
}

int pool_take(struct pool *pool, struct sandbox *sb, const struct thaw_spec *thaw,
              const json_t *request, int timeout_ms, struct err *err)
{
	int rc;

	for (;;) {
		rc = claim(pool, sb, timeout_ms, err);
		if (rc)
			return rc;
		rc = sandbox_take(sb, thaw, request, err);
		if (rc != -ECONNABORTED || !sb->lost.code)
			break;
		pthread_mutex_lock(&pool->lock); /* it had died, and the manager not yet seen it */
		pool->lost++;
		pthread_mutex_unlock(&pool->lock);
		pool_destroy(pool, sb);
	}
	if (rc) {
		pool_destroy(pool, sb);
		return rc;
	}
	note_taken(pool);
	return 0;
}

void pool_destroy(struct pool *pool, struct sandbox *sb)
{
	struct member *m;

	sandbox_kill(sb, "it was destroyed");
	pthread_mutex_lock(&pool->lock);
	while (pool->count[DYING] >= pool->spec.max_dying || !(m = find(pool, FREE)))
		(void)await_change(pool, UINT64_MAX);
	m->sb = *sb;
	sandbox_init(sb);
	bury(pool, m);
	pthread_mutex_unlock(&pool->lock);
	wake(pool);
}

int pool_wait_full(struct pool *pool, int timeout_ms, struct err *err)
{
	uint64_t until = deadline(timeout_ms);
	int rc = 0;

	pthread_mutex_lock(&pool->lock);
	while (!rc && (pool->count[READY] < pool->spec.size || pool->count[DYING])) {
		if (rests(pool) && !pool->count[MAKING] && !pool->count[DYING])
			rc = why_rests(pool, err);
		else if (!await_change(pool, until))
			rc = err_set(err, -ETIMEDOUT,
			             "the pool was not full within %d ms: %u of %u are ready",
			             timeout_ms, pool->count[READY], pool->spec.size);
	}
	pthread_mutex_unlock(&pool->lock);
	return rc;
}

struct pool_stats pool_stats(struct pool *pool)
{
	struct pool_stats stats;

	pthread_mutex_lock(&pool->lock);
	stats = (struct pool_stats){ .ready = pool->count[READY],
		                     .making = pool->count[MAKING],
		                     .dying = pool->count[DYING],
		                     .taken = pool->taken,
		                     .misses = pool->misses,
		                     .lost = pool->lost,
		                     .failed = pool->failed };
	pthread_mutex_unlock(&pool->lock);
	return stats;
}

/* --- open and close ---------------------------------------------------------------------------- */

/* All that can be had without waiting. */
static int prepare(struct pool *pool, const struct pool_spec *spec)
{
	pthread_condattr_t attr;

	pool->spec = *spec;
	pool->spec.refill_at_once = spec->refill_at_once ? spec->refill_at_once : 1;
	pool->spec.max_dying = spec->max_dying ? spec->max_dying : spec->size;
	pool->spec.make_ms = spec->make_ms ? spec->make_ms : 30000;
	pool->nr_members = spec->size + pool->spec.max_dying;
	pool->dir = strdup(spec->dir);
	pool->overlay_dir = spec->overlay_dir ? strdup(spec->overlay_dir) : NULL;
	pool->vmm = spec->vmm ? strdup(spec->vmm) : NULL;
	pool->member = calloc(pool->nr_members, sizeof(*pool->member));
	pool->fds = calloc(pool->nr_members + 1, sizeof(*pool->fds));
	pool->waiters_end = &pool->waiters;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->changed, &attr);
	pthread_condattr_destroy(&attr);
	pool->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pool->wake_fd < 0)
		return -errno;
	if (!pool->dir || !pool->member || !pool->fds ||
	    (spec->overlay_dir && !pool->overlay_dir) || (spec->vmm && !pool->vmm))
		return -ENOMEM;
	pool->count[FREE] = pool->nr_members;
	for (unsigned i = 0; i < pool->nr_members; i++)
		sandbox_init(&pool->member[i].sb);
	return 0;
}

/* The manager has ended, or never was. */
static void release(struct pool *pool)
{
	if (pool->zygote.pid)
		zygote_close(&pool->zygote);
	own_close_fd(&pool->wake_fd);
	pthread_cond_destroy(&pool->changed);
	pthread_mutex_destroy(&pool->lock);
	free(pool->dir);
	free(pool->overlay_dir);
	free(pool->vmm);
	free(pool->member);
	free(pool->fds);
	free(pool);
}

int pool_open(struct pool **out, const struct pool_spec *spec, struct err *err)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	int rc;

	*out = NULL;
	BUG_ON(!spec->size);
	rc = pool ? prepare(pool, spec) : -ENOMEM;
	if (!pool)
		return err_set(err, rc, "pool: %s", strerror(-rc));
	if (rc)
		(void)err_set(err, rc, "pool: %s", strerror(-rc));
	rc = rc ? rc : revive_zygote(pool, err);
	if (!rc && (rc = -pthread_create(&pool->manager, NULL, manage, pool)))
		(void)err_set(err, rc, "pool: no thread: %s", strerror(-rc));
	if (rc) {
		release(pool);
		return rc;
	}
	*out = pool;
	return 0;
}

void pool_close(struct pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->closing = true;
	pthread_mutex_unlock(&pool->lock);
	wake(pool);
	pthread_join(pool->manager, NULL);
	release(pool);
}
