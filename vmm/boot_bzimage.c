/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/boot_bzimage.h"

#include "core/own.h"
#include "vmm/boot_elf.h"

#include <asm/bootparam.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEADER_OFF   0x1f1u
#define HEADER_MAGIC 0x53726448u /* "HdrS" */
#define BOOT_FLAG    0xaa55u
#define SECTOR       512u
#define MIN_PROTOCOL 0x0208u
#define MAX_MAGIC    6u
#define SIZE_LEN     4u

struct packer {
	const char *program; /* unpacks standard input to standard output with -dc */
	uint8_t magic[MAX_MAGIC];
	uint8_t magic_len;
	/* Whether the format has the length at its own end. To the others the kernel's build appends it. */
	bool has_size;
};

static const struct packer packers[] = {
	{ "gzip", { 0x1f, 0x8b }, 2, true },
	{ "xz", { 0xfd, '7', 'z', 'X', 'Z', 0x00 }, 6, false },
	{ "lzma", { 0x5d, 0x00, 0x00 }, 3, false },
	{ "lz4", { 0x02, 0x21, 0x4c, 0x18 }, 4, false },
	{ "zstd", { 0x28, 0xb5, 0x2f, 0xfd }, 4, false },
	{ "bzip2", { 'B', 'Z', 'h' }, 3, false },
	{ "lzop", { 0x89, 'L', 'Z', 'O' }, 4, false },
};

struct payload {
	const struct packer *packer;
	uint64_t off;
	uint32_t len;      /* without the appended size */
	uint32_t unpacked; /* length of what is inside */
};

static int read_header(int fd, uint64_t size, struct setup_header *h)
{
	if (size < HEADER_OFF + sizeof(*h))
		return -ENODATA;
	return boot_pread(fd, h, sizeof(*h), HEADER_OFF);
}

bool boot_bzimage_probe(int fd, uint64_t size)
{
	struct setup_header h;

	return read_header(fd, size, &h) == 0 && h.boot_flag == BOOT_FLAG &&
	       h.header == HEADER_MAGIC;
}

static const struct packer *find_packer(const uint8_t magic[MAX_MAGIC])
{
	for (size_t i = 0; i < ARRAY_LEN(packers); i++)
		if (memcmp(magic, packers[i].magic, packers[i].magic_len) == 0)
			return &packers[i];
	return NULL;
}

/* Where the payload lies, by the header alone. */
static int locate(const struct setup_header *h, uint64_t size, struct payload *p, struct err *err)
{
	uint64_t setup = ((h->setup_sects ? h->setup_sects : 4u) + 1ull) * SECTOR;

	if (h->version < MIN_PROTOCOL || !(h->loadflags & LOADED_HIGH))
		return err_set(err, -ENOEXEC,
		               "bzImage: boot protocol %u.%02u, flags %#x; want 2.08 or newer, "
		               "loaded high",
		               h->version >> 8, h->version & 0xffu, h->loadflags);
	p->off = setup + h->payload_offset; /* 32-bit addends: no overflow */
	p->len = h->payload_length;
	if (p->off > size || p->len > size - p->off || p->len <= MAX_MAGIC + SIZE_LEN)
		return err_set(
			err, -ENOEXEC,
			"bzImage: payload of %u bytes at %llu, but the file has %llu: it is cut",
			p->len, (unsigned long long)p->off, (unsigned long long)size);
	return 0;
}

static int identify(int fd, struct payload *p, struct err *err)
{
	uint8_t magic[MAX_MAGIC] = { 0 }, size[SIZE_LEN] = { 0 };
	int ret = boot_pread(fd, magic, sizeof(magic), p->off);

	if (ret == 0)
		ret = boot_pread(fd, size, sizeof(size), p->off + p->len - sizeof(size));
	if (ret < 0)
		return err_set(err, ret, "bzImage: read: %s", strerror(-ret));
	p->packer = find_packer(magic);
	if (!p->packer)
		return err_set(
			err, -ENOEXEC,
			"bzImage: payload begins with %02x %02x %02x %02x: no known compression",
			magic[0], magic[1], magic[2], magic[3]);
	p->unpacked = (uint32_t)size[0] | (uint32_t)size[1] << 8 | (uint32_t)size[2] << 16 |
	              (uint32_t)size[3] << 24;
	if (!p->packer->has_size)
		p->len -= SIZE_LEN;
	return 0;
}

static int memory_file(const char *name, struct err *err)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	return fd < 0 ? err_set(err, -errno, "memfd_create: %s", strerror(errno)) : fd;
}

/* The payload as a file of its own, positioned at its start: standard input of the program. */
static int extract(int fd, const struct payload *p, struct err *err)
{
	own_fd int in = memory_file("payload", err);
	off_t off = (off_t)p->off;

	if (in < 0)
		return in;
	for (uint32_t left = p->len; left;) {
		ssize_t n = sendfile(in, fd, &off, left);

		if (n <= 0)
			return err_set(err, n < 0 ? -errno : -ENODATA, "bzImage: read payload: %s",
			               n < 0 ? strerror(errno) : "the file got shorter");
		left -= (uint32_t)n;
	}
	if (lseek(in, 0, SEEK_SET) < 0)
		return err_set(err, -errno, "seek: %s", strerror(errno));
	return fd_take(&in);
}

