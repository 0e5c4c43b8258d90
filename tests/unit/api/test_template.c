/* SPDX-License-Identifier: Apache-2.0 */
#include "api/template.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char home[] = "/tmp/test_template.XXXXXX";
static struct err err;

static void setup(void)
{
	cr_assert_not_null(mkdtemp(home));
	setenv("THAWBOX_HOME", home, 1);
}

static void teardown(void)
{
	cr_assert_eq(paths_remove_tree(home), 0);
}

TestSuite(template, .init = setup, .fini = teardown, .timeout = 20);

static void put(const char *dir, const char *name, const char *text)
{
	char path[PATHS_MAX];
	FILE *f;

	cr_assert_eq(paths_format(path, &err, "%s/%s", dir, name), 0);
	f = fopen(path, "w");
	cr_assert_not_null(f);
	fputs(text, f);
	fclose(f);
}

/* A snapshot `id` of template `name`, switched in. */
static void bake(const char *name, const char *id, int memory_mb, char path[PATHS_MAX])
{
	char dir[PATHS_MAX], info[64];

	cr_assert_eq(template_path(name, path, &err), 0);
	cr_assert_eq(paths_format(dir, &err, "%s/%s", path, id), 0);
	cr_assert_eq(paths_make_dirs(dir, &err), 0);
	snprintf(info, sizeof(info), "{\"memory_mb\": %d}", memory_mb);
	put(dir, "template.json", info);
	put(dir, "state", "state");
	put(dir, "memory", "memory");
	cr_assert_eq(template_write_checksums(dir, &err), 0);
	cr_assert_eq(template_publish(path, id, &err), 0, "%s", err.msg);
}

