/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/jail.h"

#include "core/log.h"
#include "core/own.h"
#include "vmm/jail_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MARK "THAWBOX_TEST_MARK=" /* by which tests find what they have started; it says nothing */

static const struct {
	const char *name;
	enum jail_level level; /* that needs it; JAIL_LEVEL_NONE: only when asked for */
} layers[JAIL_NR_LAYERS] = {
	[JAIL_DESCRIPTORS] = { "descriptors", JAIL_LEVEL_VM },
	[JAIL_ENVIRONMENT] = { "environment", JAIL_LEVEL_VM },
	[JAIL_MERGING] = { "no page merging", JAIL_LEVEL_VM },
	[JAIL_CAPABILITIES] = { "capabilities", JAIL_LEVEL_VM },
	[JAIL_PRIVILEGES] = { "no new privileges", JAIL_LEVEL_VM },
	[JAIL_DUMPS] = { "not dumpable", JAIL_LEVEL_VM },
	[JAIL_LIMITS] = { "limits", JAIL_LEVEL_VM },
	[JAIL_USER] = { "own user", JAIL_LEVEL_USER },
	[JAIL_ROOT] = { "empty root", JAIL_LEVEL_USER },
	[JAIL_NET] = { "net namespace", JAIL_LEVEL_USER },
	[JAIL_PID] = { "pid namespace", JAIL_LEVEL_FULL },
	[JAIL_IPC] = { "ipc namespace", JAIL_LEVEL_FULL },
	[JAIL_UTS] = { "uts namespace", JAIL_LEVEL_FULL },
	[JAIL_CGROUP_NS] = { "cgroup namespace", JAIL_LEVEL_FULL },
	[JAIL_LANDLOCK] = { "landlock", JAIL_LEVEL_FULL },
	[JAIL_CGROUP] = { "cgroup limits", JAIL_LEVEL_NONE },
	[JAIL_SECCOMP] = { "seccomp", JAIL_LEVEL_FULL },
};

static const char *const level_names[] = { "none", "vm", "user", "full" };

/* All zero: nothing has been tried. */
static struct {
	struct jail_config config;
	bool entered, dropped;
	int proc_fd; /* owned; -1: none */
	pid_t pid;   /* the starter's number; 0: not looked up */
	unsigned nr_windows;
	struct steps_window window[JAIL_WINDOWS_MAX];
	const char *kept; /* why the caller's user is; NULL: it is not */
	struct {
		bool on;
		char why[160];
	} layer[JAIL_NR_LAYERS];
} jail = { .proc_fd = -1 };

int jail_level_of(const char *name)
{
	for (int i = 0; i < (int)ARRAY_LEN(level_names); i++)
		if (strcmp(name, level_names[i]) == 0)
			return i;
	return -1;
}

const char *jail_level_name(enum jail_level level)
{
	return level_names[level];
}

void jail_note(enum jail_layer layer, bool on, const char *why)
{
	jail.layer[layer].on = on;
	(void)snprintf(jail.layer[layer].why, sizeof(jail.layer[layer].why), "%s", why);
}

/* 0 or -errno as a layer's outcome. */
static void note_result(enum jail_layer layer, int ret, const char *on, const char *off)
{
	char why[160];

	(void)snprintf(why, sizeof(why), "%s: %s", off, strerror(-ret));
	jail_note(layer, ret >= 0, ret >= 0 ? on : why);
}

static bool wants(enum jail_level level)
{
	return jail.config.most >= level;
}

enum jail_level jail_level(void)
{
	enum jail_level level = JAIL_LEVEL_FULL;

	for (unsigned i = 0; i < JAIL_NR_LAYERS; i++)
		if (!jail.layer[i].on && layers[i].level && layers[i].level <= level)
			level = layers[i].level - 1;
	return level;
}

