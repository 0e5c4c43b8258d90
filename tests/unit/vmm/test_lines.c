/* SPDX-License-Identifier: Apache-2.0 */
/* Lines over a real socket: cut anywhere, several at once, with descriptors. */
#include "vmm/lines.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct lines lines;
static int peer;

static void setup(void)
{
	int sv[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	peer = sv[1];
	lines_init(&lines, sv[0]);
}

static void teardown(void)
{
	lines_drop_fds(&lines);
	close(lines.fd);
	close(peer);
}

TestSuite(lines, .init = setup, .fini = teardown, .timeout = 30);

static void tell(const char *text)
{
	cr_assert_eq(write(peer, text, strlen(text)), (ssize_t)strlen(text));
	cr_assert_eq(lines_read(&lines, 0), 1);
}

static void expect(const char *want)
{
	size_t len = 0;
	const char *got = lines_next(&lines, &len);

	cr_assert_not_null(got);
	cr_assert(len == strlen(want) && memcmp(got, want, len) == 0, "%.*s", (int)len, got);
}

Test(lines, come_out_whole_wherever_they_are_cut)
{
	size_t len;

	tell("on");
	cr_assert_null(lines_next(&lines, &len));
	tell("e\ntwo\n\nthr");
	expect("one");
	expect("two");
	expect("");
	cr_assert_null(lines_next(&lines, &len));
	tell("ee\n");
	expect("three");
}

Test(lines, end_and_nothing_and_too_long)
{
	static char big[LINES_MAX];
	int ret = 1;

	cr_assert_eq(lines_read(&lines, MSG_DONTWAIT), 0);
	memset(big, 'x', sizeof(big));
	cr_assert_eq(fcntl(peer, F_SETFL, O_NONBLOCK), 0);
	while (ret == 1) { /* a line that never ends */
		(void)!write(peer, big, sizeof(big));
		ret = lines_read(&lines, 0);
	}
	cr_assert_eq(ret, -E2BIG);
	lines_init(&lines, lines.fd);
	close(peer);
	while ((ret = lines_read(&lines, 0)) == 1)
		lines.len = 0;
	cr_assert_eq(ret, -EPIPE);
	peer = -1;
}

static void send_fds(unsigned nr, int fd)
{
	char control[CMSG_SPACE((LINES_FDS + 2) * sizeof(int))] = { 0 };
	struct iovec iov = { (char[]){ "x\n" }, 2 };
	struct msghdr msg = { .msg_iov = &iov,
		              .msg_iovlen = 1,
		              .msg_control = control,
		              .msg_controllen = CMSG_SPACE(nr * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
		               .cmsg_type = SCM_RIGHTS,
		               .cmsg_len = CMSG_LEN(nr * sizeof(int)) };
	for (unsigned i = 0; i < nr; i++)
		memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
	cr_assert_eq(sendmsg(peer, &msg, 0), 2);
	cr_assert_eq(lines_read(&lines, 0), 1);
}

Test(lines, descriptors_come_along_and_superfluous_ones_are_closed)
{
	int first = dup(peer); /* the lowest free number: tells whether any leaks */

	close(first);
	send_fds(LINES_FDS + 2, STDIN_FILENO);
	cr_assert_eq(lines.nr_sent, LINES_FDS);
	cr_assert_neq(fcntl(lines.sent_fd[0], F_GETFD) & FD_CLOEXEC, 0);
	cr_assert_neq(fcntl(lines.sent_fd[1], F_GETFD), -1);
	lines_drop_fds(&lines);
	cr_assert_eq(lines.sent_fd[0], -1);
	cr_assert_eq(dup(peer), first);
	close(first);
}

Test(lines, write_gives_up_on_a_peer_that_does_not_read)
{
	char text[1000];
	int ret = 0;

	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	for (int i = 0; i < 100000 && ret == 0; i++)
		ret = lines_write(lines.fd, text);
	cr_assert_eq(ret, -EPIPE);
}
