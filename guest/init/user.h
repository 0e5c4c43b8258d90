/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#define USER_GROUPS 32

/* A user of the guest, from /etc/passwd and /etc/group. */
struct user {
	char name[64];
	char home[256];
	char shell[128];
	uid_t uid;
	gid_t gid;
	gid_t groups[USER_GROUPS];
	int nr_groups;
};

/*
 * Looks `name` up in the files `passwd` and `group` (not through NSS: the agent is static).
 * Returns 0, -ENOENT for no such user, or -errno. Any thread.
 */
int user_find(const char *passwd, const char *group, const char *name, struct user *u);

/* The name of a uid in `passwd`, or of a gid in `group`; the number as text if it has none. */
void user_name(const char *passwd, uid_t uid, char *out, size_t size);
void user_group_name(const char *group, gid_t gid, char *out, size_t size);

/*
 * The environment of a login of `u`, then the strings of the objects `common` and `own` (either may
 * be NULL), the last one winning. One malloc'ed block, for free(). NULL when out of memory or when
 * a name is empty or has '='; `*bad` then names it (borrowed from the object).
 */
char **user_env(const struct user *u, json_t *common, json_t *own, const char **bad);

/*
 * Writes those of this process's variables that speak of the host's CPU to the file `path`, for
 * sudo, which cleans the environment. 0 or -errno.
 */
int user_save_host_env(const char *path);
