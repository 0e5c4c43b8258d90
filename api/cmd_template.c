/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox template build, list, show, verify, rm. */
#include "api/bake.h"
#include "api/cmd.h"
#include "api/template.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)

static const char build_help[] =
	"Boots the template's image, lets its interpreter import and warm up what it will need, "
	"freezes\n"
	"the machine, records which pages a first cell touches, and proves the result with real "
	"runs.\n"
	"This takes minutes where KVM is done in software. The old template stays in use until the "
	"new\n"
	"one is complete; with nothing changed nothing is done.\n"
	"\n"
	"Examples:\n"
	"  thawbox template build code-interpreter\n"
	"  thawbox template build code-interpreter --memory 1024   a variant for `run --memory "
	"1024`\n"
	"  thawbox template build ./my-template/ --verbose         your own, see docs/guest.md\n"
	"  thawbox template build code-interpreter --rotate        from a timer: again once a "
	"week\n"
	"\n"
	"Exit: 0, 2 usage, 3 it could not be baked, 130 interrupted.\n";

static void print_built(const struct bake_plan *plan, const struct bake_result *r, bool json)
{
	char size[32];

	if (json) {
		json_t *o = json_pack("{s:s, s:s, s:b, s:f, s:f, s:f, s:f}", "name", plan->name,
		                      "dir", r->dir, "built", !r->current, "seconds", r->seconds,
		                      "create_ms", r->create_ms, "first_result_ms",
		                      r->first_result_ms, "clock_ms", r->clock_ms);

		cmd_print_json(o, false);
		json_decref(o);
	} else if (r->current) {
		printf("template %s is up to date: %s\n", plan->name, r->dir);
	} else {
		printf("template %s baked in %.0f s, %s: %s\n", plan->name, r->seconds,
		       cmd_bytes(template_disk_bytes(r->dir), size), r->dir);
		printf("proved: first result after %.1f ms (create %.1f ms), clock within %.0f "
		       "ms\n",
		       r->first_result_ms, r->create_ms, r->clock_ms + 0.5);
	}
}

static int build(const struct bake_opts *opts, bool json)
{
	struct bake_plan plan;
	struct bake_result result;
	struct err err = { 0 };
	int rc = bake_plan(&plan, opts, &err);

	if (rc)
		return cmd_fail(rc == -EINVAL ? EXIT_USAGE : EXIT_NOT_READY, &err);
	if (!json)
		cmd_note("template %s: %llu MB, %u vCPU, %s", plan.name,
		         (unsigned long long)plan.memory_mb, plan.vcpus, plan.root);
	rc = bake_run(&plan, opts, &result, &err);
	if (!rc)
		print_built(&plan, &result, json);
	bake_plan_free(&plan);
	if (rc == -EINTR)
		cmd_note("interrupted; the template is as it was before");
	else if (rc)
		return cmd_fail(EXIT_NOT_READY, &err);
	return rc ? EXIT_INTERRUPTED : EXIT_OK;
}

static int build_main(int argc, char **argv)
{
	struct bake_opts o = { .intr_fd = -1 };
	uint64_t max_age_ns = 0;
	bool json = false, rotate = false;
	const struct arg args[] = {
		{ "memory", 'm', ARG_NUMBER, &o.memory_mb, "MB",
		  "another size than the template's own" },
		{ "kernel", 'k', ARG_TEXT, &o.kernel, "PATH", "vmlinux (the one built here)" },
		{ "symbols", 's', ARG_TEXT, &o.symbols, "PATH", "its symbols file" },
		{ "rootfs", 'r', ARG_TEXT, &o.rootfs, "DIR",
		  "folder with root.img and scratch.img" },
		{ "force", 'f', ARG_FLAG, &o.force, NULL, "bake although nothing has changed" },
		{ "rotate", '\0', ARG_FLAG, &rotate, NULL,
		  "also when it was baked 7 days ago or earlier" },
		{ "max-age", '\0', ARG_SECONDS, &max_age_ns, "TIME",
		  "another age than that, such as 12h or 30d" },
		{ "verbose", 'v', ARG_FLAG, &o.verbose, NULL, "show the guest's console" },
		{ "json", 'j', ARG_FLAG, &json, NULL, "one JSON object at the end" },
		CMD_ISOLATION_ARGS(o.isolation),
	};
	struct arg_rest rest;
	struct err err = { 0 };
	int code = cmd_parse(&cmd_template_build, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != 1)
		return cmd_usage(&cmd_template_build, "give one template: its name or its folder");
	o.what = rest.at[0];
	if (max_age_ns)
		o.max_age_s = max_age_ns < NS_PER_S ? 1 : max_age_ns / NS_PER_S;
	else if (rotate)
		o.max_age_s = TEMPLATE_MAX_AGE_S;
	o.intr_fd = cmd_intr_open(&err);
	return o.intr_fd < 0 ? cmd_fail(EXIT_NOT_READY, &err) : build(&o, json);
}

/* --- list, show ------------------------------------------------------------------------------- */

