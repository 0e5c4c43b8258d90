/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/jail_steps.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_MEMORY_MERGE /* Linux 6.4 */
#define PR_SET_MEMORY_MERGE 67
#endif

#define MAX_FILES   4096u
#define MAX_THREADS 128u       /* vCPUs, the loop's, its ring's workers, KVM's */
#define MAX_LOCKED  (1u << 20) /* bytes: of the ring */
#define NEW_ROOT    "/proc"    /* a directory that every host has */
#define ROOT_OPTS   "size=64k,nr_inodes=16,mode=755"
#define ROOT_FLAGS  (MS_NOSUID | MS_NODEV | MS_NOEXEC)

/* --- user namespace ------------------------------------------------------------------------------------- */

static struct {
	bool known, alone;
	uid_t outside;
} ns;

/* A map of one user. */
static void look_up_namespace(void)
{
	unsigned inside = 0, outside = 0, count = 0;
	FILE *map = fopen("/proc/self/uid_map", "re");

	if (map && fscanf(map, "%u %u %u", &inside, &outside, &count) == 3)
		ns.alone = count == 1;
	ns.outside = outside;
	ns.known = true;
	if (map)
		fclose(map);
}

bool steps_in_user_namespace(void)
{
	return ns.alone;
}

uid_t steps_host_uid(void)
{
	return ns.outside;
}

static int capabilities(struct __user_cap_data_struct data[2])
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };

	return syscall(SYS_capget, &head, data) < 0 ? -errno : 0;
}

static bool has_admin(void)
{
	struct __user_cap_data_struct data[2] = { 0 };

	return capabilities(data) == 0 && (data[0].effective & (1u << CAP_SYS_ADMIN));
}

static int write_proc(const char *path, const char *text)
{
	own_fd int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int steps_user_namespace(void)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();
	char users[32], groups[32];
	int ret;

	if (!ns.known)
		look_up_namespace();
	if (has_admin())
		return 0;
	if (unshare(CLONE_NEWUSER) < 0)
		return -errno;
	(void)snprintf(users, sizeof(users), "0 %u 1", uid);
	(void)snprintf(groups, sizeof(groups), "0 %u 1", gid);
	ret = write_proc("/proc/self/setgroups", "deny");
	if (ret == 0)
		ret = write_proc("/proc/self/uid_map", users);
	if (ret == 0)
		ret = write_proc("/proc/self/gid_map", groups);
	if (ret == 0) {
		ns.alone = true;
		ns.outside = uid;
	}
	return ret;
}

/* --- root ------------------------------------------------------------------------------------------------- */

static int add_window(unsigned n, int dir_fd)
{
	own_fd int tree = (int)syscall(SYS_open_tree, dir_fd, "",
	                               AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	char name[16];

	(void)snprintf(name, sizeof(name), "%u", n);
	if (tree < 0 || mkdir(name, 0755) < 0 ||
	    syscall(SYS_move_mount, tree, "", AT_FDCWD, name, MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
	    mount(NULL, name, NULL, MS_REMOUNT | MS_BIND | ROOT_FLAGS, NULL) < 0)
		return -errno;
	return 0;
}

int steps_open_windows(struct steps_window *windows, unsigned nr)
{
	for (unsigned i = 0; i < nr; i++) {
		windows[i].fd = open(windows[i].dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		free(ptr_take(windows[i].dir));
		if (windows[i].fd < 0)
			return -errno;
	}
	return 0;
}

int steps_root(const struct steps_window *windows, unsigned nr)
{
	int ret = 0;

	/* Nothing of what is mounted here shall be seen by the host. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
	    mount("thawbox", NEW_ROOT, "tmpfs", ROOT_FLAGS, ROOT_OPTS) < 0 || chdir(NEW_ROOT) < 0)
		return -errno;
	for (unsigned i = 0; ret == 0 && i < nr; i++)
		ret = add_window(i, windows[i].fd);
	if (ret == 0 && syscall(SYS_pivot_root, ".", ".") < 0)
		ret = -errno;
	if (ret < 0) {
		/* As it was. */
		return chdir("/") < 0 || umount2(NEW_ROOT, MNT_DETACH) < 0 ? -EXDEV : ret;
	}
	/* The old root lies over the new one now. */
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0 ||
	    mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | ROOT_FLAGS, NULL) < 0)
		return -EXDEV;
	return 0;
}

/* --- rights ------------------------------------------------------------------------------------------------- */

int steps_become(uint32_t id)
{
	if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0)
		return -errno;
	return 0;
}

