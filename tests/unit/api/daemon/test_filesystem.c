/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/envd.h"

#include "tests/unit/api/daemon/same_json.h"

#include <criterion/criterion.h>

static void expect(const char *agent, const char *envd)
{
	json_t *in = json_loads(agent, 0, NULL);

	expect_json(in, envd_entry(in), envd);
}

Test(filesystem, entries)
{
	expect("{\"name\":\"a\",\"path\":\"/"
	       "a\",\"type\":\"file\",\"size\":5,\"mode\":420,\"owner\":\"user\","
	       "\"group\":\"user\",\"mtime_ns\":1500000000}",
	       "{\"name\":\"a\",\"path\":\"/"
	       "a\",\"type\":\"FILE_TYPE_FILE\",\"size\":5,\"mode\":420,"
	       "\"permissions\":\"-rw-r--r--\",\"owner\":\"user\",\"group\":\"user\","
	       "\"modifiedTime\":\"1970-01-01T00:00:01.500000Z\"}");
	expect("{\"name\":\"l\",\"path\":\"/"
	       "l\",\"type\":\"dir\",\"size\":9,\"mode\":1023,\"mtime_ns\":0,"
	       "\"target\":\"/d\"}",
	       "{\"name\":\"l\",\"path\":\"/"
	       "l\",\"type\":\"FILE_TYPE_DIRECTORY\",\"size\":9,\"mode\":511,"
	       "\"permissions\":\"Lrwxrwxrwx\",\"modifiedTime\":\"1970-01-01T00:00:00.000000Z\","
	       "\"symlinkTarget\":\"/d\"}");
	/* A link to nothing has no type, and no mode. */
	expect("{\"name\":\"l\",\"path\":\"/"
	       "l\",\"type\":\"link\",\"size\":9,\"mode\":511,\"mtime_ns\":0,"
	       "\"target\":\"/l\"}",
	       "{\"name\":\"l\",\"path\":\"/"
	       "l\",\"size\":9,\"mode\":0,\"permissions\":\"L---------\","
	       "\"modifiedTime\":\"1970-01-01T00:00:00.000000Z\",\"symlinkTarget\":\"/l\"}");
}

Test(filesystem, metadata)
{
	expect("{\"name\":\"a\",\"type\":\"file\",\"mode\":420,\"mtime_ns\":0,\"metadata\":{\"k\":"
	       "\"v\"}}",
	       "{\"name\":\"a\",\"type\":\"FILE_TYPE_FILE\",\"mode\":420,\"permissions\":\"-rw-r--"
	       "r--\","
	       "\"modifiedTime\":\"1970-01-01T00:00:00.000000Z\",\"metadata\":{\"k\":\"v\"}}");
	/* The guest's word for it is not taken. */
	expect("{\"name\":\"a\",\"type\":\"file\",\"mode\":420,\"mtime_ns\":0,\"metadata\":{\"k\":"
	       "1}}",
	       "{\"name\":\"a\",\"type\":\"FILE_TYPE_FILE\",\"mode\":420,\"permissions\":\"-rw-r--"
	       "r--\","
	       "\"modifiedTime\":\"1970-01-01T00:00:00.000000Z\"}");
}
