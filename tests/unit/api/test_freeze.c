/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of a snapshot is all there or not at all, whatever the monitor does; it is only given files. */
#include "api/freeze.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_MS 5000

static char top[64], dir[96];
static struct sandbox sb;
static int theirs;
static pthread_t thread;
static const char *parts_answer; /* to `parts` */
static const char *final_answer; /* to `snapshot` and `workset` */
static char asked[4096];         /* the last line */
static unsigned nr_files;        /* that came with it */

static void answer_one(void)
{
	char control[CMSG_SPACE(MONITOR_FDS_MAX * sizeof(int))];
	struct iovec iov = { asked, sizeof(asked) - 1 };
	struct msghdr msg = { .msg_iov = &iov,
		              .msg_iovlen = 1,
		              .msg_control = control,
		              .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(theirs, &msg, 0);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	const char *text;

	asked[n > 0 ? n : 0] = '\0';
	nr_files = c ? (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
	for (unsigned i = 0; i < nr_files; i++) {
		char byte = (char)('a' + i);
		int fd;

		memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
		if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && write(fd, &byte, 1) != 1)
			abort();
		close(fd);
	}
	text = strstr(asked, "\"parts\"") && !nr_files ? parts_answer : final_answer;
	if (n > 0 && send(theirs, text, strlen(text), MSG_NOSIGNAL) < 0)
		abort();
}

static void *play_monitor(void *arg)
{
	for (intptr_t i = 0; i < (intptr_t)arg; i++)
		answer_one();
	return NULL;
}

static void expect_lines(intptr_t nr)
{
	cr_assert_eq(pthread_create(&thread, NULL, play_monitor, (void *)nr), 0);
}

static void setup(void)
{
	int sv[2];

	snprintf(top, sizeof(top), "/tmp/thawbox-test-XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	snprintf(dir, sizeof(dir), "%s/snap", top);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	sandbox_init(&sb);
	sb.control_fd = sv[0];
	theirs = sv[1];
	parts_answer = "{\"ok\":true,\"parts\":[\"state\",\"memory\"]}\n";
	final_answer = "{\"ok\":true}\n";
}

static void teardown(void)
{
	char command[128];

	close(theirs);
	sandbox_close(&sb);
	snprintf(command, sizeof(command), "rm -rf %s", top);
	cr_assert_eq(system(command), 0);
}

TestSuite(freeze, .init = setup, .fini = teardown, .timeout = 30);

/* What is in the folder, sorted. */
static void holds(const char *names)
{
	char command[512];

	snprintf(command, sizeof(command),
	         "test \"$(cd %s && find . -type f -o -type l | sort | tr '\\n' ' ')\" = '%s'", top,
	         names);
	cr_assert_eq(system(command), 0, "want %s", names);
}

Test(freeze, parts_are_filled_and_named)
{
	struct err err = { 0 };

	expect_lines(2);
	cr_assert_eq(freeze_snapshot(&sb, dir, false, WAIT_MS, &err), 0, "%s", err.msg);
	pthread_join(thread, NULL);
	cr_assert_eq(nr_files, 2u);
	cr_assert_not_null(strstr(asked, "[\"state\",\"memory\"]"));
	holds("./snap/memory ./snap/state ");
}

Test(freeze, monitor_that_fails_leaves_nothing)
{
	struct err err = { 0 };

	final_answer = "{\"ok\":false,\"error\":\"memory: No space left\"}\n";
	expect_lines(2);
	cr_assert_eq(freeze_snapshot(&sb, dir, false, WAIT_MS, &err), -EREMOTEIO);
	pthread_join(thread, NULL);
	cr_assert_not_null(strstr(err.msg, "No space"));
	holds("");
	cr_assert_eq(rmdir(dir), -1);
}

/* A monitor that has been taken over may say what it likes. */
Test(freeze, names_are_not_paths)
{
	const char *const lies[] = { "[\"../escaped\"]",
		                     "[\"/tmp/escaped\"]",
		                     "[\"..\"]",
		                     "[\"\"]",
		                     "[1]",
		                     "[]",
		                     "[\"a\",\"a\"]",
		                     "[1,2,3,4,5,6,7,8,9,10,11,12]",
		                     "{}" };
	char answer[128];

	for (unsigned i = 0; i < ARRAY_LEN(lies); i++) {
		struct err err = { 0 };

		snprintf(answer, sizeof(answer), "{\"ok\":true,\"parts\":%s}\n", lies[i]);
		parts_answer = answer;
		expect_lines(1);
		cr_assert_lt(freeze_snapshot(&sb, dir, false, WAIT_MS, &err), 0, "%s", lies[i]);
		pthread_join(thread, NULL);
		holds("");
	}
}

Test(freeze, nothing_is_replaced_unasked)
{
	struct err err = { 0 };

	cr_assert_eq(mkdir(dir, 0700), 0);
	cr_assert_eq(freeze_snapshot(&sb, dir, false, WAIT_MS, &err), -EEXIST);
	cr_assert_neq(err.remedy[0], '\0');
	expect_lines(2);
	cr_assert_eq(freeze_snapshot(&sb, dir, true, WAIT_MS, &err), 0, "%s", err.msg);
	pthread_join(thread, NULL);
	holds("./snap/memory ./snap/state ");
}

Test(freeze, folder_that_is_not_there)
{
	struct err err = { 0 };

	snprintf(dir, sizeof(dir), "%s/no/such", top);
	cr_assert_eq(freeze_snapshot(&sb, dir, false, WAIT_MS, &err), -ENOENT);
	holds("");
}

Test(freeze, workset_takes_its_place_whole)
{
	struct err err = { 0 };

	cr_assert_eq(mkdir(dir, 0700), 0);
	expect_lines(1);
	cr_assert_eq(freeze_workset(&sb, dir, false, WAIT_MS, &err), 0, "%s", err.msg);
	pthread_join(thread, NULL);
	cr_assert_eq(nr_files, 1u);
	holds("./snap/workset ");
	expect_lines(1);
	cr_assert_eq(freeze_workset(&sb, dir, true, WAIT_MS, &err), 0, "%s", err.msg);
	pthread_join(thread, NULL);
	cr_assert_eq(nr_files, 2u, "the one there is read");
	holds("./snap/workset ");
}

Test(freeze, workset_that_fails_keeps_the_old_one)
{
	struct err err = { 0 };

	cr_assert_eq(mkdir(dir, 0700), 0);
	cr_assert_eq(freeze_workset(&sb, dir, true, WAIT_MS, &err), -ENOENT,
	             "there is none to add to");
	holds("");
	final_answer = "{\"ok\":false,\"error\":\"no\"}\n";
	expect_lines(1);
	cr_assert_eq(freeze_workset(&sb, dir, false, WAIT_MS, &err), -EREMOTEIO);
	pthread_join(thread, NULL);
	holds("");
}

/* --- full disks, and two at once --------------------------------------------------------------------- */

/* `top` is a file system of that many bytes and inodes from here on, for this process alone. */
static void make_small(const char *options)
{
	uid_t uid = getuid();
	char map[32];
	FILE *f;

	if (unshare(CLONE_NEWNS | (uid ? CLONE_NEWUSER : 0)))
		cr_skip_test("no mount namespace is to be had here");
	snprintf(map, sizeof(map), "0 %u 1", uid);
	f = uid ? fopen("/proc/self/uid_map", "w") : NULL;
	if (f) {
		fputs(map, f);
		cr_assert_eq(fclose(f), 0);
	}
	cr_assert_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	cr_assert_eq(mount("none", top, "tmpfs", 0, options), 0);
}

static void expect_full(void)
{
	struct err err = { 0 };

	cr_assert_eq(freeze_snapshot(&sb, dir, true, WAIT_MS, &err), -ENOSPC, "%s", err.msg);
	cr_assert_not_null(strstr(err.remedy, "disk space"));
	holds("./snap/memory ./snap/state ");
}

/* inodes: of the root, of the snapshot that is there and its two parts; one more is a folder without its files. */
Test(freeze, disk_that_is_full)
{
	const char *const rooms[] = { "nr_inodes=4", "nr_inodes=5", "nr_inodes=6" };
	struct err err = { 0 };
	char remount[64];

	make_small("size=1m,nr_inodes=20");
	expect_lines(2);
	cr_assert_eq(freeze_snapshot(&sb, dir, false, WAIT_MS, &err), 0, "%s", err.msg);
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < ARRAY_LEN(rooms); i++) {
		snprintf(remount, sizeof(remount), "size=1m,%s", rooms[i]);
		cr_assert_eq(mount("none", top, "tmpfs", MS_REMOUNT, remount), 0);
		if (i)
			expect_lines(1);
		expect_full();
		if (i)
			pthread_join(thread, NULL);
	}
	cr_assert_eq(mount("none", top, "tmpfs", MS_REMOUNT, "size=1m,nr_inodes=20"), 0);
	expect_lines(2);
	cr_assert_eq(freeze_snapshot(&sb, dir, true, WAIT_MS, &err), 0, "%s", err.msg);
	pthread_join(thread, NULL);
	holds("./snap/memory ./snap/state ");
}

#define AT_ONCE 8

/* One of several who freeze to the same name. */
struct freezer {
	struct sandbox sb;
	int theirs, rc;
	bool replace;
	pthread_t client, monitor;
	struct err err;
};

static void *say_parts_and_fill(void *arg)
{
	struct freezer *f = arg;
	char line[4096];

	for (unsigned i = 0; i < 2; i++) {
		union {
			char buf[CMSG_SPACE(2 * sizeof(int))];
			struct cmsghdr align;
		} ctl;
		struct iovec iov = { line, sizeof(line) };
		struct msghdr msg = { .msg_iov = &iov,
			              .msg_iovlen = 1,
			              .msg_control = ctl.buf,
			              .msg_controllen = sizeof(ctl.buf) };
		const char *text =
			i ? "{\"ok\":true}\n" : "{\"ok\":true,\"parts\":[\"state\",\"memory\"]}\n";
		int fds[2];

		if (recvmsg(f->theirs, &msg, 0) <= 0)
			break;
		for (unsigned n = 0; i && n < 2; n++) {
			memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
			if (write(fds[n], &f->theirs, sizeof(f->theirs)) != sizeof(f->theirs))
				abort();
			close(fds[n]);
		}
		if (send(f->theirs, text, strlen(text), MSG_NOSIGNAL) < 0)
			abort();
	}
	return NULL;
}

static void *freeze_one(void *arg)
{
	struct freezer *f = arg;

	f->rc = freeze_snapshot(&f->sb, dir, f->replace, WAIT_MS, &f->err);
	return NULL;
}

static unsigned freeze_at_once(struct freezer *freezers, bool replace)
{
	unsigned done = 0;

	for (unsigned i = 0; i < AT_ONCE; i++) {
		struct freezer *f = &freezers[i];
		int sv[2];

		*f = (struct freezer){ .replace = replace };
		cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
		sandbox_init(&f->sb);
		f->sb.control_fd = sv[0];
		f->theirs = sv[1];
		cr_assert_eq(pthread_create(&f->monitor, NULL, say_parts_and_fill, f), 0);
	}
	for (unsigned i = 0; i < AT_ONCE; i++)
		cr_assert_eq(pthread_create(&freezers[i].client, NULL, freeze_one, &freezers[i]),
		             0);
	for (unsigned i = 0; i < AT_ONCE; i++) {
		pthread_join(freezers[i].client, NULL);
		sandbox_close(&freezers[i].sb);
		pthread_join(freezers[i].monitor, NULL);
		done += freezers[i].rc == 0;
	}
	for (unsigned i = 0; i < AT_ONCE; i++)
		close(freezers[i].theirs);
	return done;
}

/* Both parts are of one and the same. */
static void is_of_one(void)
{
	char path[128];
	int who[2] = { 0 };

	for (unsigned i = 0; i < 2; i++) {
		FILE *f;

		snprintf(path, sizeof(path), "%s/%s", dir, i ? "memory" : "state");
		f = fopen(path, "r");
		cr_assert_not_null(f);
		cr_assert_eq(fread(&who[i], sizeof(who[i]), 1, f), 1u);
		fclose(f);
	}
	cr_assert_eq(who[0], who[1]);
}

Test(freeze, two_at_once_to_one_name)
{
	struct freezer freezers[AT_ONCE];

	for (unsigned turn = 0; turn < 20; turn++) {
		char command[128];

		cr_assert_eq(freeze_at_once(freezers, false), 1u,
		             "one has the name, and one alone");
		for (unsigned i = 0; i < AT_ONCE; i++)
			cr_assert(freezers[i].rc == 0 || freezers[i].rc == -EEXIST, "%s",
			          freezers[i].err.msg);
		holds("./snap/memory ./snap/state ");
		is_of_one();
		snprintf(command, sizeof(command), "rm -r %s", dir);
		cr_assert_eq(system(command), 0);
	}
}

Test(freeze, two_at_once_that_replace)
{
	struct freezer freezers[AT_ONCE];

	for (unsigned turn = 0; turn < 20; turn++) {
		cr_assert_eq(freeze_at_once(freezers, true), (unsigned)AT_ONCE,
		             "the last one stays, no one is refused");
		holds("./snap/memory ./snap/state ");
		is_of_one();
	}
}
