/* SPDX-License-Identifier: Apache-2.0 */
#include "user.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

static void find_groups(FILE *f, struct user *u)
{
	struct group *g;

	u->groups[0] = u->gid;
	u->nr_groups = 1;
	while (u->nr_groups < USER_GROUPS && (g = fgetgrent(f))) {
		for (char **m = g->gr_mem; *m && g->gr_gid != u->gid; m++) {
			if (strcmp(*m, u->name) == 0) {
				u->groups[u->nr_groups++] = g->gr_gid;
				break;
			}
		}
	}
}

int user_find(const char *passwd, const char *group, const char *name, struct user *u)
{
	FILE *f = fopen(passwd, "re");
	struct passwd *p;
	int r = -ENOENT;

	if (!f)
		return -errno;
	while ((p = fgetpwent(f))) {
		if (strcmp(p->pw_name, name) != 0)
			continue;
		*u = (struct user){ .uid = p->pw_uid, .gid = p->pw_gid };
		snprintf(u->name, sizeof(u->name), "%s", p->pw_name);
		snprintf(u->home, sizeof(u->home), "%s", *p->pw_dir ? p->pw_dir : "/");
		snprintf(u->shell, sizeof(u->shell), "%s", *p->pw_shell ? p->pw_shell : "/bin/sh");
		r = 0;
		break;
	}
	fclose(f);
	if (r < 0)
		return r;
	f = fopen(group, "re");
	if (!f)
		return -errno;
	find_groups(f, u);
	fclose(f);
	return 0;
}

void user_name(const char *passwd, uid_t uid, char *out, size_t size)
{
	FILE *f = fopen(passwd, "re");
	struct passwd *p;

	snprintf(out, size, "%u", uid);
	while (f && (p = fgetpwent(f))) {
		if (p->pw_uid == uid) {
			snprintf(out, size, "%s", p->pw_name);
			break;
		}
	}
	if (f)
		fclose(f);
}

void user_group_name(const char *group, gid_t gid, char *out, size_t size)
{
	FILE *f = fopen(group, "re");
	struct group *g;

	snprintf(out, size, "%u", gid);
	while (f && (g = fgetgrent(f))) {
		if (g->gr_gid == gid) {
			snprintf(out, size, "%s", g->gr_name);
			break;
		}
	}
	if (f)
		fclose(f);
}

/* Merges into `all`; 0, or -1 with the offending name. */
static int merge_env(json_t *all, json_t *more, const char **bad)
{
	const char *name;
	json_t *value;

	json_object_foreach(more, name, value)
	{
		if (*name == '\0' || strchr(name, '=') || !json_is_string(value)) {
			*bad = name;
			return -1;
		}
		if (json_object_set(all, name, value) < 0)
			return -1;
	}
	return 0;
}

static char **flatten_env(json_t *all)
{
	size_t bytes = (json_object_size(all) + 1) * sizeof(char *);
	char **block, **slot, *text;
	const char *name;
	json_t *value;

	json_object_foreach(all, name, value) bytes += strlen(name) + json_string_length(value) + 2;
	block = malloc(bytes);
	if (!block)
		return NULL;
	slot = block;
	text = (char *)(block + json_object_size(all) + 1);
	json_object_foreach(all, name, value)
	{
		*slot++ = text;
		text += sprintf(text, "%s=%s", name, json_string_value(value)) + 1;
	}
	*slot = NULL;
	return block;
}

/* What the monitor says about the host's CPU, by way of the kernel's command line (docs/guest.md). */
static const char *const host_env[] = { "GLIBC_TUNABLES", "NPY_DISABLE_CPU_FEATURES",
	                                "OPENBLAS_CORETYPE", "OPENSSL_ia32cap",
	                                "GNUTLS_CPUID_OVERRIDE" };
#define NR_HOST_ENV (sizeof(host_env) / sizeof(host_env[0]))

static void add_host_env(json_t *all)
{
	for (size_t i = 0; i < NR_HOST_ENV; i++)
		if (getenv(host_env[i]))
			json_object_set_new(all, host_env[i], json_string(getenv(host_env[i])));
}

int user_save_host_env(const char *path)
{
	FILE *f = fopen(path, "we");
	bool failed;

	if (!f)
		return -errno;
	for (size_t i = 0; i < NR_HOST_ENV; i++)
		if (getenv(host_env[i]))
			fprintf(f, "%s=%s\n", host_env[i], getenv(host_env[i]));
	failed = ferror(f) != 0;
	return fclose(f) || failed ? -EIO : 0;
}

char **user_env(const struct user *u, json_t *common, json_t *own, const char **bad)
{
	char **block = NULL;
	/* First what `pip install --user` makes, as Debian's ~/.profile has it. */
	json_t *all = json_pack("{s:s++, s:s, s:s, s:s, s:s, s:s}", "PATH", u->home,
	                        "/.local/bin:", PATH_DEFAULT, "HOME", u->home, "USER", u->name,
	                        "LOGNAME", u->name, "SHELL", u->shell, "LANG", "C.UTF-8");

	*bad = NULL;
	if (all)
		add_host_env(all);
	if (all && merge_env(all, common, bad) == 0 && merge_env(all, own, bad) == 0)
		block = flatten_env(all);
	json_decref(all);
	return block;
}
