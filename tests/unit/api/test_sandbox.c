/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cell.h"
#include "api/sandbox.h"
#include "tests/unit/api/fake_guest.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static char script[64];

/* A program in the place of the monitor. */
static struct sandbox_spec monitor(const char *text)
{
	FILE *f;

	snprintf(script, sizeof(script), "/tmp/test_sandbox.%d", getpid());
	f = fopen(script, "w");
	cr_assert_not_null(f);
	fprintf(f, "#!/bin/bash\n%s\n", text);
	fclose(f);
	cr_assert_eq(chmod(script, 0755), 0);
	return (struct sandbox_spec){ .vmm = script, .intr_fd = -1 };
}

static void remove_script(void)
{
	if (script[0])
		unlink(script);
}

TestSuite(sandbox, .fini = remove_script, .timeout = 20);

Test(sandbox, thaw_and_request_are_there_before_the_monitor_asks)
{
	struct sandbox_spec spec = monitor("IFS= read -r line <&3; echo \"$line\" >&2\n"
	                                   "echo '{\"ok\":true,\"port\":2007,\"agent_port\":1025,"
	                                   "\"create_ms\":4.5}' >&3; sleep 10");
	struct thaw_spec thaw = { .dir = "/snap", .id = "tb-1", .no_reseed = true };
	json_t *request = json_pack("{s:s}", "op", "run"), *line;
	struct sandbox sb;
	struct err err = { 0 };
	char log[512] = "";

	cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, request, &err), 0, "%s", err.msg);
	cr_assert(sb.first_pending && sb.kernel.fd >= 0);
	cr_assert_eq(sandbox_wait_thawed(&sb, 5000, &err), 0, "%s", err.msg);
	cr_assert(sb.port == 2007 && sb.agent_port == 1025);
	cr_assert_gt(pread(sb.log_fd, log, sizeof(log) - 1, 0), 0);
	line = json_loads(log, 0, NULL);
	cr_assert_str_eq(json_string_value(json_object_get(line, "cmd")), "thaw");
	cr_assert_str_eq(json_string_value(json_object_get(line, "dir")), "/snap");
	cr_assert_str_eq(json_string_value(json_object_get(line, "id")), "tb-1");
	cr_assert(json_is_false(json_object_get(line, "reseed")));
	json_decref(line);
	json_decref(request);
	sandbox_close(&sb);
	cr_assert_eq(sb.pid, 0);
}

Test(sandbox, monitor_inherits_nothing_but_its_socket)
{
	struct sandbox_spec spec = monitor("for i in {0..50}; do [ -e /proc/self/fd/$i ] && "
	                                   "printf \"$i \" >&2; done");
	int stray = open("/dev/null", O_RDONLY); /* without CLOEXEC, as a careless caller has it */
	struct sandbox sb;
	struct err err = { 0 };
	char log[512] = "";

	cr_assert_geq(stray, 0);
	cr_assert_eq(sandbox_start(&sb, &spec, &err), 0, "%s", err.msg);
	(void)sandbox_why_lost(&sb, &err);
	cr_assert_gt(pread(sb.log_fd, log, sizeof(log) - 1, 0), 0);
	cr_assert_str_eq(log, "0 1 2 3 ", "%s", log);
	sandbox_close(&sb);
	close(stray);
}

Test(sandbox, exit_of_the_monitor_is_told_with_its_last_words)
{
	struct sandbox_spec spec = monitor("echo first >&2; echo 'no KVM here' >&2; exit 9");
	struct thaw_spec thaw = { .dir = "/snap" };
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, NULL, &err), 0, "%s", err.msg);
	cr_assert_eq(sandbox_wait_thawed(&sb, 5000, &err), -ECONNABORTED);
	cr_assert_str_eq(err.msg,
	                 "the sandbox was lost: its monitor exited with code 9: no KVM here");
	sandbox_close(&sb);
}

Test(sandbox, killed_monitor_is_told)
{
	struct sandbox_spec spec = monitor("kill -9 $$");
	struct thaw_spec thaw = { .dir = "/snap" };
	struct sandbox sb;
	struct err err = { 0 };

	spec.isolation.most = "none"; /* the first process of a pid namespace cannot kill itself */
	cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, NULL, &err), 0);
	cr_assert_eq(sandbox_wait_thawed(&sb, 5000, &err), -ECONNABORTED);
	cr_assert_str_eq(err.msg,
	                 "the sandbox was lost: its monitor was killed by signal 9 (SIGKILL)");
	sandbox_close(&sb);
}

