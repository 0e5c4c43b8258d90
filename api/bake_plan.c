/* SPDX-License-Identifier: Apache-2.0 */
/* What a template is baked from, and the hash that tells whether that has changed. */
#include "api/bake.h"
#include "api/proc.h"
#include "api/template.h"
#include "core/own.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MEMORY_MB_MIN 128
#define MEMORY_MB_MAX (1u << 20)
#define VCPUS_MAX     64

/* The folder of the template: a path as it is, a name in the source tree's or the installed ones. */
static int find_template(const char *what, char out[PATHS_MAX], struct err *err)
{
	char path[PATHS_MAX];
	int rc;

	if (strchr(what, '/') || !access(what, F_OK)) {
		if (realpath(what, out))
			return 0;
		return err_set(err, -errno, "%s: %s", what, strerror(errno));
	}
	if (!template_name_ok(what))
		return err_set(err, -EINVAL, "'%s' is neither a folder nor a template's name",
		               what);
	rc = paths_format(path, err, "guest/templates/%s", what);
	rc = rc ? rc : paths_source(path, out, err);
	if (rc)
		return err_remedy(err, "give a folder with a template.json (docs/guest.md), or %s",
		                  TEMPLATE_DEFAULT);
	return 0;
}

static int take_number(const json_t *template, const char *name, uint64_t otherwise, uint64_t min,
                       uint64_t max, uint64_t *n, struct err *err)
{
	const json_t *value = json_object_get(template, name);
	json_int_t v = json_integer_value(value);

	*n = value ? (uint64_t)v : otherwise;
	if (value && (!json_is_integer(value) || v < (json_int_t)min || v > (json_int_t)max))
		return err_set(err, -EINVAL,
		               "template.json: %s must be a whole number from %llu to %llu", name,
		               (unsigned long long)min, (unsigned long long)max);
	return 0;
}

static int read_template(struct bake_plan *plan, const char *dir, const struct bake_opts *opts,
                         struct err *err)
{
	char path[PATHS_MAX];
	json_error_t why;
	const char *name;
	uint64_t own_mb, vcpus;
	int rc = paths_format(path, err, "%s/template.json", dir);

	if (rc)
		return rc;
	plan->template = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
	if (!plan->template) {
		(void)err_set(err, -EINVAL, "%s:%d: %s", path, why.line, why.text);
		return err_remedy(err, "docs/guest.md describes the file");
	}
	name = json_string_value(json_object_get(plan->template, "name"));
	if (!name || !template_name_ok(name) || strchr(name, '@'))
		return err_set(err, -EINVAL, "%s: \"name\" is not a template's name", path);
	rc = take_number(plan->template, "memory_mb", 512, MEMORY_MB_MIN, MEMORY_MB_MAX, &own_mb,
	                 err);
	rc = rc ? rc : take_number(plan->template, "vcpus", 1, 1, VCPUS_MAX, &vcpus, err);
	if (rc)
		return rc;
	plan->vcpus = (unsigned)vcpus;
	plan->memory_mb = opts->memory_mb ? opts->memory_mb : own_mb;
	if (plan->memory_mb < MEMORY_MB_MIN || plan->memory_mb > MEMORY_MB_MAX)
		return err_set(err, -EINVAL, "--memory must be from %u to %u MB", MEMORY_MB_MIN,
		               MEMORY_MB_MAX);
	if (plan->memory_mb == own_mb)
		(void)snprintf(plan->name, sizeof(plan->name), "%s", name);
	else if ((size_t)snprintf(plan->name, sizeof(plan->name), "%s@%llu", name,
	                          (unsigned long long)plan->memory_mb) >= sizeof(plan->name))
		return err_set(err, -EINVAL, "%s: \"name\" is too long", path);
	return 0;
}

static int find_kernel(struct bake_plan *plan, const struct bake_opts *opts, struct err *err)
{
	int rc;

	if (!opts->kernel) {
		rc = paths_asset("kernel", "vmlinux", plan->kernel, err);
		return rc ? rc : paths_asset("kernel", "symbols", plan->symbols, err);
	}
	if (!realpath(opts->kernel, plan->kernel))
		return err_set(err, -errno, "--kernel %s: %s", opts->kernel, strerror(errno));
	if (!opts->symbols) {
		(void)err_set(err, -EINVAL, "--kernel needs --symbols");
		return err_remedy(err, "it lists what the monitor replaces in a clone; "
		                       "docs/guest-kernel.md says how it is made");
	}
	if (!realpath(opts->symbols, plan->symbols))
		return err_set(err, -errno, "--symbols %s: %s", opts->symbols, strerror(errno));
	return 0;
}

/* Where root images are built: the source tree's out/, or the user's folder for an installed one. */
static int image_dir(char out[PATHS_MAX], struct err *err)
{
	char home[PATHS_MAX];
	int rc;

	if (!paths_source("out", out, err) && !access(out, W_OK))
		return 0;
	rc = paths_home(home, err);
	rc = rc ? rc : paths_format(out, err, "%s/images", home);
	return rc ? rc : paths_make_dirs(out, err);
}