json_t *jail_report(void)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < JAIL_NR_LAYERS; i++)
		json_array_append_new(
			list, json_pack("{s:s, s:s, s:b, s:s}", "name", layers[i].name, "level",
		                        layers[i].level ? level_names[layers[i].level] : "extra",
		                        "on", jail.layer[i].on, "why", jail.layer[i].why));
	return json_pack("{s:s, s:o}", "level", level_names[jail_level()], "layers", list);
}

/* --- at the start ----------------------------------------------------------------------------------- */

static void close_others(int keep_fd)
{
	int ret = 0;

	if (keep_fd > STDERR_FILENO + 1)
		ret = close_range(STDERR_FILENO + 1, (unsigned)keep_fd - 1, 0);
	if (ret == 0)
		ret = close_range((unsigned)(keep_fd > STDERR_FILENO ? keep_fd : STDERR_FILENO) + 1,
		                  UINT_MAX, 0);
	note_result(JAIL_DESCRIPTORS, ret < 0 ? -errno : 0,
	            "only the standard ones and the control socket were kept", "close_range");
}

/* The strings lie on the first page of the stack: what they say is wiped, not only forgotten. */
static void wipe_environment(void)
{
	for (char **each = environ; each && *each; each++)
		if (strncmp(*each, MARK, sizeof(MARK) - 1) != 0)
			explicit_bzero(*each, strlen(*each));
	(void)clearenv(); /* cannot fail with what exists */
	jail_note(JAIL_ENVIRONMENT, true, "wiped");
}

/* A starter may have asked the kernel to merge all of its pages with equal ones of others (KSM), and so of its children. */
static void stop_merging(void)
{
	int ret = steps_no_merging();

	if (ret == -EINVAL)
		jail_note(JAIL_MERGING, true, "this kernel merges no page unasked");
	else
		note_result(JAIL_MERGING, ret, "off, also if the starter has it on", "prctl");
}

