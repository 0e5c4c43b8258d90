/* SPDX-License-Identifier: Apache-2.0 */
/* Templates that are baked again under a daemon: real folders, links, locks and inotify; zygotes without KVM. */
#include "api/daemon/daemon.h"
#include "api/daemon/handover.h"
#include "api/daemon/stall.h"
#include "api/pool.h"
#include "tests/unit/api/fake_zygote.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

static char home[] = "/tmp/test_stall.XXXXXX";
static struct daemon host;
static struct err err;

static void make_home(void)
{
	fz_note();
	cr_assert_not_null(mkdtemp(home));
	setenv("THAWBOX_HOME", home, 1);
	setenv("THAWBOX_VMM", FAKE_ZYGOTE, 1);
}

static void nothing_left(void)
{
	cr_assert_eq(paths_remove_tree(home), 0);
	cr_assert_str_eq(fz_left(), "");
}

TestSuite(stall, .init = make_home, .fini = nothing_left, .timeout = 60);

/* What a build ends with: snapshot `id` of template `name`, and the link to it. */
static void bake(const char *name, const char *id)
{
	char path[PATHS_MAX], dir[PATHS_MAX];
	FILE *f;

	cr_assert_eq(template_path(name, path, &err), 0);
	cr_assert_eq(paths_format(dir, &err, "%s/%s", path, id), 0);
	cr_assert_eq(paths_make_dirs(dir, &err), 0);
	cr_assert_eq(paths_format(dir, &err, "%s/%s/template.json", path, id), 0);
	f = fopen(dir, "w");
	fprintf(f, "{\"memory_mb\": 512, \"vcpus\": 1, \"was\": \"%s\"}", id);
	fclose(f);
	cr_assert_eq(template_publish(path, id, &err), 0, "%s", err.msg);
}

static void open_host(struct daemon *daemon)
{
	*daemon = (struct daemon){ .opts = { .pool_kind = "standby", .pool_size = 2 } };
	list_init(&daemon->boxes);
	daemon->opts.templates.nr = 2;
	daemon->opts.templates.at[0] = "t";
	daemon->opts.templates.at[1] = "u";
	cr_assert_eq(loop_open(&daemon->loop, 64, &err), 0);
	cr_assert_eq(jobs_open(&daemon->jobs, &daemon->loop, 2, &err), 0);
	cr_assert_eq(stalls_open(daemon, &err), 0, "%s", err.msg);
}

static void close_host(struct daemon *daemon)
{
	stalls_unwatch(daemon);
	jobs_close(&daemon->jobs);
	stalls_close(daemon);
	loop_close(&daemon->loop);
}

static const char *wanted;
static bool serves(void *ctx)
{
	return !strcmp(((struct daemon *)ctx)->stalls[0]->template.id, wanted);
}

static void wait_until_serves(struct daemon *daemon, const char *id)
{
	wanted = id;
	cr_assert_eq(loop_run_until(&daemon->loop, serves, daemon), 0);
}

static bool is_drained(void *ctx)
{
	return !((struct stall *)ctx)->pool;
}

static bool none_is_old(void *ctx)
{
	return list_is_empty(&((struct daemon *)ctx)->old_stalls);
}

/* Nobody has a lock on a snapshot of `t`. */
static bool is_unlocked(const char *id)
{
	char path[PATHS_MAX];
	int fd;
	bool is;

	cr_assert_eq(paths_format(path, &err, "%s/templates/t/%s", home, id), 0);
	fd = open(path, O_RDONLY | O_DIRECTORY);
	cr_assert_geq(fd, 0);
	is = !flock(fd, LOCK_EX | LOCK_NB);
	close(fd);
	return is;
}

/* With the first snapshots of both templates, and a look at what comes. */
static void open_watching_host(void)
{
	bake("t", "1");
	bake("u", "1");
	open_host(&host);
	stalls_watch(&host);
}

