/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox snapshot inspect: what a snapshot's folder holds. Reads only; trusts nothing. */
#include "api/cmd.h"
#include "api/paths.h"
#include "core/own.h"
#include "core/state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAGIC        "THAWBOX1"
#define MAGIC_LEN    8u
#define SECTION_HEAD 16u
#define STATE_MAX    (64u << 20)

static const char *const parts[] = { "state", "memory",   "workset",       "disk",     "disk1",
	                             "disk2", "disk3",    "disk4",         "disk5",    "disk6",
	                             "disk7", "manifest", "template.json", "checksums" };

static uint32_t le(const uint8_t *p, unsigned width)
{
	uint32_t v = 0;

	for (unsigned i = 0; i < width; i++)
		v |= (uint32_t)p[i] << (8 * i);
	return v;
}

static bool printable(const uint8_t *tag)
{
	for (int i = 0; i < 4; i++)
		if (tag[i] < 0x20 || tag[i] > 0x7e)
			return false;
	return true;
}

/* A section's checksum is over the first 12 bytes of its head, and its body. */
static bool crc_right(const uint8_t *p, uint32_t len)
{
	own_free uint8_t *copy = malloc(12 + (size_t)len);

	if (!copy)
		return false;
	memcpy(copy, p, 12);
	memcpy(copy + 12, p + SECTION_HEAD, len);
	return state_crc(copy, 12 + (size_t)len) == le(p + 12, 4);
}

static int read_sections(const char *path, json_t *sections, struct err *err)
{
	own_free char *text = NULL;
	const uint8_t *p;
	size_t len, pos = MAGIC_LEN;
	int rc = cmd_read_file(path, STATE_MAX, &text, &len, err);

	if (rc)
		return rc;
	p = (const uint8_t *)text;
	if (len < MAGIC_LEN || memcmp(p, MAGIC, MAGIC_LEN) != 0)
		return err_set(err, -EBADMSG, "%s: does not begin with " MAGIC, path);
	while (pos < len) {
		uint32_t body;

		if (len - pos < SECTION_HEAD || !printable(p + pos) ||
		    (body = le(p + pos + 8, 4)) > len - pos - SECTION_HEAD)
			return err_set(err, -EBADMSG, "%s: damaged or cut at byte %zu", path, pos);
		json_array_append_new(sections,
		                      json_pack("{s:s%, s:i, s:i, s:i, s:i, s:b}", "tag", p + pos,
		                                (size_t)4, "instance", (int)le(p + pos + 4, 2),
		                                "version", (int)le(p + pos + 6, 2), "offset",
		                                (int)pos, "bytes", (int)body, "checksum_ok",
		                                crc_right(p + pos, body)));
		pos += SECTION_HEAD + body;
	}
	return 0;
}

static void read_parts(const char *dir, json_t *list)
{
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		char path[PATHS_MAX];
		struct stat st;

		if (paths_format(path, NULL, "%s/%s", dir, parts[i]) || stat(path, &st))
			continue;
		json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "name", parts[i], "bytes",
		                                      (json_int_t)st.st_size, "disk_bytes",
		                                      (json_int_t)st.st_blocks * 512));
	}
}

static void print_text(const json_t *all)
{
	const json_t *manifest = json_object_get(all, "manifest");
	own_free char *text = json_dumps(manifest, JSON_INDENT(2));
	char size[32], used[32];
	json_t *each;
	size_t i;

	printf("parts\n");
	json_array_foreach(json_object_get(all, "parts"), i, each) printf(
		"  %-14s %12s, %12s on disk\n", json_string_value(json_object_get(each, "name")),
		cmd_bytes((uint64_t)json_integer_value(json_object_get(each, "bytes")), size),
		cmd_bytes((uint64_t)json_integer_value(json_object_get(each, "disk_bytes")), used));
	printf("state\n");
	json_array_foreach(json_object_get(all, "sections"), i, each) printf(
		"  %s #%-3lld %s%-5lld %8lld bytes%s\n",
		json_string_value(json_object_get(each, "tag")),
		(long long)json_integer_value(json_object_get(each, "instance")),
		json_integer_value(json_object_get(each, "version")) ? "version " : "raw     ",
		(long long)json_integer_value(json_object_get(each, "version")),
		(long long)json_integer_value(json_object_get(each, "bytes")),
		json_is_true(json_object_get(each, "checksum_ok")) ? "" : "  DAMAGED");
	printf("manifest\n%s\n", text ? text : "  none");
}

static int inspect(const char *dir, bool json)
{
	json_t *sections = json_array(), *list = json_array();
	json_t *all = json_pack("{s:s, s:o, s:o}", "dir", dir, "parts", list, "sections", sections);
	char path[PATHS_MAX];
	struct err err = { 0 };
	json_t *manifest;
	int rc = paths_format(path, &err, "%s/manifest", dir);

	manifest = rc ? NULL : json_load_file(path, 0, NULL);
	json_object_set_new(all, "manifest", manifest ? manifest : json_null());
	rc = rc ? rc : paths_format(path, &err, "%s/state", dir);
	rc = rc ? rc : read_sections(path, sections, &err);
	read_parts(dir, list);
	if (json_array_size(list) && json)
		cmd_print_json(all, true);
	else if (json_array_size(list))
		print_text(all);
	json_decref(all);
	if (rc && rc != -EBADMSG)
		(void)err_remedy(
			&err,
			"give the folder of a snapshot: `thawbox template show NAME` tells one");
	return rc ? cmd_fail(rc == -EBADMSG ? EXIT_CELL : EXIT_USAGE, &err) : EXIT_OK;
}

static int inspect_main(int argc, char **argv)
{
	bool json = false;
	const struct arg args[] = { { "json", 'j', ARG_FLAG, &json, NULL, "one JSON object" } };
	struct arg_rest rest;
	int code =
		cmd_parse(&cmd_snapshot_inspect, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != 1)
		return cmd_usage(&cmd_snapshot_inspect, "give one folder");
	return inspect(rest.at[0], json);
}

const struct cmd cmd_snapshot_inspect = { "snapshot inspect", "[--json] FOLDER",
	                                  "Tell what a snapshot's folder holds.",
	                                  "Parts with their sizes, the sections of the saved state "
	                                  "with versions and checksums, and the\n"
	                                  "manifest. docs/snapshot.md describes the format.\n\n"
	                                  "Example:\n  thawbox snapshot inspect "
	                                  "/var/lib/thawbox/templates/code-interpreter/current\n\n"
	                                  "Exit: 0, 1 the state is damaged, 2 it is no snapshot.\n",
	                                  inspect_main };
