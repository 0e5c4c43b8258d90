/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox run: one cell in a fresh sandbox, with files in and out. */
#include "api/agent.h"
#include "api/cmd.h"
#include "api/session.h"
#include "api/show.h"
#include "api/spec.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define CODE_MAX   (32u << 20) /* bytes; JSON may double it, a payload ends at 64 MiB */
#define MAX_OUTPUT (8u << 20)
#define TIMEOUT_NS (600ull * 1000000000u)

static const char help[] =
	"The code runs in a sandbox thawed for it alone. What it prints is shown as it comes; the "
	"value\n"
	"of its last expression is shown as a Python prompt would; a traceback goes to standard "
	"error.\n"
	"\n"
	"Examples:\n"
	"  thawbox run -c '1 + 1'\n"
	"  thawbox run --put sales.csv --get chart.png analysis.py\n"
	"  thawbox run --put 'data/in.csv:/tmp/in.csv' -c 'open(\"/tmp/in.csv\").readline()'\n"
	"  echo 'print(6 * 7)' | thawbox run -\n"
	"  thawbox run --json --timeout 2 -c 'while True: pass'\n"
	"  thawbox run --disk-rate 50M/s --disk-ops 500 --vsock-rate 10M/s analysis.py\n"
	"\n"
	"Relative guest paths are in /home/user; write \\: for a colon in a name.\n"
	"Exit: 0, 1 the code failed, 2 usage, 3 host or template not ready, 124 timeout, 125 "
	"sandbox\n"
	"lost, 130 interrupted.\n";

struct transfer {
	char local[PATHS_MAX];
	char guest[PATHS_MAX];
	int fd; /* of a put: opened before anything starts */
};

struct run {
	struct isolation isolation;
	/* options */
	const char *code_text, *template, *figures;
	struct arg_list put, get, env;
	uint64_t timeout_ns, memory_mb, max_output;
	struct sandbox_limits limits;
	bool json;
	/* made from them */
	char *code;
	size_t code_len;
	json_t *env_json;
	struct transfer *puts, *gets;
	unsigned nr_puts, nr_gets;
	/* what the cell gave */
	struct show show;
	struct bytes out, errs;
	json_t *displays, *usage;
};

static int read_code(struct run *run, const struct arg_rest *rest, struct err *err)
{
	json_t *text;
	int rc = 0;

	if (run->code_text) {
		run->code = strdup(run->code_text);
		run->code_len = run->code ? strlen(run->code) : 0;
	} else {
		rc = cmd_read_file(rest->at[0], CODE_MAX, &run->code, &run->code_len, err);
	}
	if (rc)
		return rc;
	text = json_stringn(run->code ? run->code : "", run->code_len);
	if (!run->code || !text)
		rc = err_set(err, -EILSEQ, "%s: the code is not valid UTF-8",
		             run->code_text ? "-c" : rest->at[0]);
	json_decref(text);
	return rc;
}

static int open_puts(struct run *run, struct err *err)
{
	for (unsigned i = 0; i < run->put.nr; i++) {
		struct transfer *t = &run->puts[i];
		struct spec spec;
		struct stat st;
		int rc = spec_parse(run->put.at[i], &spec, err);

		rc = rc ? rc : spec_guest_path(spec.to, spec.from, t->guest, err);
		if (rc)
			return err_wrap(err, "--put");
		memcpy(t->local, spec.from, sizeof(t->local));
		t->fd = open(t->local, O_RDONLY | O_CLOEXEC);
		if (t->fd < 0 || fstat(t->fd, &st))
			return err_set(err, -errno, "--put %s: %s", t->local, strerror(errno));
		run->nr_puts++;
		if (!S_ISREG(st.st_mode)) {
			(void)err_set(err, -EINVAL, "--put %s: not a regular file", t->local);
			return err_remedy(err,
			                  "put a folder as an archive: tar -cf folder.tar folder");
		}
	}
	return 0;
}

static int check_gets(struct run *run, struct err *err)
{
	for (unsigned i = 0; i < run->get.nr; i++) {
		struct transfer *t = &run->gets[i];
		struct spec spec;
		int rc = spec_parse(run->get.at[i], &spec, err);

		rc = rc ? rc : spec_guest_path(spec.from, "", t->guest, err);
		rc = rc ? rc : spec_local_path(spec.to, t->guest, t->local, err);
		if (rc)
			return err_wrap(err, "--get");
		run->nr_gets++;
	}
	return 0;
}

static int check_figures(const struct run *run, struct err *err)
{
	struct stat st;

	if (run->figures && (stat(run->figures, &st) || !S_ISDIR(st.st_mode)))
		return err_set(err, -ENOTDIR, "--figures %s: there is no such folder",
		               run->figures);
	return 0;
}

