/* SPDX-License-Identifier: Apache-2.0 */
#include "core/own.h"
#include "tests/unit/vmm/test_boot_image.h"
#include "vmm/boot_bzimage.h"
#include "vmm/boot_elf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MAX_FILE 65536u

static struct image im;
static uint8_t file[MAX_FILE];

static void setup(void)
{
	image_init(&im);
}

TestSuite(boot_bzimage, .init = setup);

/* Compresses the image by the shell command, as the kernel's build does it: the packed length. */
static uint32_t pack(const char *command, bool append_size)
{
	char path[64], shell[256];
	own_fd int fd = image_file(&im, sizeof(im), path);
	uint32_t size = sizeof(im);
	size_t n;
	FILE *p;

	(void)snprintf(shell, sizeof(shell), "%s </proc/%d/fd/%d", command, getpid(), fd);
	p = popen(shell, "r");
	cr_assert_not_null(p);
	n = fread(file + BZIMAGE_SETUP + BZIMAGE_PAYLOAD, 1,
	          MAX_FILE - BZIMAGE_SETUP - BZIMAGE_PAYLOAD - sizeof(size), p);
	cr_assert_eq(pclose(p), 0, "%s", command);
	if (append_size) {
		memcpy(file + BZIMAGE_SETUP + BZIMAGE_PAYLOAD + n, &size, sizeof(size));
		n += sizeof(size);
	}
	image_bzimage(file, (uint32_t)n);
	return (uint32_t)n;
}

/* Code follows the payload in every real bzImage: it must not reach the program. */
static size_t file_len(uint32_t payload)
{
	return BZIMAGE_SETUP + BZIMAGE_PAYLOAD + payload + 100;
}

static int unpack_file(size_t n, uint64_t max, uint64_t *size, struct err *err)
{
	char path[64];
	own_fd int fd = image_file(file, n, path);

	*err = (struct err){ 0 };
	cr_assert(boot_bzimage_probe(fd, n));
	return boot_bzimage_unpack(fd, n, max, size, err);
}

static void round_trip(const char *command, bool append_size)
{
	uint32_t payload = pack(command, append_size);
	uint64_t size = 0;
	struct image got;
	struct err err;
	own_fd int fd = unpack_file(file_len(payload), MAX_FILE, &size, &err);

	cr_assert_geq(fd, 0, "%s: %s", command, err.msg);
	cr_assert_eq(size, sizeof(im));
	cr_assert_eq(boot_pread(fd, &got, sizeof(got), 0), 0);
	cr_assert_eq(memcmp(&got, &im, sizeof(im)), 0, "%s", command);
}

static bool has(const char *program)
{
	char shell[64];

	(void)snprintf(shell, sizeof(shell), "command -v %s >/dev/null", program);
	return system(shell) == 0;
}

static void round_trip_if_there(const char *program, const char *command, bool append_size)
{
	if (!has(program))
		cr_skip_test("%s is not installed", program);
	round_trip(command, append_size);
}

/* The commands of scripts/Makefile.lib. */
Test(boot_bzimage, unpacks_gzip)
{
	round_trip_if_there("gzip", "gzip -n -9", false);
}
Test(boot_bzimage, unpacks_xz)
{
	round_trip_if_there("xz", "xz --check=crc32 --x86 --lzma2=dict=32MiB", true);
}
Test(boot_bzimage, unpacks_lzma)
{
	round_trip_if_there("lzma", "lzma -9", true);
}
Test(boot_bzimage, unpacks_lz4)
{
	round_trip_if_there("lz4", "lz4 -l -9 - -", true);
}
Test(boot_bzimage, unpacks_zstd)
{
	round_trip_if_there("zstd", "zstd -q -22 --ultra", true);
}
Test(boot_bzimage, unpacks_bzip2)
{
	round_trip_if_there("bzip2", "bzip2 -9", true);
}
Test(boot_bzimage, unpacks_lzop)
{
	round_trip_if_there("lzop", "lzop -9", true);
}

static void refused(size_t n, uint64_t max, int code, const char *word)
{
	uint64_t size;
	struct err err;
	int ret = unpack_file(n, max, &size, &err);

	cr_assert_eq(ret, code, "%d (%s), want %d", ret, err.msg, code);
	cr_assert_not_null(strstr(err.msg, word), "\"%s\" does not speak of %s", err.msg, word);
}

static void patch(size_t off, const void *bytes, size_t n)
{
	memcpy(file + off, bytes, n);
}

Test(boot_bzimage, probe_wants_boot_sector_and_magic)
{
	uint32_t payload = pack("gzip -n", false);
	char path[64];
	own_fd int good = image_file(file, file_len(payload), path), bad = -1;

	cr_assert(boot_bzimage_probe(good, file_len(payload)));
	cr_assert_not(boot_bzimage_probe(good, 0x202));
	patch(0x202, "HdrX", 4);
	bad = image_file(file, file_len(payload), path);
	cr_assert_not(boot_bzimage_probe(bad, file_len(payload)));
}

