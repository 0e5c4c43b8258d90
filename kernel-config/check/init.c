/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PID 1 of the kernel check (check.py): arms timers, says READY, waits in ring 3 until the host has
 * moved the wall clock in guest memory, and judges what the kernel and the vDSO then say.
 * Prints "ok NAME", "FAIL NAME detail" or "say NAME value". The last argument is the change in ns.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define SEC INT64_C(1000000000)
#define MS  INT64_C(1000000)
/* How far two readings one after the other may lie apart on a busy host that interprets ring 0. */
#define NEAR (200 * MS)
/* The same for clocks that move with the tick, on a busy host. */
#define NEAR_TICK (400 * MS)

static int64_t to_ns(struct timespec ts)
{
	return ts.tv_sec * SEC + ts.tv_nsec;
}

static int64_t vdso_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return to_ns(ts);
}

static int64_t syscall_ns(clockid_t clock)
{
	struct timespec ts;

	syscall(SYS_clock_gettime, clock, &ts);
	return to_ns(ts);
}

static void near(const char *name, int64_t got, int64_t want, int64_t within)
{
	int64_t off = got - want;

	if (off < -within || off > within)
		printf("FAIL %s off by %lld ns\n", name, (long long)off);
	else
		printf("ok %s\n", name);
}

/* Distance of two clocks, from the pair of readings that was the least disturbed. */
static int64_t distance_ns(clockid_t a, clockid_t b, int64_t (*read)(clockid_t))
{
	int64_t best = INT64_MAX, distance = 0;

	for (int i = 0; i < 50; i++) {
		int64_t before = read(b), middle = read(a), after = read(b);

		if (after - before >= best)
			continue;
		best = after - before;
		distance = middle - (before + best / 2);
	}
	return distance;
}

static int timer_at(int64_t real_ns)
{
	int fd = timerfd_create(CLOCK_REALTIME, 0);
	struct itimerspec at = { .it_value = { real_ns / SEC, real_ns % SEC } };

	timerfd_settime(fd, TFD_TIMER_ABSTIME, &at, NULL);
	return fd;
}

static void expect_timer(const char *name, int fd, int64_t due_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t asked = syscall_ns(CLOCK_REALTIME);

	if (poll(&p, 1, 10000) != 1)
		printf("FAIL %s never fired\n", name);
	else
		near(name, syscall_ns(CLOCK_REALTIME),
		     (asked > due_ns ? asked : due_ns) + NEAR_TICK, NEAR_TICK);
}

static void check_clocks(const char *when, int64_t real_minus_mono)
{
	struct stat st;
	int fd;

	printf("say phase %s\n", when);
	near("vdso-realtime", distance_ns(CLOCK_REALTIME, CLOCK_MONOTONIC, vdso_ns),
	     real_minus_mono, 2000);
	near("syscall-realtime", distance_ns(CLOCK_REALTIME, CLOCK_MONOTONIC, syscall_ns),
	     real_minus_mono, MS);
	near("vdso-tai", distance_ns(CLOCK_TAI, CLOCK_REALTIME, vdso_ns), 0, 2000);
	near("syscall-tai", distance_ns(CLOCK_TAI, CLOCK_REALTIME, syscall_ns), 0, MS);
	near("boottime", distance_ns(CLOCK_BOOTTIME, CLOCK_MONOTONIC, vdso_ns), 0, 2000);
	near("monotonic", vdso_ns(CLOCK_MONOTONIC), syscall_ns(CLOCK_MONOTONIC), NEAR);
	near("vdso-coarse", vdso_ns(CLOCK_REALTIME_COARSE), vdso_ns(CLOCK_REALTIME), NEAR_TICK);
	near("syscall-coarse", syscall_ns(CLOCK_REALTIME_COARSE), syscall_ns(CLOCK_REALTIME),
	     NEAR_TICK);
	near("monotonic-coarse", vdso_ns(CLOCK_MONOTONIC_COARSE), vdso_ns(CLOCK_MONOTONIC),
	     NEAR_TICK);
	near("time", time(NULL) * SEC, vdso_ns(CLOCK_REALTIME) - SEC / 2, SEC / 2 + NEAR);

	fd = open("/stamp", O_CREAT | O_TRUNC | O_WRONLY, 0600);
	(void)!write(fd, "x", 1); /* the stamp is what counts */
	fstat(fd, &st);
	close(fd);
	near("file-time", to_ns(st.st_mtim), syscall_ns(CLOCK_REALTIME), NEAR_TICK);
}

static void say_hex(const char *name, const uint8_t *p, size_t n)
{
	printf("say %s ", name);
	for (size_t i = 0; i < n; i++)
		printf("%02x", p[i]);
	printf("\n");
}

static void say_identity(void)
{
	char id[64] = "";
	uint8_t random[32];
	struct utsname uts;
	int fd;

	/* First of all: nothing else may have drawn from the generator. */
	(void)!getrandom(random, sizeof(random), 0);
	say_hex("random", random, sizeof(random));
	uname(&uts);
	printf("say nodename %s\n", uts.nodename);
	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
	(void)!read(fd, id, 36);
	close(fd);
	printf("say boot_id %s\n", id);
}

int main(int argc, char **argv)
{
	int64_t delta = atoll(argv[argc - 1]), real, distance, mono, last, due;
	int pending;

	setvbuf(stdout, NULL, _IOLBF, 0);
	mount("proc", "/proc", "proc", 0, NULL);
	printf("say init %lld\n", (long long)(syscall_ns(CLOCK_MONOTONIC) / MS));
	sethostname("before", 6);
	say_identity();

	real = syscall_ns(CLOCK_REALTIME);
	pending = timer_at(real + delta + 8 * SEC);
	distance = distance_ns(CLOCK_REALTIME, CLOCK_MONOTONIC, vdso_ns);
	printf("say realtime %lld\n", (long long)(syscall_ns(CLOCK_REALTIME) / SEC));
	check_clocks("before", distance);

	printf("READY\n");
	mono = vdso_ns(CLOCK_MONOTONIC);
	do {
		last = mono;
		mono = vdso_ns(CLOCK_MONOTONIC);
	} while (llabs(vdso_ns(CLOCK_REALTIME) - mono - distance) < SEC / 2);

	say_identity();
	near("monotonic-goes-on", mono, last + SEC / 4, SEC / 4);
	check_clocks("after", distance + delta);
	due = syscall_ns(CLOCK_REALTIME) + 300 * MS;
	expect_timer("armed-after", timer_at(due), due);
	expect_timer("armed-before", pending, real + delta + 8 * SEC);
	/* By now many ticks have passed: the shadow timekeeper agrees. */
	check_clocks("later", distance + delta);
	printf("DONE\n");
	reboot(RB_AUTOBOOT);
	return 0;
}