/* All that can be wrong on this side, before anything is started. */
static int prepare(struct run *run, const struct arg_rest *rest, struct err *err)
{
	int rc = read_code(run, rest, err);

	run->puts = calloc(run->put.nr + 1, sizeof(*run->puts));
	run->gets = calloc(run->get.nr + 1, sizeof(*run->gets));
	run->displays = json_array();
	if (!run->puts || !run->gets || !run->displays)
		return err_set(err, -ENOMEM, "no memory");
	rc = rc ? rc : open_puts(run, err);
	rc = rc ? rc : check_gets(run, err);
	rc = rc ? rc : check_figures(run, err);
	if (!rc) {
		run->env_json = cmd_env(&run->env, err);
		rc = run->env_json ? 0 : err->code;
	}
	run->show.figures = run->figures;
	return rc;
}

static void run_free(struct run *run)
{
	for (unsigned i = 0; i < run->nr_puts; i++)
		close(run->puts[i].fd);
	free(run->puts);
	free(run->gets);
	free(run->code);
	bytes_free(&run->out);
	bytes_free(&run->errs);
	json_decref(run->displays);
	json_decref(run->usage);
	json_decref(run->env_json);
}

static void keep_output(void *ctx, enum frame_type type, const void *data, size_t len)
{
	struct run *run = ctx;

	if (bytes_append(type == FRAME_STDOUT ? &run->out : &run->errs, data, len))
		cmd_note("no memory for the output: some of it is missing");
}

