/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cell.h"
#include "api/pool.h"
#include "tests/unit/api/fake_zygote.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>

#define WAIT_MS 10000

static void nothing_left(void)
{
	cr_assert_str_eq(fz_left(), "");
}

TestSuite(pool, .init = fz_note, .fini = nothing_left, .timeout = 60);

static struct pool *open_pool(struct pool_spec spec)
{
	struct pool *pool;
	struct err err = { 0 };

	spec.vmm = FAKE_ZYGOTE;
	spec.dir = spec.dir ? spec.dir : "/snap";
	cr_assert_eq(pool_open(&pool, &spec, &err), 0, "%s", err.msg);
	return pool;
}

static void wait_full(struct pool *pool)
{
	struct err err = { 0 };

	cr_assert_eq(pool_wait_full(pool, WAIT_MS, &err), 0, "%s", err.msg);
}

static int take(struct pool *pool, struct sandbox *sb, const char *id, int timeout_ms,
                struct err *err)
{
	struct thaw_spec thaw = { .id = id };
	json_t *request = json_pack("{s:s}", "op", "run");
	int rc = pool_take(pool, sb, &thaw, request, timeout_ms, err);

	json_decref(request);
	return rc;
}

/* The fake's first result is the id. */
static int use(struct sandbox *sb, const char *id, struct err *err)
{
	struct stream *streams[] = { &sb->kernel };
	struct frame frame;
	char want[64];
	int rc;

	snprintf(want, sizeof(want), "\"%s\"", id);
	while ((rc = frame_next(&sb->kernel.in, &frame)) == 0)
		if ((rc = sandbox_wait(sb, streams, 1, NULL, 0, WAIT_MS, err)) <= 0)
			return rc ? rc : -ETIMEDOUT;
	if (rc < 0 || frame.type != FRAME_DISPLAY ||
	    !memmem(frame.data, frame.len, want, strlen(want)))
		return err_set(err, -EPROTO, "not the result of %s", id);
	return sandbox_wait_thawed(sb, WAIT_MS, err);
}

static void take_and_use(struct pool *pool, const char *id)
{
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(take(pool, &sb, id, WAIT_MS, &err), 0, "%s", err.msg);
	cr_assert_gt(sb.start_ns, 0);
	cr_assert_eq(use(&sb, id, &err), 0, "%s", err.msg);
	pool_destroy(pool, &sb);
	cr_assert_eq(sb.pid, 0);
}

static void fills_serves_and_refills(enum pool_kind kind)
{
	struct pool *pool = open_pool((struct pool_spec){ .kind = kind, .size = 3 });
	struct pool_stats stats;

	wait_full(pool);
	take_and_use(pool, "first");
	take_and_use(pool, "second");
	wait_full(pool);
	stats = pool_stats(pool);
	cr_assert(stats.ready == 3 && !stats.making && !stats.dying);
	cr_assert(stats.taken == 2 && !stats.misses && !stats.lost && !stats.failed);
	pool_close(pool);
}

Test(pool, of_shells)
{
	fills_serves_and_refills(POOL_SHELL);
}

Test(pool, of_standbys)
{
	fills_serves_and_refills(POOL_STANDBY);
}

Test(pool, several_in_the_making_at_once)
{
	struct pool *pool = open_pool(
		(struct pool_spec){ .kind = POOL_STANDBY, .size = 8, .refill_at_once = 4 });

	wait_full(pool);
	take_and_use(pool, "one");
	pool_close(pool);
}

Test(pool, missing_program_leaves_nothing)
{
	struct pool_spec spec = { .size = 2, .vmm = "/nonexistent/thawbox-vmm", .dir = "/snap" };
	struct pool *pool;
	struct err err = { 0 };

	cr_assert_eq(pool_open(&pool, &spec, &err), -ENOENT);
	cr_assert_null(pool);
	cr_assert_neq(err.remedy[0], '\0');
}

Test(pool, missing_snapshot_leaves_nothing)
{
	struct pool_spec spec = { .size = 2, .vmm = FAKE_ZYGOTE, .dir = "/gone" };
	struct pool *pool;
	struct err err = { 0 };

	cr_assert_eq(pool_open(&pool, &spec, &err), -EREMOTEIO);
	cr_assert_str_eq(err.remedy, "bake it");
}

