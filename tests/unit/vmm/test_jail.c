/* SPDX-License-Identifier: Apache-2.0 */
/* Levels, their layers, what is said of them; what the start does to a process. Each test is a process of its own. */
#include "vmm/jail.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MEMORY_MERGE /* Linux 6.4 */
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif

static void all_on(void)
{
	for (unsigned i = 0; i < JAIL_NR_LAYERS; i++)
		jail_note(i, i != JAIL_CGROUP, "");
}

Test(jail, names_of_levels)
{
	const char *const names[] = { "none", "vm", "user", "full" };

	for (int i = 0; i < 4; i++) {
		cr_assert_eq(jail_level_of(names[i]), i);
		cr_assert_str_eq(jail_level_name(i), names[i]);
	}
	cr_assert_eq(jail_level_of("high"), -1);
	cr_assert_eq(jail_level_of(""), -1);
}

Test(jail, a_level_is_all_of_its_layers)
{
	const struct {
		enum jail_layer off;
		enum jail_level level;
	} cases[] = {
		{ JAIL_DESCRIPTORS, JAIL_LEVEL_NONE }, { JAIL_CAPABILITIES, JAIL_LEVEL_NONE },
		{ JAIL_LIMITS, JAIL_LEVEL_NONE },      { JAIL_USER, JAIL_LEVEL_VM },
		{ JAIL_ROOT, JAIL_LEVEL_VM },          { JAIL_NET, JAIL_LEVEL_VM },
		{ JAIL_PID, JAIL_LEVEL_USER },         { JAIL_LANDLOCK, JAIL_LEVEL_USER },
		{ JAIL_CGROUP, JAIL_LEVEL_FULL },
	};

	cr_assert_eq(jail_level(), JAIL_LEVEL_NONE, "nothing has been tried");
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		all_on();
		cr_assert_eq(jail_level(), JAIL_LEVEL_FULL);
		jail_note(cases[i].off, false, "gone");
		cr_assert_eq(jail_level(), cases[i].level, "case %u", i);
	}
	jail_note(JAIL_ENVIRONMENT, false, "gone");
	cr_assert_eq(jail_level(), JAIL_LEVEL_NONE, "the lowest counts");
}

Test(jail, too_little_is_refused_with_the_layer_and_a_remedy)
{
	const struct jail_config config = { .most = JAIL_LEVEL_NONE, .least = JAIL_LEVEL_USER };
	struct err err = { 0 };

	jail_begin(&config, -1);
	all_on();
	cr_assert_eq(jail_check(&err), 0);
	jail_note(JAIL_LANDLOCK, false, "this kernel has none");
	cr_assert_eq(jail_check(&err), 0, "of a higher level");
	jail_note(JAIL_NET, false, "unshare: Operation not permitted");
	cr_assert_eq(jail_check(&err), -EPERM);
	cr_assert_str_eq(
		err.msg,
		"isolation \"user\" is required, this host and user give \"vm\": net namespace: "
		"unshare: Operation not permitted");
	cr_assert_not_null(strstr(err.remedy, "doctor --isolation"));
}

#ifdef __SANITIZE_ADDRESS__ /* the kernel would walk its shadow of many TiB page by page */
#define MERGING_HANGS true
#else
#define MERGING_HANGS false
#endif

Test(jail, starter_that_merges_pages)
{
	const struct jail_config vm = { .most = JAIL_LEVEL_VM }, none = { .most = JAIL_LEVEL_NONE };
	pid_t pid;
	int status;

	if (MERGING_HANGS)
		cr_skip_test("AddressSanitizer's shadow memory takes minutes to mark as mergeable");
	if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0)
		cr_skip_test("this kernel merges no page unasked");
	pid = fork();
	if (pid == 0) {
		jail_begin(&none, -1);
		if (prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) != 1)
			_exit(9);
		jail_begin(&vm, -1);
		_exit(prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0));
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
}

Test(jail, report)
{
	json_t *report, *layers, *one;

	all_on();
	jail_note(JAIL_NET, false, "why not");
	report = jail_report();
	layers = json_object_get(report, "layers");
	one = json_array_get(layers, JAIL_NET);
	cr_assert_str_eq(json_string_value(json_object_get(report, "level")), "vm");
	cr_assert_eq(json_array_size(layers), (size_t)JAIL_NR_LAYERS);
	cr_assert_str_eq(json_string_value(json_object_get(one, "name")), "net namespace");
	cr_assert_str_eq(json_string_value(json_object_get(one, "level")), "user");
	cr_assert_str_eq(json_string_value(json_object_get(one, "why")), "why not");
	cr_assert(json_is_false(json_object_get(one, "on")));
	cr_assert_str_eq(
		json_string_value(json_object_get(json_array_get(layers, JAIL_CGROUP), "level")),
		"extra");
	json_decref(report);
}

/* Runs in the test's own process: nothing of Criterion's is closed, because it is put below `keep`. */
Test(jail, start_closes_all_but_what_is_allowed)
{
	const struct jail_config config = { .most = JAIL_LEVEL_VM };
	int keep = fcntl(0, F_DUPFD, 700), below = fcntl(0, F_DUPFD, 600),
	    above = fcntl(0, F_DUPFD, 800);
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		jail_begin(&config, keep);
		_exit(fcntl(keep, F_GETFD) < 0 || fcntl(below, F_GETFD) >= 0 ||
		      fcntl(above, F_GETFD) >= 0 || fcntl(0, F_GETFD) < 0 || fcntl(2, F_GETFD) < 0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
}

Test(jail, start_wipes_the_environment)
{
	const struct jail_config config = { .most = JAIL_LEVEL_VM };
	const char *secret;
	pid_t pid;
	int status;

	cr_assert_eq(setenv("SECRET", "hunter2", 1), 0);
	pid = fork();
	if (pid == 0) {
		secret = getenv("SECRET");
		jail_begin(&config, -1);
		_exit(getenv("SECRET") || memcmp(secret, "\0\0\0\0\0\0\0", 7));
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
}

Test(jail, switched_off_it_changes_nothing)
{
	const struct jail_config config = { .most = JAIL_LEVEL_NONE };
	char now[JAIL_PATH_MAX];
	struct err err = { 0 };
	int fd = fcntl(0, F_DUPFD, 600), window;

	cr_assert_eq(setenv("KEPT", "yes", 1), 0);
	jail_begin(&config, -1);
	window = jail_window("/tmp/some/file", &err);
	cr_assert_geq(window, 0);
	cr_assert_eq(jail_enter(&err) | jail_drop(1, &err) | jail_check(&err), 0);
	jail_path(window, "/tmp/some/file", now);
	cr_assert_str_eq(now, "/tmp/some/file");
	cr_assert_str_eq(getenv("KEPT"), "yes");
	cr_assert_neq(fcntl(fd, F_GETFD), -1);
	cr_assert_not(jail_is_entered());
}

Test(jail, pid_is_the_starters)
{
	cr_assert_eq(jail_pid(), getpid());
}

/* A way into the jail from where no right is: what is left is what needs none. */
Test(jail, without_any_right_the_rest_is_there)
{
	const struct jail_config config = { .most = JAIL_LEVEL_VM };
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct err err = { 0 };

		if (getuid() == 0 && (syscall(SYS_setresgid, 65534, 65534, 65534) ||
		                      syscall(SYS_setresuid, 65534, 65534, 65534)))
			_exit(9);
		jail_begin(&config, -1);
		if (jail_enter(&err) || jail_drop(1u << 20, &err))
			_exit(8);
		_exit(jail_level() != JAIL_LEVEL_VM || jail_check(&err) != 0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
}
