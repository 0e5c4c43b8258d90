/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control lines: the input is what comes over the control socket, in pieces, some with descriptors. Each line is
 * answered by a line of JSON, in order, and nothing that came is left open. It runs where there is neither a kernel
 * nor a snapshot, so that no machine comes to life.
 */
#include "vmm/ctl.h"

#include "tests/fuzz/fuzz.h"
#include "vmm/lines.h"

#include <jansson.h>
#include <sys/socket.h>

#define MAX_INPUT 32768u

static void send_piece(int fd, struct fz_in piece, unsigned nr_fds)
{
	union {
		char buf[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr head;
	} ctl = { 0 };
	struct iovec iov = { (void *)(uintptr_t)piece.p, piece.n };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	const int fds[4] = { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, STDIN_FILENO };

	if (nr_fds) {
		msg.msg_control = ctl.buf;
		msg.msg_controllen = CMSG_SPACE(nr_fds * sizeof(int));
		ctl.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
			                     .cmsg_type = SCM_RIGHTS,
			                     .cmsg_len = CMSG_LEN(nr_fds * sizeof(int)) };
		memcpy(CMSG_DATA(&ctl.head), fds, nr_fds * sizeof(int));
	}
	FZ_CHECK(sendmsg(fd, &msg, MSG_DONTWAIT) == (ssize_t)piece.n);
}

/* Answers are objects that say whether it went well; an error has words. Returns how many. */
static size_t check_answers(int fd)
{
	static char text[1 << 20];
	size_t len = 0, nr = 0;
	ssize_t got;

	while ((got = recv(fd, text + len, sizeof(text) - len, MSG_DONTWAIT)) > 0)
		len += (size_t)got;
	for (char *at = text, *end; (end = memchr(at, '\n', len - (size_t)(at - text)));
	     at = end + 1, nr++) {
		json_t *answer = json_loadb(at, (size_t)(end - at), 0, NULL);
		const json_t *ok = json_object_get(answer, "ok");

		FZ_CHECK(json_is_boolean(ok));
		FZ_CHECK(json_is_true(ok) || *json_string_value(json_object_get(answer, "error")));
		json_decref(answer);
	}
	return nr;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n < MAX_INPUT ? n : MAX_INPUT };
	int pair[2], size = 1 << 20, lowest = dup(STDERR_FILENO);
	size_t lines = 0;
	sigset_t mask;

	(void)close(lowest);
	fz_quiet();
	if (!fz_dir_path[0]) /* relative paths of the input lead nowhere */
		FZ_CHECK(chdir(fz_dir()) == 0);
	FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	for (int i = 0; i < 2; i++)
		(void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	for (int i = 0; in.n > 2 && i < 64; i++) {
		unsigned fds = fz_u8(&in) % 5;
		struct fz_in piece = fz_part(&in, fz_u16(&in));

		for (size_t k = 0; k < piece.n; k++)
			lines += piece.p[k] == '\n';
		if (piece.n)
			send_piece(pair[1], piece, fds);
	}
	(void)shutdown(pair[1], SHUT_WR);
	(void)sigprocmask(SIG_SETMASK, NULL, &mask);
	(void)!ctl_serve(pair[0], NULL, 0);
	(void)sigprocmask(SIG_SETMASK, &mask, NULL);
	FZ_CHECK(check_answers(pair[1]) <= lines);
	(void)close(pair[1]);
	FZ_CHECK(dup(STDERR_FILENO) == lowest);
	(void)close(lowest);
	return 0;
}
