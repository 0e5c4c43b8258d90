/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/handover.h"

#include "api/daemon/text.h"
#include "api/show.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define FORM       1 /* of the text: another one is refused */
#define VARIABLE   "THAWBOXD_HANDOVER"
#define PREFIX     "thawbox-"
#define STATE_NAME 0 /* of the text itself: descriptor 0 is standard input, and never handed over */
#define FIRST_FD   3 /* of those that systemd hands over */
#define STORE_MS   10000

/* --- to leave it --------------------------------------------------------------------------------------- */

static void note(struct handover *h, int name, int fd)
{
	struct handed *at = realloc(h->at, (h->nr + 1) * sizeof(*at));

	if (!at) {
		h->has_failed = true;
		return;
	}
	at[h->nr++] = (struct handed){ .name = name, .fd = fd };
	h->at = at;
}

json_t *handover_fd(struct handover *h, int fd)
{
	h->is_leaving = true;
	if (fd >= 0)
		note(h, fd, fd);
	return json_integer(fd);
}

json_t *handover_bytes(const struct bytes *b)
{
	own_free char *text = text_base64(b->len ? b->p + b->pos : NULL, b->len - b->pos);

	return text ? json_string(text) : NULL;
}

/* The text in a file without a name, which the next program inherits. */
static int write_text(struct handover *h, int *out, struct err *err)
{
	own_fd int fd = memfd_create("thawboxd", 0);
	json_t *names = json_array();
	own_free char *text = NULL;
	size_t len, done = 0;

	for (unsigned i = 0; i < h->nr; i++)
		json_array_append_new(names, json_integer(h->at[i].name));
	json_object_set_new(h->state, "fds", names);
	json_object_set_new(h->state, "form", json_integer(FORM));
	text = json_dumps(h->state, JSON_COMPACT);
	if (!text || h->has_failed)
		return err_set(err, -ENOMEM, "handover: no memory");
	len = strlen(text);
	while (fd >= 0 && done < len) {
		ssize_t n = write(fd, text + done, len - done);

		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (fd < 0 || done < len)
		return err_set(err, -errno, "handover: %s", strerror(errno));
	*out = fd_take(&fd);
	return 0;
}

int handover_exec(struct handover *h, const char *program, char **argv, struct err *err)
{
	own_fd int fd = -1;
	char value[32];
	int rc = write_text(h, &fd, err);

	if (rc)
		return rc;
	for (unsigned i = 0; i < h->nr; i++)
		if (fcntl(h->at[i].fd, F_SETFD, 0))
			return err_set(err, -errno, "handover: %s", strerror(errno));
	(void)snprintf(value, sizeof(value), "%d:%d", getpid(), fd);
	if (setenv(VARIABLE, value, 1))
		return err_set(err, -errno, "handover: %s", strerror(errno));
	(void)execv(program, argv);
	(void)execv("/proc/self/exe", argv); /* that one has been taken away, and we still run */
	return err_set(err, -errno, "start %s again: %s", program, strerror(errno));
}

/* --- systemd's store ----------------------------------------------------------------------------------- */

bool handover_has_store(void)
{
	const char *path = getenv("NOTIFY_SOCKET");

	return path && (*path == '/' || *path == '@');
}

/* A message to the service manager, with a descriptor or without (-1). */
static int notify(const char *text, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr head;
	} ctl = { 0 };
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct iovec iov = { (void *)(uintptr_t)text, strlen(text) };
	struct msghdr msg = { .msg_name = &to, .msg_iov = &iov, .msg_iovlen = 1 };
	own_fd int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return -errno;
	if (!path || strlen(path) >= sizeof(to.sun_path))
		return -EINVAL;
	memcpy(to.sun_path, path, strlen(path));
	msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	if (*path == '@')
		to.sun_path[0] = '\0';
	if (fd >= 0) {
		msg.msg_control = ctl.buf;
		msg.msg_controllen = CMSG_SPACE(sizeof(int));
		ctl.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
			                     .cmsg_type = SCM_RIGHTS,
			                     .cmsg_len = CMSG_LEN(sizeof(int)) };
		memcpy(CMSG_DATA(&ctl.head), &fd, sizeof(int));
	}
	return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int store_one(int name, int fd)
{
	char text[80];

	(void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=" PREFIX "%d\nFDPOLL=0", name);
	return notify(text, fd);
}

/* systemd closes its end of the pipe when it has read all that came before. */
static int await_store(void)
{
	own_fd int from = -1, to = -1;
	struct pollfd pfd = { .events = POLLIN };
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	from = ends[0];
	to = ends[1];
	pfd.fd = from;
	rc = notify("BARRIER=1", to);
	close(fd_take(&to));
	if (!rc && poll(&pfd, 1, STORE_MS) != 1)
		rc = -ETIMEDOUT;
	return rc;
}

int handover_store(struct handover *h, struct err *err)
{
	own_fd int fd = -1;
	int rc = write_text(h, &fd, err);

	if (rc)
		return rc;
	for (unsigned i = 0; !rc && i < h->nr; i++)
		rc = store_one(h->at[i].name, h->at[i].fd);
	rc = rc ? rc : store_one(STATE_NAME, fd);
	rc = rc ? rc : await_store();
	if (!rc)
		return 0;
	(void)err_set(err, rc, "systemd's descriptor store: %s", strerror(-rc));
	return err_remedy(err, "the unit needs NotifyAccess=main and FileDescriptorStoreMax=");
}

/* --- to find it ---------------------------------------------------------------------------------------- */

int handover_parse_name(const char *name, size_t len)
{
	char digits[16] = "";
	uint64_t number;

	if (len <= strlen(PREFIX) || len >= strlen(PREFIX) + sizeof(digits) ||
	    strncmp(name, PREFIX, strlen(PREFIX)) != 0)
		return -1;
	(void)snprintf(digits, sizeof(digits), "%.*s", (int)(len - strlen(PREFIX)),
	               name + strlen(PREFIX));
	return text_number(digits, INT32_MAX, &number) ? (int)number : -1;
}

/* Those of the store, under their names. */
static void receive_store(struct handover *h)
{
	const char *pid = getenv("LISTEN_PID"), *nr = getenv("LISTEN_FDS"),
		   *name = getenv("LISTEN_FDNAMES");
	int fds = pid && nr && atol(pid) == getpid() ? atoi(nr) : 0;

	for (int i = 0; name && *name && i < fds; i++) {
		size_t len = strcspn(name, ":");
		int number = handover_parse_name(name, len);

		if (number >= 0)
			note(h, number, FIRST_FD + i);
		name += len + (name[len] == ':');
	}
	h->is_from_store = h->nr;
}

/* The text's descriptor; -1: there is none. Those that an executed program inherits keep their numbers. */
static int find_text(struct handover *h)
{
	const char *value = getenv(VARIABLE);
	int pid = 0, fd = -1;

	if (value && sscanf(value, "%d:%d", &pid, &fd) == 2 && pid == getpid() && fd > 2)
		return fd;
	receive_store(h);
	for (unsigned i = 0; i < h->nr; i++)
		if (h->at[i].name == STATE_NAME) {
			fd = h->at[i].fd;
			h->at[i].fd = -1;
			return fd;
		}
	return -1;
}

static json_t *read_text(int fd)
{
	json_t *state = lseek(fd, 0, SEEK_SET) ? NULL : json_loadfd(fd, 0, NULL);

	if (json_integer_value(json_object_get(state, "form")) == FORM)
		return state;
	json_decref(state);
	return NULL;
}

int handover_receive(struct handover *h, struct err *err)
{
	own_fd int fd = -1;
	const json_t *name;
	size_t i;

	*h = (struct handover){ 0 };
	fd = find_text(h);
	(void)unsetenv(VARIABLE);
	if (fd < 0) {
		handover_close(h);
		return 0;
	}
	h->state = read_text(fd);
	json_array_foreach(json_object_get(h->state, "fds"), i, name)
	{
		if (!h->is_from_store)
			note(h, (int)json_integer_value(name), (int)json_integer_value(name));
	}
	for (unsigned k = 0; k < h->nr; k++)
		if (h->at[k].fd >= 0)
			(void)fcntl(h->at[k].fd, F_SETFD, FD_CLOEXEC);
	if (h->state && !h->has_failed)
		return 1;
	handover_close(h);
	return err_set(err, -EPROTO, "what the daemon before this one left is of another version");
}

int handover_take_fd(struct handover *h, const json_t *name)
{
	int number = json_is_integer(name) ? (int)json_integer_value(name) : -1;

	for (unsigned i = 0; number > 2 && i < h->nr; i++)
		if (h->at[i].name == number)
			return fd_take(&h->at[i].fd);
	return -1;
}

int handover_take_bytes(const json_t *text, struct bytes *b)
{
	own_free char *copy = json_is_string(text) ? strdup(json_string_value(text)) : NULL;
	ssize_t n = copy ? show_base64(copy, strlen(copy)) : -1;

	return n < 0 ? -EPROTO : bytes_append(b, copy, (size_t)n);
}

void handover_close(struct handover *h)
{
	char text[64];

	for (unsigned i = 0; i < h->nr; i++) {
		(void)snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=" PREFIX "%d",
		               h->at[i].name);
		if (h->is_from_store) /* a sandbox whose copy stays outlives us, until the unit stops */
			(void)notify(text, -1);
		if (!h->is_leaving)
			own_close_fd(&h->at[i].fd);
	}
	free(h->at);
	json_decref(h->state);
	*h = (struct handover){ 0 };
}
