/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cell.h"
#include "tests/unit/api/fake_guest.h"

#include <criterion/criterion.h>
#include <errno.h>

struct seen {
	char out[4096], errs[64], text[64];
	int intr_fd;
};

static void on_output(void *ctx, enum frame_type type, const void *data, size_t len)
{
	struct seen *seen = ctx;
	char *to = type == FRAME_STDOUT ? seen->out : seen->errs;

	if (strlen(to) + len < sizeof(seen->errs))
		strncat(to, data, len);
}

static void on_display(void *ctx, json_t *display)
{
	struct seen *seen = ctx;

	snprintf(
		seen->text, sizeof(seen->text), "%s",
		json_string_value(json_object_get(json_object_get(display, "data"), "text/plain")));
}

static bool on_interrupt(void *ctx)
{
	char byte;

	cr_assert_eq(read(((struct seen *)ctx)->intr_fd, &byte, 1), 1);
	return byte == 'c';
}

/* Runs `code` with a deadline of `timeout_ms`. */
static int run(struct sandbox *sb, const char *code, unsigned timeout_ms, struct seen *seen,
               struct cell_result *result, struct err *err)
{
	struct cell cell = { .code = code,
		             .code_len = strlen(code),
		             .max_output = 1 << 20,
		             .timeout_ns = timeout_ms * 1000000ull,
		             .keep_on_intr = true };
	struct cell_sink sink = { on_output, on_display, on_interrupt, seen };

	memset(seen->out, 0, sizeof(seen->out));
	return cell_run(sb, &cell, &sink, result, err);
}

static const char *error_of(const struct cell_result *r, const char *key)
{
	return json_string_value(json_object_get(json_object_get(r->result, "error"), key));
}

static double seconds(const struct cell_result *r)
{
	return (double)(r->end_ns - r->begin_ns) / 1e9;
}

Test(cell, output_display_and_result, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	for (int i = 0; i < 3; i++) { /* the same stream serves one after another */
		memset(&seen, 0, sizeof(seen));
		cr_assert_eq(run(&sb, "1+1", 0, &seen, &r, &err), 0, "%s", err.msg);
		cr_assert(r.ok && r.end == CELL_DONE);
		cr_assert_str_eq(seen.out, "out");
		cr_assert_str_eq(seen.errs, "err");
		cr_assert_str_eq(seen.text, "2");
		cell_result_free(&r);
	}
	cr_assert_eq(fake.port_asked, 2000);
	fake_close(&fake, &sb);
}

