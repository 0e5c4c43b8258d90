/* SPDX-License-Identifier: Apache-2.0 */
/* The Unix sockets of vsock: whose path it is, and what a program may say. */
#include "devices/vsock_unix.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char dir[64], path[80];
static struct vsock_unix un = { .fd = -1 };
static struct err err;

static void setup(void)
{
	strcpy(dir, "/tmp/vsock-test-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/v", dir);
}

static void teardown(void)
{
	vsock_unix_close(&un);
	unlink(path);
	cr_assert_eq(rmdir(dir), 0);
}

TestSuite(vsock_unix, .init = setup, .fini = teardown);

/* Another program's socket, bound; it listens until closed. */
static int other_listener(const char *at)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, at);
	cr_assert_eq(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
	cr_assert_eq(listen(fd, 4), 0);
	return fd;
}

Test(vsock_unix, listens_and_cleans_up)
{
	cr_assert_eq(vsock_unix_listen(&un, path, &err), 0, "%s", err.msg);
	cr_assert_eq(access(path, F_OK), 0);
	vsock_unix_close(&un);
	cr_assert_eq(access(path, F_OK), -1);
	vsock_unix_close(&un);
}

Test(vsock_unix, a_socket_in_use_is_refused)
{
	int fd = other_listener(path);

	cr_assert_eq(vsock_unix_listen(&un, path, &err), -EADDRINUSE);
	cr_assert(strstr(err.msg, path) && err.remedy[0]);
	cr_assert_eq(access(path, F_OK), 0);
	close(fd);
}

Test(vsock_unix, a_stale_socket_is_replaced)
{
	close(other_listener(path));
	cr_assert_eq(vsock_unix_listen(&un, path, &err), 0, "%s", err.msg);
}

Test(vsock_unix, a_file_that_is_no_socket_is_left_alone)
{
	close(open(path, O_CREAT | O_WRONLY, 0600));
	cr_assert_eq(vsock_unix_listen(&un, path, &err), -EEXIST);
	cr_assert(err.remedy[0]);
	cr_assert_eq(access(path, F_OK), 0);
	unlink(path);
	cr_assert_eq(symlink("/dev/null", path), 0);
	cr_assert_eq(vsock_unix_listen(&un, path, &err), -EEXIST, "nor is a link followed");
}

Test(vsock_unix, bad_paths)
{
	char longest[200];

	memset(longest, 'a', sizeof(longest));
	longest[97] = 0; /* "_4294967295" and the end no longer fit */
	cr_assert_eq(vsock_unix_listen(&un, longest, &err), -ENAMETOOLONG);
	cr_assert(err.remedy[0]);
	cr_assert_eq(vsock_unix_listen(&un, "", &err), -ENAMETOOLONG);
	snprintf(longest, sizeof(longest), "%s/no/such", dir);
	cr_assert_eq(vsock_unix_listen(&un, longest, &err), -ENOENT);
	cr_assert(err.remedy[0]);
}

Test(vsock_unix, a_socket_of_somebody_else_is_not_removed)
{
	int fd;

	cr_assert_eq(vsock_unix_listen(&un, path, &err), 0);
	unlink(path);
	fd = other_listener(path);
	vsock_unix_close(&un);
	cr_assert_eq(access(path, F_OK), 0);
	close(fd);
}

Test(vsock_unix, connects_to_the_port_s_socket)
{
	char at[100];
	int listener, fd;

	snprintf(at, sizeof(at), "%s_4294967295", path);
	cr_assert_eq(vsock_unix_connect(path, UINT32_MAX), -ENOENT);
	listener = other_listener(at);
	fd = vsock_unix_connect(path, UINT32_MAX);
	cr_assert_geq(fd, 0);
	cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
	close(listener);
	cr_assert_eq(vsock_unix_connect(path, UINT32_MAX), -ECONNREFUSED);
	unlink(at);
	close(fd);
}

/* A listener that does not accept must not make the monitor wait. */
Test(vsock_unix, a_full_backlog_is_refused, .timeout = 10)
{
	int fd[64], listener, nr = 0;
	char at[100];

	snprintf(at, sizeof(at), "%s_1", path);
	listener = other_listener(at);
	while (nr < 64 && (fd[nr] = vsock_unix_connect(path, 1)) >= 0)
		nr++;
	cr_assert_lt(nr, 64);
	cr_assert_eq(fd[nr], -EAGAIN);
	while (nr-- > 0)
		close(fd[nr]);
	close(listener);
	unlink(at);
}

Test(vsock_unix, greetings)
{
	static const struct {
		const char *line;
		int ret;
		uint32_t port;
	} cases[] = {
		{ "CONNECT 0", 0, 0 },
		{ "CONNECT 1024", 0, 1024 },
		{ "CONNECT 4294967295", 0, UINT32_MAX },
		{ "CONNECT 4294967296", -EPROTO, 0 },
		{ "CONNECT 99999999999999999999999", -EPROTO, 0 },
		{ "CONNECT ", -EPROTO, 0 },
		{ "CONNECT", -EPROTO, 0 },
		{ "CONNECT  1", -EPROTO, 0 },
		{ "CONNECT -1", -EPROTO, 0 },
		{ "CONNECT +1", -EPROTO, 0 },
		{ "CONNECT 1\r", -EPROTO, 0 },
		{ "CONNECT 0x10", -EPROTO, 0 },
		{ "connect 1", -EPROTO, 0 },
		{ "", -EPROTO, 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		uint32_t port = 0;

		cr_assert_eq(vsock_unix_parse(cases[i].line, strlen(cases[i].line), &port),
		             cases[i].ret, "%s", cases[i].line);
		if (!cases[i].ret)
			cr_assert_eq(port, cases[i].port);
	}
}