Test(boot_bzimage, refuses_bad_headers)
{
	uint32_t payload = pack("gzip -n", false), huge = UINT32_MAX, tiny = 10;
	size_t n = file_len(payload);
	uint16_t old = 0x0207;

	patch(0x206, &old, sizeof(old));
	refused(n, MAX_FILE, -ENOEXEC, "protocol 2.07");
	image_bzimage(file, payload);
	patch(0x211, "", 1);
	refused(n, MAX_FILE, -ENOEXEC, "loaded high");
	image_bzimage(file, payload);
	patch(0x248, &huge, sizeof(huge));
	refused(n, MAX_FILE, -ENOEXEC, "cut");
	image_bzimage(file, huge);
	refused(n, MAX_FILE, -ENOEXEC, "cut");
	image_bzimage(file, tiny);
	refused(n, MAX_FILE, -ENOEXEC, "cut");
	image_bzimage(file, payload);
	refused(BZIMAGE_SETUP + BZIMAGE_PAYLOAD + payload - 1, MAX_FILE, -ENOEXEC, "cut");
	patch(BZIMAGE_SETUP + BZIMAGE_PAYLOAD, "\x11\x22", 2);
	refused(n, MAX_FILE, -ENOEXEC, "no known compression");
}

Test(boot_bzimage, bounds_what_comes_out)
{
	uint32_t payload = pack("gzip -n", false), less = sizeof(im) - 1, more = sizeof(im) + 1;
	size_t size_at = BZIMAGE_SETUP + BZIMAGE_PAYLOAD + payload - 4;

	refused(file_len(payload), sizeof(im) - 1, -EFBIG, "unpacks to");
	/* A payload that unpacks to more, or to less, than it says. */
	patch(size_at, &less, sizeof(less));
	refused(file_len(payload), MAX_FILE, -ENOEXEC, "damaged");
	patch(size_at, &more, sizeof(more));
	refused(file_len(payload), MAX_FILE, -ENOEXEC, "damaged");
}

/* A program that is content with what it read is not yet right. */
Test(boot_bzimage, refuses_less_than_the_appended_size_says)
{
	uint32_t payload, more = sizeof(im) + 1;

	if (!has("xz"))
		cr_skip_test("xz is not installed");
	payload = pack("xz --check=crc32", true);
	patch(BZIMAGE_SETUP + BZIMAGE_PAYLOAD + payload - 4, &more, sizeof(more));
	refused(file_len(payload), MAX_FILE, -ENOEXEC, "damaged");
}

/* Writes on and on: must be stopped by the bound, not by the disk. */
Test(boot_bzimage, stops_a_bomb, .timeout = 20)
{
	uint32_t payload, small = 4096;
	FILE *p = popen("head -c 20000000 /dev/zero | gzip -n", "r");

	payload = (uint32_t)fread(file + BZIMAGE_SETUP + BZIMAGE_PAYLOAD, 1, 60000, p);
	cr_assert_eq(pclose(p), 0);
	image_bzimage(file, payload);
	patch(BZIMAGE_SETUP + BZIMAGE_PAYLOAD + payload - 4, &small, sizeof(small));
	refused(file_len(payload), MAX_FILE, -ENOEXEC, "damaged");
}

Test(boot_bzimage, refuses_damaged_payload)
{
	uint32_t payload = pack("gzip -n", false);

	for (unsigned i = 20; i < 40; i++)
		file[BZIMAGE_SETUP + BZIMAGE_PAYLOAD + i] ^= 0x5a;
	refused(file_len(payload), MAX_FILE, -ENOEXEC, "damaged");
}

Test(boot_bzimage, names_the_program_that_is_missing)
{
	uint32_t payload = pack("gzip -n", false);
	uint64_t size;
	struct err err;
	int ret;

	cr_assert_eq(setenv("PATH", "/nonexistent", 1), 0);
	ret = unpack_file(file_len(payload), MAX_FILE, &size, &err);
	cr_assert_eq(ret, -ENOENT, "%d %s", ret, err.msg);
	cr_assert_not_null(strstr(err.msg, "gzip"));
	cr_assert_not_null(strstr(err.remedy, "install gzip"));
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

Test(boot_bzimage, leaks_neither_descriptors_nor_children)
{
	uint32_t payload = pack("gzip -n", false);
	uint64_t size;
	struct err err;
	int before = open_fds(), fd = unpack_file(file_len(payload), MAX_FILE, &size, &err);

	cr_assert_eq(open_fds(), before + 1);
	cr_assert_eq(close(fd), 0);
	refused(file_len(payload), 16, -EFBIG, "unpacks to");
	file[BZIMAGE_SETUP + BZIMAGE_PAYLOAD + 30] ^= 0xff;
	refused(file_len(payload), MAX_FILE, -ENOEXEC, "damaged");
	cr_assert_eq(open_fds(), before);
	cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "a child was left");
	cr_assert_eq(errno, ECHILD);
}