Test(cell, deadline_interrupts_and_the_context_stays, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	cr_assert_eq(run(&sb, "hang", 200, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_TIMEOUT);
	cr_assert(!r.ok && seconds(&r) >= 0.2 && seconds(&r) < 1.2, "%f s", seconds(&r));
	cr_assert_str_eq(error_of(&r, "name"), "TimeoutError");
	cr_assert_str_eq(error_of(&r, "traceback"), "Traceback: here");
	cr_assert_str_eq(seen.out, "before");
	cr_assert_eq(fake.kills, 0);
	cell_result_free(&r);
	cr_assert_eq(run(&sb, "1+1", 1000, &seen, &r, &err), 0);
	cr_assert(r.ok);
	cr_assert_eq(fake.port_asked, 2000, "the same interpreter");
	cell_result_free(&r);
	fake_close(&fake, &sb);
}

Test(cell, deadline_kills_a_context_that_ignores_the_interrupt, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	fake.lives = true;
	cr_assert_eq(run(&sb, "stubborn", 200, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_TIMEOUT);
	cr_assert(seconds(&r) >= 1.2 && seconds(&r) < 2.2, "%f s", seconds(&r));
	cr_assert_str_eq(seen.out, "before");
	cr_assert(fake.nr_interrupts == 1 && fake.kills == 1);
	cell_result_free(&r);
	cr_assert_eq(run(&sb, "1+1", 1000, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert(r.ok);
	cr_assert_eq(fake.port_asked, 2001, "the spare");
	cell_result_free(&r);
	fake_close(&fake, &sb);
}

Test(cell, deadline_kills_a_machine_that_does_not_answer, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	fake.deaf = true;
	cr_assert_eq(run(&sb, "stubborn", 100, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_TIMEOUT);
	cr_assert(seconds(&r) >= 10.1 && seconds(&r) < 11.1, "%f s", seconds(&r));
	cr_assert_str_eq(seen.out, "before");
	cr_assert_neq(sb.lost.code, 0);
	cell_result_free(&r);
	cr_assert_eq(run(&sb, "1+1", 1000, &seen, &r, &err), -ECONNABORTED);
	fake_close(&fake, &sb);
}

Test(cell, last_cell_is_not_waited_for, .timeout = 20)
{
	struct cell cell = {
		.code = "stubborn", .code_len = 8, .timeout_ns = 100000000, .last = true
	};
	struct cell_sink sink = { 0 };
	struct cell_result r;
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	fake.lives = true;
	cr_assert_eq(cell_run(&sb, &cell, &sink, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_TIMEOUT);
	cr_assert(seconds(&r) >= 1.1 && seconds(&r) < 1.6, "%f s", seconds(&r));
	cr_assert_eq(fake.kills, 0);
	cell_result_free(&r);
	fake_close(&fake, &sb);
}

/* Where cells come by the mailbox the stream stays open when the interpreter dies: nobody closes it. */
Test(cell, death_in_a_first_cell_is_found, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };
	int sv[2];

	fake_open(&fake, &sb);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	sb.kernel.fd = sv[0];
	sb.first_sent = sb.first_pending = true;
	sb.start_ns = clock_ns();
	cr_assert_eq(run(&sb, "die", 0, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_KERNEL_DIED);
	cr_assert(seconds(&r) >= 1 && seconds(&r) < 2, "%f s", seconds(&r));
	cell_result_free(&r);
	cr_assert_eq(run(&sb, "1+1", 0, &seen, &r, &err), 0);
	cr_assert(r.ok);
	cell_result_free(&r);
	close(sv[1]);
	fake_close(&fake, &sb);
}

Test(cell, users_interrupt_is_for_the_cell_and_the_second_for_the_context, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };
	int intr[2];

	fake_open(&fake, &sb);
	cr_assert_eq(pipe(intr), 0);
	sb.intr_fd = seen.intr_fd = intr[0];
	cr_assert_eq(write(intr[1], "c", 1), 1);
	cr_assert_eq(run(&sb, "hang", 0, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert(r.end == CELL_DONE && !r.ok);
	cr_assert_str_eq(error_of(&r, "name"), "KeyboardInterrupt");
	cell_result_free(&r);
	cr_assert_eq(write(intr[1], "cc", 2), 2);
	cr_assert_eq(run(&sb, "stubborn", 0, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_KERNEL_DIED);
	cr_assert_eq(fake.kills, 1);
	cell_result_free(&r);
	fake_close(&fake, &sb);
	close(intr[0]);
	close(intr[1]);
}

Test(cell, signal_to_end_ends_the_machine, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };
	int intr[2];

	fake_open(&fake, &sb);
	cr_assert_eq(pipe(intr), 0);
	sb.intr_fd = seen.intr_fd = intr[0];
	cr_assert_eq(write(intr[1], "t", 1), 1);
	cr_assert_lt(run(&sb, "hang", 0, &seen, &r, &err), 0);
	cr_assert_eq(fake.nr_interrupts, 0);
	fake_close(&fake, &sb);
	close(intr[0]);
	close(intr[1]);
}

Test(cell, interrupt_without_keep_ends_the_wait, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct cell cell = { .code = "hang", .code_len = 4 };
	struct cell_sink sink = { 0 };
	struct cell_result r;
	struct err err = { 0 };
	int intr[2];

	fake_open(&fake, &sb);
	cr_assert_eq(pipe(intr), 0);
	sb.intr_fd = intr[0];
	cr_assert_eq(write(intr[1], "c", 1), 1);
	cr_assert_eq(cell_run(&sb, &cell, &sink, &r, &err), -EINTR);
	fake_close(&fake, &sb);
	close(intr[0]);
	close(intr[1]);
}

Test(cell, dead_interpreter_is_told_and_replaced, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	cr_assert_eq(run(&sb, "die", 0, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_eq(r.end, CELL_KERNEL_DIED);
	cr_assert_str_eq(seen.out, "last words");
	cr_assert_not_null(strstr(error_of(&r, "value"), "exited with code 3"));
	cell_result_free(&r);
	fake.oom = true;
	cr_assert_eq(run(&sb, "die", 0, &seen, &r, &err), 0, "%s", err.msg);
	cr_assert_not_null(strstr(error_of(&r, "value"), "killed: out of memory"));
	cr_assert_str_eq(error_of(&r, "name"), "MemoryError");
	cell_result_free(&r);
	cr_assert_eq(run(&sb, "1+1", 0, &seen, &r, &err), 0);
	cr_assert(r.ok && fake.port_asked == 2001);
	cell_result_free(&r);
	fake_close(&fake, &sb);
}

Test(cell, guest_that_breaks_the_protocol_is_killed, .timeout = 20)
{
	static const char *const codes[] = { "rude", "flood" };

	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		struct fake fake;
		struct sandbox sb;
		struct seen seen = { 0 };
		struct cell_result r;
		struct err err = { 0 };

		fake_open(&fake, &sb);
		cr_assert_eq(run(&sb, codes[i], 0, &seen, &r, &err), -ECONNABORTED);
		cr_assert_not_null(strstr(err.msg, "broke the protocol"), "%s", err.msg);
		fake_close(&fake, &sb);
	}
}

static void *lose_soon(void *fake)
{
	usleep(100000);
	fake_lose(fake);
	shutdown(((struct fake *)fake)->kernel, SHUT_RDWR);
	return NULL;
}

Test(cell, lost_sandbox_says_why, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct seen seen = { 0 };
	struct cell_result r;
	struct err err = { 0 };
	pthread_t thread;

	fake_open(&fake, &sb);
	cr_assert_eq(pthread_create(&thread, NULL, lose_soon, &fake), 0);
	cr_assert_eq(run(&sb, "stubborn", 0, &seen, &r, &err), -ECONNABORTED);
	cr_assert_str_eq(err.msg, "the sandbox was lost: kvm-error: rip=0");
	cr_assert_str_eq(seen.out, "before");
	pthread_join(thread, NULL);
	fake_close(&fake, &sb);
}

Test(cell, usage_is_asked_on_the_same_stream, .timeout = 20)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	json_t *usage = NULL;

	fake_open(&fake, &sb);
	cr_assert_eq(cell_usage(&sb, NULL, &usage, &err), 0, "%s", err.msg);
	cr_assert_eq(json_integer_value(json_object_get(usage, "peak_kib")), 9);
	json_decref(usage);
	fake_close(&fake, &sb);
}

/* Members that nobody wants must not be there: without them a request travels as a CELL. */
Test(cell, request_asks_for_what_is_wanted)
{
	struct cell cell = { .code = "1", .code_len = 1, .max_output = 5 };
	json_t *request = cell_request(&cell);

	cr_expect_eq(json_object_size(request), 4);
	json_decref(request);
	cell.usage = cell.files_changed = true;
	request = cell_request(&cell);
	cr_expect(json_is_true(json_object_get(request, "usage")));
	cr_expect(json_is_true(json_object_get(request, "files_changed")));
	json_decref(request);
}

Test(cell, code_that_is_not_utf8_is_refused)
{
	struct cell cell = { .code = "\xff", .code_len = 1 };

	cr_assert_null(cell_request(&cell));
}
