/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

/* What is fixed for the life of the agent, set by main() before the loop runs. */
struct agent {
	const char *user; /* whose commands and files these are, unless a request says otherwise */
	const char *passwd; /* /etc/passwd */
	const char *group;  /* /etc/group */
	json_t *template;   /* /etc/thawbox/template.json, or an empty object */
};

extern struct agent agent;

/* A line "thawbox: ..." on the console. Any thread. */
__attribute__((format(printf, 1, 2))) void say(const char *fmt, ...);
