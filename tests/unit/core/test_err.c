/* SPDX-License-Identifier: Apache-2.0 */
#include "core/err.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

Test(err, causes_are_chained)
{
	struct err e = { 0 };

	cr_assert_eq(err_set(&e, -EBADMSG, "length %d, want %d", 12, 40), -EBADMSG);
	cr_assert_eq(err_remedy(&e, "bake it again"), -EBADMSG);
	cr_assert_eq(err_wrap(&e, "section %s", "UART"), -EBADMSG);
	cr_assert_eq(err_wrap(&e, "state"), -EBADMSG);
	cr_assert_eq(err_remedy(&e, "another remedy"), -EBADMSG);
	cr_assert_str_eq(e.msg, "state: section UART: length 12, want 40");
	cr_assert_str_eq(e.remedy, "bake it again", "the deepest cause knows best");
	cr_assert_eq(e.code, -EBADMSG);
	err_set(&e, -ENOENT, "another");
	cr_assert_str_eq(e.remedy, "", "a new error brings its own");
}

Test(err, without_a_place)
{
	cr_assert_eq(err_set(NULL, -ENOMEM, "x"), -ENOMEM);
	cr_assert_eq(err_wrap(NULL, "x"), -1);
	cr_assert_eq(err_remedy(NULL, "x"), -1);
}

Test(err, long_texts_are_cut)
{
	char text[1000];
	struct err e = { 0 };

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	err_set(&e, -EIO, "%s", text);
	cr_assert_eq(strlen(e.msg), sizeof(e.msg) - 1);
	err_wrap(&e, "outer");
	cr_assert_eq(strlen(e.msg), sizeof(e.msg) - 1);
	cr_assert_eq(strncmp(e.msg, "outer: xxx", 10), 0);
	err_wrap(&e, "%s", text);
	cr_assert_eq(strlen(e.msg), sizeof(e.msg) - 1);
	cr_assert_eq(e.msg[0], 'x');
	err_remedy(&e, "%s", text);
	cr_assert_eq(strlen(e.remedy), sizeof(e.remedy) - 1);
	err_set(&e, -EIO, "%.*s", (int)sizeof(e.msg) - 3, text);
	err_wrap(&e, "a");
	cr_assert_eq(strlen(e.msg), sizeof(e.msg) - 1);
}

Test(err, hint_by_the_code)
{
	struct err e = { 0 };

	err_hint(NULL);
	err_set(&e, -ENOSPC, "memory");
	err_hint(&e);
	cr_assert_not_null(strstr(e.remedy, "disk space"));
	err_set(&e, -ENOSPC, "memory");
	err_remedy(&e, "mine");
	err_hint(&e);
	cr_assert_str_eq(e.remedy, "mine");
	err_set(&e, -EBADMSG, "state");
	err_hint(&e);
	cr_assert_str_eq(e.remedy, "", "nothing general to say");
}