void jail_begin(const struct jail_config *config, int keep_fd)
{
	jail.config = *config;
	for (unsigned i = 0; i < JAIL_NR_LAYERS; i++)
		jail_note(i, false,
		          !layers[i].level         ? "not asked for"
		          : wants(layers[i].level) ? "no machine yet"
		                                   : "switched off by --isolation");
	if (!wants(JAIL_LEVEL_VM))
		return;
	close_others(keep_fd);
	wipe_environment();
	stop_merging();
	jail.proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* --- what stays reachable ------------------------------------------------------------------------------ */

bool jail_is_entered(void)
{
	return jail.entered && wants(JAIL_LEVEL_USER);
}

void jail_keep_user(const char *why)
{
	jail.kept = why;
}

int jail_window(const char *path, struct err *err)
{
	const char *slash = strrchr(path, '/');
	char *dir;

	if (jail_is_entered() || (jail.entered && jail.layer[JAIL_SECCOMP].on)) {
		err_set(err, -EPERM, "%s: this monitor is in its jail already", path);
		return err_remedy(err, "name the path to a monitor that is started for it, or use "
		                       "`connect`");
	}
	BUG_ON(jail.nr_windows == JAIL_WINDOWS_MAX);
	dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
	if (!dir)
		return err_set(err, -ENOMEM, "%s: out of memory", path);
	jail.window[jail.nr_windows].dir = dir;
	jail_keep_user("a folder of the host is needed with the caller's rights");
	return (int)jail.nr_windows++;
}

void jail_path(int window, const char *path, char now[JAIL_PATH_MAX])
{
	const char *slash = strrchr(path, '/');

	if (jail.entered && jail.layer[JAIL_ROOT].on)
		(void)snprintf(now, JAIL_PATH_MAX, "/%d/%s", window, slash ? slash + 1 : path);
	else
		(void)snprintf(now, JAIL_PATH_MAX, "%s", path);
}

int jail_open_proc(const char *name)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "self/%s", name);
	fd = jail.proc_fd >= 0 ? openat(jail.proc_fd, path, O_RDONLY | O_CLOEXEC) : -1;
	if (jail.proc_fd < 0) {
		(void)snprintf(path, sizeof(path), "/proc/self/%s", name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	return fd < 0 ? -errno : fd;
}

pid_t jail_pid(void)
{
	char text[16];
	ssize_t n;

	if (jail.pid)
		return jail.pid;
	n = jail.proc_fd >= 0 ? readlinkat(jail.proc_fd, "self", text, sizeof(text) - 1) : -1;
	text[n > 0 ? n : 0] = '\0';
	jail.pid = n > 0 ? (pid_t)strtol(text, NULL, 10) : getpid();
	return jail.pid;
}

/* --- namespaces and root -------------------------------------------------------------------------------- */

static const struct {
	enum jail_layer layer;
	int flag;
	const char *on;
} namespaces[] = {
	{ JAIL_ROOT, CLONE_NEWNS, "" }, /* said when the root is made */
	{ JAIL_NET, CLONE_NEWNET, "nothing but loopback, down" },
	{ JAIL_IPC, CLONE_NEWIPC, "its own" },
	{ JAIL_UTS, CLONE_NEWUTS, "its own" },
	{ JAIL_CGROUP_NS, CLONE_NEWCGROUP, "its own" },
};

static int namespace_flags(void)
{
	int flags = 0;

	for (unsigned i = 0; i < ARRAY_LEN(namespaces); i++)
		flags |= wants(layers[namespaces[i].layer].level) ? namespaces[i].flag : 0;
	return flags;
}

/* All in one call; where that fails each alone, so that each says why. */
static void leave_namespaces(void)
{
	int all = namespace_flags();
	bool done = unshare(all) == 0;

	for (unsigned i = 0; i < ARRAY_LEN(namespaces); i++) {
		int flag = namespaces[i].flag, ret = 0;

		if (!(all & flag))
			continue;
		if (!done && unshare(flag) < 0)
			ret = -errno;
		note_result(namespaces[i].layer, ret, namespaces[i].on, "unshare");
	}
}

static void note_pid(void)
{
	bool first = getpid() == 1;

	if (wants(layers[JAIL_PID].level))
		jail_note(JAIL_PID, first,
		          first ? "its own" : "its starter made none (or might not)");
}

/* Its starter has made one for it, by a name of ours (api/cgroup). While /proc can be read. */
static void note_cgroup(void)
{
	char text[1024], why[160];
	own_fd int fd = jail_open_proc("cgroup");
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	const char *line, *name;

	text[n > 0 ? n : 0] = '\0';
	line = strstr(text, "0::");
	name = line ? strstr(line, "/thawbox-") : NULL;
	if (!name || jail.layer[JAIL_CGROUP].on)
		return;
	(void)snprintf(why, sizeof(why), "in a group of its own, %.*s",
	               (int)strcspn(name + 1, "\n"), name + 1);
	jail_note(JAIL_CGROUP, true, why);
}

int jail_enter(struct err *err)
{
	int ret;

	if (jail.entered || !wants(JAIL_LEVEL_USER)) {
		jail.entered = true;
		return 0;
	}
	jail.entered = true;
	(void)jail_pid(); /* while /proc is there */
	note_cgroup();
	ret = steps_user_namespace();
	note_result(JAIL_USER, ret, "user namespace", "user namespace");
	leave_namespaces();
	ret = steps_open_windows(jail.window, jail.nr_windows);
	if (ret < 0)
		return err_set(err, ret, "isolation: a folder to be reached: %s", strerror(-ret));
	if (jail.layer[JAIL_ROOT].on) {
		ret = steps_root(jail.window, jail.nr_windows);
		if (ret == -EXDEV) /* half done: neither the old root nor a new one */
			return err_set(err, ret, "isolation: the old root could not be left");
		note_result(JAIL_ROOT, ret,
		            jail.nr_windows ? "read-only, and the folders asked for"
		                            : "read-only, nothing in it",
		            "new root");
	}
	return 0;
}

/* --- what this process may ------------------------------------------------------------------------------ */

/* Its own user where it may change to one; in a user namespace of its own it cannot, and need not. */
static void become_somebody(void)
{
	uint32_t id = jail.config.uid_base + (uint32_t)jail_pid();
	char why[160];
	int ret;

	if (steps_in_user_namespace()) {
		(void)snprintf(why, sizeof(why), "a user namespace; the host knows it as uid %u",
		               steps_host_uid());
		jail_note(JAIL_USER, true, why);
		return;
	}
	if (jail.kept) {
		jail_note(JAIL_USER, false, jail.kept);
		return;
	}
	ret = steps_become(id);
	(void)snprintf(why, sizeof(why), "uid and gid %u", id);
	note_result(JAIL_USER, ret, why, "neither a user of its own nor a user namespace");
}

int jail_drop_some(struct err *err)
{
	(void)err;
	if (!wants(JAIL_LEVEL_VM))
		return 0;
	steps_bound_capabilities();
	steps_keep_for_forks();
	return 0;
}

int jail_drop(uint64_t largest, struct err *err)
{
	bool alone;
	int ret;

	if (jail.dropped || !wants(JAIL_LEVEL_VM))
		return 0;
	jail.dropped = true;
	(void)jail_pid(); /* while it can be known */
	note_cgroup();
	note_pid();
	steps_bound_capabilities();
	if (wants(JAIL_LEVEL_USER))
		become_somebody();
	alone = jail.layer[JAIL_USER].on;
	ret = steps_limits(largest, alone);
	note_result(JAIL_LIMITS, ret, "files, their size, threads, locked memory, no core",
	            "setrlimit");
	ret = steps_drop_capabilities();
	note_result(JAIL_CAPABILITIES, ret, "none, and none to be had", "capset");
	if (ret < 0)
		return err_set(err, ret, "isolation: capabilities: %s", strerror(-ret));
	ret = steps_no_new_privileges();
	note_result(JAIL_PRIVILEGES, ret, "set", "prctl");
	if (wants(layers[JAIL_LANDLOCK].level)) {
		char why[160];

		ret = steps_landlock(jail.window, jail.nr_windows, why, sizeof(why));
		jail_note(JAIL_LANDLOCK, ret == 0, why);
	}
	ret = steps_not_dumpable();
	note_result(JAIL_DUMPS, ret, "set, and no core", "prctl");
	for (unsigned i = 0; i < jail.nr_windows; i++)
		own_close_fd(&jail.window[i].fd);
	own_close_fd(&jail.proc_fd);
	jail.proc_fd = -1;
	return 0;
}

/* The remedy for the first layer that keeps the level down. */
static int refuse(enum jail_level have, struct err *err)
{
	unsigned i = 0;

	while (jail.layer[i].on || !layers[i].level || layers[i].level > have + 1)
		i++;
	err_set(err, -EPERM, "isolation \"%s\" is required, this host and user give \"%s\": %s: %s",
	        level_names[jail.config.least], level_names[have], layers[i].name,
	        jail.layer[i].why);
	return err_remedy(
		err, "`thawbox doctor --isolation` shows each layer; run as root, or allow user "
		     "namespaces, or require less");
}

static void log_missing(enum jail_level have)
{
	log_info("isolation: level %s", level_names[have]);
	for (unsigned i = 0; i < JAIL_NR_LAYERS; i++)
		if (!jail.layer[i].on && layers[i].level)
			log_info("isolation: %s is off: %s", layers[i].name, jail.layer[i].why);
}

int jail_check(struct err *err)
{
	enum jail_level have = jail_level();

	if (log_enabled(LOG_LVL_INFO))
		log_missing(have);
	return have < jail.config.least ? refuse(have, err) : 0;
}

pid_t jail_fork(void)
{
	unsigned long flags = CLONE_PARENT | SIGCHLD;
	pid_t pid = -1;

	if (wants(layers[JAIL_PID].level))
		pid = (pid_t)syscall(SYS_clone, flags | CLONE_NEWPID, NULL, NULL, NULL, NULL);
	if (pid < 0)
		pid = (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
	if (pid == 0)
		jail.pid = 0;
	return pid;
}
