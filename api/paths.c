/* SPDX-License-Identifier: Apache-2.0 */
#include "api/paths.h"

#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int paths_format(char out[PATHS_MAX], struct err *err, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(out, PATHS_MAX, fmt, ap);
	va_end(ap);
	if (n < 0 || n >= PATHS_MAX)
		return err_set(err, -ENAMETOOLONG, "path too long: %.60s...", out);
	return 0;
}

int paths_exe_dir(char out[PATHS_MAX], struct err *err)
{
	ssize_t n = readlink("/proc/self/exe", out, PATHS_MAX - 1);
	char *slash;

	if (n < 0)
		return err_set(err, -errno, "/proc/self/exe: %s", strerror(errno));
	out[n] = '\0';
	slash = strrchr(out, '/');
	if (slash)
		*slash = '\0';
	return 0;
}

static int vmm_in_path(char out[PATHS_MAX], struct err *err)
{
	const char *p = getenv("PATH");

	while (p && *p) {
		int n = (int)strcspn(p, ":");

		if (!paths_format(out, err, "%.*s/thawbox-vmm", n, p) && !access(out, X_OK))
			return 0;
		p += n + (p[n] == ':');
	}
	return -ENOENT;
}

int paths_vmm(char out[PATHS_MAX], struct err *err)
{
	static const char *const places[] = { "/thawbox-vmm", "/../thawbox-vmm",
		                              "/../libexec/thawbox/thawbox-vmm" };
	const char *set = getenv("THAWBOX_VMM");
	char dir[PATHS_MAX];
	int rc;

	if (set && *set)
		return paths_format(out, err, "%s", set);
	rc = paths_exe_dir(dir, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		int n = snprintf(out, PATHS_MAX, "%s%s", dir, places[i]);

		if (n > 0 && n < PATHS_MAX && !access(out, X_OK))
			return 0;
	}
	if (!vmm_in_path(out, err))
		return 0;
	(void)err_set(err, -ENOENT, "thawbox-vmm was not found beside %s, in libexec or in PATH",
	              dir);
	return err_remedy(err, "build it (make build), or set THAWBOX_VMM to its path");
}

int paths_home(char out[PATHS_MAX], struct err *err)
{
	const char *set = getenv("THAWBOX_HOME"), *data = getenv("XDG_DATA_HOME"),
		   *home = getenv("HOME");

	if (set && *set)
		return paths_format(out, err, "%s", set);
	if (geteuid() == 0)
		return paths_format(out, err, "/var/lib/thawbox");
	if (data && *data)
		return paths_format(out, err, "%s/thawbox", data);
	if (home && *home)
		return paths_format(out, err, "%s/.local/share/thawbox", home);
	(void)err_set(err, -ENOENT, "no place for templates: HOME is not set");
	return err_remedy(err, "set THAWBOX_HOME to a directory");
}

/* The first of the two places, relative to the program's folder, where something is. */
static int first_of(const char *tree, const char *share, char out[PATHS_MAX], struct err *err)
{
	char dir[PATHS_MAX], path[PATHS_MAX];
	int rc = paths_exe_dir(dir, err);

	rc = rc ? rc : paths_format(path, err, "%s/../../%s", dir, tree);
	if (!rc && !realpath(path, out)) {
		rc = paths_format(path, err, "%s/../share/thawbox/%s", dir, share);
		if (!rc && !realpath(path, out))
			rc = err_set(err, -ENOENT, "neither %s/../../%s nor %s is there", dir, tree,
			             path);
	}
	return rc;
}

int paths_asset(const char *part, const char *file, char out[PATHS_MAX], struct err *err)
{
	const char *set = getenv("THAWBOX_ASSETS");
	char tree[PATHS_MAX], share[PATHS_MAX];
	int rc;

	if (set && *set) {
		rc = paths_format(share, err, "%s/%s/current/%s", set, part, file);
		if (rc || realpath(share, out))
			return rc;
		(void)err_set(err, -ENOENT, "%s is not there (THAWBOX_ASSETS is set)", share);
		return err_remedy(err, "unset THAWBOX_ASSETS, or point it at a folder like out/");
	}
	rc = paths_format(tree, err, "out/%s/current/%s", part, file);
	rc = rc ? rc : paths_format(share, err, "%s/%s", part, file);
	rc = rc ? rc : first_of(tree, share, out, err);
	if (rc)
		(void)err_remedy(
			err, "build it with `make %s`, or set THAWBOX_ASSETS to a folder like out/",
			part);
	return rc;
}

int paths_source(const char *rel, char out[PATHS_MAX], struct err *err)
{
	return first_of(rel, rel, out, err);
}

int paths_make_dirs(const char *dir, struct err *err)
{
	char path[PATHS_MAX];
	int rc = paths_format(path, err, "%s", dir);

	if (rc)
		return rc;
	for (char *p = path + 1;; p++) {
		char c = *p;

		if (c != '/' && c != '\0')
			continue;
		*p = '\0';
		if (mkdir(path, 0755) && errno != EEXIST) {
			(void)err_set(err, -errno, "make %s: %s", path, strerror(errno));
			return err_remedy(err,
			                  "set THAWBOX_HOME to a directory that you may write");
		}
		*p = c;
		if (!c)
			return 0;
	}
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path) && errno != ENOENT ? -errno : 0;
}

int paths_remove_tree(const char *dir)
{
	int rc = nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);

	return rc == -1 ? (errno == ENOENT ? 0 : -errno) : rc;
}
