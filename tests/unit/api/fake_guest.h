/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A monitor, an agent and an interpreter in threads, behind one control socket: they speak lines and
 * frames as docs/protocol.md has it. What the interpreter does is told by the code of the cell.
 */
#ifndef TESTS_FAKE_GUEST_H
#define TESTS_FAKE_GUEST_H

#include "api/cell.h"
#include "api/sandbox.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct fake {
	int control;                  /* its end */
	int interrupts[2];            /* pipe: the agent's interrupt to the interpreter */
	volatile int kernel;          /* stream of the running cell; -1 */
	volatile bool deaf;           /* the agent answers nothing */
	volatile bool lives;          /* what the agent says of the interpreter, */
	volatile bool oom;            /* and of a dead one */
	volatile unsigned port_asked; /* port of the last stream to an interpreter */
	volatile unsigned kills, nr_interrupts;
	struct bytes file; /* what `write` brought, what `read` gives */
	char last_op[32];
	json_t *last_request;
	pthread_t thread;
	pthread_mutex_t lock; /* of nr_streams, whose threads use all of this */
	pthread_cond_t ended;
	unsigned nr_streams;
};

struct fake_stream {
	struct fake *fake;
	int fd;
	unsigned port;
};

static inline void fake_put(int fd, uint8_t type, const void *data, size_t len)
{
	struct bytes out = { 0 };
	size_t sent = 0;

	if (frame_append(&out, type, data, len))
		abort();
	while (sent < out.len) {
		ssize_t n = send(fd, out.p + sent, out.len - sent, MSG_NOSIGNAL);

		if (n <= 0)
			break;
		sent += (size_t)n;
	}
	bytes_free(&out);
}

static inline void fake_say(int fd, uint8_t type, const char *text)
{
	fake_put(fd, type, text, strlen(text));
}

static inline void fake_ok(int fd)
{
	fake_say(fd, FRAME_RESULT,
	         "{\"status\":\"ok\",\"execution_count\":1,\"error\":null,"
	         "\"cut\":{\"stdout\":0,\"stderr\":0}}");
}

static inline void fake_interrupted(int fd)
{
	fake_say(fd, FRAME_RESULT,
	         "{\"status\":\"error\",\"execution_count\":1,\"error\":{\"name\":"
	         "\"KeyboardInterrupt\","
	         "\"value\":\"\",\"traceback\":\"Traceback: "
	         "here\"},\"cut\":{\"stdout\":0,\"stderr\":0}}");
}

/* The next frame of `r`: false at the end. */
static inline bool fake_next(struct frame_reader *r, int fd, struct frame *f)
{
	for (;;) {
		int rc = frame_next(r, f);

		if (rc == 1)
			return true;
		if (rc < 0 || frame_fill(r, fd) <= 0)
			return false;
	}
}

/* One cell. False: this interpreter dies. */
static inline bool fake_cell(struct fake *fake, int fd, const char *code)
{
	char byte;

	fake->kernel = fd;
	if (!strcmp(code, "hang") || !strcmp(code, "stubborn")) {
		fake_say(fd, FRAME_STDOUT, "before");
		if (!strcmp(code, "stubborn"))
			return recv(fd, &byte, 1, 0) > 0; /* until it is killed */
		if (read(fake->interrupts[0], &byte, 1) == 1)
			fake_interrupted(fd);
	} else if (!strcmp(code, "die")) {
		fake_say(fd, FRAME_STDOUT, "last words");
		return false;
	} else if (!strcmp(code, "rude")) {
		fake_say(fd, 0x55, "no such type");
	} else if (!strcmp(code, "flood")) {
		char mib[1 << 20];

		memset(mib, 'x', sizeof(mib));
		for (int i = 0; i < 8; i++)
			fake_put(fd, FRAME_STDOUT, mib, sizeof(mib));
	} else {
		fake_say(fd, FRAME_STDOUT, "out");
		fake_say(fd, FRAME_STDERR, "err");
		fake_say(fd, FRAME_DISPLAY,
		         "{\"kind\":\"result\",\"data\":{\"text/plain\":\"2\"},\"metadata\":{}}");
		fake_ok(fd);
	}
	return true;
}

