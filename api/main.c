/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox: finds the subcommand. */
#include "api/cmd.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef THAWBOX_VERSION
#define THAWBOX_VERSION "unknown"
#endif

static const struct cmd *const cmds[] = {
	&cmd_run,
	&cmd_repl,
	&cmd_exec,
	&cmd_template_build,
	&cmd_template_list,
	&cmd_template_show,
	&cmd_template_verify,
	&cmd_template_rm,
	&cmd_up,
	&cmd_mcp,
	&cmd_key_create,
	&cmd_key_list,
	&cmd_key_remove,
	&cmd_doctor,
	&cmd_boot,
	&cmd_snapshot_inspect,
};

static const char head[] =
	"Usage: thawbox COMMAND [options]\n\n"
	"A fresh, isolated, warmed-up Python sandbox in the time of a function call: a microVM\n"
	"thawed from a snapshot.\n\n"
	"Commands:\n";

static const char tail[] =
	"\n"
	"First steps:\n"
	"  thawbox doctor                          can this machine do it?\n"
	"  thawbox template build code-interpreter bake the snapshot, once\n"
	"  thawbox run -c '1 + 1'\n\n"
	"`thawbox COMMAND --help` explains one with examples; `thawbox --version`.\n";

static int help(FILE *to, int code)
{
	fputs(head, to);
	for (size_t i = 0; i < ARRAY_LEN(cmds); i++)
		fprintf(to, "  %-18s %s\n", cmds[i]->name, cmds[i]->about);
	fputs(tail, to);
	return code;
}

/* How many of the words name the command: 1 or 2; 0: it is another. */
static int matches(const struct cmd *cmd, int argc, char **argv)
{
	const char *space = strchr(cmd->name, ' ');

	if (!space)
		return argc > 1 && !strcmp(argv[1], cmd->name);
	return argc > 2 && strlen(argv[1]) == (size_t)(space - cmd->name) &&
	                       !strncmp(argv[1], cmd->name, strlen(argv[1])) &&
	                       !strcmp(argv[2], space + 1)
	               ? 2
	               : 0;
}

/* The commands that begin with this word, when it is the first of two. */
static int group(const char *word)
{
	size_t len = strlen(word);
	int found = 0;

	for (size_t i = 0; i < ARRAY_LEN(cmds); i++) {
		if (strncmp(cmds[i]->name, word, len) != 0 || cmds[i]->name[len] != ' ')
			continue;
		fprintf(stderr, "%s thawbox %s %s\n", found++ ? "      " : "usage:", cmds[i]->name,
		        cmds[i]->usage);
	}
	return found;
}

/* Descriptors 0 to 2 must be taken, or a socket of ours would be standard output. */
static void open_standard(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			(void)open("/dev/null", O_RDWR);
}

int main(int argc, char **argv)
{
	cmd_start_ns = clock_ns();
	open_standard();
	for (size_t i = 0; i < ARRAY_LEN(cmds); i++) {
		int words = matches(cmds[i], argc, argv);

		if (words)
			return cmds[i]->run(argc - words, argv + words);
	}
	if (argc < 2)
		return help(stderr, EXIT_USAGE);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return help(stdout, EXIT_OK);
	if (!strcmp(argv[1], "--version")) {
		puts("thawbox " THAWBOX_VERSION);
		return EXIT_OK;
	}
	if (group(argv[1]))
		return EXIT_USAGE;
	fprintf(stderr, "thawbox: there is no command '%s'\nsee `thawbox --help`\n", argv[1]);
	return EXIT_USAGE;
}