Test(pool, take_waits_and_then_says_how_to_help)
{
	struct pool *pool = open_pool((struct pool_spec){ .size = 1, .dir = "/slow" });
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(take(pool, &sb, "x", 50, &err), -ETIMEDOUT);
	cr_assert_str_eq(err.msg, "no sandbox was ready within 50 ms");
	cr_assert_not_null(strstr(err.remedy, "larger than 1"));
	cr_assert(sb.pid == 0 && sb.control_fd == -1);
	cr_assert_eq(pool_stats(pool).misses, 1);
	cr_assert_eq(pool_wait_full(pool, 50, &err), -ETIMEDOUT);
	pool_close(pool);
}

Test(pool, closes_while_members_are_being_made)
{
	for (int i = 0; i < 20; i++) {
		struct pool *pool =
			open_pool((struct pool_spec){ .kind = POOL_STANDBY,
		                                      .size = 4,
		                                      .refill_at_once = 4,
		                                      .dir = i % 2 ? "/slow" : "/snap" });

		usleep((useconds_t)i * 500);
		pool_close(pool);
		cr_assert_str_eq(fz_left(), "");
	}
}

Test(pool, member_that_dies_while_it_waits_is_replaced)
{
	struct pool *pool = open_pool((struct pool_spec){ .kind = POOL_STANDBY, .size = 2 });
	struct err err = { 0 };
	pid_t pids[4];

	wait_full(pool);
	cr_assert_eq(fz_children(false, pids, 4), 2);
	kill(pids[0], SIGKILL);
	while (!pool_stats(pool).lost)
		cr_assert_neq(pool_wait_full(pool, WAIT_MS, &err), -ETIMEDOUT);
	wait_full(pool);
	cr_assert_eq(pool_stats(pool).lost, 1);
	take_and_use(pool, "x");
	pool_close(pool);
}

Test(pool, take_never_gives_one_that_has_died)
{
	struct pool *pool = open_pool((struct pool_spec){ .kind = POOL_STANDBY, .size = 2 });
	struct sandbox sb;
	struct err err = { 0 };

	for (int i = 0; i < 20; i++) {
		pid_t pids[4];

		wait_full(pool);
		cr_assert_eq(fz_children(false, pids, 4), 2);
		kill(pids[0], SIGKILL); /* seen by the manager or by the take: who knows */
		cr_assert_eq(take(pool, &sb, "x", WAIT_MS, &err), 0, "%s", err.msg);
		if (use(&sb, "x", &err) == 0)
			cr_assert_neq(sb.pid, pids[0]);
		pool_destroy(pool, &sb);
	}
	pool_close(pool);
}

Test(pool, rests_after_three_failures_and_tries_once_a_take)
{
	struct pool *pool = open_pool((struct pool_spec){ .size = 2, .dir = "/refusing" });
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(pool_wait_full(pool, WAIT_MS, &err), -EREMOTEIO);
	cr_assert_str_eq(err.msg, "the pool cannot make sandboxes: state: damaged");
	cr_assert_str_eq(err.remedy, "bake again");
	cr_assert_eq(pool_stats(pool).failed, 3);
	for (unsigned i = 1; i <= 3; i++) {
		err = (struct err){ 0 };
		cr_assert_eq(take(pool, &sb, "x", WAIT_MS, &err), -EREMOTEIO);
		cr_assert_str_eq(err.msg, "the pool cannot make sandboxes: state: damaged");
		cr_assert_eq(pool_stats(pool).failed, 3 + i);
	}
	pool_close(pool);
}

Test(pool, refused_fork_is_the_cause)
{
	struct pool *pool = open_pool((struct pool_spec){ .size = 2, .dir = "/nofork" });
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(take(pool, &sb, "x", WAIT_MS, &err), -EREMOTEIO);
	cr_assert_str_eq(err.remedy, "raise the limit of processes");
	pool_close(pool);
}

Test(pool, members_that_die_young_are_failures)
{
	struct pool *pool = open_pool((struct pool_spec){ .size = 1, .dir = "/brief" });
	struct err err = { 0 };
	struct pool_stats stats;

	do
		stats = pool_stats(pool);
	while (stats.failed < 3 && !usleep(5000));
	cr_assert_eq(pool_wait_full(pool, WAIT_MS, &err), -ECONNABORTED);
	cr_assert_not_null(strstr(err.msg, "exited with code 3"));
	stats = pool_stats(pool);
	cr_assert(stats.failed == 3 && stats.lost == 3 && !stats.ready && !stats.making);
	pool_close(pool);
}

