/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/handover.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

Test(handover, names)
{
	cr_expect_eq(handover_parse_name("thawbox-12:x", 10), 12);
	cr_expect_eq(handover_parse_name("thawbox-0", 9), 0);
	cr_expect_eq(handover_parse_name("thawbox-", 8), -1);
	cr_expect_eq(handover_parse_name("thawbox-1x", 10), -1);
	cr_expect_eq(handover_parse_name("thawboxd.socket", 15), -1);
	cr_expect_eq(handover_parse_name("thawbox-99999999999999999", 25), -1);
	cr_expect_eq(handover_parse_name("", 0), -1);
}

/* Bytes that were not taken yet, and no others. */
Test(handover, bytes)
{
	struct bytes from = { 0 }, to = { 0 }, none = { 0 };
	json_t *text, *empty = handover_bytes(&none);

	cr_assert_eq(bytes_append(&from, "ab\0\xff", 4), 0);
	from.pos = 1;
	text = handover_bytes(&from);
	cr_assert_eq(handover_take_bytes(text, &to), 0);
	cr_expect(to.len == 3 && !memcmp(to.p, "b\0\xff", 3));
	cr_assert_eq(handover_take_bytes(empty, &to), 0);
	cr_expect_eq(to.len, 3);
	cr_expect_eq(handover_take_bytes(NULL, &to), -EPROTO);
	json_decref(text);
	json_decref(empty);
	bytes_free(&from);
	bytes_free(&to);
}

/* As a program finds it that was executed with this text. */
static int receive(struct handover *h, const char *text, int pid)
{
	int fd = memfd_create("test", 0);
	struct err err = { 0 };
	char value[32];

	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	snprintf(value, sizeof(value), "%d:%d", pid, fd);
	setenv("THAWBOXD_HANDOVER", value, 1);
	return handover_receive(h, &err);
}

Test(handover, descriptors_are_taken_once)
{
	int fd = open("/dev/null", O_RDONLY), other = open("/dev/null", O_RDONLY);
	struct handover h;
	char text[128];
	json_t *name;

	snprintf(text, sizeof(text), "{\"form\":1,\"fds\":[%d,%d],\"listen\":%d}", fd, other, fd);
	cr_assert_eq(receive(&h, text, getpid()), 1);
	cr_expect(!getenv("THAWBOXD_HANDOVER"), "it is not for our children");
	name = json_object_get(h.state, "listen");
	cr_expect_eq(handover_take_fd(&h, name), fd);
	cr_expect_eq(handover_take_fd(&h, name), -1);
	cr_expect_eq(handover_take_fd(&h, NULL), -1);
	cr_expect_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	handover_close(&h);
	cr_expect_eq(fcntl(fd, F_GETFD), FD_CLOEXEC, "who took it has it");
	cr_expect_lt(fcntl(other, F_GETFD), 0, "what nobody took is closed");
	handover_close(&h);
	close(fd);
}

Test(handover, of_somebody_else)
{
	struct handover h;
	struct err err = { 0 };

	cr_expect_eq(handover_receive(&h, &err), 0);
	cr_expect_eq(receive(&h, "{\"form\":1,\"fds\":[]}", getpid() + 1), 0, "of another process");
	cr_expect_eq(receive(&h, "{\"form\":2,\"fds\":[]}", getpid()), -EPROTO);
	cr_expect_eq(receive(&h, "nonsense", getpid()), -EPROTO);
	cr_expect(!h.state && !h.at);
}

/* What is written names each descriptor once, and leaves it to its owner. */
Test(handover, leaving)
{
	int fd = open("/dev/null", O_RDONLY);
	struct handover h = { 0 };
	json_t *name = handover_fd(&h, fd), *none = handover_fd(&h, -1);

	cr_expect_eq(json_integer_value(name), fd);
	cr_expect_eq(json_integer_value(none), -1);
	cr_expect_eq(h.nr, 1);
	handover_close(&h);
	cr_expect_geq(fcntl(fd, F_GETFD), 0);
	json_decref(name);
	json_decref(none);
	close(fd);
}
