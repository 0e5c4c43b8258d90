/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox exec: a shell command in a fresh sandbox. */
#include "api/agent.h"
#include "api/cmd.h"
#include "api/session.h"
#include "api/show.h"

#include <errno.h>

static const char help[] =
	"One word after -- is a shell command line, several are a program and its arguments. "
	"Standard\n"
	"input, output and error are the command's; so is the exit code (128 + signal when it was\n"
	"killed by one).\n"
	"\n"
	"Examples:\n"
	"  thawbox exec -- 'ls -l /home/user; df -h /'\n"
	"  thawbox exec -- python3 -c 'import sys; print(sys.version)'\n"
	"  thawbox exec -- wc -l < notes.txt\n"
	"\n"
	"Exit: the command's, or 2 usage, 3 host or template not ready, 124 timeout, 125 sandbox "
	"lost,\n"
	"130 interrupted.\n";

struct exec_opts {
	struct isolation isolation;
	const char *template, *cwd, *user;
	struct arg_list env;
	uint64_t timeout_ns, memory_mb;
	struct sandbox_limits limits;
};

static json_t *request_json(const struct exec_opts *o, const struct arg_rest *rest, json_t *env)
{
	json_t *request = json_object(), *argv;

	json_object_set_new(request, "env", env);
	if (o->cwd)
		json_object_set_new(request, "cwd", json_string(o->cwd));
	if (o->user)
		json_object_set_new(request, "user", json_string(o->user));
	if (rest->nr == 1) {
		json_object_set_new(request, "shell", json_string(rest->at[0]));
		return request;
	}
	argv = json_array();
	for (int i = 0; i < rest->nr; i++)
		json_array_append_new(argv, json_string(rest->at[i]));
	json_object_set_new(request, "argv", argv);
	return request;
}

/* A command that cannot be started has the codes that a shell gives it. */
static int exit_code(const struct sandbox *sb, const struct err *err)
{
	if (err->code == -ENOENT || err->code == -EACCES)
		return err->code == -ENOENT ? 127 : 126;
	return cmd_exit_code(sb, err);
}

static int run_in_sandbox(const struct exec_opts *o, json_t *request)
{
	struct show show = { 0 };
	struct cell_sink sink = { .output = show_output, .ctx = &show };
	struct agent_exec exec = { .request = request, .in_fd = 0, .timeout_ns = o->timeout_ns };
	struct session_spec spec = { .template = o->template,
		                     .memory_mb = o->memory_mb,
		                     .limits = o->limits,
		                     .isolation = o->isolation };
	struct session session;
	struct err err = { 0 };
	int status = 0, rc;

	spec.intr_fd = cmd_intr_open(&err);
	rc = spec.intr_fd < 0 ? spec.intr_fd : session_open(&session, &spec, &err);
	if (rc) {
		json_decref(request);
		return cmd_fail(EXIT_NOT_READY, &err);
	}
	rc = agent_exec(&session.sb, &exec, &sink, &status, &err);
	if (rc)
		status = cmd_fail(exit_code(&session.sb, &err), &err);
	else if (status == AGENT_TIMED_OUT) {
		cmd_note("the command ran longer than %g s and was killed",
		         (double)o->timeout_ns / 1e9);
		status = EXIT_TIMED_OUT;
	}
	session_close(&session);
	return status;
}

static int exec_main(int argc, char **argv)
{
	struct exec_opts o = { .timeout_ns = 600ull * 1000000000u };
	const struct arg args[] = {
		{ "env", 'e', ARG_LIST, &o.env, "NAME=VALUE", "environment of the command" },
		{ "cwd", 'C', ARG_TEXT, &o.cwd, "DIR", "its folder (/home/user)" },
		{ "user", 'u', ARG_TEXT, &o.user, "NAME", "its user (user)" },
		{ "timeout", 't', ARG_SECONDS, &o.timeout_ns, "TIME",
		  "deadline: 2, 500ms, 5m (600)" },
		{ "memory", 'm', ARG_NUMBER, &o.memory_mb, "MB",
		  "the template's variant of that size" },
		{ "template", 'T', ARG_TEXT, &o.template, "NAME", "template (code-interpreter)" },
		CMD_LIMIT_ARGS(o.limits),
		CMD_ISOLATION_ARGS(o.isolation),
	};
	struct arg_rest rest;
	struct err err = { 0 };
	int code = cmd_parse(&cmd_exec, args, ARRAY_LEN(args), argc, argv, true, &rest);
	json_t *env;

	if (code >= 0)
		return code;
	if (!rest.nr)
		return cmd_usage(&cmd_exec, "give a command");
	env = cmd_env(&o.env, &err);
	if (!env)
		return cmd_fail(EXIT_USAGE, &err);
	return run_in_sandbox(&o, request_json(&o, &rest, env));
}

const struct cmd cmd_exec = { "exec", "[options] -- COMMAND [ARGUMENT...]",
	                      "Run a shell command in a fresh sandbox.", help, exec_main };