static void keep_display(void *ctx, json_t *display)
{
	struct run *run = ctx;

	json_array_append(run->displays, display);
	if (run->figures)
		show_display(&run->show, display);
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
	return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

static json_t *timing_json(const struct sandbox *sb, const struct cell_result *result)
{
	const json_t *parts = json_object_get(sb->thawed, "timing");
	uint64_t run_ns = (uint64_t)json_integer_value(json_object_get(parts, "run_ns"));
	uint64_t from = result->begin_ns == sb->start_ns && run_ns ? run_ns : result->begin_ns;

	return json_pack("{s:f, s:f, s:f}", "create_ms",
	                 json_number_value(json_object_get(sb->thawed, "create_ms")),
	                 "first_result_ms", ms_between(cmd_start_ns, result->end_ns), "exec_ms",
	                 ms_between(from, result->end_ns));
}

static json_t *usage_json(const json_t *usage)
{
	static const char *const counts[] = { "peak_kib", "read_bytes", "write_bytes",
		                              "output_bytes" };
	json_t *out;

	if (!usage)
		return json_null();
	out = json_pack("{s:f, s:f}", "wall_ms",
	                json_number_value(json_object_get(usage, "wall_ms")), "cpu_ms",
	                json_number_value(json_object_get(usage, "cpu_user_ms")) +
	                        json_number_value(json_object_get(usage, "cpu_system_ms")));
	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		json_object_set_new(
			out, counts[i],
			json_integer(json_integer_value(json_object_get(usage, counts[i]))));
	return out;
}

/* The one object of --json. `lost`, when set, takes the place of an error of the cell. */
static void print_object(struct run *run, const struct sandbox *sb,
                         const struct cell_result *result, const struct err *lost)
{
	json_t *error = json_object_get(result->result, "error");
	json_t *object = json_object();

	json_object_set_new(object, "stdout", show_utf8(run->out.p, run->out.len));
	json_object_set_new(object, "stderr", show_utf8(run->errs.p, run->errs.len));
	json_object_set(object, "results", run->displays);
	if (lost)
		json_object_set_new(
			object, "error",
			json_pack("{s:s, s:o, s:s}", "name", "SandboxLost", "value",
		                  show_utf8((const uint8_t *)lost->msg, strlen(lost->msg)),
		                  "traceback", ""));
	else
		json_object_set_new(object, "error",
		                    json_is_object(error) ? json_incref(error) : json_null());
	json_object_set_new(object, "execution_count",
	                    json_deep_copy(json_object_get(result->result, "execution_count")));
	json_object_set_new(object, "cut", json_deep_copy(json_object_get(result->result, "cut")));
	json_object_set_new(object, "timing", timing_json(sb, result));
	json_object_set_new(object, "usage", usage_json(run->usage));
	cmd_print_json(object, false);
	json_decref(object);
}

static int do_puts(struct run *run, struct sandbox *sb, struct err *err)
{
	int rc = 0;

	for (unsigned i = 0; !rc && i < run->nr_puts; i++)
		rc = agent_put(sb, run->puts[i].fd, run->puts[i].guest, err);
	return rc;
}

/* Each on its own: one missing file does not keep the others back. */
static int do_gets(struct run *run, struct sandbox *sb)
{
	int code = EXIT_OK;

	if (run->nr_gets && sb->lost.code)
		cmd_note("the sandbox is gone: no file was brought out");
	for (unsigned i = 0; i < run->nr_gets && !sb->lost.code; i++) {
		struct err err = { 0 };

		if (agent_get(sb, run->gets[i].guest, run->gets[i].local, &err))
			code = cmd_fail(cmd_exit_code(sb, &err), &err);
	}
	return code;
}

static int finish(struct run *run, struct sandbox *sb, struct cell_result *result)
{
	int code = result->end == CELL_TIMEOUT ? EXIT_TIMED_OUT : result->ok ? EXIT_OK : EXIT_CELL;
	struct err err = { 0 };
	int got;

	if (run->json) {
		/* Both only inform: the report has null or 0 where they fail. */
		if (!sb->lost.code && result->end == CELL_DONE &&
		    cell_usage(sb, NULL, &run->usage, &err))
			run->usage = NULL;
		if (!sb->lost.code && sandbox_wait_thawed(sb, 1000, &err))
			cmd_note("%s", err.msg);
		print_object(run, sb, result, NULL);
	} else {
		show_result(&run->show, result);
		if (run->show.nr_figures && !run->figures)
			cmd_note("the code drew %u figure%s: `--figures DIR` saves them",
			         run->show.nr_figures, run->show.nr_figures > 1 ? "s" : "");
	}
	got = do_gets(run, sb);
	return code ? code : got;
}

static int in_sandbox(struct run *run, struct sandbox *sb, const struct cell *cell)
{
	struct cell_sink sink = { .output = run->json ? keep_output : show_output,
		                  .display = run->json ? keep_display : show_display,
		                  .ctx = run->json ? (void *)run : (void *)&run->show };
	struct cell_result result = { 0 };
	struct err err = { 0 };
	int rc = do_puts(run, sb, &err);
	bool begun = !rc;

	rc = rc ? rc : cell_run(sb, cell, &sink, &result, &err);
	if (!rc)
		rc = finish(run, sb, &result);
	else {
		if (run->json && begun && !sb->fail.code)
			print_object(run, sb, &result, &err);
		rc = cmd_fail(cmd_exit_code(sb, &err), &err);
	}
	cell_result_free(&result);
	return rc;
}

static int thaw_and_run(struct run *run)
{
	struct cell cell = { .code = run->code,
		             .code_len = run->code_len,
		             .max_output = run->max_output,
		             .timeout_ns = run->timeout_ns,
		             .last = true };
	json_t *request = cell_request(&cell);
	struct session_spec spec = { .template = run->template,
		                     .memory_mb = run->memory_mb,
		                     .env = run->env_json,
		                     .limits = run->limits,
		                     .request = run->nr_puts ? NULL : request,
		                     .isolation = run->isolation };
	struct session session;
	struct err err = { 0 };
	int rc;

	spec.intr_fd = cmd_intr_open(&err);
	rc = spec.intr_fd < 0 ? spec.intr_fd : session_open(&session, &spec, &err);
	json_decref(request);
	if (rc)
		return cmd_fail(EXIT_NOT_READY, &err);
	rc = in_sandbox(run, &session.sb, &cell);
	session_close(&session);
	return rc;
}

static int run_main(int argc, char **argv)
{
	struct run run = { .timeout_ns = TIMEOUT_NS, .max_output = MAX_OUTPUT };
	const struct arg args[] = {
		{ "code", 'c', ARG_TEXT, &run.code_text, "CODE",
		  "the code itself, instead of a file" },
		{ "put", 'p', ARG_LIST, &run.put, "LOCAL[:GUEST]", "copy a file in before" },
		{ "get", 'g', ARG_LIST, &run.get, "GUEST[:LOCAL]", "copy a file out after" },
		{ "env", 'e', ARG_LIST, &run.env, "NAME=VALUE", "environment of the code" },
		{ "timeout", 't', ARG_SECONDS, &run.timeout_ns, "TIME",
		  "deadline: 2, 500ms, 5m (600)" },
		{ "memory", 'm', ARG_NUMBER, &run.memory_mb, "MB",
		  "the template's variant of that size" },
		{ "template", 'T', ARG_TEXT, &run.template, "NAME", "template (code-interpreter)" },
		{ "figures", 'f', ARG_TEXT, &run.figures, "DIR",
		  "save figures as DIR/figure-N.png" },
		{ "max-output", '\0', ARG_BYTES, &run.max_output, "BYTES",
		  "of output, 0: all (8M)" },
		CMD_LIMIT_ARGS(run.limits),
		{ "json", 'j', ARG_FLAG, &run.json, NULL, "one JSON object at the end" },
		CMD_ISOLATION_ARGS(run.isolation),
	};
	struct arg_rest rest;
	struct err err = { 0 };
	int code = cmd_parse(&cmd_run, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != (run.code_text ? 0 : 1))
		return cmd_usage(&cmd_run, "give one of: -c CODE, a FILE, or - for standard input");
	code = prepare(&run, &rest, &err) ? cmd_fail(EXIT_USAGE, &err) : thaw_and_run(&run);
	run_free(&run);
	return code;
}

const struct cmd cmd_run = { "run", "[options] (-c CODE | FILE | -)",
	                     "Run Python in a fresh sandbox and bring back what it gives.", help,
	                     run_main };
