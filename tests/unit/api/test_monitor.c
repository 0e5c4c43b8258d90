/* SPDX-License-Identifier: Apache-2.0 */
#include "api/monitor.h"
#include "core/own.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

static char script[64];

static void remove_script(void)
{
	if (script[0])
		unlink(script);
}

TestSuite(monitor, .fini = remove_script, .timeout = 20);

/* Runs a program in the place of thawbox-vmm; its socket's end is closed at once. */
static void ended_words(const char *path, char *words, size_t size)
{
	own_fd int ours = -1, theirs = -1, log = monitor_log(), pid_fd = -1;
	struct monitor_start how = { .path = path, .log_fd = log };
	struct err err = { 0 };
	pid_t pid;

	cr_assert_eq(monitor_pair(&ours, &theirs, &err), 0);
	how.control_fd = theirs;
	cr_assert_eq(monitor_start(&how, &pid, &pid_fd, &err), 0, "%s", err.msg);
	cr_assert(monitor_ended(pid_fd, log, 5000, words, size));
	monitor_end(pid, pid_fd);
}

Test(monitor, end_is_told_with_the_last_line)
{
	char words[300];

	ended_words("/bin/ls", words, sizeof(words)); /* it knows no --control-fd */
	cr_assert_str_eq(words,
	                 "exited with code 2: Try 'thawbox-vmm --help' for more information.", "%s",
	                 words);
	ended_words("/bin/true", words, sizeof(words));
	cr_assert_str_eq(words, "exited with code 0");
}

Test(monitor, one_that_runs_has_not_ended)
{
	own_fd int ours = -1, theirs = -1, pid_fd = -1;
	struct monitor_start how = { .path = script, .log_fd = -1 };
	struct err err = { 0 };
	char words[300];
	FILE *f;
	pid_t pid;

	snprintf(script, sizeof(script), "/tmp/test_monitor.%d", getpid());
	f = fopen(script, "w");
	fputs("#!/bin/sh\nread line <&3\n", f);
	fclose(f);
	cr_assert_eq(chmod(script, 0755), 0);
	cr_assert_eq(monitor_pair(&ours, &theirs, &err), 0);
	how.control_fd = theirs;
	cr_assert_eq(monitor_start(&how, &pid, &pid_fd, &err), 0, "%s", err.msg);
	cr_assert_not(monitor_ended(pid_fd, -1, 0, words, sizeof(words)));
	kill(pid, SIGKILL);
	cr_assert(monitor_ended(pid_fd, -1, 5000, words, sizeof(words)));
	cr_assert_str_eq(words, "was killed by signal 9 (SIGKILL)");
	monitor_end(pid, pid_fd);
	monitor_end(0, -1);
	cr_assert_not(monitor_ended(-1, -1, 0, words, sizeof(words)));
}

Test(monitor, missing_program_has_a_remedy)
{
	struct monitor_start how = { .path = "/nonexistent/vmm", .control_fd = 2, .log_fd = -1 };
	struct err err = { 0 };
	int pid_fd = -1;
	pid_t pid = 7;

	cr_assert_eq(monitor_start(&how, &pid, &pid_fd, &err), -ENOENT);
	cr_assert(pid == 0 && pid_fd == -1 && err.remedy[0]);
}

/* Reads what is there, and counts the descriptors. */
static unsigned receive(int fd, char *text, size_t size)
{
	union {
		char buf[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} ctl;
	struct iovec iov = { text, size - 1 };
	struct msghdr msg = { .msg_iov = &iov,
		              .msg_iovlen = 1,
		              .msg_control = ctl.buf,
		              .msg_controllen = sizeof(ctl.buf) };
	ssize_t n = recvmsg(fd, &msg, 0);
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	unsigned nr = c ? (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;

	text[n > 0 ? n : 0] = '\0';
	for (unsigned i = 0; i < nr; i++) {
		int got;

		memcpy(&got, CMSG_DATA(c) + i * sizeof(got), sizeof(got));
		close(got);
	}
	return nr;
}

Test(monitor, lines_take_descriptors_along)
{
	own_fd int ours = -1, theirs = -1;
	json_t *line = json_pack("{s:s}", "cmd", "spawn");
	int fds[2] = { 0, 1 };
	struct err err = { 0 };
	char text[64];

	cr_assert_eq(monitor_pair(&ours, &theirs, &err), 0);
	cr_assert_gt(theirs, 3);
	for (unsigned nr = 0; nr <= 2; nr++) {
		cr_assert_eq(monitor_send(ours, line, fds, nr, &err), 0);
		cr_assert_eq(receive(theirs, text, sizeof(text)), nr);
		cr_assert_str_eq(text, "{\"cmd\":\"spawn\"}\n");
	}
	close(fd_take(&theirs));
	cr_assert_eq(monitor_send(ours, line, fds, 1, &err), -EPIPE);
	json_decref(line);
}

Test(monitor, line_that_is_too_long_is_not_sent)
{
	own_fd int ours = -1, theirs = -1;
	own_free char *text = calloc(1, MONITOR_LINE_MAX);
	struct pollfd pfd = { .events = POLLIN };
	struct err err = { 0 };
	json_t *line;

	cr_assert_eq(monitor_pair(&ours, &theirs, &err), 0);
	memset(text, 'x', MONITOR_LINE_MAX - 1);
	line = json_pack("{s:s}", "cmd", text);
	cr_assert_eq(monitor_send(ours, line, NULL, 0, &err), -EMSGSIZE);
	pfd.fd = theirs;
	cr_assert_eq(poll(&pfd, 1, 0), 0);
	json_decref(line);
}

Test(monitor, refusals_have_words)
{
	json_t *ok = json_pack("{s:b}", "ok", 1), *bare = json_object();
	json_t *no = json_pack("{s:b, s:s, s:s}", "ok", 0, "error", "not today", "remedy", "wait");
	struct err err = { 0 };

	cr_assert_eq(monitor_refused(ok, &err), 0);
	cr_assert_eq(monitor_refused(no, &err), -EREMOTEIO);
	cr_assert_str_eq(err.msg, "not today");
	cr_assert_str_eq(err.remedy, "wait");
	cr_assert_eq(monitor_refused(bare, &err), -EREMOTEIO);
	cr_assert_str_eq(err.msg, "the monitor refused without a reason");
	json_decref(ok);
	json_decref(no);
	json_decref(bare);
}
