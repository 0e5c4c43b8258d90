/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static int fd[2];

static void setup(void)
{
	cr_assert_eq(pipe2(fd, O_NONBLOCK), 0);
	log_open(fd[1], LOG_LVL_INFO, "thawbox-vmm");
}

TestSuite(log, .init = setup, .timeout = 20);

/* All that has been written. */
static const char *got(void)
{
	static char text[1 << 16];
	ssize_t n = read(fd[0], text, sizeof(text) - 1);

	text[n < 0 ? 0 : n] = '\0';
	return text;
}

Test(log, lines_and_levels)
{
	log_err("disk %d: %s", 0, "gone");
	cr_assert_str_eq(got(), "thawbox-vmm: error: disk 0: gone\n");
	log_warn("w");
	log_info("i");
	log_dbg("d");
	cr_assert_str_eq(got(), "thawbox-vmm: warning: w\nthawbox-vmm: info: i\n");
	cr_assert(log_enabled(LOG_LVL_INFO));
	cr_assert(!log_enabled(LOG_LVL_DBG));
}

Test(log, one_line_whatever_it_holds)
{
	log_err("a\nb\x1b[31m\x7f\r");
	cr_assert_str_eq(got(), "thawbox-vmm: error: a?b?[31m??\n");
}

Test(log, long_lines_are_cut)
{
	char text[2000];
	const char *line;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_err("%s", text);
	line = got();
	cr_assert_leq(strlen(line), 512);
	cr_assert_gt(strlen(line), 500);
	cr_assert_eq(line[strlen(line) - 1], '\n');
	cr_assert_eq(line[strlen(line) - 2], 'x');
}

Test(log, errno_is_kept)
{
	errno = ENOTTY;
	log_err("x");
	cr_assert_eq(errno, ENOTTY);
	log_open(-1, LOG_LVL_INFO, "x");
	log_err("to nowhere");
	cr_assert_eq(errno, ENOTTY);
}

static void guest_provokes(void)
{
	log_guest("the guest did it");
}

static int count(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

/* A second may begin in between: at most twice the limit. */
Test(log, a_guest_cannot_flood)
{
	int n;

	for (int i = 0; i < 1000; i++)
		guest_provokes();
	n = count(got());
	cr_assert_geq(n, 10);
	cr_assert_leq(n, 20);
	usleep(1100000);
	guest_provokes();
	cr_assert_eq(count(got()), 1, "and later lines come again");
}

static struct log_limit limit;
static _Atomic int allowed;

static void *hammer(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20000; i++)
		allowed += log_limit_ok(&limit);
	return NULL;
}

Test(log, the_limit_holds_for_threads)
{
	pthread_t thread[4];

	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, hammer, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	cr_assert_geq(allowed, 10);
	cr_assert_leq(allowed, 60, "a few seconds at most");
}
