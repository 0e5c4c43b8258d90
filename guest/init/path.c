/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <errno.h>
#include <string.h>

/* Appends the parts of `path` to the clean absolute path in `out` (of `*len` bytes, "" for "/"). */
static int append(const char *path, char *out, size_t *len, size_t size)
{
	size_t n;

	for (; *path; path += n) {
		while (*path == '/')
			path++;
		n = strcspn(path, "/");
		if (n == 0 || (n == 1 && path[0] == '.'))
			continue;
		if (n == 2 && path[0] == '.' && path[1] == '.') {
			while (*len > 0 && out[--*len] != '/')
				;
			continue;
		}
		if (*len + n + 2 > size)
			return -ENAMETOOLONG;
		out[(*len)++] = '/';
		memcpy(out + *len, path, n);
		*len += n;
	}
	return 0;
}

int path_resolve(const char *home, const char *path, char *out, size_t size)
{
	size_t len = 0;
	int r = 0;

	if (*path == '\0')
		return -EINVAL;
	if (path[0] == '~' && (path[1] == '/' || path[1] == '\0')) {
		r = append(home, out, &len, size);
		path++;
	} else if (path[0] != '/') {
		r = append(home, out, &len, size);
	}
	if (r == 0)
		r = append(path, out, &len, size);
	if (r < 0)
		return r;
	if (len == 0)
		out[len++] = '/';
	out[len] = '\0';
	return 0;
}

void path_split(const char *path, char *out, const char **dir, const char **name)
{
	char *slash;

	memcpy(out, path, strlen(path) + 1);
	slash = strrchr(out, '/');
	*name = slash + 1;
	*dir = out;
	if (slash == out) { /* "/x": its folder is "/", kept behind the name's end */
		slash = out + strlen(out) + 1;
		memcpy(slash, "/", 2);
		*dir = slash;
		return;
	}
	*slash = '\0';
}