static inline void fake_interpreter(struct fake_stream *s)
{
	struct frame_reader r = { 0 };
	struct frame f;

	while (fake_next(&r, s->fd, &f)) {
		json_t *request = frame_json(f.data, f.len);
		const char *op = json_string_value(json_object_get(request, "op"));
		bool go_on = true;

		if (op && !strcmp(op, "run"))
			go_on = fake_cell(s->fake, s->fd,
			                  json_string_value(json_object_get(request, "code")));
		else if (op && !strcmp(op, "usage"))
			fake_say(s->fd, FRAME_RESULT, "{\"wall_ms\":1.5,\"peak_kib\":9}");
		json_decref(request);
		if (!go_on)
			break;
	}
	frame_reader_free(&r);
}

static inline void fake_write(struct fake *fake, int fd, struct frame_reader *r)
{
	struct frame f;

	fake->file.len = 0;
	while (fake_next(r, fd, &f) && f.type == FRAME_DATA)
		if (bytes_append(&fake->file, f.data, f.len))
			abort();
	fake_ok(fd);
}

static inline void fake_read(struct fake *fake, int fd)
{
	char answer[96];

	for (size_t at = 0; at < fake->file.len; at += FRAME_MAX)
		fake_put(fd, FRAME_DATA, fake->file.p + at,
		         fake->file.len - at < FRAME_MAX ? fake->file.len - at : FRAME_MAX);
	fake_put(fd, FRAME_END, NULL, 0);
	snprintf(answer, sizeof(answer), "{\"status\":\"ok\",\"size\":%zu,\"mode\":%d}",
	         fake->file.len, 0640);
	fake_say(fd, FRAME_RESULT, answer);
}

static inline void fake_exec(int fd, struct frame_reader *r)
{
	struct frame f;

	while (fake_next(r, fd, &f) && f.type == FRAME_DATA)
		fake_put(fd, FRAME_STDOUT, f.data, f.len); /* cat */
	fake_say(fd, FRAME_STDERR, "done");
	fake_say(fd, FRAME_RESULT, "{\"status\":\"ok\",\"exit\":7,\"signal\":0}");
}

static inline void fake_agent(struct fake_stream *s)
{
	struct fake *fake = s->fake;
	struct frame_reader r = { 0 };
	struct frame f;
	const char *op, *path;
	json_t *request;

	if (!fake_next(&r, s->fd, &f))
		return;
	request = frame_json(f.data, f.len);
	op = json_string_value(json_object_get(request, "op"));
	path = json_string_value(json_object_get(request, "path"));
	pthread_mutex_lock(&fake->lock);
	json_decref(fake->last_request);
	fake->last_request = json_incref(request);
	snprintf(fake->last_op, sizeof(fake->last_op), "%s", op ? op : "");
	pthread_mutex_unlock(&fake->lock);
	if (fake->deaf) {
		while (fake_next(&r, s->fd, &f))
			;
	} else if (path && strstr(path, "missing")) {
		fake_say(s->fd, FRAME_RESULT,
		         "{\"status\":\"error\",\"error\":{\"name\":\"FileNotFoundError\","
		         "\"value\":\"no such file\"}}");
	} else if (!strcmp(op, "interrupt")) {
		fake->nr_interrupts++;
		if (write(fake->interrupts[1], "i", 1) != 1)
			abort();
		fake_ok(s->fd);
	} else if (!strcmp(op, "kill")) {
		fake->kills++;
		shutdown(fake->kernel, SHUT_RDWR);
		fake_say(s->fd, FRAME_RESULT, "{\"status\":\"ok\",\"port\":2001}");
	} else if (!strcmp(op, "context")) {
		fake_say(s->fd, FRAME_RESULT,
		         fake->lives ? "{\"status\":\"ok\",\"alive\":true,\"port\":2000}"
		         : fake->oom
		                 ? "{\"status\":\"ok\",\"alive\":false,\"port\":2000,\"exit\":0,"
		                   "\"signal\":9,\"oom\":true,\"restarts\":1}"
		                 : "{\"status\":\"ok\",\"alive\":false,\"port\":2000,\"exit\":3,"
		                   "\"signal\":0,\"oom\":false,\"restarts\":1}");
	} else if (!strcmp(op, "write")) {
		fake_write(fake, s->fd, &r);
	} else if (!strcmp(op, "read")) {
		fake_read(fake, s->fd);
	} else if (!strcmp(op, "exec")) {
		fake_exec(s->fd, &r);
	} else {
		fake_ok(s->fd);
	}
	frame_reader_free(&r);
	json_decref(request);
}

