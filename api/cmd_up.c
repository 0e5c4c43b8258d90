/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox up: thawboxd with a template that is there, and what E2B's clients need to find it. */
#include "api/cmd.h"
#include "api/keys.h"
#include "api/paths.h"
#include "api/template.h"
#include "core/own.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char help[] =
	"Bakes the template where it is missing (minutes, once), prints the environment of E2B's "
	"clients and\n"
	"becomes thawboxd. Everything behind -- is for it: `thawboxd --help`.\n"
	"\n"
	"Examples:\n"
	"  thawbox up                              # in one terminal\n"
	"  python3 -c 'from e2b_code_interpreter import Sandbox; "
	"print(Sandbox.create().run_code(\"1+1\").text)'\n"
	"  thawbox up --port 9000 -- --pool 4 --log-json\n";

/* This program's folder, and `name` in it. */
static int beside(const char *name, char out[PATHS_MAX], struct err *err)
{
	char dir[PATHS_MAX];
	int rc = paths_exe_dir(dir, err);

	return rc ? rc : paths_format(out, err, "%s/%s", dir, name);
}

/* `thawbox template build NAME`, with its progress on our terminal. */
static int bake(const char *name, struct err *err)
{
	char self[PATHS_MAX];
	const char *argv[] = { self, "template", "build", name, NULL };
	int status = 0, rc = beside("thawbox", self, err);
	pid_t pid;

	rc = rc ? rc
	        : -posix_spawn(&pid, self, NULL, NULL, (char *const *)(uintptr_t)argv, environ);
	if (rc)
		return err_set(err, rc, "%s: %s", self, strerror(-rc));
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_set(err, -ECANCELED, "the template %s could not be baked", name);
	return 0;
}

static int find_template(const char *name, struct err *err)
{
	struct template t;
	int rc = template_open(&t, name, 0, err);

	if (!rc)
		template_close(&t);
	if (rc != -ENOENT)
		return rc;
	cmd_note("there is no template %s yet: baking it", name);
	*err = (struct err){ 0 };
	return bake(name, err);
}

/* Any key will do where there are none; else it is the user's to know. */
static void print_environment(const char *address)
{
	char path[PATHS_MAX];
	struct keys keys = { 0 };
	struct err err = { 0 };
	bool has_keys = !keys_path(path, &err) && !keys_load(&keys, path, &err) && keys.nr;

	printf("export E2B_API_URL=http://%s\n", address);
	printf("export E2B_SANDBOX_URL=http://%s\n", address);
	printf("export E2B_API_KEY=%s\n", has_keys
	                                          ? "...   # one of `thawbox key list`"
	                                          : "e2b_0000000000000000000000000000000000000000");
	printf("export NO_PROXY=localhost,127.0.0.1\n");
	printf("export THAWBOX_URL=http://%s\n", address);
	(void)fflush(stdout);
	keys_free(&keys);
}

/* Becomes the daemon. Returns only when that fails. */
static int become(const char *address, const char *template, const struct arg_rest *rest,
                  struct err *err)
{
	char path[PATHS_MAX];
	own_free const char **argv = calloc((size_t)rest->nr + 6, sizeof(*argv));
	int n = 0, rc = beside("thawboxd", path, err);

	if (rc || !argv)
		return rc ? rc : err_set(err, -ENOMEM, "no memory");
	argv[n++] = path;
	argv[n++] = "--listen";
	argv[n++] = address;
	argv[n++] = "--template";
	argv[n++] = (char *)(uintptr_t) template;
	for (int i = 0; i < rest->nr; i++)
		argv[n++] = rest->at[i];
	execv(path, (char *const *)(uintptr_t)argv);
	return err_set(err, -errno, "%s: %s", path, strerror(errno));
}

static int up_main(int argc, char **argv)
{
	const char *template = TEMPLATE_DEFAULT;
	uint64_t port = 8429;
	const struct arg args[] = {
		{ "port", 'p', ARG_NUMBER, &port, "PORT", "of 127.0.0.1 (8429)" },
		{ "template", 't', ARG_TEXT, &template, "NAME",
		  "what to serve (code-interpreter)" },
	};
	struct arg_rest rest;
	struct err err = { 0 };
	char address[32];
	int code = cmd_parse(&cmd_up, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr && !rest.dashes)
		return cmd_usage(&cmd_up, "options of thawboxd stand behind --");
	if (!port || port > 65535)
		return cmd_usage(&cmd_up, "--port is 1 to 65535");
	(void)snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
	if (find_template(template, &err))
		return cmd_fail(err.code == -EINVAL ? EXIT_USAGE : EXIT_NOT_READY, &err);
	print_environment(address);
	(void)become(address, template, &rest, &err);
	return cmd_fail(EXIT_NOT_READY, &err);
}

const struct cmd cmd_up = { "up", "[options] [-- OPTIONS]",
	                    "Serve sandboxes to E2B's clients on this machine.", help, up_main };
