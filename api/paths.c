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

/* The folder of the running program. */
static int exe_dir(char out[PATHS_MAX], struct err *err)
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
	rc = exe_dir(dir, err);
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

int paths_asset(const char *tree, const char *share, char out[PATHS_MAX], struct err *err)
{
	const char *set = getenv("THAWBOX_ASSETS");
	char dir[PATHS_MAX];
	int rc;

	if (set && *set) {
		rc = paths_format(out, err, "%s/%s", set, share);
		if (rc || !access(out, F_OK))
			return rc;
		(void)err_set(err, -ENOENT, "%s: not there (THAWBOX_ASSETS=%s)", out, set);
		return err_remedy(
			err,
			"unset THAWBOX_ASSETS, or point it at a folder with kernel/ and rootfs/");
	}
	rc = exe_dir(dir, err);
	rc = rc ? rc : paths_format(out, err, "%s/../../%s", dir, tree);
	if (rc || !access(out, F_OK))
		return rc;
	rc = paths_format(out, err, "%s/../share/thawbox/%s", dir, share);
	if (rc || !access(out, F_OK))
		return rc;
	return err_set(err, -ENOENT, "neither %s in the source tree nor %s", tree, out);
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
