/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines: one table for each command gives both the parser and the option list of its --help.
 * Options may stand before, between and after the operands; "--" ends them. Pure; any thread.
 */
#ifndef API_ARGS_H
#define API_ARGS_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum arg_kind {
	ARG_FLAG,    /* bool: set to true */
	ARG_TEXT,    /* const char * */
	ARG_LEVEL,   /* const char *: none, vm, user, full */
	ARG_LIST,    /* struct arg_list: may be given more than once */
	ARG_NUMBER,  /* uint64_t */
	ARG_BYTES,   /* uint64_t: 10, 64K, 8M, 1G (powers of 1024; an iB or B may follow) */
	ARG_RATE,    /* uint64_t a second: as ARG_BYTES, "/s" may follow; 0: none */
	ARG_SECONDS, /* uint64_t nanoseconds: 2, 0.5, 10s, 500ms, 5m, 2h, 7d; above zero */
};

struct arg_list {
	const char *at[64];
	unsigned nr;
};

struct arg {
	const char *name; /* without the dashes */
	char letter;      /* '\0': none */
	enum arg_kind kind;
	void *to;
	const char *value; /* how --help calls it */
	const char *help;
};

/* What is left: the operands, and where those after "--" begin. */
struct arg_rest {
	char **at; /* into argv, reordered */
	int nr;
	bool dashes; /* "--" was given */
};

/*
 * Parses argv[1..]. -EINVAL with a message for the user; nothing but the targets is changed. Stops
 * at the first operand when `stop_at_operand` (for `exec CMD --its-own-options`).
 */
NODISCARD int args_parse(const struct arg *args, size_t nr, int argc, char **argv,
                         bool stop_at_operand, struct arg_rest *rest, struct err *err);

/* Writes the option list, aligned. */
void args_help(const struct arg *args, size_t nr, FILE *to);

#endif
