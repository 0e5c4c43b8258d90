/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells: Python source run in a sandbox's default context (docs/protocol.md, section 3), with a
 * deadline that is kept from the host (api/deadline.h). Same thread rule as api/sandbox.h.
 */
#ifndef API_CELL_H
#define API_CELL_H

#include "api/sandbox.h"

struct cell {
	const char *code; /* UTF-8, borrowed */
	size_t code_len;  /* bytes */
	bool silent;
	bool usage,
		files_changed; /* the RESULT tells these too: slower than a cell that asks for neither */
	uint64_t max_output; /* bytes of stdout and stderr together; 0: no bound */
	uint64_t timeout_ns; /* 0: none */
	bool keep_on_intr;   /* intr_fd interrupts the cell, and does not end the wait */
	bool last;           /* the sandbox ends with it: a deadline need not save the context */
};

/*
 * When the agent is asked whether a cell's interpreter lives, which nothing else tells of one that came by the mailbox:
 * so long after the cell's start, and then after cell_watch_next() of the time before, ns.
 */
#define CELL_WATCH_NS 1000000000ull
uint64_t cell_watch_next(uint64_t ns);

/* What the cell says while it runs. Any member may be NULL. */
struct cell_sink {
	void (*output)(void *ctx, enum frame_type type, const void *data, size_t len);
	void (*display)(void *ctx, json_t *display); /* borrowed; the object of a DISPLAY frame */
	/* Called when intr_fd is readable and keep_on_intr is set: takes the signal from it. False: the machine ends. */
	bool (*interrupted)(void *ctx);
	void *ctx;
};

enum cell_end {
	CELL_DONE, /* the kernel gave a result: ok or error */
	CELL_TIMEOUT, /* stopped by the deadline; the context stays usable unless the sandbox is lost */
	CELL_KERNEL_DIED, /* the interpreter ended; the context has a new one */
};

struct cell_result {
	enum cell_end end;
	bool ok;
	json_t *result; /* owned: the RESULT; for a timeout or a death one in the same form */
	uint64_t
		begin_ns; /* CLOCK_MONOTONIC: request written (for a first cell: monitor started) */
	uint64_t end_ns;  /* last byte of the result */
};

void cell_result_free(struct cell_result *r);

/* Makes *result (NULL: none yet) a RESULT that ends with this error, and keeps what it says beside. */
void cell_set_error(json_t **result, const char *name, const char *value);

#define CELL_WORDS_MAX 200
/* Why an interpreter ended, of the agent's answer about its context: the error's name, and its value. */
const char *cell_describe_death(const json_t *ctx, char value[CELL_WORDS_MAX]);

/* The REQUEST of a cell: a new reference, or NULL when the code is not UTF-8. */
json_t *cell_request(const struct cell *cell);

/*
 * Runs the cell, or waits for it when its request went with the thaw (sb->first_pending). 0 with
 * *result filled, whatever the cell did; -ECONNABORTED: the sandbox was lost; -EINTR: intr_fd, the
 * cell is still running; -EPROTO: the guest broke the protocol and was killed.
 */
NODISCARD int cell_run(struct sandbox *sb, const struct cell *cell, const struct cell_sink *sink,
                       struct cell_result *result, struct err *err);

/*
 * {"wall_ms","cpu_user_ms","cpu_system_ms","peak_kib","read_bytes","write_bytes","output_bytes"} of the last cell: a
 * new reference.
 */
NODISCARD int cell_usage(struct sandbox *sb, const struct cell_sink *sink, json_t **usage,
                         struct err *err);

/* {"matches","start","end"}: completions at `cursor`, counted in characters as `start` and `end` are. */
NODISCARD int cell_complete(struct sandbox *sb, const char *code, size_t cursor, json_t **matches,
                            struct err *err);

#endif
