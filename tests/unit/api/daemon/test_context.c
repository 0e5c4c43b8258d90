/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/context.h"
#include "tests/unit/api/daemon/fake_host.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* --- a guest that makes contexts ------------------------------------------------------------------------ */

static char home[] = "/tmp/test_context.XXXXXX";

static void begin(void)
{
	start_host(home);
}

static void end(void)
{
	end_host(home);
}

TestSuite(languages, .init = begin, .fini = end, .timeout = GUARD_S);

/* A cell's value is its source. */
static void run_cell(int fd, const json_t *request)
{
	json_t *display = json_pack("{s:s, s:{s:O}}", "kind", "result", "data", "text/plain",
	                            json_object_get(request, "code"));
	char *text = json_dumps(display, 0);

	if (!json_is_true(json_object_get(request, "silent")))
		tell(fd, FRAME_DISPLAY, text);
	tell(fd, FRAME_RESULT, "{\"status\":\"ok\",\"execution_count\":1,\"error\":null}");
	free(text);
	json_decref(display);
}

/* A context of bash waits for a word, there is none of TypeScript. */
static void do_request(int fd, const char *op, const json_t *request)
{
	const char *name = json_string_value(json_object_get(request, "context"));

	if (!strcmp(op, "run")) {
		run_cell(fd, request);
	} else if (!strcmp(op, "context") && !strcmp(name, "typescript")) {
		tell(fd, FRAME_RESULT,
		     "{\"status\":\"error\",\"error\":{\"name\":\"RuntimeError\",\"value\":\"no "
		     "spare\"}}");
	} else if (!strcmp(op, "context")) {
		await_word();
		tell(fd, FRAME_RESULT, "{\"status\":\"ok\",\"port\":2001}");
	}
}

static void do_data(int fd, const struct frame *frame)
{
	(void)fd;
	(void)frame;
}

static struct client *execute(const char *body)
{
	struct client *c = ask("POST /execute", PORT_INTERPRETER, "", false, body);

	READ_TO(c, "\r\n\r\n");
	return c;
}

static void expect_listed(const char *wanted, bool is_there)
{
	struct client *c = ask("GET /contexts", PORT_INTERPRETER, "", false, "");

	READ_TO(c, "]");
	cr_expect(has(c, wanted) == is_there, "%s in %s", wanted, c->text);
	leave(c);
}

Test(languages, runs_wait_for_the_interpreter_of_their_language)
{
	struct client *first, *second;

	expect_listed("\"id\":\"javascript\"", true);
	expect_listed("\"bash\"", false);
	first = execute("{\"code\":\"echo \\\"a\\\"\",\"language\":\"bash\"}");
	second = execute("{\"code\":\"2\",\"language\":\"sh\"}");
	cr_expect(has(first, "200 OK") && has(second, "200 OK"));
	expect_listed("\"id\":\"bash\",\"language\":\"bash\"", true);
	give_word();
	READ_TO(first, "end_of_execution");
	READ_TO(second, "end_of_execution");
	cr_expect(has(first, "run('bash', \\\"echo \\\\\\\"a\\\\\\\"\\\")"), "%s", first->text);
	cr_expect(has(second, "run('bash', \\\"2\\\")"), "%s", second->text);
	leave(first);
	leave(second);
	first = execute("{\"code\":\"3\"}");
	READ_TO(first, "end_of_execution");
	cr_expect(has(first, "\"text\":\"3\""), "Python's is as it was: %s", first->text);
	leave(first);
}

Test(languages, a_context_that_cannot_be_made_is_told_to_its_runs)
{
	struct client *c;

	for (unsigned i = 0; i < 2; i++) {
		c = execute("{\"code\":\"1\",\"language\":\"ts\"}");
		READ_TO(c, "end_of_execution");
		cr_expect(has(c, "RuntimeError") && has(c, "no spare"), "%s", c->text);
		leave(c);
	}
	expect_listed("typescript", false);
	c = execute("{\"code\":\"1\",\"language\":\"r\"}");
	cr_expect(has(c, "404") && has(c, "python, bash, javascript and typescript"));
	leave(c);
}

Test(languages, a_box_that_ends_takes_them_along)
{
	struct client *c = execute("{\"code\":\"1\",\"language\":\"bash\"}");

	box_end(the_box(), "the test says so");
	c->wanted = NULL;
	cr_assert_eq(loop_run_until(&host.loop, has_read, c), 0);
	cr_expect(!has(c, "end_of_execution"));
	leave(c);
	make_box(); /* for end() */
}

/* --- cells of ours ---------------------------------------------------------------------------------------- */

/* Strings become Python literals: what JSON escapes, Python reads the same way. */
Test(context, code_of_an_environment)
{
	json_t *env = json_pack("{s:s}", "A", "q\"b\\n\nl\xc3\xa9 \x01");
	char *code = context_setup_code(env, "/tmp/\"x");

	cr_expect_str_eq(code, "__import__('os').environ.update({\"A\":\"q\\\"b\\\\n\\nl\xc3\xa9 "
	                       "\\u0001\"})\n__import__('os').chdir(\"/tmp/\\\"x\")");
	free(code);
	code = context_setup_code(env, NULL);
	cr_expect(strstr(code, "chdir(\"/home/user\")"));
	free(code);
	code = context_env_code(env);
	cr_expect(strstr(code, "(__import__('os'), {\"A\":\"q\\\"b"));
	free(code);
	json_decref(env);
}