Test(stall, what_is_baked_again_serves)
{
	struct stall *old, *other;

	open_watching_host();
	old = host.stalls[0];
	other = host.stalls[1];
	stall_hold(old); /* a sandbox of it */
	bake("t", "2");
	wait_until_serves(&host, "2");
	cr_expect_eq(host.stalls[1], other, "of the other template nothing has changed");
	cr_expect_eq(pool_stats(host.stalls[0]->pool).ready, 2, "its pool was filled first");
	cr_expect_str_eq(json_string_value(json_object_get(host.stalls[0]->info, "was")), "2");
	cr_expect(old->is_old && stall_reaper(old) == host.stalls[0]);
	cr_assert_eq(loop_run_until(&host.loop, is_drained, old), 0);
	cr_expect_not(is_unlocked("1"), "its sandbox lives");
	bake("t", "3");
	wait_until_serves(&host, "3");
	cr_expect_eq(stall_reaper(old), host.stalls[0]);
	stall_release(old);
	cr_assert_eq(loop_run_until(&host.loop, none_is_old, &host), 0);
	cr_expect(is_unlocked("1") && is_unlocked("2") && !is_unlocked("3"));
	cr_expect_eq(host.counters.rotated, 2);
	close_host(&host);
	cr_expect(is_unlocked("3"));
}

/* Who asked the old pool before has its member; only then it ends. */
Test(stall, a_pool_ends_behind_its_last_call)
{
	struct sandbox sb;
	struct stall *old;

	open_watching_host();
	old = host.stalls[0];
	stall_hold(old);
	stall_call(old);
	bake("t", "2");
	wait_until_serves(&host, "2");
	cr_assert_not_null(old->pool);
	cr_assert_eq(pool_claim(old->pool, &sb, 10000, &err), 0, "%s", err.msg);
	stall_called(old);
	cr_assert_eq(loop_run_until(&host.loop, is_drained, old), 0);
	pool_destroy(stall_reaper(old)->pool, &sb);
	stall_release(old);
	cr_expect(none_is_old(&host));
	close_host(&host);
}

static bool has_refused(void *ctx)
{
	return ((struct daemon *)ctx)->stalls[0]->refused[0] != '\0';
}

Test(stall, what_cannot_be_served_changes_nothing)
{
	struct stall *old;

	open_watching_host();
	old = host.stalls[0];
	bake("t", "2-refusing"); /* no member of its pool comes up */
	cr_assert_eq(loop_run_until(&host.loop, has_refused, &host), 0);
	cr_expect_str_eq(old->refused, "2-refusing");
	cr_expect(host.stalls[0] == old && old->pool && !old->is_old && is_unlocked("2-refusing"));
	cr_expect_not(host.rotation.is_busy, "it is not tried for ever");
	stalls_look(&host);
	cr_expect(host.rotation.is_busy, "but when somebody wants it");
	cr_assert_eq(loop_run_until(&host.loop, has_refused, &host), 0);
	bake("t", "3-gone"); /* and here not even the zygote */
	cr_assert_not_null(old);
	while (strcmp(old->refused, "3-gone") != 0) {
		old->refused[0] = '\0';
		cr_assert_eq(loop_run_until(&host.loop, has_refused, &host), 0);
	}
	bake("t", "4");
	wait_until_serves(&host, "4");
	close_host(&host);
}

Test(stall, a_folder_that_is_made_again_is_watched_again)
{
	char path[PATHS_MAX];

	open_watching_host();
	cr_assert_eq(template_path("t", path, &err), 0);
	cr_assert_eq(paths_remove_tree(path), 0);
	bake("t", "2");
	wait_until_serves(&host, "2");
	bake("t", "3");
	wait_until_serves(&host, "3");
	close_host(&host);
}

