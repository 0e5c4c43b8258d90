/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/lines.h"

#include "core/own.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

void lines_init(struct lines *lines, int fd)
{
	lines->fd = fd;
	lines->len = lines->used = 0;
	lines->nr_sent = 0;
	for (unsigned i = 0; i < LINES_FDS; i++)
		lines->sent_fd[i] = -1;
}

void lines_drop_fds(struct lines *lines)
{
	for (unsigned i = 0; i < LINES_FDS; i++) {
		own_close_fd(&lines->sent_fd[i]);
		lines->sent_fd[i] = -1;
	}
	lines->nr_sent = 0;
}

static void take_fds(struct lines *lines, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (lines->nr_sent < LINES_FDS)
				lines->sent_fd[lines->nr_sent++] = fd;
			else
				own_close_fd(&fd);
		}
	}
}

int lines_read(struct lines *lines, int flags)
{
	char control[CMSG_SPACE((LINES_FDS + 2) * sizeof(int))];
	struct iovec iov;
	struct msghdr msg = { .msg_iov = &iov,
		              .msg_iovlen = 1,
		              .msg_control = control,
		              .msg_controllen = sizeof(control) };
	ssize_t n;

	lines->len -= lines->used;
	memmove(lines->buf, lines->buf + lines->used, lines->len);
	lines->used = 0;
	if (lines->len == LINES_MAX)
		return -E2BIG;
	iov = (struct iovec){ lines->buf + lines->len, LINES_MAX - lines->len };
	n = recvmsg(lines->fd, &msg, flags | MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return n == 0 ? -EPIPE : errno == EAGAIN || errno == EINTR ? 0 : -errno;
	take_fds(lines, &msg);
	lines->len += (size_t)n;
	return 1;
}

const char *lines_next(struct lines *lines, size_t *len)
{
	const char *start = lines->buf + lines->used;
	const char *end = memchr(start, '\n', lines->len - lines->used);

	if (!end)
		return NULL;
	*len = (size_t)(end - start);
	lines->used += *len + 1;
	return start;
}

int lines_write(int fd, const char *text)
{
	char end = '\n';
	struct iovec iov[2] = { { (void *)(uintptr_t)text, strlen(text) }, { &end, 1 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	if (sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)(iov[0].iov_len + 1))
		return -EPIPE;
	return 0;
}
