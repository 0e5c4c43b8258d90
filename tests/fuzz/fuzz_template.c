/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A template's folder from a stranger. The first byte chooses which file the rest is: `checksums` of a folder with
 * known parts, the `template.json` that a bake reads, or the link `current`.
 */
#include "api/template.h"

#include "api/bake.h"
#include "tests/fuzz/fuzz.h"

#include <sys/stat.h>

enum { CHECKSUMS, MANIFEST, CURRENT, NR_KINDS };

static int dir = -1;

static void set_up(void)
{
	char path[128];

	fz_quiet();
	FZ_CHECK((dir = open(fz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
	fz_put(dir, "memory", "memory", 6);
	fz_put(dir, "state", "state", 5);
	FZ_CHECK(mkdirat(dir, "templates", 0700) == 0 && mkdirat(dir, "templates/t", 0700) == 0);
	FZ_CHECK(mkdirat(dir, "templates/t/1", 0700) == 0);
	(void)snprintf(path, sizeof(path), "%s", fz_dir());
	FZ_CHECK(setenv("THAWBOX_HOME", path, 1) == 0);
}

static void fuzz_checksums(const struct fz_in *in)
{
	struct err err = { 0 };
	unsigned nr = 0;

	fz_put(dir, "checksums", in->p, in->n);
	if (template_verify(fz_dir(), &nr, &err) < 0)
		FZ_CHECK(err.code < 0 && err.msg[0]);
	else
		FZ_CHECK(nr > 0);
}

static void fuzz_manifest(const struct fz_in *in)
{
	/* Without a kernel a plan ends when its template has been read: nothing is built. */
	struct bake_opts opts = { .what = fz_dir(), .kernel = "/nonexistent" };
	struct bake_plan plan = { 0 };
	struct err err = { 0 };

	fz_put(dir, "template.json", in->p, in->n);
	FZ_CHECK(bake_plan(&plan, &opts, &err) < 0 && err.code < 0 && err.msg[0] && !plan.template);
}

static void fuzz_current(const struct fz_in *in)
{
	struct template t;
	struct err err = { 0 };
	char target[256];
	size_t n = in->n < sizeof(target) - 1 ? in->n : sizeof(target) - 1;

	memcpy(target, in->p, n);
	target[n] = '\0';
	(void)unlinkat(dir, "templates/t/current", 0);
	if (symlinkat(target, dir, "templates/t/current") < 0)
		return;
	if (template_open(&t, "t", 0, &err) < 0) {
		FZ_CHECK(err.code < 0 && err.msg[0] && err.remedy[0]);
		return;
	}
	/* Whatever the link says, it stays in the template's own folder. */
	FZ_CHECK(!strchr(t.id, '/') && t.id[0] != '.' && strstr(t.dir, "/templates/t/"));
	template_close(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };

	if (dir < 0)
		set_up();
	switch (fz_u8(&in) % NR_KINDS) {
	case CHECKSUMS:
		fuzz_checksums(&in);
		break;
	case MANIFEST:
		fuzz_manifest(&in);
		break;
	default:
		fuzz_current(&in);
		break;
	}
	return 0;
}
