/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/first.h"

#include "core/own.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define FRAME_HEAD 5u /* u32 length, u8 type: docs/protocol.md section 2 */

void first_open(struct first *first, int fd)
{
	uint32_t payload;
	ssize_t n;

	first->fd = fd;
	first->len = first->frame = 0;
	first->broken = false;
	if (fd < 0)
		return;
	n = recv(fd, first->buf, sizeof(first->buf), MSG_DONTWAIT);
	first->len = n > 0 ? (size_t)n : 0;
	if (first->len < FRAME_HEAD)
		return;
	memcpy(&payload, first->buf, sizeof(payload));
	if (payload <= FIRST_MAX - FRAME_HEAD && payload + FRAME_HEAD <= first->len)
		first->frame = payload + FRAME_HEAD;
}

static void write_segment(struct first *first, const uint8_t *p, size_t n, bool (*stop)(void *ctx),
                          void *ctx)
{
	while (n && !first->broken) {
		ssize_t k = send(first->fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		struct pollfd writable = { .fd = first->fd, .events = POLLOUT };

		if (k >= 0) {
			p += k;
			n -= (size_t)k;
		} else if (errno == EAGAIN) {
			if (poll(&writable, 1, -1) < 0 && stop(ctx))
				return;
		} else if (errno != EINTR) {
			first->broken = true;
		}
	}
}

void first_output(struct first *first, const struct iovec *iov, unsigned nr,
                  bool (*stop)(void *ctx), void *ctx)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = nr };
	ssize_t n;

	if (first->fd < 0 || first->broken || nr == 0)
		return;
	/* Nearly always all of it in one call. */
	n = sendmsg(first->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0) {
		first->broken = errno != EAGAIN && errno != EINTR;
		n = 0;
	}
	for (unsigned i = 0; i < nr; i++) {
		size_t sent = (size_t)n < iov[i].iov_len ? (size_t)n : iov[i].iov_len;

		n -= (ssize_t)sent;
		write_segment(first, (const uint8_t *)iov[i].iov_base + sent, iov[i].iov_len - sent,
		              stop, ctx);
	}
}

void first_close(struct first *first)
{
	own_close_fd(&first->fd);
	first->fd = -1;
}
