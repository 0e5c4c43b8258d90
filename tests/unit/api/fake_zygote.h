/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A zygote and its monitors without KVM: the test's own program, started by the library as if it were
 * thawbox-vmm. What it does wrong is told by the words in the path of the snapshot that it is to open:
 *
 *	gone      there is no such snapshot
 *	nofork    a spawn is refused
 *	mortal    the zygote ends at a spawn, with code 7
 *	slow      a member is never ready
 *	refusing  a member refuses to be one
 *	brief     a member ends soon after it was ready
 *
 * A test whose guests say more than a first cell defines FZ_STREAM before it includes this: a function of the monitor that
 * gets a stream's other end, and owns it.
 */
#ifndef TESTS_FAKE_ZYGOTE_H
#define TESTS_FAKE_ZYGOTE_H

#include "api/frames.h"
#include "api/sandbox.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAKE_ZYGOTE "/proc/self/exe"

static inline void fz_say(int fd, const char *text)
{
	send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* One line at a time, as every peer here writes only whole ones, and the descriptors with it. */
static inline json_t *fz_hear(int fd, int fds[2])
{
	union {
		char buf[CMSG_SPACE(2 * sizeof(int))];
		struct cmsghdr align;
	} ctl;
	static char buf[65536];
	static size_t len;
	char *end;
	json_t *line;

	fds[0] = fds[1] = -1;
	while (!(end = memchr(buf, '\n', len))) {
		struct iovec iov = { buf + len, sizeof(buf) - len };
		struct msghdr msg = { .msg_iov = &iov,
			              .msg_iovlen = 1,
			              .msg_control = ctl.buf,
			              .msg_controllen = sizeof(ctl.buf) };
		ssize_t n = recvmsg(fd, &msg, 0);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

		if (n <= 0)
			return NULL;
		if (c)
			memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
		len += (size_t)n;
	}
	line = json_loadb(buf, (size_t)(end - buf), 0, NULL);
	len -= (size_t)(end + 1 - buf);
	memmove(buf, end + 1, len);
	return line;
}

static inline bool fz_is(const json_t *line, const char *cmd)
{
	return !strcmp(json_string_value(json_object_get(line, "cmd")), cmd);
}

/* The answer to the first cell: its code comes back as the value. */
static inline void fz_first(int fd, const json_t *thaw)
{
	struct frame_reader in = { 0 };
	struct bytes out = { 0 };
	struct frame f;
	const char *id = json_string_value(json_object_get(thaw, "id"));
	json_t *display = json_pack("{s:s, s:{s:s}}", "kind", "result", "data", "text/plain", id);
	json_t *result =
		json_pack("{s:s, s:i, s:n}", "status", "ok", "execution_count", 1, "error");

	while (frame_next(&in, &f) == 0 && frame_fill(&in, fd) > 0)
		;
	if (frame_append_json(&out, FRAME_DISPLAY, display) ||
	    frame_append_json(&out, FRAME_RESULT, result))
		abort();
	send(fd, out.p, out.len, MSG_NOSIGNAL);
}

static inline void fz_stream(int fd, const json_t *thaw)
{
#ifdef FZ_STREAM
	(void)thaw;
	FZ_STREAM(fd);
#else
	if (thaw)
		fz_first(fd, thaw);
#endif
}

static inline void fz_monitor(int fd, const char *words)
{
	int fds[2];
	json_t *line;

	while ((line = fz_hear(fd, fds))) {
		if (fz_is(line, "thaw")) {
			fz_say(fd, "{\"ok\":true,\"port\":2003,\"agent_port\":1024}\n");
			if (fds[0] >= 0)
				fz_stream(fds[0], line);
		} else if (fz_is(line, "last-words")) {
			(void)!write(2, "no more\n", 8);
			_exit(9);
		} else if (strstr(words, "refusing")) {
			fz_say(fd, "{\"ok\":false,\"error\":\"state: damaged\","
			           "\"remedy\":\"bake again\"}\n");
			_exit(1);
		} else if (!strstr(words, "slow")) {
			fz_say(fd, "{\"ok\":true}\n");
			if (fz_is(line, "standby"))
				fz_say(fd, "{\"event\":\"standby\"}\n");
			if (fds[0] >= 0)
				fz_stream(fds[0], NULL);
			if (strstr(words, "brief") && !fz_is(line, "thaw"))
				usleep(30000), _exit(3);
		}
		json_decref(line);
	}
	_exit(0);
}

static inline void fz_spawn(int fd, const char *words, const int fds[2])
{
	char answer[64];
	pid_t pid;

	if (strstr(words, "mortal"))
		_exit(7);
	if (strstr(words, "nofork")) {
		fz_say(fd, "{\"ok\":false,\"error\":\"fork: Resource temporarily unavailable\","
		           "\"remedy\":\"raise the limit of processes\"}\n");
		return;
	}
	pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
	if (!pid) {
		close(fd);
		if (fds[1] >= 0)
			dup2(fds[1], 2);
		fz_monitor(fds[0], words);
	}
	snprintf(answer, sizeof(answer), "{\"ok\":true,\"pid\":%d}\n", pid);
	fz_say(fd, answer);
}

static inline void fz_serve(int fd)
{
	static char words[256];
	int fds[2];
	json_t *line;

	while ((line = fz_hear(fd, fds))) {
		if (fz_is(line, "spawn")) {
			fz_spawn(fd, words, fds);
			close(fds[0]);
			if (fds[1] >= 0)
				close(fds[1]);
		} else {
			snprintf(words, sizeof(words), "%s",
			         json_string_value(json_object_get(line, "dir")));
			fz_say(fd, strstr(words, "gone")
			                   ? "{\"ok\":false,\"error\":\"no such snapshot\","
			                     "\"remedy\":\"bake it\"}\n"
			                   : "{\"ok\":true}\n");
		}
		json_decref(line);
	}
	_exit(0);
}

/* Before Criterion's main(): is this the process that the library has started? */
__attribute__((constructor)) static void fz_main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--control-fd") && !strcmp(argv[3], "--zygote"))
		fz_serve(atoi(argv[2]));
}

/* Our children, zombies too, except the zygote (a session leader, as monitor_start() makes it), or that alone. */
static inline unsigned fz_children(bool zygote, pid_t *pids, unsigned max)
{
	DIR *d = opendir("/proc");
	struct dirent *e;
	unsigned n = 0;

	while ((e = readdir(d))) {
		char path[300], text[256] = "";
		int pid = atoi(e->d_name), ppid = 0, pgrp = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%s/stat", e->d_name);
		f = pid ? fopen(path, "r") : NULL;
		if (!f)
			continue;
		if (fgets(text, sizeof(text), f) && strrchr(text, ')'))
			sscanf(strrchr(text, ')'), ") %*c %d %d", &ppid, &pgrp);
		fclose(f);
		if (ppid == getpid() && (pgrp == pid) == zygote && n < max)
			pids[n++] = pid;
	}
	closedir(d);
	return n;
}

static inline unsigned fz_open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static unsigned fz_fds_before;

static inline void fz_note(void)
{
	fz_fds_before = fz_open_fds();
}

/* The names of what is left of a test, "" when nothing is. */
static inline const char *fz_left(void)
{
	siginfo_t info;

	if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
		return "a child";
	return fz_open_fds() != fz_fds_before ? "a descriptor" : "";
}

#endif
