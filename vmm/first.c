/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/first.h"

#include "core/own.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define FRAME_HEAD 5u /* u32 length, u8 type: docs/protocol.md section 2 */

/* docs/protocol.md section 5: the frame that saves the interpreter from parsing JSON. */
#define TYPE_REQUEST 0x01
#define TYPE_CELL    0x04
#define MAX_OUTPUT   (1ll << 40)
struct cell_head {
	uint32_t len;
	uint8_t type, silent;
	uint64_t max_output;
} __attribute__((packed));

/* A request for a cell and nothing that only the interpreter can judge; then *max_output is in its bounds. */
static bool is_cell(json_t *request, json_int_t *max_output)
{
	json_t *code = json_object_get(request, "code"),
	       *silent = json_object_get(request, "silent"),
	       *max = json_object_get(request, "max_output");
	const char *op = json_string_value(json_object_get(request, "op"));
	size_t known = 2u + (silent ? 1 : 0) + (max ? 1 : 0);

	*max_output = json_integer_value(max);
	return op && strcmp(op, "run") == 0 && json_is_string(code) &&
	       (!silent || json_is_boolean(silent)) && (!max || json_is_integer(max)) &&
	       *max_output >= 0 && *max_output < MAX_OUTPUT && json_object_size(request) == known;
}

static void make_cell(struct first *first)
{
	const size_t payload = first->frame - FRAME_HEAD;
	json_t *request = json_loadb((const char *)first->buf + FRAME_HEAD, payload, 0, NULL),
	       *code;
	struct cell_head head = { .type = TYPE_CELL };
	json_int_t max_output = 0;
	size_t n;

	code = json_object_get(request, "code");
	n = json_string_length(code);
	if (is_cell(request, &max_output) && (first->cell = malloc(sizeof(head) + n))) {
		head.len = (uint32_t)(sizeof(head) - FRAME_HEAD + n);
		head.silent = json_is_true(json_object_get(request, "silent"));
		head.max_output = (uint64_t)max_output;
		memcpy(first->cell, &head, sizeof(head));
		memcpy(first->cell + sizeof(head), json_string_value(code), n);
		first->cell_len = sizeof(head) + n;
	}
	json_decref(request);
}

struct iovec first_request(const struct first *first)
{
	if (first->frame && first->cell)
		return (struct iovec){ first->cell, first->cell_len };
	return (struct iovec){ (uint8_t *)(uintptr_t)first->buf, first->frame };
}

struct iovec first_rest(const struct first *first)
{
	size_t given = first->given ? first->frame : 0;

	return (struct iovec){ (uint8_t *)(uintptr_t)first->buf + given, first->len - given };
}

void first_give(struct first *first)
{
	first->given = true;
}

/* Looks for a whole frame: as first_next(). */
static int find_frame(struct first *first)
{
	uint32_t payload;

	if (first->len < FRAME_HEAD)
		return 0;
	memcpy(&payload, first->buf, sizeof(payload));
	if (payload > FIRST_MAX - FRAME_HEAD)
		return -EMSGSIZE;
	if (payload + FRAME_HEAD > first->len)
		return 0;
	first->frame = payload + FRAME_HEAD;
	if (first->buf[FRAME_HEAD - 1] == TYPE_REQUEST)
		make_cell(first);
	return 1;
}

static void forget_frame(struct first *first)
{
	free(first->cell);
	first->cell = NULL;
	first->frame = 0;
	first->given = false;
}

int first_next(struct first *first)
{
	ssize_t n;
	int ret;

	if (first->frame && !first->given)
		return 1;
	first->len -= first->frame;
	memmove(first->buf, first->buf + first->frame, first->len);
	forget_frame(first);
	ret = find_frame(first);
	if (ret || first->fd < 0)
		return ret;
	n = recv(first->fd, first->buf + first->len, sizeof(first->buf) - first->len, MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		return -EPIPE;
	first->len += n > 0 ? (size_t)n : 0;
	return find_frame(first);
}

void first_open(struct first *first, int fd)
{
	first->fd = fd;
	first->cell = NULL;
	first->len = first->frame = 0;
	first->given = false;
	first->broken = first_next(first) == -EPIPE;
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
	forget_frame(first);
}
