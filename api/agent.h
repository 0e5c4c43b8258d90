/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the guest's agent (docs/protocol.md, section 4): commands and files. One stream
 * each. Same thread rule and same errors as api/sandbox.h; what the guest refuses is -ENOENT
 * (FileNotFoundError), -EACCES (PermissionError) or -EREMOTEIO, with its words; what is wrong on
 * this side has its own -errno.
 */
#ifndef API_AGENT_H
#define API_AGENT_H

#include "api/cell.h"
#include "api/sandbox.h"

/* A short operation: `request` is stolen; *result (may be NULL) is a new reference to its RESULT. */
NODISCARD int agent_call(struct sandbox *sb, json_t *request, int timeout_ms, json_t **result,
                         struct err *err);

/* Starts one without waiting: the stream's first RESULT is the answer. `request` is stolen. */
NODISCARD int agent_begin(struct sandbox *sb, struct stream *s, json_t *request, struct err *err);

/* 0 when the RESULT says ok, else the error that it stands for. */
NODISCARD int agent_refused(const json_t *result, struct err *err);

/* Streams the regular file `fd` (borrowed, from its start) into the guest; never whole in memory. */
NODISCARD int agent_put(struct sandbox *sb, int fd, const char *guest_path, struct err *err);

/* Streams a guest file to `local`: a temporary name beside it first, renamed when all is there. */
NODISCARD int agent_get(struct sandbox *sb, const char *guest_path, const char *local,
                        struct err *err);

#define AGENT_TIMED_OUT (-1)

struct agent_exec {
	json_t *request;     /* stolen: argv or shell, env, cwd, user (op is added) */
	int in_fd;           /* borrowed: streamed as stdin; -1: none */
	uint64_t timeout_ns; /* 0: none; kept from the host */
};

/* Runs a command. *status: its exit code, 128 + signal, or AGENT_TIMED_OUT. */
NODISCARD int agent_exec(struct sandbox *sb, const struct agent_exec *exec,
                         const struct cell_sink *sink, int *status, struct err *err);

#endif
