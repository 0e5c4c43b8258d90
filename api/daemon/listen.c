/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/listen.h"

#include "api/daemon/handover.h"
#include "core/own.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG  1024
#define FIRST_FD 3 /* of those that systemd hands over */

bool listen_parse(const char *address, char host[64], char port[8])
{
	const char *end = strrchr(address, ':');
	size_t n = end ? (size_t)(end - address) : 0;

	if (n >= 2 && *address == '[' && address[n - 1] == ']') {
		address++;
		n -= 2;
	} else if (n && memchr(address, ':', n)) {
		return false; /* an IPv6 address without brackets */
	}
	end = end ? end + 1 : address;
	if (n >= 64 || !*end || strlen(end) >= 8 || strspn(end, "0123456789") != strlen(end))
		return false;
	memcpy(host, address, n);
	host[n] = '\0';
	memcpy(port, end, strlen(end) + 1);
	return true;
}

static bool is_local(const struct sockaddr *addr)
{
	if (addr->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr) >>
		               24 ==
		       127;
	if (addr->sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(
			&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
	return addr->sa_family == AF_UNIX;
}

/* What the socket is bound to, in words. */
static int describe(struct listening *l, bool tls, struct err *err)
{
	union {
		struct sockaddr sa;
		struct sockaddr_storage space;
		struct sockaddr_un un;
	} addr = { 0 };
	socklen_t len = sizeof(addr);
	char host[64], port[8];

	if (getsockname(l->fd, &addr.sa, &len))
		return err_set(err, -errno, "listening socket: %s", strerror(errno));
	l->is_local = is_local(&addr.sa);
	if (addr.sa.sa_family == AF_UNIX)
		(void)snprintf(l->where, sizeof(l->where), "unix:%s", addr.un.sun_path);
	else if (!getnameinfo(&addr.sa, len, host, sizeof(host), port, sizeof(port),
	                      NI_NUMERICHOST | NI_NUMERICSERV))
		(void)snprintf(l->where, sizeof(l->where),
		               addr.sa.sa_family == AF_INET6 ? "%s://[%s]:%s" : "%s://%s:%s",
		               tls ? "https" : "http", host, port);
	if (fcntl(l->fd, F_SETFL, O_NONBLOCK))
		return err_set(err, -errno, "listening socket: %s", strerror(errno));
	return 0;
}

/* The protocol of sd_listen_fds_with_names(3), without what a daemon left in the store. -1: none was handed over. */
static int handed_over(void)
{
	const char *pid = getenv("LISTEN_PID"), *nr = getenv("LISTEN_FDS"),
		   *name = getenv("LISTEN_FDNAMES");
	int fd = -1, nr_fds = pid && nr && atol(pid) == getpid() ? atoi(nr) : 0;

	for (int i = 0; fd < 0 && i < nr_fds; i++) {
		size_t len = name ? strcspn(name, ":") : 0;

		if (!name || handover_parse_name(name, len) < 0)
			fd = FIRST_FD + i;
		else
			name += len + (name[len] == ':');
	}
	(void)unsetenv("LISTEN_PID"); /* it is not for our children */
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	if (fd >= 0)
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

/* A socket that nobody serves any more is replaced, anything else is left alone. */
static int open_unix(const char *path, struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	own_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stat st;
	mode_t mask;
	int rc;

	if (strlen(path) >= sizeof(addr.sun_path))
		return err_set(err, -ENAMETOOLONG, "--unix %s: the path is too long", path);
	memcpy(addr.sun_path, path, strlen(path));
	if (fd < 0)
		return err_set(err, -errno, "socket: %s", strerror(errno));
	if (!stat(path, &st) && S_ISSOCK(st.st_mode)) {
		if (!connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
			return err_set(err, -EADDRINUSE, "--unix %s: another daemon serves there",
			               path);
		(void)unlink(path);
	}
	mask = umask(0077);
	rc = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, BACKLOG) ? -errno : 0;
	umask(mask);
	return rc ? err_set(err, rc, "--unix %s: %s", path, strerror(-rc)) : fd_take(&fd);
}

static int open_address(const char *address, struct err *err)
{
	const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
		                        .ai_socktype = SOCK_STREAM };
	struct addrinfo *found = NULL;
	char host[64], port[8];
	int fd = -1, rc = 0, one = 1;

	if (!listen_parse(address, host, port))
		return err_set(err, -EINVAL, "--listen %s: it is HOST:PORT, as 127.0.0.1:8429",
		               address);
	rc = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (rc)
		return err_set(err, -EINVAL, "--listen %s: %s", address, gai_strerror(rc));
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, BACKLOG)) {
		rc = err_set(err, -errno, "--listen %s: %s", address, strerror(errno));
		own_close_fd(&fd);
		if (rc == -EADDRINUSE)
			(void)err_remedy(err, "another program serves there: stop it, or choose "
			                      "another port");
	}
	freeaddrinfo(found);
	return rc ? rc : fd;
}

static int take(struct listening *l, int fd, bool tls, struct err *err)
{
	int rc;

	*l = (struct listening){ .fd = fd };
	rc = describe(l, tls, err);
	if (rc) {
		own_close_fd(&l->fd);
		l->fd = -1;
	}
	return rc;
}

int listen_open(struct listening *l, const char *address, const char *path, bool tls,
                struct err *err)
{
	int fd = handed_over();

	if (fd < 0)
		fd = path ? open_unix(path, err) : open_address(address, err);
	if (fd < 0)
		*l = (struct listening){ .fd = -1 };
	return fd < 0 ? fd : take(l, fd, tls, err);
}

int listen_adopt(struct listening *l, int fd, bool tls, struct err *err)
{
	int again = handed_over();

	own_close_fd(&again); /* the same socket once more */
	return take(l, fd, tls, err);
}