static int spawn(const char *program, int in, int out, pid_t *pid)
{
	char flag[] = "-dc", *argv[] = { NULL, flag, NULL }, *env[] = { NULL };
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t attr;
	own_free char *name = strdup(program);
	sigset_t none, pipe_only;
	int ret;

	if (!name)
		return -ENOMEM;
	argv[0] = name;
	(void)sigemptyset(&none);
	(void)sigemptyset(&pipe_only);
	(void)sigaddset(&pipe_only, SIGPIPE);
	ret = posix_spawn_file_actions_init(&fa);
	if (ret)
		return -ret;
	ret = posix_spawnattr_init(&attr);
	if (ret) {
		(void)posix_spawn_file_actions_destroy(&fa);
		return -ret;
	}
	/* The monitor may block signals and ignore SIGPIPE; the program must end when we stop reading. */
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	(void)posix_spawnattr_setsigdefault(&attr, &pipe_only);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	ret = posix_spawn_file_actions_adddup2(&fa, in, STDIN_FILENO);
	if (!ret)
		ret = posix_spawn_file_actions_adddup2(&fa, out, STDOUT_FILENO);
	if (!ret)
		ret = posix_spawn_file_actions_addopen(&fa, STDERR_FILENO, "/dev/null", O_WRONLY,
		                                       0);
	if (!ret)
		ret = posix_spawnp(pid, program, &fa, &attr, argv, env);
	(void)posix_spawnattr_destroy(&attr);
	(void)posix_spawn_file_actions_destroy(&fa);
	return -ret;
}

/* Reads `fd` to its end into `map`: the count, which is room + 1 when there was more. */
static int64_t drain(int fd, uint8_t *map, size_t room)
{
	uint8_t beyond;

	for (size_t done = 0;;) {
		ssize_t n = done < room ? read(fd, map + done, room - done)
		                        : read(fd, &beyond, sizeof(beyond));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
		if (n == 0 || done > room)
			return (int64_t)done;
	}
}

static int wait_for(pid_t pid, int *status)
{
	while (waitpid(pid, status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* Runs the program on `in` and keeps exactly p->unpacked bytes of what it writes. */
static int run(const struct payload *p, int in, uint8_t *map, struct err *err)
{
	const char *program = p->packer->program;
	int pipe_fd[2], status = 0, ret;
	int64_t got;
	pid_t pid = -1;

	if (pipe2(pipe_fd, O_CLOEXEC) < 0)
		return err_set(err, -errno, "pipe: %s", strerror(errno));
	ret = spawn(program, in, pipe_fd[1], &pid);
	(void)close(pipe_fd[1]);
	if (ret < 0) {
		(void)close(pipe_fd[0]);
		(void)err_set(err, ret, "bzImage: its payload needs the program %s: %s", program,
		              strerror(-ret));
		return err_remedy(err, "install %s, or give the vmlinux from the kernel's build",
		                  program);
	}
	got = drain(pipe_fd[0], map, p->unpacked);
	(void)close(pipe_fd[0]); /* what still writes gets SIGPIPE */
	ret = wait_for(pid, &status);
	if (ret < 0 || got < 0)
		return err_set(err, ret < 0 ? ret : (int)got, "bzImage: %s: %s", program,
		               strerror(ret < 0 ? -ret : -(int)got));
	if (got != p->unpacked || status != 0)
		return err_set(err, -ENOEXEC,
		               "bzImage: payload is damaged: %s ended with status %#x after %lld "
		               "bytes, want %u",
		               program, (unsigned)status, (long long)got, p->unpacked);
	return 0;
}

static int unpack(const struct payload *p, int in, struct err *err)
{
	own_fd int out = memory_file("vmlinux", err);
	uint8_t *map;
	int ret;

	if (out < 0)
		return out;
	if (ftruncate(out, p->unpacked) < 0)
		return err_set(err, -errno, "memory for the kernel: %s", strerror(errno));
	map = mmap(NULL, p->unpacked, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
	if (map == MAP_FAILED)
		return err_set(err, -errno, "map memory for the kernel: %s", strerror(errno));
	ret = run(p, in, map, err);
	(void)munmap(map, p->unpacked);
	return ret < 0 ? ret : fd_take(&out);
}

int boot_bzimage_unpack(int fd, uint64_t size, uint64_t max, uint64_t *out_size, struct err *err)
{
	struct setup_header h;
	struct payload p = { 0 };
	own_fd int in = -1;
	int ret = read_header(fd, size, &h);

	if (ret < 0)
		return err_set(err, ret, "bzImage: read header: %s", strerror(-ret));
	ret = locate(&h, size, &p, err);
	if (ret == 0)
		ret = identify(fd, &p, err);
	if (ret < 0)
		return ret;
	if (p.unpacked == 0 || p.unpacked > max) {
		(void)err_set(err, -EFBIG,
		              "bzImage: unpacks to %u bytes; the guest's memory allows 1 to %llu",
		              p.unpacked, (unsigned long long)max);
		return err_remedy(err, "give the guest more memory, or another kernel");
	}
	in = extract(fd, &p, err);
	if (in < 0)
		return in;
	*out_size = p.unpacked;
	return unpack(&p, in, err);
}
