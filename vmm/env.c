/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(struct env *env, const char *name, const json_t *value, struct err *err)
{
	const char *text = json_string_value(value);
	size_t room = strlen(name) + json_string_length(value) + 2;
	char *grown;

	if (!text || !*name || strchr(name, '='))
		return err_set(err, -EINVAL, "env: \"%.64s\" must be a name with a string", name);
	grown = realloc(env->p, env->len + room);
	if (!grown)
		return err_set(err, -ENOMEM, "env: out of memory");
	env->p = grown;
	env->len += (size_t)snprintf(grown + env->len, room, "%s=%s", name, text) + 1;
	return 0;
}

int env_make(struct env *env, const json_t *line, struct err *err)
{
	const json_t *hostname = json_object_get(line, "hostname"),
		     *id = json_object_get(line, "id");
	int ret = json_string_length(hostname) ? add(env, "HOSTNAME", hostname, err) : 0;
	const char *name;
	json_t *value;

	if (ret == 0 && json_string_length(id))
		ret = add(env, "THAWBOX_ID", id, err);
	json_object_foreach(json_object_get(line, "env"), name, value)
	{
		if (ret == 0)
			ret = add(env, name, value, err);
	}
	return ret;
}

void env_free(struct env *env)
{
	free(env->p);
	*env = (struct env){ 0 };
}
