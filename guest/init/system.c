/* SPDX-License-Identifier: Apache-2.0 */
#include "system.h"

#include "agent.h"
#include "user.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* The image has these two empty folders: mount points before there is a writable root. */
#define RW_DIR   "/.thawbox/rw"
#define ROOT_DIR "/.thawbox/root"

/* docs/protocol.md section 5. */
#define DOORBELL_PAGE  0xd000f000
#define DOORBELL_MAGIC 0x31584254u
#define DOORBELL_POWER 0x20

static int rw_fd = -1; /* the writable disk, which lies under the root and has no path any more */

static int mount_or_say(const char *what, const char *on, const char *type, unsigned long flags,
                        const char *options)
{
	int err;

	if (mount(what, on, type, flags, options) == 0)
		return 0;
	err = errno;
	say("cannot mount %s on %s: %s", type ? type : what, on, strerror(err));
	return -err;
}

static int mount_writable(void)
{
	/* noinit_itable: no thread that fills inode tables in the background. */
	if (mount("/dev/vdb", RW_DIR, "ext4", MS_NOATIME, "noinit_itable") < 0) {
		say("no writable disk (/dev/vdb: %s): changes are kept in memory", strerror(errno));
		if (mount_or_say("tmpfs", RW_DIR, "tmpfs", 0, "mode=755") < 0)
			return -EIO;
	}
	if ((mkdir(RW_DIR "/upper", 0755) < 0 && errno != EEXIST) ||
	    (mkdir(RW_DIR "/work", 0755) < 0 && errno != EEXIST)) {
		say("cannot write to the writable disk: %s", strerror(errno));
		return -EIO;
	}
	rw_fd = open(RW_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return 0;
}

static int switch_root(void)
{
	static const char options[] =
		"lowerdir=/,upperdir=" RW_DIR "/upper,workdir=" RW_DIR "/work";

	if (mount_or_say("overlay", ROOT_DIR, "overlay", MS_NOATIME, options) < 0)
		return -EIO;
	if (mount("/dev", ROOT_DIR "/dev", NULL, MS_MOVE, NULL) < 0 || chdir(ROOT_DIR) < 0 ||
	    mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0) {
		say("cannot make the overlay the root: %s", strerror(errno));
		return -EIO;
	}
	return 0;
}

/* /tmp stays on the disk: what programs put there must not eat the sandbox's memory. */
static const struct {
	const char *type, *on, *options;
	unsigned long flags;
} mounts[] = {
	{ "proc", "/proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC },
	{ "sysfs", "/sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC },
	{ "devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666", MS_NOSUID | MS_NOEXEC },
	{ "tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV },
	{ "tmpfs", "/run", "mode=755", MS_NOSUID | MS_NODEV },
};

static const struct {
	const char *path, *to;
} links[] = {
	{ "/dev/fd", "/proc/self/fd" },
	{ "/dev/stdin", "/proc/self/fd/0" },
	{ "/dev/stdout", "/proc/self/fd/1" },
	{ "/dev/stderr", "/proc/self/fd/2" },
};

int system_mount(void)
{
	/* The kernel has done it already if it could (DEVTMPFS_MOUNT). */
	if (mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=755") < 0 && errno != EBUSY)
		say("cannot mount /dev: %s", strerror(errno));
	if (mount_writable() < 0 || switch_root() < 0)
		return -EIO;
	for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
		mkdir(mounts[i].on, 0755);
		if (mount_or_say(mounts[i].type, mounts[i].on, mounts[i].type, mounts[i].flags,
		                 mounts[i].options) < 0 &&
		    strcmp(mounts[i].type, "proc") == 0)
			return -EIO; /* the agent itself needs it */
	}
	mkdir("/run/lock", 01777);
	chmod("/run/lock", 01777);
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
		if (symlink(links[i].to, links[i].path) < 0 && errno != EEXIST)
			say("cannot make %s: %s", links[i].path, strerror(errno));
	}
	return 0;
}

static void bring_loopback_up(void)
{
	struct ifreq r = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &r) < 0)
		say("no loopback interface: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void protect_self(void)
{
	struct rlimit files = { 65536, 65536 };
	struct sched_param priority = { .sched_priority = 1 };
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "-1000", 5) != 5)
		say("not protected from the OOM killer: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	setrlimit(RLIMIT_NOFILE, &files);
	/* Ahead of all that users run, so that deadlines and kills work under any load of theirs,
	 * a fork bomb's too. What is started gets the ordinary policy back. */
	if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority) < 0)
		say("not scheduled ahead of users: %s", strerror(errno));
}

/*
 * Memory grows by 16 pages a fault: on software KVM, where a fault costs 2 ms and clearing a page 0.5,
 * touching new memory takes a quarter of the time. Kernels without it are only slower.
 */
static void grow_in_large_steps(void)
{
	int fd = open("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
	              O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "always", 6) != 6)
		say("memory grows page by page");
	if (fd >= 0)
		close(fd);
}

void system_set_up(void)
{
	static const char name[] = "thawbox";

	if (sethostname(name, sizeof(name) - 1) < 0)
		say("host name: %s", strerror(errno));
	if (user_save_host_env("/run/environment") < 0) /* sudoers' env_file */
		say("commands under sudo do not learn what the host's CPU keeps");
	bring_loopback_up();
	grow_in_large_steps();
	protect_self();
}

void system_cmdline(const char *name, char *out, size_t size)
{
	char text[4096], *word, *rest = text;
	int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	size_t len = strlen(name);

	*out = '\0';
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return;
	text[n] = '\0';
	while ((word = strsep(&rest, " \n"))) {
		if (strncmp(word, name, len) == 0 && word[len] == '=')
			snprintf(out, size, "%s", word + len + 1);
	}
}

/* The monitor's register. Anything else at that address, such as another monitor's nothing, must
 * not be written to. */
static void ring_power_register(void)
{
	int fd = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
	volatile uint32_t *page;

	if (fd < 0)
		return;
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, DOORBELL_PAGE);
	if (page != MAP_FAILED && page[0] == DOORBELL_MAGIC)
		page[DOORBELL_POWER / 4] = 1;
	close(fd);
}

_Noreturn void system_power_off(void)
{
	char path[32];

	say("power off");
	kill(-1, SIGKILL);
	sync();
	/* No journal on the disk: only a clean unmount leaves it clean. */
	mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", rw_fd);
	mount(NULL, path, NULL, MS_REMOUNT | MS_RDONLY, NULL);
	sync();
	ring_power_register();
	usleep(200000);
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}
