/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/vsock_unix.h"

#include "core/own.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG    1024
#define PORT_CHARS (sizeof("_4294967295") - 1)

static int new_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	return fd < 0 ? -errno : fd;
}

static int connect_to(int fd, const struct sockaddr_un *addr)
{
	return connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;
}

/* Makes room for a new socket at the address, without taking it from a program that serves it. */
static int clear_stale(const struct sockaddr_un *addr, struct err *err)
{
	const char *path = addr->sun_path;
	own_fd int fd = -1;
	struct stat st;
	int ret;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : err_set(err, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode)) {
		err_set(err, -EEXIST, "vsock %s: exists and is no socket", path);
		return err_remedy(err, "choose another path, or remove the file");
	}
	fd = new_socket();
	if (fd < 0)
		return err_set(err, fd, "vsock %s: %s", path, strerror(-fd));
	ret = connect_to(fd, addr);
	if (ret == 0 || ret == -EAGAIN) {
		err_set(err, -EADDRINUSE, "vsock %s: another program listens there", path);
		return err_remedy(err, "choose another path, or stop that program");
	}
	if (ret != -ECONNREFUSED)
		return err_set(err, ret, "vsock %s: %s", path, strerror(-ret));
	if (unlink(path) < 0 && errno != ENOENT)
		return err_set(err, -errno, "vsock %s: cannot remove the stale socket: %s", path,
		               strerror(errno));
	return 0;
}

int vsock_unix_listen(struct vsock_unix *un, const char *path, struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	own_free char *copy = NULL;
	own_fd int fd = -1;
	struct stat st;
	int ret;

	*un = (struct vsock_unix){ .fd = -1 };
	if (!path[0] || strlen(path) + PORT_CHARS >= sizeof(addr.sun_path)) {
		err_set(err, -ENAMETOOLONG, "vsock path: %zu bytes, want 1 to %zu", strlen(path),
		        sizeof(addr.sun_path) - PORT_CHARS - 1);
		return err_remedy(err, "use a path nearer to the root, or a relative one");
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	ret = clear_stale(&addr, err);
	if (ret < 0)
		return ret;
	copy = strdup(path);
	fd = new_socket();
	if (!copy || fd < 0)
		return err_set(err, copy ? fd : -ENOMEM, "vsock %s: cannot make a socket", path);
	if (bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0) {
		err_set(err, -errno, "vsock %s: bind: %s", path, strerror(errno));
		return err_remedy(err, "its folder must exist and be writable");
	}
	if (lstat(path, &st) < 0 || listen(fd, BACKLOG) < 0) {
		ret = err_set(err, -errno, "vsock %s: listen: %s", path, strerror(errno));
		unlink(path);
		return ret;
	}
	*un = (struct vsock_unix){
		.fd = fd_take(&fd), .path = ptr_take(copy), .dev = st.st_dev, .ino = st.st_ino
	};
	return 0;
}

int vsock_unix_rename(struct vsock_unix *un, const char *path, struct err *err)
{
	char *copy = strdup(path);

	if (!copy)
		return err_set(err, -ENOMEM, "vsock %s: out of memory", path);
	free(un->path);
	un->path = copy;
	return 0;
}

void vsock_unix_close(struct vsock_unix *un)
{
	struct stat st;

	if (un->fd < 0)
		return;
	if (lstat(un->path, &st) == 0 && st.st_dev == un->dev && st.st_ino == un->ino)
		unlink(un->path);
	close(un->fd);
	free(un->path);
	*un = (struct vsock_unix){ .fd = -1 };
}

int vsock_unix_connect(const char *path, uint32_t port)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	own_fd int fd = -1;
	int ret = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s_%u", path, port);

	if (ret < 0 || (size_t)ret >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	fd = new_socket();
	if (fd < 0)
		return fd;
	ret = connect_to(fd, &addr);
	return ret < 0 ? ret : fd_take(&fd);
}

int vsock_unix_parse(const char *line, size_t n, uint32_t *port)
{
	static const char word[] = "CONNECT ";
	size_t at = sizeof(word) - 1;
	uint64_t value = 0;

	if (n <= at || memcmp(line, word, at) != 0)
		return -EPROTO;
	for (; at < n; at++) {
		if (line[at] < '0' || line[at] > '9')
			return -EPROTO;
		value = value * 10 + (uint64_t)(line[at] - '0');
		if (value > UINT32_MAX)
			return -EPROTO;
	}
	*port = (uint32_t)value;
	return 0;
}