Test(template, names)
{
	cr_assert(template_name_ok("code-interpreter"));
	cr_assert(template_name_ok("x@1024"));
	cr_assert_not(template_name_ok(""));
	cr_assert_not(template_name_ok(".."));
	cr_assert_not(template_name_ok("a/b"));
	cr_assert_not(template_name_ok("-x"));
	cr_assert_not(template_name_ok(
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

Test(template, missing_one_says_how_to_bake_it)
{
	struct template t;

	cr_assert_eq(template_open(&t, "none", 0, &err), -ENOENT);
	cr_assert_str_eq(err.remedy, "bake it once: thawbox template build none");
	cr_assert_eq(template_open(&t, "../x", 0, &err), -EINVAL);
}

Test(template, new_one_is_switched_in_and_the_old_one_goes_when_unused)
{
	struct template old, now;
	char path[PATHS_MAX];

	bake("t", "1", 512, path);
	cr_assert_eq(template_open(&old, "t", 0, &err), 0, "%s", err.msg);
	cr_assert_str_eq(old.id, "1");
	bake("t", "2", 512, path);
	template_sweep(path);
	cr_assert_eq(access(old.dir, F_OK), 0, "it is in use");
	cr_assert_eq(template_open(&now, "t", 0, &err), 0);
	cr_assert_str_eq(now.id, "2");
	template_close(&old);
	template_sweep(path);
	cr_assert_neq(access(old.dir, F_OK), 0);
	cr_assert_eq(access(now.dir, F_OK), 0);
	template_close(&now);
}

Test(template, lock_that_somebody_has_left)
{
	struct template t, other;
	char path[PATHS_MAX], id[TEMPLATE_ID_MAX];

	cr_assert_eq(template_current("t", id), -ENOENT);
	bake("t", "1", 512, path);
	cr_assert_eq(template_open(&t, "t", 0, &err), 0);
	bake("t", "2", 512, path);
	cr_assert_eq(template_current("t", id), 0);
	cr_assert_str_eq(id, "2");
	cr_assert_eq(template_adopt(&other, t.name, t.id, t.lock_fd, &err), 0, "%s", err.msg);
	cr_assert(!strcmp(other.dir, t.dir) && !strcmp(other.home, t.home));
	template_sweep(path);
	cr_assert_eq(access(t.dir, F_OK), 0);
	template_close(&other);
	template_sweep(path);
	cr_assert_neq(access(t.dir, F_OK), 0);
	for (const char *const *bad = (const char *const[]){ "", "..", ".x", "a/b", NULL }; *bad;
	     bad++)
		cr_assert_eq(template_adopt(&other, "t", *bad, -1, &err), -EINVAL);
}

Test(template, dead_build_is_swept_and_a_living_one_is_not)
{
	char path[PATHS_MAX], dead[PATHS_MAX], live[PATHS_MAX];
	int fd;

	bake("t", "1", 512, path);
	cr_assert_eq(paths_format(dead, &err, "%s/.build-dead", path), 0);
	cr_assert_eq(paths_format(live, &err, "%s/.build-live", path), 0);
	cr_assert_eq(paths_make_dirs(dead, &err) | paths_make_dirs(live, &err), 0);
	fd = open(live, O_RDONLY | O_DIRECTORY);
	cr_assert_eq(flock(fd, LOCK_SH), 0);
	template_sweep(path);
	cr_assert_neq(access(dead, F_OK), 0);
	cr_assert_eq(access(live, F_OK), 0);
	close(fd);
}

Test(template, variant_by_memory)
{
	struct template t;
	char path[PATHS_MAX];

	bake("t", "1", 512, path);
	cr_assert_eq(template_open(&t, "t", 512, &err), 0);
	cr_assert_str_eq(t.name, "t");
	template_close(&t);
	cr_assert_eq(template_open(&t, "t", 1024, &err), -ENOENT);
	cr_assert_str_eq(err.remedy, "bake one: thawbox template build t --memory 1024");
	bake("t@1024", "1", 1024, path);
	cr_assert_eq(template_open(&t, "t", 1024, &err), 0);
	cr_assert_str_eq(t.name, "t@1024");
	template_close(&t);
}

Test(template, names_are_listed_sorted_and_leftovers_are_not)
{
	char path[PATHS_MAX], text[64];
	json_t *names = NULL;

	bake("b", "1", 512, path);
	bake("a", "1", 512, path);
	cr_assert_eq(template_path("half", path, &err), 0);
	cr_assert_eq(paths_make_dirs(path, &err), 0);
	cr_assert_eq(template_names(&names, &err), 0);
	cr_assert_eq(json_array_size(names), 2);
	snprintf(text, sizeof(text), "%s %s", json_string_value(json_array_get(names, 0)),
	         json_string_value(json_array_get(names, 1)));
	cr_assert_str_eq(text, "a b");
	json_decref(names);
}

Test(template, damage_is_found_and_named)
{
	struct template t;
	char path[PATHS_MAX];
	unsigned nr;

	bake("t", "1", 512, path);
	cr_assert_eq(template_open(&t, "t", 0, &err), 0);
	cr_assert_eq(template_verify(t.dir, &nr, &err), 0, "%s", err.msg);
	cr_assert_eq(nr, 3);
	put(t.dir, "memory", "memorY");
	cr_assert_eq(template_verify(t.dir, &nr, &err), -EBADMSG);
	cr_assert_not_null(strstr(err.msg, "/memory is damaged"), "%s", err.msg);
	put(t.dir, "memory", "memor");
	cr_assert_eq(template_verify(t.dir, &nr, &err), -EBADMSG);
	put(t.dir, "checksums", "../../etc/passwd\n");
	cr_assert_eq(template_verify(t.dir, &nr, &err), -EBADMSG);
	put(t.dir, "checksums", "");
	cr_assert_eq(template_verify(t.dir, &nr, &err), -EBADMSG);
	template_close(&t);
}

Test(template, remove_is_refused_while_in_use)
{
	struct template t;
	char path[PATHS_MAX];

	bake("t", "1", 512, path);
	cr_assert_eq(template_open(&t, "t", 0, &err), 0);
	cr_assert_eq(template_remove("t", &err), -EBUSY);
	cr_assert_eq(access(t.dir, F_OK), 0);
	template_close(&t);
	cr_assert_eq(template_remove("t", &err), 0, "%s", err.msg);
	cr_assert_neq(access(path, F_OK), 0);
	cr_assert_eq(template_remove("t", &err), -ENOENT);
}

Test(template, age_is_that_of_the_bake)
{
	const time_t now = 1000000000;
	json_t *info = json_pack("{s:I}", "built", (json_int_t)(now - 3600));

	cr_assert_eq(template_age_s(info, now), 3600);
	cr_assert(template_is_old(info, now, 3600));
	cr_assert_not(template_is_old(info, now, 3601));
	cr_assert_eq(template_age_s(info, now - 3600), 0);
	json_decref(info);
}

/* A clock that was wrong at the bake, or is now, must not keep a template for ever. */
Test(template, age_that_is_not_known_is_old)
{
	const char *const infos[] = { "{}", "{\"built\": \"yesterday\"}", "{\"built\": 0}",
		                      "{\"built\": -5}", "{\"built\": 1000000001}" };

	cr_assert_eq(template_age_s(NULL, 1000000000), -1);
	cr_assert(template_is_old(NULL, 1000000000, UINT64_MAX));
	for (unsigned i = 0; i < ARRAY_LEN(infos); i++) {
		json_t *info = json_loads(infos[i], 0, NULL);

		cr_assert_eq(template_age_s(info, 1000000000), -1, "%s", infos[i]);
		cr_assert(template_is_old(info, 1000000000, UINT64_MAX), "%s", infos[i]);
		json_decref(info);
	}
}

Test(template, hash_does_not_depend_on_holes)
{
	char sparse[PATHS_MAX], full[PATHS_MAX], a[33], b[33];
	char *zeros = calloc(1, 3 << 20);
	int fd;

	cr_assert_eq(paths_format(sparse, &err, "%s/sparse", home), 0);
	cr_assert_eq(paths_format(full, &err, "%s/full", home), 0);
	fd = open(sparse, O_RDWR | O_CREAT, 0600);
	cr_assert_eq(ftruncate(fd, 3 << 20), 0);
	cr_assert_eq(pwrite(fd, "x", 1, 2 << 20), 1);
	close(fd);
	fd = open(full, O_RDWR | O_CREAT, 0600);
	zeros[2 << 20] = 'x';
	cr_assert_eq(write(fd, zeros, 3 << 20), 3 << 20);
	close(fd);
	cr_assert_eq(template_hash_file(sparse, a, &err), 0);
	cr_assert_eq(template_hash_file(full, b, &err), 0);
	cr_assert_str_eq(a, b);
	put(home, "abc", "abc");
	cr_assert_eq(paths_format(full, &err, "%s/abc", home), 0);
	cr_assert_eq(template_hash_file(full, a, &err), 0);
	cr_assert_str_eq(a, "06b05ab6733a618578af5f94892f3950", "XXH3-128 of \"abc\"");
	free(zeros);
}