Test(pool, member_that_is_never_ready_is_a_failure)
{
	struct pool *pool =
		open_pool((struct pool_spec){ .size = 2, .make_ms = 40, .dir = "/slow" });
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(take(pool, &sb, "x", WAIT_MS, &err), -ETIMEDOUT);
	cr_assert_str_eq(err.msg, "the pool cannot make sandboxes: it was not ready within 40 ms");
	pool_close(pool);
}

Test(pool, killed_zygote_is_replaced)
{
	struct pool *pool = open_pool((struct pool_spec){ .kind = POOL_STANDBY, .size = 2 });
	pid_t zygote;

	wait_full(pool);
	cr_assert_eq(fz_children(true, &zygote, 1), 1);
	kill(zygote, SIGKILL);
	for (int i = 0; i < 4; i++)
		take_and_use(pool, "x"); /* two from before, two by the new one */
	wait_full(pool);
	cr_assert_eq(pool_stats(pool).lost, 0);
	pool_close(pool);
}

Test(pool, zygote_that_keeps_dying_is_the_cause)
{
	struct pool *pool = open_pool((struct pool_spec){ .size = 2, .dir = "/mortal" });
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(take(pool, &sb, "x", WAIT_MS, &err), -ECONNABORTED);
	cr_assert_not_null(strstr(err.msg, "the zygote of thawbox-vmm exited with code 7"));
	pool_close(pool);
}

Test(pool, bad_request_costs_a_member_and_nothing_else)
{
	struct pool *pool = open_pool((struct pool_spec){ .kind = POOL_STANDBY, .size = 1 });
	struct thaw_spec thaw = { .id = "\xff" };
	struct sandbox sb;
	struct err err = { 0 };
	char *long_id = malloc(70000);

	memset(long_id, 'x', 69999);
	long_id[69999] = '\0';
	thaw.id = long_id;
	cr_assert_eq(pool_take(pool, &sb, &thaw, NULL, WAIT_MS, &err), -EMSGSIZE);
	cr_assert_eq(sb.pid, 0);
	free(long_id);
	take_and_use(pool, "x");
	pool_close(pool);
}

Test(pool, reaps_sandboxes_of_another_origin)
{
	struct pool *pool = open_pool((struct pool_spec){ .size = 1 });
	struct sandbox_spec spec = { .vmm = "/bin/cat", .intr_fd = -1 };
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(sandbox_start(&sb, &spec, &err), 0, "%s", err.msg);
	pool_destroy(pool, &sb);
	sandbox_init(&sb);
	pool_destroy(pool, &sb); /* nothing at all */
	wait_full(pool);
	pool_close(pool);
}

struct customer {
	struct pool *pool;
	unsigned number;
	pthread_t thread;
	struct err err;
};

static void *take_ten(void *arg)
{
	struct customer *c = arg;

	for (unsigned i = 0; i < 10; i++) {
		struct sandbox sb;
		char id[32];

		snprintf(id, sizeof(id), "tb-%u-%u", c->number, i);
		if (take(c->pool, &sb, id, WAIT_MS, &c->err))
			return NULL;
		(void)use(&sb, id, &c->err);
		pool_destroy(c->pool, &sb);
	}
	return NULL;
}

Test(pool, threads_share_it)
{
	struct pool *pool = open_pool((struct pool_spec){
		.kind = POOL_STANDBY, .size = 2, .refill_at_once = 2, .max_dying = 1 });
	struct customer customers[8] = { 0 };

	for (unsigned i = 0; i < 8; i++) {
		customers[i].pool = pool;
		customers[i].number = i;
		pthread_create(&customers[i].thread, NULL, take_ten, &customers[i]);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(customers[i].thread, NULL);
		cr_assert_eq(customers[i].err.code, 0, "%s", customers[i].err.msg);
	}
	cr_assert_eq(pool_stats(pool).taken, 80);
	wait_full(pool);
	pool_close(pool);
}
