/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which handler a request is for. Three tables, one for each of E2B's servers: the control plane, and in each
 * sandbox envd (files, processes) and the code interpreter, told apart by headers or by the host's name
 * (docs/e2b.md). Pure; any thread.
 */
#ifndef API_DAEMON_ROUTE_H
#define API_DAEMON_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

#define PORT_ENVD        49983u
#define PORT_INTERPRETER 49999u
#define ROUTE_PARAMS     2

struct request;

struct route {
	const char *method;
	const char *path; /* "{}" stands for one part; NULL ends a table */
	/* Called when the whole request is there, except with ROUTE_STREAMS: then at its headers. */
	void (*handle)(struct request *req);
	size_t body_max; /* bytes; 0: ROUTE_BODY_MAX */
	unsigned flags;
};

enum {
	ROUTE_OPEN = 1,    /* needs no key, and no token */
	ROUTE_STREAMS = 2, /* takes its body in pieces: sets ops->data and ops->complete */
};

#define ROUTE_BODY_MAX (1u << 20)

extern const struct route control_routes[], envd_routes[], interpreter_routes[];

/*
 * The route of `path`, which is cut into its parts; param[] then points into it. NULL: none; *wrong_method:
 * there is one of another method.
 */
const struct route *route_find(const struct route *table, const char *method, char *path,
                               const char *param[ROUTE_PARAMS], bool *wrong_method);

/* "GET, POST": what a path of a table answers to, for the header Allow. Pure. */
#define ROUTE_METHODS_MAX 64
void route_methods(const struct route *table, const char *path, char out[ROUTE_METHODS_MAX]);

/* A sandbox and a port of it. */
struct target {
	char id[40];
	unsigned port;
};

/*
 * What the headers E2b-Sandbox-Id, E2b-Sandbox-Port and Host say (each may be NULL). False: it is for no sandbox.
 * A port that is none is 0.
 */
bool route_target(const char *id, const char *port, const char *host, struct target *target);

#endif
