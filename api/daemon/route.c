/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/route.h"

#include "api/daemon/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Where the part at `p` ends. */
static size_t part_len(const char *p)
{
	return strcspn(p, "/");
}

static bool matches(const char *pattern, const char *path)
{
	while (*pattern && *path) {
		size_t n = part_len(path), m = part_len(pattern);
		bool is_any = m == 2 && !strncmp(pattern, "{}", 2);

		if (is_any ? !n : n != m || strncmp(pattern, path, n) != 0)
			return false;
		pattern += m;
		path += n;
		if (*pattern != *path)
			return false;
		if (*pattern) {
			pattern++;
			path++;
		}
	}
	return *pattern == *path;
}

static void take_params(const char *pattern, char *path, const char *param[ROUTE_PARAMS])
{
	unsigned nr = 0;

	for (;;) {
		size_t n = part_len(path), m = part_len(pattern);
		bool is_last = !path[n];

		if (m == 2 && !strncmp(pattern, "{}", 2) && nr < ROUTE_PARAMS) {
			param[nr++] = path;
			path[n] = '\0';
		}
		if (is_last)
			return;
		path += n + 1;
		pattern += m + 1;
	}
}

const struct route *route_find(const struct route *table, const char *method, char *path,
                               const char *param[ROUTE_PARAMS], bool *wrong_method)
{
	*wrong_method = false;
	for (const struct route *r = table; r->path; r++) {
		if (!matches(r->path, path))
			continue;
		if (strcmp(r->method, method) != 0) {
			*wrong_method = true;
			continue;
		}
		take_params(r->path, path, param);
		return r;
	}
	return NULL;
}

void route_methods(const struct route *table, const char *path, char out[ROUTE_METHODS_MAX])
{
	size_t n = 0;

	out[0] = '\0';
	for (const struct route *r = table; r->path && n < ROUTE_METHODS_MAX; r++)
		if (matches(r->path, path))
			n += (size_t)snprintf(out + n, ROUTE_METHODS_MAX - n, "%s%s", n ? ", " : "",
			                      r->method);
}

/* Ids are lower-case letters and digits; what very old clients put behind a "-" is not of it. */
static bool take_id(const char *id, size_t len, char out[40])
{
	size_t n = 0;

	while (n < len && (islower((unsigned char)id[n]) || isdigit((unsigned char)id[n])))
		n++;
	if (!n || n >= 40 || (n < len && id[n] != '-'))
		return false;
	memcpy(out, id, n);
	out[n] = '\0';
	return true;
}

/* PORT-ID.domain */
static bool take_host(const char *host, struct target *target)
{
	const char *dash = strchr(host, '-'), *dot = strchr(host, '.');
	unsigned port = 0;

	if (!dash || !dot || dot < dash || dash == host || dash - host > 5)
		return false;
	for (const char *p = host; p < dash; p++) {
		if (!isdigit((unsigned char)*p))
			return false;
		port = 10 * port + (unsigned)(*p - '0');
	}
	target->port = port <= 65535 ? port : 0;
	return take_id(dash + 1, (size_t)(dot - dash - 1), target->id);
}

bool route_target(const char *id, const char *port, const char *host, struct target *target)
{
	uint64_t number;

	*target = (struct target){ 0 };
	if (!id)
		return host && take_host(host, target);
	if (text_number(port ? port : "49983", 65535, &number))
		target->port = (unsigned)number;
	if (!take_id(id, strlen(id), target->id))
		(void)take_id("unknown", 7,
		              target->id); /* for a sandbox, and for none that exists */
	return true;
}
