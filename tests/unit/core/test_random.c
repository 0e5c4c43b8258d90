/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel gives is played here: a short read or an interruption must never leave a byte as it was. */
#include "core/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Answers of getrandom(), one a call: bytes, or -errno. 0 ends the script: all that is asked for. NULL: it is not us who ask. */
static const ssize_t *script;
static unsigned nr_calls;

ssize_t getrandom(void *out, size_t n, unsigned flags)
{
	ssize_t now;

	if (!script)
		return syscall(SYS_getrandom, out, n, flags);
	now = *script ? *script++ : (ssize_t)n;
	cr_assert_eq(flags, 0u);
	nr_calls++;
	if (now < 0) {
		errno = (int)-now;
		return -1;
	}
	if (now == 1000) /* nothing, and no error */
		return 0;
	cr_assert_leq((size_t)now, n);
	memset(out, 'r', (size_t)now);
	return now;
}

static int fill(const ssize_t *answers, char bytes[144], struct err *err)
{
	int answer;

	script = answers;
	nr_calls = 0;
	memset(bytes, 'x', 144);
	answer = random_fill(bytes, 144, err);
	script = NULL;
	return answer;
}

static bool all(const char *bytes, char value)
{
	for (unsigned i = 0; i < 144; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

Test(random, whole_in_pieces_or_interrupted)
{
	static const ssize_t whole[] = { 0 }, pieces[] = { 1, 100, 0 },
			     interrupted[] = { -EINTR, 7, -EINTR, -EINTR, 0 };
	struct err err = { 0 };
	char bytes[144];

	cr_assert_eq(fill(whole, bytes, &err), 0);
	cr_assert(all(bytes, 'r') && nr_calls == 1);
	cr_assert_eq(fill(pieces, bytes, &err), 0);
	cr_assert(all(bytes, 'r') && nr_calls == 3);
	cr_assert_eq(fill(interrupted, bytes, &err), 0);
	cr_assert(all(bytes, 'r') && nr_calls == 5);
}

Test(random, a_failure_is_one_and_leaves_zeros)
{
	static const ssize_t at_once[] = { -ENOSYS }, later[] = { 100, -EIO },
			     nothing[] = { 64, 1000 };
	struct err err = { 0 };
	char bytes[144];

	cr_assert_eq(fill(at_once, bytes, &err), -ENOSYS);
	cr_assert(all(bytes, 0));
	cr_assert_not_null(strstr(err.msg, "getrandom"));
	cr_assert_eq(fill(later, bytes, &err), -EIO);
	cr_assert(all(bytes, 0));
	errno = 0; /* as a call that fails without a reason leaves it */
	cr_assert_eq(fill(nothing, bytes, &err), -EIO);
	cr_assert(all(bytes, 0));
}
