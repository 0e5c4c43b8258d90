/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/listen.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Test(listen, addresses)
{
	char host[64], port[8];

	cr_assert(listen_parse("127.0.0.1:8429", host, port));
	cr_expect(!strcmp(host, "127.0.0.1") && !strcmp(port, "8429"));
	cr_assert(listen_parse("[::1]:1", host, port));
	cr_expect(!strcmp(host, "::1") && !strcmp(port, "1"));
	cr_assert(listen_parse("8429", host, port) && !*host);
	cr_assert(listen_parse(":8429", host, port) && !*host);
	cr_expect(!listen_parse("", host, port) && !listen_parse("a:", host, port) &&
	          !listen_parse("::1:80", host, port) && !listen_parse("a:http", host, port) &&
	          !listen_parse("a:80 ", host, port));
}

Test(listen, loopback_or_not)
{
	struct listening l;
	struct err err;

	cr_assert_eq(listen_open(&l, "127.0.0.1:0", NULL, false, &err), 0);
	cr_expect(l.is_local && !strncmp(l.where, "http://127.0.0.1:", 17));
	close(l.fd);
	cr_assert_eq(listen_open(&l, "0.0.0.0:0", NULL, true, &err), 0);
	cr_expect(!l.is_local && !strncmp(l.where, "https://", 8));
	close(l.fd);
}

Test(listen, unix_sockets)
{
	char dir[] = "/tmp/thawbox-listen-XXXXXX", path[64];
	struct listening first, second;
	struct err err;

	cr_assert(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/socket", dir);
	cr_assert_eq(listen_open(&first, "", path, false, &err), 0);
	cr_expect(first.is_local);
	cr_expect_eq(listen_open(&second, "", path, false, &err), -EADDRINUSE);
	close(first.fd);
	cr_assert_eq(listen_open(&second, "", path, false, &err), 0,
	             "what nobody serves is replaced");
	close(second.fd);
	unlink(path);
	fclose(fopen(path, "w"));
	cr_expect_lt(listen_open(&second, "", path, false, &err), 0, "a file is left alone");
	unlink(path);
	rmdir(dir);
}
