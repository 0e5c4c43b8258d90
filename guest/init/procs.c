/* SPDX-License-Identifier: Apache-2.0 */
#include "procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ROUNDS 100
#define MAX_PIDS   16384

struct found {
	struct proc_stat st;
	int tag;
	bool member;
};

struct hunt {
	struct found *all; /* of this round */
	size_t nr, cap;
	pid_t *killed;
	size_t nr_killed, cap_killed;
};

int procs_parse_stat(const char *text, struct proc_stat *st)
{
	const char *end = strrchr(text, ')'); /* a name may hold anything, ") R 1" too */
	int pid, ppid, pgrp, session;

	if (!end || sscanf(text, "%d", &pid) != 1 ||
	    sscanf(end + 1, " %c %d %d %d", &st->state, &ppid, &pgrp, &session) != 4)
		return -EINVAL;
	st->pid = pid;
	st->ppid = ppid;
	st->session = session;
	return 0;
}

int procs_next_tag(bool kernel)
{
	static unsigned commands, kernels;

	if (kernel)
		return PROC_TAG_KERNEL + (int)(kernels++ % PROC_TAGS);
	return PROC_TAG_COMMAND + (int)(commands++ % PROC_TAGS);
}

static ssize_t read_proc(pid_t pid, const char *name, char *out, size_t size)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, out, size - 1);
	close(fd);
	out[n > 0 ? n : 0] = '\0';
	return n;
}

int procs_set_tag(pid_t pid, int tag)
{
	char path[64];
	int fd, r;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", pid);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = dprintf(fd, "%d", tag) < 0 ? -errno : 0;
	close(fd);
	return r;
}

static int add_found(struct hunt *h, pid_t pid)
{
	char text[512];
	struct found f = { .tag = -1 };

	if (read_proc(pid, "stat", text, sizeof(text)) <= 0 || procs_parse_stat(text, &f.st) < 0)
		return 0; /* it has ended */
	if (f.st.state == 'Z' || f.st.state == 'X')
		return 0;
	if (getpid() == 1 && read_proc(pid, "oom_score_adj", text, sizeof(text)) > 0)
		f.tag = atoi(text);
	if (h->nr == h->cap) {
		struct found *bigger = realloc(h->all, (h->cap + 256) * sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		h->all = bigger;
		h->cap += 256;
	}
	h->all[h->nr++] = f;
	return 0;
}

static int look(struct hunt *h)
{
	DIR *dir = opendir("/proc");
	struct dirent *e;
	int r = 0;

	h->nr = 0;
	if (!dir)
		return -errno;
	while (r == 0 && h->nr < MAX_PIDS && (e = readdir(dir))) {
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
			r = add_found(h, atoi(e->d_name));
	}
	closedir(dir);
	return r;
}

static bool has_member(const struct hunt *h, pid_t pid)
{
	for (size_t i = 0; i < h->nr; i++) {
		if (h->all[i].st.pid == pid)
			return h->all[i].member;
	}
	return false;
}

/* Marks who belongs; descendants by repeating until nobody is added. */
static void mark_members(struct hunt *h, pid_t root, int tag, pid_t spare_pid)
{
	bool added = true;

	for (size_t i = 0; i < h->nr; i++) {
		struct found *f = &h->all[i];

		f->member = f->st.pid == root || f->st.session == root || f->tag == tag;
	}
	while (added) {
		added = false;
		for (size_t i = 0; i < h->nr; i++) {
			struct found *f = &h->all[i];

			if (f->st.pid == 1 || f->st.pid == getpid() || f->st.pid == spare_pid)
				f->member = false;
			else if (!f->member && has_member(h, f->st.ppid))
				added = f->member = true;
		}
	}
}

static bool was_killed(const struct hunt *h, pid_t pid)
{
	for (size_t i = 0; i < h->nr_killed; i++) {
		if (h->killed[i] == pid)
			return true;
	}
	return false;
}

/* Returns how many were killed that had not been before. */
static int kill_members(struct hunt *h)
{
	int fresh = 0;

	for (size_t i = 0; i < h->nr; i++) {
		pid_t pid = h->all[i].st.pid;

		if (!h->all[i].member || was_killed(h, pid))
			continue;
		kill(pid, SIGKILL);
		fresh++;
		if (h->nr_killed == h->cap_killed) {
			pid_t *bigger = realloc(h->killed, (h->cap_killed + 256) * sizeof(*bigger));

			if (!bigger)
				continue; /* killed again next round: harmless */
			h->killed = bigger;
			h->cap_killed += 256;
		}
		h->killed[h->nr_killed++] = pid;
	}
	return fresh;
}

int procs_kill_tree(pid_t root, int tag, pid_t spare_pid)
{
	struct hunt h = { 0 };
	int fresh, total = 0;

	/* Once sent SIGKILL a process forks no more, so what a round did not see is new. */
	for (int round = 0; round < MAX_ROUNDS; round++) {
		if (look(&h) < 0)
			break;
		mark_members(&h, root, tag, spare_pid);
		fresh = kill_members(&h);
		total += fresh;
		if (fresh == 0)
			break;
	}
	free(h.all);
	free(h.killed);
	return total;
}