/* The root image of a template with its own packages or warm-up: made by the image's own script. */
static int build_rootfs(const char *template_dir, char out[PATHS_MAX], struct err *err)
{
	char script[PATHS_MAX], dir[PATHS_MAX];
	const char *argv[] = { script, dir, "--template", template_dir, NULL };
	int rc = paths_source("guest/rootfs/build.sh", script, err);

	rc = rc ? rc : image_dir(dir, err);
	if (rc)
		return rc;
	rc = proc_capture(argv, out, PATHS_MAX, err);
	if (rc < 0)
		return rc;
	out[strcspn(out, "\n")] = '\0';
	if (rc || !*out)
		return err_set(err, -EIO, "the root image could not be built (%s ended with %d)",
		               script, rc);
	return 0;
}

static int find_rootfs(struct bake_plan *plan, const char *template_dir,
                       const struct bake_opts *opts, struct err *err)
{
	char dir[PATHS_MAX], path[PATHS_MAX];
	const char *name = strrchr(template_dir, '/') + 1;
	bool own = strchr(opts->what, '/') || strcmp(name, TEMPLATE_DEFAULT) != 0;
	int rc;

	if (!opts->rootfs && !own) {
		rc = paths_asset("rootfs", "root.img", plan->root, err);
		return rc ? rc : paths_asset("rootfs", "scratch.img", plan->scratch, err);
	}
	rc = opts->rootfs ? paths_format(dir, err, "%s", opts->rootfs)
	                  : build_rootfs(template_dir, dir, err);
	rc = rc ? rc : paths_format(path, err, "%s/root.img", dir);
	if (!rc && !realpath(path, plan->root))
		rc = err_set(err, -errno, "%s: %s", path, strerror(errno));
	rc = rc ? rc : paths_format(path, err, "%s/scratch.img", dir);
	if (!rc && !realpath(path, plan->scratch))
		rc = err_set(err, -errno, "%s: %s", path, strerror(errno));
	return rc;
}

/* What the monitor says about itself and the processor: a snapshot is good for that pair only. */
static int ask_monitor(const char *option, char *out, size_t size, struct err *err)
{
	char vmm[PATHS_MAX];
	const char *argv[] = { vmm, option, NULL };
	int rc = paths_vmm(vmm, err);

	rc = rc ? rc : proc_capture(argv, out, size, err);
	if (rc > 0)
		rc = err_set(err, -EIO, "%s %s ended with %d", vmm, option, rc);
	return rc;
}

/* What a bake does with its inputs: with another number, templates are baked again. 2: exact working sets. */
#define RECIPE "recipe 4"

static int hash_inputs(struct bake_plan *plan, struct err *err)
{
	const char *files[] = { plan->kernel, plan->symbols, plan->root, plan->scratch };
	char version[256], fingerprint[16384], hex[33];
	own_free char *template = json_dumps(plan->template, JSON_SORT_KEYS | JSON_COMPACT);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t sum;
	int rc = template && state ? 0 : err_set(err, -ENOMEM, "no memory");

	rc = rc ? rc : ask_monitor("--version", version, sizeof(version), err);
	rc = rc ? rc : ask_monitor("--fingerprint", fingerprint, sizeof(fingerprint), err);
	if (!rc) {
		XXH3_128bits_reset(state);
		XXH3_128bits_update(state, RECIPE, strlen(RECIPE));
		XXH3_128bits_update(state, version, strlen(version));
		XXH3_128bits_update(state, fingerprint, strlen(fingerprint));
		XXH3_128bits_update(state, template, strlen(template));
		XXH3_128bits_update(state, &plan->memory_mb, sizeof(plan->memory_mb));
	}
	for (size_t i = 0; !rc && i < ARRAY_LEN(files); i++) {
		rc = template_hash_file(files[i], hex, err);
		if (rc)
			break;
		/* The path too: a snapshot names the root image that it needs. */
		XXH3_128bits_update(state, files[i], strlen(files[i]));
		XXH3_128bits_update(state, hex, 32);
	}
	if (!rc)
		XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
	for (size_t i = 0; !rc && i < sizeof(sum.digest); i++)
		(void)snprintf(plan->inputs + 2 * i, 3, "%02x", sum.digest[i]);
	XXH3_freeState(state);
	return rc;
}

int bake_plan(struct bake_plan *plan, const struct bake_opts *opts, struct err *err)
{
	char dir[PATHS_MAX];
	int rc;

	*plan = (struct bake_plan){ 0 };
	rc = find_template(opts->what, dir, err);
	rc = rc ? rc : read_template(plan, dir, opts, err);
	rc = rc ? rc : find_kernel(plan, opts, err);
	rc = rc ? rc : find_rootfs(plan, dir, opts, err);
	rc = rc ? rc : hash_inputs(plan, err);
	if (rc)
		bake_plan_free(plan);
	return rc;
}

void bake_plan_free(struct bake_plan *plan)
{
	json_decref(plan->template);
	plan->template = NULL;
}
