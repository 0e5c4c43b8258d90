/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/host.h"

#include "core/own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static void cpu_model(char *model, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];
	char *colon;

	(void)snprintf(model, size, "unknown CPU");
	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, "model name", 10) != 0 || !(colon = strchr(line, ':')))
			continue;
		line[strcspn(line, "\n")] = '\0';
		(void)snprintf(model, size, "%s", colon + 2);
		break;
	}
	if (f)
		(void)fclose(f); /* only read */
}

static const char *kvm_kind(void)
{
	if (access("/sys/module/kvm_pvm", F_OK) == 0)
		return "software KVM (kvm_pvm)";
	if (access("/sys/module/kvm_intel", F_OK) == 0)
		return "kvm_intel";
	if (access("/sys/module/kvm_amd", F_OK) == 0)
		return "kvm_amd";
	return "unknown KVM";
}

void host_line(char *line, size_t size)
{
	struct utsname uts = { .release = "unknown" };
	double load[1] = { -1 };
	char model[128];

	cpu_model(model, sizeof(model));
	(void)uname(&uts);         /* the preset stays */
	(void)getloadavg(load, 1); /* as above */
	(void)snprintf(line, size, "%s, %ld CPUs, Linux %s, %s, load %.1f", model,
	               sysconf(_SC_NPROCESSORS_ONLN), uts.release, kvm_kind(), load[0]);
}

/* Adds one file's figures. Holes never become resident by themselves, so st_blocks is the honest total. */
static int file_resident(int fd, const struct stat *st, uint64_t *resident, uint64_t *total)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t len = (size_t)st->st_size;
	size_t pages = (len + page - 1) / page;
	own_free unsigned char *seen = malloc(pages ? pages : 1);
	void *map;
	int rc = 0;

	if (!seen)
		return -ENOMEM;
	if (!len)
		return 0;
	map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (mincore(map, len, seen) < 0)
		rc = -errno;
	munmap(map, len);
	for (size_t i = 0; !rc && i < pages; i++)
		*resident += (seen[i] & 1u) * page;
	*total += (uint64_t)st->st_blocks * 512u;
	return rc;
}

/* Calls resident counting, or dropping when `resident` is NULL, for each regular file of `dir`. */
static int each_file(const char *dir, uint64_t *resident, uint64_t *total, struct err *err)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int rc = 0;

	if (!d)
		return err_set(err, -errno, "%s: %s", dir, strerror(errno));
	while (!rc && (e = readdir(d))) {
		own_fd int fd =
			openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		struct stat st;

		if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
			continue;
		if (resident)
			rc = file_resident(fd, &st, resident, total);
		else
			rc = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		if (rc)
			err_set(err, rc, "%s/%s: %s", dir, e->d_name, strerror(-rc));
	}
	closedir(d);
	return rc;
}

int host_cache_resident(const char *dir, uint64_t *resident, uint64_t *total, struct err *err)
{
	*resident = *total = 0;
	return each_file(dir, resident, total, err);
}

static int drop_once(const char *dir, uint64_t *resident, uint64_t *total, struct err *err)
{
	int rc = each_file(dir, NULL, NULL, err);
	own_fd int fd = -1;

	if (rc)
		return rc;
	if (geteuid() == 0) {
		fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
		if (fd < 0 || write(fd, "1", 1) != 1)
			return err_set(err, -errno, "/proc/sys/vm/drop_caches: %s",
			               strerror(errno));
	}
	return host_cache_resident(dir, resident, total, err);
}

int host_cache_drop(const char *dir, struct err *err)
{
	const struct timespec pause = { .tv_nsec = 50000000 };
	uint64_t resident, total;

	/* The sandbox before this run may still be on its way out, and holds what it has mapped. */
	for (int tries = 0; tries < 40; tries++) {
		int rc = drop_once(dir, &resident, &total, err);

		if (rc || resident <= total / 100)
			return rc;
		(void)nanosleep(&pause, NULL); /* a shorter one does no harm */
	}
	return err_set(err, -EBUSY,
	               "%s: %llu of %llu KiB stay in the page cache; does a sandbox run from it?",
	               dir, (unsigned long long)resident / 1024, (unsigned long long)total / 1024);
}
