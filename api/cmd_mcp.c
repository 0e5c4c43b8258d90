/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox mcp: becomes the MCP server of the Python package, with this program's daemon. */
#include "api/cmd.h"
#include "api/paths.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] = "Becomes `thawbox-mcp`, an MCP server over standard input and output "
			   "whose tools are a sandbox's: "
			   "run_code,\n"
			   "exec, read_file, write_file, list_files, reset. It comes with the "
			   "Python package: pip install "
			   "'thawbox[mcp]'.\n"
			   "Everything behind -- is for it: `thawbox-mcp --help`.\n"
			   "\n"
			   "Examples:\n"
			   "  thawbox mcp\n"
			   "  thawbox mcp -- --timeout 60 --memory 1024\n";

/* The daemon that it may start is the one beside this program. */
static int tell_where(struct err *err)
{
	char dir[PATHS_MAX];
	int rc = paths_exe_dir(dir, err);

	if (rc)
		return rc;
	return setenv("THAWBOX_BIN", dir, false) ? err_set(err, -ENOMEM, "no memory") : 0;
}

static int mcp_main(int argc, char **argv)
{
	const char *args[64] = { "thawbox-mcp" };
	struct arg_rest rest;
	struct err err = { 0 };
	int code = cmd_parse(&cmd_mcp, NULL, 0, argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr && !rest.dashes)
		return cmd_usage(&cmd_mcp, "options of thawbox-mcp stand behind --");
	if (rest.nr >= (int)ARRAY_LEN(args) - 1)
		return cmd_usage(&cmd_mcp, "too many options");
	for (int i = 0; i < rest.nr; i++)
		args[i + 1] = rest.at[i];
	if (!tell_where(&err)) {
		execvp(args[0], (char *const *)(uintptr_t)args);
		(void)err_set(&err, -errno, "thawbox-mcp: %s", strerror(errno));
		if (err.code == -ENOENT)
			(void)err_remedy(&err, "it is part of the Python package: pip install "
			                       "'thawbox[mcp]', and have its bin in PATH");
	}
	return cmd_fail(EXIT_NOT_READY, &err);
}

const struct cmd cmd_mcp = { "mcp", "[-- OPTIONS]", "Give a sandbox to an MCP client.", help,
	                     mcp_main };