static inline void *fake_serve(void *arg)
{
	struct fake_stream *s = arg;
	struct fake *fake = s->fake;

	if (s->port == 1024)
		fake_agent(s);
	else
		fake_interpreter(s);
	if (fake->kernel == s->fd)
		fake->kernel = -1;
	close(s->fd);
	free(s);
	pthread_mutex_lock(&fake->lock);
	fake->nr_streams--;
	pthread_cond_signal(&fake->ended);
	pthread_mutex_unlock(&fake->lock);
	return NULL;
}

static inline void fake_connect(struct fake *fake, int fd, unsigned port)
{
	struct fake_stream *s = malloc(sizeof(*s));
	pthread_t thread;

	*s = (struct fake_stream){ fake, fd, port };
	if (port != 1024)
		fake->port_asked = port;
	pthread_mutex_lock(&fake->lock);
	fake->nr_streams++;
	pthread_mutex_unlock(&fake->lock);
	if (pthread_create(&thread, NULL, fake_serve, s))
		abort();
	pthread_detach(thread);
}

static inline void fake_line(struct fake *fake, const char *text, size_t len, int fd)
{
	json_t *line = json_loadb(text, len, 0, NULL);
	const char *cmd = json_string_value(json_object_get(line, "cmd"));
	static const char ok[] = "{\"ok\":true}\n",
			  no[] = "{\"ok\":false,\"error\":\"not today\",\"remedy\":\"tomorrow\"}\n";
	bool refuse = cmd && !strcmp(cmd, "refuse");

	if (cmd && !strcmp(cmd, "connect"))
		fake_connect(fake, fd, (unsigned)json_integer_value(json_object_get(line, "port")));
	send(fake->control, refuse ? no : ok, strlen(refuse ? no : ok), MSG_NOSIGNAL);
	json_decref(line);
}

static inline void *fake_monitor(void *arg)
{
	struct fake *fake = arg;
	char buf[65536];

	for (;;) {
		union {
			char buf[CMSG_SPACE(sizeof(int))];
			struct cmsghdr align;
		} ctl;
		struct iovec iov = { buf, sizeof(buf) };
		struct msghdr msg = { .msg_iov = &iov,
			              .msg_iovlen = 1,
			              .msg_control = ctl.buf,
			              .msg_controllen = sizeof(ctl.buf) };
		ssize_t n = recvmsg(fake->control, &msg, 0);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		int fd = -1;

		if (n <= 0)
			return NULL;
		if (c)
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
		for (char *p = buf, *end; (end = memchr(p, '\n', (size_t)(buf + n - p)));
		     p = end + 1)
			fake_line(fake, p, (size_t)(end - p), fd);
	}
}

/* A sandbox that is thawed, as far as the library can tell. */
static inline void fake_open(struct fake *fake, struct sandbox *sb)
{
	int sv[2];

	*fake = (struct fake){ .kernel = -1,
		               .lock = PTHREAD_MUTEX_INITIALIZER,
		               .ended = PTHREAD_COND_INITIALIZER };
	sandbox_init(sb);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) || pipe(fake->interrupts))
		abort();
	sb->control_fd = sv[0];
	sb->thawed = json_object();
	fake->control = sv[1];
	if (pthread_create(&fake->thread, NULL, fake_monitor, fake))
		abort();
}

/* The monitor's last word. */
static inline void fake_lose(struct fake *fake)
{
	static const char text[] =
		"{\"event\":\"exit\",\"reason\":\"kvm-error\",\"detail\":\"rip=0\"}\n";

	send(fake->control, text, strlen(text), MSG_NOSIGNAL);
	shutdown(fake->control, SHUT_RDWR);
}

static inline void fake_close(struct fake *fake, struct sandbox *sb)
{
	sandbox_close(sb);
	pthread_join(fake->thread, NULL);
	if (write(fake->interrupts[1], "end", 3) != 3) /* of a cell that hangs */
		abort();
	pthread_mutex_lock(&fake->lock);
	while (fake->nr_streams)
		pthread_cond_wait(&fake->ended, &fake->lock);
	pthread_mutex_unlock(&fake->lock);
	close(fake->control);
	close(fake->interrupts[0]);
	close(fake->interrupts[1]);
	json_decref(fake->last_request);
	bytes_free(&fake->file);
}

#endif