/* Never above what there is: only an administrator could. */
static int limit(__rlimit_resource_t resource, rlim_t max)
{
	struct rlimit now;

	if (getrlimit(resource, &now) < 0)
		return -errno;
	if (now.rlim_max < max)
		max = now.rlim_max;
	now = (struct rlimit){ max, max };
	return setrlimit(resource, &now) < 0 ? -errno : 0;
}

int steps_limits(uint64_t largest, bool alone)
{
	int ret = limit(RLIMIT_CORE, 0);

	if (ret == 0)
		ret = limit(RLIMIT_NOFILE, MAX_FILES);
	if (ret == 0)
		ret = limit(RLIMIT_FSIZE, (rlim_t)largest);
	if (ret == 0)
		ret = limit(RLIMIT_MSGQUEUE, 0);
	if (ret == 0 && alone)
		ret = limit(RLIMIT_NPROC, MAX_THREADS);
	/* It counts by the host's user, whoever else that is. */
	if (ret == 0 && alone && !ns.alone)
		ret = limit(RLIMIT_MEMLOCK, MAX_LOCKED);
	return ret;
}

void steps_bound_capabilities(void)
{
	static bool done; /* a fork has its zygote's */

	for (unsigned long cap = 0; !done && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0; cap++)
		; /* up to the last there is, or none: no_new_privs gives an executed program none, either */
	done = true;
}

static int set_capabilities(uint32_t low)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { .effective = low, .permitted = low } };

	return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

void steps_keep_for_forks(void)
{
	const uint32_t wanted =
		1u << CAP_SYS_ADMIN | 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_DAC_OVERRIDE;
	struct __user_cap_data_struct data[2] = { 0 };

	if (capabilities(data) == 0)
		(void)set_capabilities(data[0].permitted & wanted); /* fewer than there are */
}

int steps_drop_capabilities(void)
{
	(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0,
	            0); /* older kernels have none */
	return set_capabilities(0);
}

int steps_no_new_privileges(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

int steps_not_dumpable(void)
{
	return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? -errno : 0;
}

int steps_no_merging(void)
{
	return prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) < 0 ? -errno : 0;
}

/* --- Landlock (its header here may be older than the kernel) -------------------------------------------------- */

#define FS_WINDOW \
	(1u << 1 | 1u << 2 | 1u << 5 | 1u << 8 | 1u << 14) /* write, read, remove, make, truncate */
#define NET_ALL   3u                                       /* bind and connect of TCP */
#define SCOPE_ALL 3u                                       /* abstract Unix sockets, signals */

struct ruleset {
	uint64_t fs, net, scoped;
};
struct beneath {
	uint64_t allowed;
	int32_t parent_fd;
} __attribute__((packed));

static int allow(int ruleset, const struct steps_window *windows, unsigned nr, uint64_t handled)
{
	for (unsigned i = 0; i < nr; i++) {
		struct beneath rule = { .allowed = FS_WINDOW & handled,
			                .parent_fd = windows[i].fd };

		if (syscall(SYS_landlock_add_rule, ruleset, 1, &rule, 0) < 0)
			return -errno;
	}
	return 0;
}

int steps_landlock(const struct steps_window *windows, unsigned nr, char *why, size_t size)
{
	static const uint8_t fs_bits[] = { 0, 13, 14, 15, 15, 16 };
	const long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1);
	struct ruleset rules = { 0 };
	own_fd int fd = -1;
	int ret = abi < 0 ? -errno : 0;

	if (abi > 0) {
		rules.fs = (1ull << fs_bits[abi < 5 ? abi : 5]) - 1;
		rules.net = abi >= 4 ? NET_ALL : 0;
		rules.scoped = abi >= 6 ? SCOPE_ALL : 0;
		fd = (int)syscall(SYS_landlock_create_ruleset, &rules,
		                  abi >= 6   ? sizeof(rules)
		                  : abi >= 4 ? offsetof(struct ruleset, scoped)
		                             : sizeof(rules.fs),
		                  0);
		ret = fd < 0 ? -errno : allow(fd, windows, nr, rules.fs);
	}
	if (ret == 0 && syscall(SYS_landlock_restrict_self, fd, 0) < 0)
		ret = -errno;
	if (ret == 0)
		(void)snprintf(why, size, "no files%s%s (ABI %ld)", abi >= 4 ? ", no TCP" : "",
		               abi >= 6 ? ", no signals to others" : "", abi);
	else
		(void)snprintf(why, size, "%s",
		               ret == -ENOSYS || ret == -EOPNOTSUPP
		                       ? "this kernel has none, or it is switched off (boot with "
		                         "lsm=landlock,...)"
		                       : strerror(-ret));
	return ret;
}
