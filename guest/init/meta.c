/* SPDX-License-Identifier: Apache-2.0 */
#include "meta.h"

#include "text.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#define PREFIX    "user.e2b."
#define NAMES_MAX 8192 /* bytes of all names of a file; more are not looked at */
#define VALUE_MAX 4096

int meta_write(int fd, const json_t *metadata)
{
	char attribute[XATTR_NAME_MAX + 1];
	const char *name;
	json_t *value;

	if (metadata && !json_is_object(metadata))
		return -EINVAL;
	json_object_foreach((json_t *)(uintptr_t)metadata, name, value)
	{
		if (!json_is_string(value) || !*name ||
		    snprintf(attribute, sizeof(attribute), PREFIX "%s", name) >=
		            (int)sizeof(attribute))
			return -EINVAL;
		if (fsetxattr(fd, attribute, json_string_value(value), json_string_length(value),
		              0) < 0)
			return -errno;
	}
	return 0;
}

json_t *meta_read(const char *path)
{
	static const size_t skip = sizeof(PREFIX) - 1;
	char names[NAMES_MAX], value[VALUE_MAX + 1];
	ssize_t len = listxattr(path, names, sizeof(names)), n;
	json_t *all = NULL;

	for (const char *name = names; len > 0 && name < names + len; name += strlen(name) + 1) {
		if (strncmp(name, PREFIX, skip) != 0)
			continue;
		n = getxattr(path, name, value, VALUE_MAX);
		if (n < 0)
			continue; /* gone since, or too long */
		value[n] = '\0';
		all = all ? all : json_object();
		json_object_set_new(all, name + skip, text_json(value));
	}
	return all;
}
