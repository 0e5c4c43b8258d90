/* SPDX-License-Identifier: Apache-2.0 */
#include "api/spec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GUEST_HOME "/home/user"

int spec_parse(const char *text, struct spec *spec, struct err *err)
{
	char *out = spec->from;
	bool split = false;
	size_t n = 0;

	*spec = (struct spec){ 0 };
	for (const char *p = text; *p; p++) {
		if (*p == ':') {
			if (split)
				return err_set(err, -EINVAL,
				               "'%s' has more than one colon: write \\: for "
				               "one in a name",
				               text);
			split = true;
			out = spec->to;
			n = 0;
			continue;
		}
		if (*p == '\\' && (p[1] == ':' || p[1] == '\\'))
			p++;
		if (n + 1 == PATHS_MAX)
			return err_set(err, -ENAMETOOLONG, "'%.60s...' is too long", text);
		out[n++] = *p;
	}
	if (!spec->from[0])
		return err_set(err, -EINVAL, "'%s' names no file", text);
	return 0;
}

static const char *last_component(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int spec_guest_path(const char *name, const char *other, char out[PATHS_MAX], struct err *err)
{
	const char *root = name[0] == '/' ? "" : GUEST_HOME "/";
	size_t len = strlen(name);
	const char *tail = !len || name[len - 1] == '/' ? last_component(other) : "";

	if ((!len || name[len - 1] == '/') && !*tail)
		return err_set(err, -EINVAL, "'%s' names no file", other);
	return paths_format(out, err, "%s%s%s", root, name, tail);
}

static int check_folder(const char *path, struct err *err)
{
	const char *slash = strrchr(path, '/');
	char dir[PATHS_MAX] = ".";
	struct stat st;

	if (slash)
		(void)snprintf(dir, sizeof(dir), "%.*s", slash > path ? (int)(slash - path) : 1,
		               path);
	if (stat(dir, &st) || !S_ISDIR(st.st_mode)) {
		(void)err_set(err, -ENOENT, "%s: there is no folder %s", path, dir);
		return err_remedy(err, "make it first: mkdir -p '%s'", dir);
	}
	if (access(dir, W_OK))
		return err_set(err, -EACCES, "%s: the folder %s cannot be written", path, dir);
	return 0;
}

int spec_local_path(const char *name, const char *guest, char out[PATHS_MAX], struct err *err)
{
	size_t len = strlen(name);
	struct stat st;
	bool folder = !len || name[len - 1] == '/' || (!stat(name, &st) && S_ISDIR(st.st_mode));
	const char *sep = len && name[len - 1] != '/' ? "/" : "";
	int rc;

	if (folder && !*last_component(guest))
		return err_set(err, -EINVAL, "'%s' names no file", guest);
	rc = folder ? paths_format(out, err, "%s%s%s", name, sep, last_component(guest))
	            : paths_format(out, err, "%s", name);
	return rc ? rc : check_folder(out, err);
}
