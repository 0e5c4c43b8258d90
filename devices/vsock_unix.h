/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's end of vsock: a Unix socket at `path` for programs that want a guest port, and Unix
 * sockets "<path>_<port>" that a guest reaches. Nothing here waits. Any thread.
 */
#ifndef DEVICES_VSOCK_UNIX_H
#define DEVICES_VSOCK_UNIX_H

#include "core/err.h"

#include <stdint.h>
#include <sys/types.h>

/* "CONNECT 4294967295\n" */
#define VSOCK_LINE_MAX 19u

/* A listening socket and which file it made. */
struct vsock_unix {
	int fd;     /* owned, -1: none */
	char *path; /* owned */
	dev_t dev;
	ino_t ino;
};

/*
 * Listens at `path`. A socket that nobody serves any more is replaced; -EADDRINUSE when somebody does,
 * -EEXIST when the file is no socket, -ENAMETOOLONG.
 */
NODISCARD int vsock_unix_listen(struct vsock_unix *un, const char *path, struct err *err);
/* From now on the file, and those of ports beside it, are found under `path`: a process may have another root. */
NODISCARD int vsock_unix_rename(struct vsock_unix *un, const char *path, struct err *err);
/* Closes it and removes the file, if it is still the one made above. Idempotent; safe when fd is -1. */
void vsock_unix_close(struct vsock_unix *un);

/* Connects to "<path>_<port>": a non-blocking descriptor, or -errno. */
NODISCARD int vsock_unix_connect(const char *path, uint32_t port);

/* Reads "CONNECT <port>" (without newline) of `n` bytes: 0, or -EPROTO. */
NODISCARD int vsock_unix_parse(const char *line, size_t n, uint32_t *port);

#endif
