/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's listening socket: handed over by systemd, at a Unix path, or at an address. Once, at the start. */
#ifndef API_DAEMON_LISTEN_H
#define API_DAEMON_LISTEN_H

#include "core/err.h"

#include <stdbool.h>

struct listening {
	int fd;
	bool is_local;   /* nobody from another machine can come */
	char where[128]; /* "http://127.0.0.1:8429", "unix:/run/thawboxd.sock" */
};

/* `address` is HOST:PORT, [HOST]:PORT or PORT; `path`, where not NULL, a Unix socket instead. */
NODISCARD int listen_open(struct listening *l, const char *address, const char *path, bool tls,
                          struct err *err);
/* The one that the daemon before this one listened at: `fd` is ours from now on. */
NODISCARD int listen_adopt(struct listening *l, int fd, bool tls, struct err *err);

/* Parts of an address: `host` may be empty. False: it is none. Pure. */
bool listen_parse(const char *address, char host[64], char port[8]);

#endif