Test(sandbox, refused_thaw_comes_with_its_remedy)
{
	struct sandbox_spec spec =
		monitor("read -r line <&3; echo '{\"ok\":false,\"error\":\"state: damaged\","
	                "\"remedy\":\"bake again\"}' >&3; exit 1");
	struct thaw_spec thaw = { .dir = "/snap" };
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, NULL, &err), 0);
	cr_assert_eq(sandbox_wait_thawed(&sb, 5000, &err), -EREMOTEIO);
	cr_assert_str_eq(err.msg, "state: damaged");
	cr_assert_str_eq(err.remedy, "bake again");
	sandbox_close(&sb);
}

Test(sandbox, refused_thaw_is_what_the_first_cell_ends_with)
{
	struct sandbox_spec spec =
		monitor("read -r line <&3; echo '{\"ok\":false,\"error\":\"state: damaged\","
	                "\"remedy\":\"bake again\"}' >&3; exit 1");
	struct thaw_spec thaw = { .dir = "/snap" };
	struct cell cell = { .code = "1", .code_len = 1 };
	struct cell_sink sink = { 0 };
	json_t *request = cell_request(&cell);

	for (int i = 0; i < 20;
	     i++) { /* whichever end is seen first, the stream's or the socket's */
		struct cell_result result;
		struct sandbox sb;
		struct err err = { 0 };

		cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, request, &err), 0);
		usleep((useconds_t)i * 1000);
		cr_assert_eq(cell_run(&sb, &cell, &sink, &result, &err), -EREMOTEIO, "%s", err.msg);
		cr_assert_str_eq(err.msg, "state: damaged");
		sandbox_close(&sb);
	}
	json_decref(request);
}

Test(sandbox, missing_monitor_leaves_nothing)
{
	struct sandbox_spec spec = { .vmm = "/nonexistent/thawbox-vmm", .intr_fd = -1 };
	struct sandbox sb;
	struct err err = { 0 };

	cr_assert_eq(sandbox_start(&sb, &spec, &err), -ENOENT);
	cr_assert_neq(err.remedy[0], '\0');
	cr_assert(sb.pid == 0 && sb.control_fd == -1);
	sandbox_close(&sb);
}

Test(sandbox, request_too_long_for_the_mailbox_goes_by_the_stream)
{
	struct sandbox_spec spec = monitor(
		"read -r line <&3; echo '{\"ok\":true,\"port\":2000,\"agent_port\":1024}' >&3\n"
		"read -r line <&3; echo \"$line\" >&2; echo '{\"ok\":true}' >&3; sleep 10");
	struct thaw_spec thaw = { .dir = "/snap" };
	char *code = calloc(1, 70000);
	json_t *request;
	struct sandbox sb;
	struct err err = { 0 };

	memset(code, '#', 69999);
	request = json_pack("{s:s, s:s}", "op", "run", "code", code);
	cr_assert_eq(sandbox_thaw(&sb, &spec, &thaw, request, &err), 0, "%s", err.msg);
	cr_assert(sb.first_pending && !sb.first_sent && sb.kernel.fd >= 0);
	cr_assert_gt(sb.kernel.out.len, 70000);
	json_decref(request);
	free(code);
	sandbox_close(&sb);
}

Test(sandbox, calls_are_answered_in_order_and_refusals_have_words)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	cr_assert_eq(sandbox_call(&sb, json_pack("{s:s}", "cmd", "pause"), -1, 5000, NULL, &err),
	             0);
	cr_assert_eq(sandbox_call(&sb, json_pack("{s:s}", "cmd", "refuse"), -1, 5000, NULL, &err),
	             -EREMOTEIO);
	cr_assert_str_eq(err.msg, "not today");
	cr_assert_str_eq(err.remedy, "tomorrow");
	cr_assert_eq(sandbox_call(&sb, json_pack("{s:s}", "cmd", "pause"), -1, 5000, NULL, &err),
	             0);
	fake_close(&fake, &sb);
}

Test(sandbox, events_come_between_answers)
{
	static const char lines[] =
		"{\"event\":\"parked\"}\n{\"event\":\"first-done\"}\n{\"event\":\"x\"}\n";
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	cr_assert_eq(send(fake.control, lines, strlen(lines), 0), (ssize_t)strlen(lines));
	while (!sb.first_done)
		cr_assert_eq(sandbox_wait(&sb, NULL, 0, NULL, 0, 5000, &err), 1, "%s", err.msg);
	cr_assert(sb.parked);
	fake_close(&fake, &sb);
}

Test(sandbox, monitor_that_talks_nonsense_is_lost)
{
	static const char line[] = "hello\n";
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	int rc;

	fake_open(&fake, &sb);
	cr_assert_eq(send(fake.control, line, strlen(line), 0), (ssize_t)strlen(line));
	do
		rc = sandbox_wait(&sb, NULL, 0, NULL, 0, 5000, &err);
	while (rc == 1);
	cr_assert_eq(rc, -ECONNABORTED);
	cr_assert_not_null(strstr(err.msg, "not JSON"));
	fake_close(&fake, &sb);
}