/* What is known of one: name, id, dir, disk_bytes, age_s and its template.json. */
static json_t *describe(const char *name)
{
	struct err err = { 0 };
	struct template t;
	json_t *info, *o;

	if (template_open(&t, name, 0, &err))
		return NULL;
	info = template_info(&t);
	o = json_pack("{s:s, s:s, s:s, s:I, s:I}", "name", t.name, "id", t.id, "dir", t.dir,
	              "disk_bytes", (json_int_t)template_disk_bytes(t.dir), "age_s",
	              (json_int_t)template_age_s(info, time(NULL)));
	json_object_update_missing(o, info);
	json_decref(info);
	template_close(&t);
	return o;
}

static const char *when(json_int_t unix_s, char out[32])
{
	time_t t = (time_t)unix_s;
	struct tm tm;

	localtime_r(&t, &tm);
	if (!strftime(out, 32, "%Y-%m-%d %H:%M", &tm))
		out[0] = '\0';
	return out;
}

static void print_line(const json_t *o)
{
	char size[32], date[32], age[32];

	printf("%-28s %6lld MB  %10s  %s  %s\n", json_string_value(json_object_get(o, "name")),
	       (long long)json_integer_value(json_object_get(o, "memory_mb")),
	       cmd_bytes((uint64_t)json_integer_value(json_object_get(o, "disk_bytes")), size),
	       when(json_integer_value(json_object_get(o, "built")), date),
	       cmd_age(json_integer_value(json_object_get(o, "age_s")), age));
}

static int list_main(int argc, char **argv)
{
	bool json = false;
	const struct arg args[] = { { "json", 'j', ARG_FLAG, &json, NULL, "an array of objects" } };
	json_t *names = NULL, *name, *all = json_array();
	struct arg_rest rest;
	struct err err = { 0 };
	size_t i;
	int code = cmd_parse(&cmd_template_list, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0 || rest.nr) {
		json_decref(all);
		return code >= 0 ? code : cmd_usage(&cmd_template_list, "it takes no names");
	}
	code = template_names(&names, &err) ? cmd_fail(EXIT_NOT_READY, &err) : EXIT_OK;
	json_array_foreach(names, i, name)
	{
		json_t *o = describe(json_string_value(name));

		if (o)
			json_array_append_new(all, o);
	}
	if (!code && json)
		cmd_print_json(all, false);
	else if (!code && !json_array_size(all))
		cmd_note("no templates; bake one: thawbox template build " TEMPLATE_DEFAULT);
	else if (!code)
		json_array_foreach(all, i, name) print_line(name);
	json_decref(names);
	json_decref(all);
	return code;
}

static int show_main(int argc, char **argv)
{
	struct arg_rest rest;
	struct err err = { 0 };
	struct template t;
	json_t *o;
	int code = cmd_parse(&cmd_template_show, NULL, 0, argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != 1)
		return cmd_usage(&cmd_template_show, "give one template's name");
	if (template_open(&t, rest.at[0], 0, &err))
		return cmd_fail(EXIT_NOT_READY, &err);
	template_close(&t);
	o = describe(rest.at[0]);
	cmd_print_json(o, true);
	json_decref(o);
	return EXIT_OK;
}

static int verify_main(int argc, char **argv)
{
	struct arg_rest rest;
	struct err err = { 0 };
	struct template t;
	unsigned nr;
	int code = cmd_parse(&cmd_template_verify, NULL, 0, argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr != 1)
		return cmd_usage(&cmd_template_verify, "give one template's name");
	if (template_open(&t, rest.at[0], 0, &err))
		return cmd_fail(EXIT_NOT_READY, &err);
	code = template_verify(t.dir, &nr, &err) ? cmd_fail(EXIT_CELL, &err) : EXIT_OK;
	if (!code)
		printf("template %s: %u parts are as they were baked (%s)\n", t.name, nr, t.dir);
	template_close(&t);
	return code;
}

static int rm_main(int argc, char **argv)
{
	struct arg_rest rest;
	struct err err = { 0 };
	int code = cmd_parse(&cmd_template_rm, NULL, 0, argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (!rest.nr)
		return cmd_usage(&cmd_template_rm, "give the template's name");
	for (int i = 0; i < rest.nr; i++) {
		if (template_remove(rest.at[i], &err))
			return cmd_fail(EXIT_CELL, &err);
		printf("template %s removed\n", rest.at[i]);
	}
	return EXIT_OK;
}

const struct cmd cmd_template_build = { "template build", "[options] (NAME | FOLDER)",
	                                "Bake a template: boot, warm up, freeze, prove.",
	                                build_help, build_main };
const struct cmd cmd_template_list = { "template list", "[--json]", "List the templates.",
	                               "Example:\n  thawbox template list\n", list_main };
const struct cmd cmd_template_show = { "template show", "NAME",
	                               "Tell what a template was made from, as JSON.",
	                               "Example:\n  thawbox template show code-interpreter\n",
	                               show_main };
const struct cmd cmd_template_verify = {
	"template verify", "NAME", "Compare a template's parts with their checksums.",
	"Reads every byte of it. The folder's `checksums` also serves `xxh128sum -c`.\n\n"
	"Example:\n  thawbox template verify code-interpreter\n\n"
	"Exit: 0 all is well, 1 a part is damaged, 3 there is no such template.\n",
	verify_main
};
const struct cmd cmd_template_rm = { "template rm", "NAME...", "Remove a template.",
	                             "Refused while a sandbox of it runs.\n\nExample:\n  thawbox "
	                             "template rm code-interpreter@1024\n",
	                             rm_main };
