/* SPDX-License-Identifier: Apache-2.0 */
#include "api/zygote.h"
#include "tests/unit/api/fake_zygote.h"

#include <criterion/criterion.h>
#include <errno.h>

static const struct zygote_spec fake = { .vmm = FAKE_ZYGOTE };

static void nothing_left(void)
{
	cr_assert_str_eq(fz_left(), "");
}

TestSuite(zygote, .init = fz_note, .fini = nothing_left, .timeout = 30);

static void open_fake(struct zygote *z, const char *dir)
{
	struct err err = { 0 };

	cr_assert_eq(zygote_open(z, &fake, dir, &err), 0, "%s", err.msg);
}

static int start(struct zygote *z, struct sandbox *sb, struct err *err)
{
	struct sandbox_spec spec = { .zygote = z, .intr_fd = -1 };

	return sandbox_start(sb, &spec, err);
}

Test(zygote, forks_monitors_that_we_can_reap)
{
	struct sandbox sb[2];
	struct err err = { 0 };
	struct zygote z;

	open_fake(&z, "/snap");
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(start(&z, &sb[i], &err), 0, "%s", err.msg);
		cr_assert_eq(
			sandbox_call(&sb[i], json_pack("{s:s}", "cmd", "x"), -1, 5000, NULL, &err),
			0, "%s", err.msg);
	}
	cr_assert(sb[0].pid > 0 && sb[1].pid > 0 && sb[0].pid != sb[1].pid && sb[0].pid != z.pid);
	for (int i = 0; i < 2; i++)
		sandbox_close(&sb[i]);
	zygote_close(&z);
	zygote_close(&z);
}

Test(zygote, thaw_and_request_are_there_before_the_fork)
{
	struct sandbox_spec spec = { .intr_fd = -1 };
	struct thaw_spec thaw = { .id = "tb-1" };
	json_t *request = json_pack("{s:s}", "op", "run");
	struct sandbox sb;
	struct err err = { 0 };
	struct zygote z;

	open_fake(&z, "/snap");
	spec.zygote = &z;
	cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, request, &err), 0, "%s", err.msg);
	cr_assert(sb.first_sent && sb.start_ns);
	cr_assert_eq(sandbox_wait_thawed(&sb, 5000, &err), 0, "%s", err.msg);
	cr_assert_eq(sb.port, 2003);
	json_decref(request);
	sandbox_close(&sb);
	zygote_close(&z);
}

Test(zygote, log_of_a_fork_is_its_own)
{
	struct sandbox sb;
	struct err err = { 0 };
	struct zygote z;

	open_fake(&z, "/snap");
	cr_assert_eq(start(&z, &sb, &err), 0, "%s", err.msg);
	cr_assert_eq(
		sandbox_call(&sb, json_pack("{s:s}", "cmd", "last-words"), -1, 5000, NULL, &err),
		-ECONNABORTED);
	cr_assert_str_eq(err.msg, "the sandbox was lost: its monitor exited with code 9: no more");
	sandbox_close(&sb);
	zygote_close(&z);
}

Test(zygote, missing_program_leaves_nothing)
{
	struct zygote_spec spec = { .vmm = "/nonexistent/thawbox-vmm" };
	struct err err = { 0 };
	struct zygote z;

	cr_assert_eq(zygote_open(&z, &spec, "/snap", &err), -ENOENT);
	cr_assert_neq(err.remedy[0], '\0');
	zygote_close(&z);
}

Test(zygote, another_program_is_told)
{
	struct zygote_spec spec = { .vmm = "/bin/false" };
	struct err err = { 0 };
	struct zygote z;

	cr_assert_eq(zygote_open(&z, &spec, "/snap", &err), -ECONNABORTED);
	cr_assert_str_eq(err.msg, "the zygote of thawbox-vmm exited with code 1");
}

Test(zygote, missing_snapshot_comes_with_its_remedy)
{
	struct err err = { 0 };
	struct zygote z;

	cr_assert_eq(zygote_open(&z, &fake, "/gone", &err), -EREMOTEIO);
	cr_assert_str_eq(err.msg, "no such snapshot");
	cr_assert_str_eq(err.remedy, "bake it");
}

Test(zygote, failed_fork_comes_with_its_remedy_and_ends_nothing)
{
	struct sandbox sb;
	struct err err = { 0 };
	struct zygote z;

	open_fake(&z, "/nofork");
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(start(&z, &sb, &err), -EREMOTEIO);
		cr_assert_not_null(strstr(err.msg, "fork: "));
		cr_assert_str_eq(err.remedy, "raise the limit of processes");
	}
	cr_assert_not(zygote_is_lost(&z));
	zygote_close(&z);
}

Test(zygote, death_is_noticed_and_hurts_no_fork)
{
	struct sandbox sb, other;
	struct err err = { 0 };
	struct zygote z;

	open_fake(&z, "/snap");
	cr_assert_eq(start(&z, &sb, &err), 0, "%s", err.msg);
	kill(z.pid, SIGKILL);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(start(&z, &other, &err), -ECONNABORTED);
		cr_assert_str_eq(err.msg,
		                 "the zygote of thawbox-vmm was killed by signal 9 (SIGKILL)");
		cr_assert_neq(err.remedy[0], '\0');
		cr_assert(zygote_is_lost(&z));
	}
	cr_assert_eq(sandbox_call(&sb, json_pack("{s:s}", "cmd", "x"), -1, 5000, NULL, &err), 0,
	             "%s", err.msg);
	sandbox_close(&sb);
	zygote_close(&z);
}

Test(zygote, death_in_the_middle_of_a_spawn_is_told)
{
	struct sandbox sb;
	struct err err = { 0 };
	struct zygote z;

	open_fake(&z, "/mortal");
	cr_assert_eq(start(&z, &sb, &err), -ECONNABORTED);
	cr_assert_str_eq(err.msg, "the zygote of thawbox-vmm exited with code 7");
	zygote_close(&z);
}

static void *spawn_ten(void *arg)
{
	for (int i = 0; i < 10; i++) {
		struct sandbox sb;
		struct err err = { 0 };

		if (start(arg, &sb, &err) ||
		    sandbox_call(&sb, json_pack("{s:s}", "cmd", "x"), -1, 5000, NULL, &err))
			return strdup(err.msg);
		sandbox_close(&sb);
	}
	return NULL;
}

Test(zygote, threads_share_it)
{
	pthread_t threads[8];
	struct zygote z;
	void *error;

	open_fake(&z, "/snap");
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, spawn_ten, &z);
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], &error);
		cr_assert_null(error, "%s", (char *)error);
	}
	zygote_close(&z);
}
