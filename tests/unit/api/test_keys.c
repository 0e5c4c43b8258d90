/* SPDX-License-Identifier: Apache-2.0 */
#include "api/keys.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/thawbox-keys.XXXXXX", path[64];

static void set_up(void)
{
	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/keys.json", dir);
}

static void tear_down(void)
{
	unlink(path);
	rmdir(dir);
}

TestSuite(keys, .init = set_up, .fini = tear_down);

Test(keys, kept_as_hashes)
{
	struct key like = { .name = "alice", .max_sandboxes = 3, .rate = 2.5 };
	struct keys keys = { 0 }, again;
	char text[KEY_MAX], file[4096] = "";
	struct err err;
	struct stat st;
	FILE *f;

	cr_assert_eq(keys_add(&keys, &like, text, &err), 0);
	cr_expect_eq(strlen(text), 44);
	cr_expect_eq(strncmp(text, "e2b_", 4), 0);
	cr_expect_eq(strspn(text + 4, "0123456789abcdef"), 40);
	cr_assert_eq(keys_save(&keys, path, &err), 0);
	cr_assert_eq(stat(path, &st), 0);
	cr_expect_eq(st.st_mode & 0777, 0600);
	f = fopen(path, "r");
	cr_assert(f && fread(file, 1, sizeof(file) - 1, f) > 0);
	fclose(f);
	cr_expect_null(strstr(file, text + 4), "the key itself is in the file");

	cr_assert_eq(keys_load(&again, path, &err), 0);
	cr_assert_eq(again.nr, 1);
	cr_expect_eq(keys_find(&again, text), again.at[0]);
	cr_expect_str_eq(again.at[0]->name, "alice");
	cr_expect_eq(again.at[0]->max_sandboxes, 3);
	cr_expect_eq(again.at[0]->rate, 2.5);
	text[10] ^= 1;
	cr_expect_null(keys_find(&again, text));
	cr_expect_null(keys_find(&again, ""));
	keys_free(&keys);
	keys_free(&again);
}

Test(keys, names)
{
	struct key like = { .name = "a" }, bad = { .name = "a b" };
	struct keys keys = { 0 };
	char first[KEY_MAX], second[KEY_MAX];
	struct err err;

	cr_assert_eq(keys_add(&keys, &like, first, &err), 0);
	cr_expect_eq(keys_add(&keys, &like, second, &err), -EEXIST);
	cr_expect_eq(keys_add(&keys, &bad, second, &err), -EINVAL);
	cr_expect_eq(keys_remove(&keys, "b", &err), -ENOENT);
	cr_expect_eq(keys_remove(&keys, "a", &err), 0);
	cr_expect_null(keys_find(&keys, first));
	cr_expect(!keys_name_ok("") && !keys_name_ok("a/b") && keys_name_ok("a.b-C_9"));
	keys_free(&keys);
}

Test(keys, damaged_files)
{
	static const char *const texts[] = {
		"",
		"[]",
		"{\"keys\":[{\"name\":\"a\"}]}",
		"{\"keys\":[{\"name\":\"a\",\"hash\":\"zz\"}]}",
		"{\"keys\":[7]}",
	};
	struct keys keys;
	struct err err;

	cr_expect_eq(keys_load(&keys, path, &err), 0, "a missing file has no keys");
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		FILE *f = fopen(path, "w");

		fputs(texts[i], f);
		fclose(f);
		cr_expect_lt(keys_load(&keys, path, &err), 0, "%s", texts[i]);
		cr_expect_eq(keys.nr, 0);
	}
}

Test(keys, rate)
{
	struct key key = { .rate = 2, .allowance = 1 };
	struct key free_one = { 0 };
	uint64_t second = 1000000000;
	unsigned wait_s;

	cr_expect(keys_take(&key, second, &wait_s));
	cr_expect(!keys_take(&key, second, &wait_s));
	cr_expect_eq(wait_s, 1);
	cr_expect(keys_take(&key, 2 * second, &wait_s), "two more after a second");
	cr_expect(keys_take(&key, 2 * second, &wait_s));
	cr_expect(!keys_take(&key, 2 * second, &wait_s));
	for (int i = 0; i < 6; i++) /* a long rest gives a burst, and no more */
		cr_expect(keys_take(&key, 1000 * second, &wait_s));
	cr_expect(!keys_take(&key, 1000 * second, &wait_s));
	for (int i = 0; i < 100; i++)
		cr_expect(keys_take(&free_one, second, &wait_s));
}