/* What was baked while nobody looked is found by the first look. */
Test(stall, what_came_before_the_watch)
{
	bake("t", "1");
	bake("u", "1");
	open_host(&host);
	bake("t", "2");
	stalls_watch(&host);
	wait_until_serves(&host, "2");
	close_host(&host);
}

/* It ends, and a rotation that is under way with it. */
Test(stall, an_end_in_the_middle)
{
	open_watching_host();
	bake("t", "2");
	stalls_look(&host);
	cr_assert(host.rotation.is_busy);
	host.is_stopping = true;
	close_host(&host);
	cr_expect(is_unlocked("1") && is_unlocked("2"));
}

Test(stall, a_template_that_is_not_there)
{
	bake("t", "1");
	host = (struct daemon){ .opts = { .pool_kind = "shell", .pool_size = 1 } };
	host.opts.templates.nr = 2;
	host.opts.templates.at[0] = "t";
	host.opts.templates.at[1] = "u";
	cr_expect_eq(stalls_open(&host, &err), -ENOENT);
	cr_expect_str_eq(err.remedy, "bake it once: thawbox template build u");
	stalls_close(&host);
	host.opts.pool_kind = "none";
	cr_expect_eq(stalls_open(&host, &err), -EINVAL);
	stalls_close(&host);
}

/* As it comes to the next daemon, whose descriptors have other numbers. */
static struct handover pass_on(struct handover *left, json_t *state)
{
	struct handover h = { .nr = left->nr, .state = state };

	h.at = calloc(left->nr + 1, sizeof(*h.at));
	for (unsigned i = 0; i < left->nr; i++)
		h.at[i] = (struct handed){ .name = left->at[i].name,
			                   .fd = fcntl(left->at[i].fd, F_DUPFD_CLOEXEC, 3) };
	return h;
}

Test(stall, sandboxes_of_an_old_one_in_the_next_daemon)
{
	struct handover left = { 0 }, h;
	static struct daemon next;
	struct stall *old, *serving, *restored;
	json_t *state;

	open_watching_host();
	old = host.stalls[0];
	stall_hold(old);
	bake("t", "2");
	wait_until_serves(&host, "2");
	serving = host.stalls[0];
	serving->misses = 7;
	stall_hold(serving);
	cr_assert_eq(loop_run_until(&host.loop, is_drained, old), 0);
	state = stalls_save(&host, &left);
	h = pass_on(&left, state);
	cr_expect_eq(h.nr, 2, "a lock each, of those that have sandboxes");
	handover_close(&left);
	close_host(&host);
	cr_expect(old->template.lock_fd >= 0 && serving->template.lock_fd >= 0, "they keep it");
	template_close(&old->template);
	template_close(&serving->template);
	cr_expect_not(is_unlocked("1"), "the next one has it");

	bake("t", "3"); /* meanwhile */
	open_host(&next);
	stalls_restore(&next, state, &h);
	cr_expect_eq(stall_misses(next.stalls[0]), 7);
	restored = stall_of(&next, "t", "1");
	cr_assert(restored->is_old && !restored->pool && stall_reaper(restored) == next.stalls[0]);
	cr_expect_str_eq(json_string_value(json_object_get(restored->info, "was")), "1");
	cr_expect_str_eq(stall_of(&next, "t", "2")->template.id, "2");
	cr_expect_str_eq(stall_of(&next, "t", "3")->template.id, "3");
	cr_expect_eq(stall_of(&next, "t", "nonesuch"), next.stalls[0]);
	cr_expect_null(stall_of(&next, "v", "1"));
	stall_hold(restored);
	handover_close(&h);
	stalls_settle(&next);
	cr_expect(is_unlocked("2"), "its sandbox did not come");
	cr_expect_not(is_unlocked("1"));
	stall_release(restored);
	cr_expect(none_is_old(&next) && is_unlocked("1"));
	close_host(&next);

	stall_release(old); /* of the daemon that was */
	list_init(&serving->node);
	json_decref(serving->info);
	free(serving);
}
