/* SPDX-License-Identifier: Apache-2.0 */
#include "guest/init/procs.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

Test(procs, parse_stat)
{
	struct proc_stat st;

	cr_assert_eq(procs_parse_stat("12 (a b) S 3 4 5 0 -1", &st), 0);
	cr_assert(st.pid == 12 && st.state == 'S' && st.ppid == 3 && st.session == 5);
	cr_assert_eq(procs_parse_stat("7 (x) R 1 1 1) Z 2 8 9 0", &st), 0);
	cr_assert(st.pid == 7 && st.state == 'Z' && st.ppid == 2 && st.session == 9);
	cr_assert_eq(procs_parse_stat("", &st), -EINVAL);
	cr_assert_eq(procs_parse_stat("7 (x", &st), -EINVAL);
	cr_assert_eq(procs_parse_stat("7 (x) R 1", &st), -EINVAL);
}

Test(procs, tags_stay_in_their_ranges)
{
	for (int i = 0; i < 2 * PROC_TAGS; i++) {
		int c = procs_next_tag(false), k = procs_next_tag(true);

		cr_assert(c >= PROC_TAG_COMMAND && c < PROC_TAG_COMMAND + PROC_TAGS);
		cr_assert(k >= PROC_TAG_KERNEL && k < PROC_TAG_KERNEL + PROC_TAGS && k <= 1000);
	}
}

/* Forks children for ever, each of which does the same: what a round misses, the next one sees. */
static void bomb(int ready_fd)
{
	setsid();
	if (write(ready_fd, "x", 1) != 1)
		_exit(1);
	close(ready_fd);
	for (int i = 0; i < 6; i++) {
		if (fork() == 0)
			i = 0;
		usleep(2000);
		if (getppid() == 1)
			break;
	}
	for (;;)
		pause();
}

/* Processes of the session that are not dead yet. */
static int count_session(pid_t session)
{
	DIR *dir = opendir("/proc");
	struct proc_stat st;
	struct dirent *e;
	int n = 0;

	while ((e = readdir(dir))) {
		char path[300], text[512] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%s/stat", e->d_name);
		f = fopen(path, "r");
		if (f && fgets(text, sizeof(text), f) && procs_parse_stat(text, &st) == 0 &&
		    st.session == session && st.state != 'Z' && st.state != 'X')
			n++;
		if (f)
			fclose(f);
	}
	closedir(dir);
	return n;
}

Test(procs, kill_tree_ends_a_fork_bomb, .timeout = 60)
{
	int ready[2], left = 1;
	pid_t pid;
	char c;

	cr_assert_eq(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		alarm(30); /* should the test fail, the bomb ends all the same */
		bomb(ready[1]);
	}
	close(ready[1]);
	cr_assert_eq(read(ready[0], &c, 1), 1);
	usleep(20000);
	cr_assert_gt(procs_kill_tree(pid, 0, 0), 0);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	/* The killed take a while to end; one that was missed would fork on. */
	for (int i = 0; i < 200 && left > 0; i++) {
		usleep(50000);
		left = count_session(pid);
	}
	cr_assert_eq(left, 0, "%d are left", left);
}
