/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of `thawbox` share: exit codes (docs/cli.md), messages, interrupts. The
 * command is one thread. Results go to standard output, all else to standard error.
 */
#ifndef API_CMD_H
#define API_CMD_H

#include "api/args.h"
#include "api/sandbox.h"
#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_code {
	EXIT_OK = 0,
	EXIT_CELL = 1,      /* the cell, or what the guest was asked for, failed */
	EXIT_USAGE = 2,     /* the command line, or a local file, is wrong: nothing was started */
	EXIT_NOT_READY = 3, /* host or template cannot do it: `thawbox doctor` */
	EXIT_TIMED_OUT = 124,
	EXIT_LOST = 125, /* the sandbox ended under the operation */
	EXIT_INTERRUPTED = 130,
};

struct cmd {
	const char *name;  /* "run", "template build" */
	const char *usage; /* what follows the name */
	const char *about; /* one line */
	const char *help;  /* text and examples, after the options */
	int (*run)(int argc, char **argv);
};

extern const struct cmd cmd_run, cmd_repl, cmd_exec, cmd_boot, cmd_doctor, cmd_template_build,
	cmd_template_list, cmd_template_show, cmd_template_verify, cmd_template_rm,
	cmd_snapshot_inspect, cmd_up, cmd_key_create, cmd_key_list, cmd_key_remove, cmd_mcp;

/* CLOCK_MONOTONIC when main() began, ns. */
extern uint64_t cmd_start_ns;

/*
 * Parses with args_parse(). Serves --help (prints it). Returns -1 to go on, else the exit code to
 * return at once.
 */
int cmd_parse(const struct cmd *cmd, const struct arg *args, size_t nr, int argc, char **argv,
              bool stop_at_operand, struct arg_rest *rest);

/* The options of a command that starts a monitor; `to` is a struct isolation. */
#define CMD_ISOLATION_ARGS(to)                                                                 \
	{ "require-isolation", '\0',    ARG_LEVEL,                                             \
	  &(to).least,         "LEVEL", "refuse to run with less: none, vm, user, full" },     \
		{ "isolation", '\0', ARG_LEVEL, &(to).most, "LEVEL", "what is tried (full)" }, \
	{                                                                                      \
		"cgroup", '\0', ARG_TEXT, &(to).cgroup, "DIR[;FILE=VALUE]",                    \
			"its cgroup is made there, with limits"                                \
	}

/* A usage error in the command's own words. Returns EXIT_USAGE. */
int cmd_usage(const struct cmd *cmd, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* "thawbox: <message>" and the remedy, on standard error. Returns `code`. */
int cmd_fail(int code, const struct err *err);

/* Options of those that make a sandbox: what it is held to (struct sandbox_limits). */
#define CMD_LIMIT_ARGS(limits)                                                         \
	{ "disk-rate",          '\0',      ARG_RATE,                                   \
	  &(limits).disk_bytes, "BYTES/S", "of each disk, such as 50M/s (no limit)" }, \
		{ "disk-ops",         '\0',  ARG_RATE,                                 \
		  &(limits).disk_ops, "N/S", "requests of each disk (no limit)" },     \
	{                                                                              \
		"vsock-rate", '\0', ARG_RATE, &(limits).vsock_bytes, "BYTES/S",        \
			"of streams, each way (no limit)"                              \
	}

/* The exit code that an error of a sandbox's operation stands for. `sb` may be NULL. */
int cmd_exit_code(const struct sandbox *sb, const struct err *err);

/* A note on standard error: "thawbox: ...". */
void cmd_note(const char *fmt, ...) PRINTF_LIKE(1, 2);

/*
 * From now on SIGINT, SIGTERM and SIGHUP do not end the program but make the returned descriptor
 * readable. -errno. cmd_intr_take() empties it and returns the last signal.
 */
NODISCARD int cmd_intr_open(struct err *err);
int cmd_intr_take(void);

/* Colour and progress bars: `fd` is a terminal that can. NO_COLOR is honoured for colour. */
bool cmd_is_terminal(int fd);
bool cmd_has_colour(int fd);

/* Writes all of it; a broken pipe ends the program as it would `cat`. */
void cmd_write(int fd, const void *data, size_t len);

/* Prints JSON and a newline on standard output; `indent` for people. */
void cmd_print_json(const json_t *json, bool indent);

/* A file of the user ("-": standard input), whole. *text is the caller's; not more than `max` bytes. */
NODISCARD int cmd_read_file(const char *path, size_t max, char **text, size_t *len,
                            struct err *err);

/* The --env list ("K=V") as JSON. A new reference, or NULL with the error told by `err`. */
json_t *cmd_env(const struct arg_list *list, struct err *err);

/* "512 B", "1.4 MiB" */
const char *cmd_bytes(uint64_t n, char out[32]);

/* "40 s", "5 min", "3 h", "12 days"; "unknown" below 0 */
const char *cmd_age(int64_t seconds, char out[32]);

#endif
