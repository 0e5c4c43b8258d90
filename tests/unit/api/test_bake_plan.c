/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bake.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/test_bake.XXXXXX";
static char kernel[PATHS_MAX], symbols[PATHS_MAX];
static struct err err;

static void put(const char *name, const char *text, char path[PATHS_MAX])
{
	FILE *f;

	cr_assert_eq(paths_format(path, &err, "%s/%s", dir, name), 0);
	f = fopen(path, "w");
	cr_assert_not_null(f);
	fputs(text, f);
	fclose(f);
}

static void setup(void)
{
	char path[PATHS_MAX];

	cr_assert_not_null(mkdtemp(dir));
	put("vmlinux", "kernel", kernel);
	put("symbols", "symbols", symbols);
	put("root.img", "root", path);
	put("scratch.img", "scratch", path);
	put("vmm", "#!/bin/sh\necho $1\n", path);
	cr_assert_eq(chmod(path, 0755), 0);
	setenv("THAWBOX_VMM", path, 1);
}

static void teardown(void)
{
	cr_assert_eq(paths_remove_tree(dir), 0);
}

TestSuite(bake_plan, .init = setup, .fini = teardown, .timeout = 20);

static int plan_of(struct bake_plan *plan, const char *template, uint64_t memory_mb)
{
	char path[PATHS_MAX];
	struct bake_opts opts = { .what = dir,
		                  .memory_mb = memory_mb,
		                  .kernel = kernel,
		                  .symbols = symbols,
		                  .rootfs = dir };

	put("template.json", template, path);
	return bake_plan(plan, &opts, &err);
}

Test(bake_plan, template_says_what)
{
	struct bake_plan plan;

	cr_assert_eq(plan_of(&plan, "{\"name\":\"mine\",\"memory_mb\":256,\"vcpus\":2}", 0), 0,
	             "%s", err.msg);
	cr_assert_str_eq(plan.name, "mine");
	cr_assert(plan.memory_mb == 256 && plan.vcpus == 2);
	cr_assert_eq(strlen(plan.inputs), 32);
	bake_plan_free(&plan);
	cr_assert_eq(plan_of(&plan, "{\"name\":\"mine\"}", 1024), 0, "%s", err.msg);
	cr_assert_str_eq(plan.name, "mine@1024");
	cr_assert_eq(plan.memory_mb, 1024);
	bake_plan_free(&plan);
	cr_assert_eq(plan_of(&plan, "{\"name\":\"mine\"}", 512), 0);
	cr_assert_str_eq(plan.name, "mine", "its own size needs no variant");
	bake_plan_free(&plan);
}

Test(bake_plan, every_input_changes_the_hash)
{
	static const char template[] = "{\"name\":\"mine\"}";
	static const char *const files[] = { "vmlinux", "symbols", "root.img", "scratch.img" };
	char path[PATHS_MAX], first[33], last[33];
	struct bake_plan plan;

	cr_assert_eq(plan_of(&plan, template, 0), 0);
	memcpy(first, plan.inputs, 33);
	bake_plan_free(&plan);
	cr_assert_eq(plan_of(&plan, template, 0), 0);
	cr_assert_str_eq(plan.inputs, first);
	bake_plan_free(&plan);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		memcpy(last, first, 33);
		put(files[i], "changed", path);
		cr_assert_eq(plan_of(&plan, template, 0), 0);
		cr_assert_str_neq(plan.inputs, last, "%s", files[i]);
		memcpy(first, plan.inputs, 33);
		bake_plan_free(&plan);
	}
	put("vmm", "#!/bin/sh\necho another $1\n", path);
	cr_assert_eq(plan_of(&plan, template, 0), 0);
	cr_assert_str_neq(plan.inputs, first, "the monitor");
	memcpy(first, plan.inputs, 33);
	bake_plan_free(&plan);
	cr_assert_eq(plan_of(&plan, "{\"name\":\"mine\",\"env\":{\"A\":\"1\"}}", 0), 0);
	cr_assert_str_neq(plan.inputs, first, "the template");
	bake_plan_free(&plan);
}

Test(bake_plan, bad_templates_are_refused_with_words)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{ "{", "template.json:1" },
		{ "{}", "\"name\"" },
		{ "{\"name\":\"../x\"}", "\"name\"" },
		{ "{\"name\":\"a@1\"}", "\"name\"" },
		{ "{\"name\":\"a\",\"memory_mb\":1}", "memory_mb" },
		{ "{\"name\":\"a\",\"memory_mb\":\"512\"}", "memory_mb" },
		{ "{\"name\":\"a\",\"vcpus\":0}", "vcpus" },
		{ "{\"name\":\"a\",\"vcpus\":-1}", "vcpus" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct bake_plan plan;

		cr_assert_eq(plan_of(&plan, cases[i].text, 0), -EINVAL, "%s", cases[i].text);
		cr_assert_not_null(strstr(err.msg, cases[i].says), "%s", err.msg);
	}
}

Test(bake_plan, what_is_missing_is_named)
{
	struct bake_plan plan;
	struct bake_opts opts = { .what = "/nonexistent/template" };

	cr_assert_eq(bake_plan(&plan, &opts, &err), -ENOENT);
	cr_assert_not_null(strstr(err.msg, "/nonexistent/template"));
	opts = (struct bake_opts){ .what = "no-such-template" };
	cr_assert_eq(bake_plan(&plan, &opts, &err), -ENOENT);
	cr_assert_neq(err.remedy[0], '\0');
	unlink(symbols);
	cr_assert_eq(plan_of(&plan, "{\"name\":\"a\"}", 0), -ENOENT);
	cr_assert_not_null(strstr(err.msg, "--symbols"));
}
