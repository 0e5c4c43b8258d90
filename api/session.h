/* SPDX-License-Identifier: Apache-2.0 */
/* A template in use and a sandbox thawed from it: what run, exec and repl begin with. */
#ifndef API_SESSION_H
#define API_SESSION_H

#include "api/sandbox.h"
#include "api/template.h"

struct session {
	struct template template;
	struct sandbox sb;
};

struct session_spec {
	const char *template; /* NULL: TEMPLATE_DEFAULT */
	uint64_t memory_mb;   /* 0: as baked */
	const json_t *env;    /* borrowed, or NULL */
	struct sandbox_limits limits;
	const json_t *request; /* borrowed: the first cell's, or NULL */
	struct isolation isolation;
	int intr_fd;
};

/*
 * Finds the template and starts a sandbox of it, without waiting for it. On error nothing is left.
 * $THAWBOX_DEBUG shows the monitor's log; $THAWBOX_TEST_NO_RESEED and $THAWBOX_TEST_AGE_S are for
 * tests (struct thaw_spec).
 */
NODISCARD int session_open(struct session *s, const struct session_spec *spec, struct err *err);

/* Ends the sandbox. Idempotent after open. */
void session_close(struct session *s);

#endif
