/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share: an input read as a list of values, guest memory between two guards, files
 * in memory, and the checksums of forged state mended. One thread.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "core/gmem.h"
#include "core/log.h"
#include "core/state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FZ __attribute__((unused)) static

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* A broken promise of the code under test: libFuzzer keeps the input. */
#define FZ_CHECK(cond)                                                                       \
	do {                                                                                 \
		if (!(cond)) {                                                               \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                             \
		}                                                                            \
	} while (0)

/* The input, from its front; behind its end everything is 0. */
struct fz_in {
	const uint8_t *p;
	size_t n;
};

FZ void fz_bytes(struct fz_in *in, void *dst, size_t n)
{
	size_t take = n < in->n ? n : in->n;

	memset(dst, 0, n);
	if (take)
		memcpy(dst, in->p, take);
	in->p += take;
	in->n -= take;
}

FZ uint8_t fz_u8(struct fz_in *in)
{
	uint8_t v;

	fz_bytes(in, &v, sizeof(v));
	return v;
}

FZ uint16_t fz_u16(struct fz_in *in)
{
	uint16_t v;

	fz_bytes(in, &v, sizeof(v));
	return v;
}

FZ uint32_t fz_u32(struct fz_in *in)
{
	uint32_t v;

	fz_bytes(in, &v, sizeof(v));
	return v;
}

FZ uint64_t fz_u64(struct fz_in *in)
{
	uint64_t v;

	fz_bytes(in, &v, sizeof(v));
	return v;
}

/* The next `n` bytes as they lie in the input, at most those that are left. */
FZ struct fz_in fz_part(struct fz_in *in, size_t n)
{
	struct fz_in part = { in->p, n < in->n ? n : in->n };

	in->p += part.n;
	in->n -= part.n;
	return part;
}

#define FZ_GUARD     (128ull << 20) /* more than one chain can name */
#define FZ_LOW       (128u << 10)
#define FZ_HIGH      (64u << 10)
#define FZ_HIGH_BASE 0x100000000ull

/*
 * Guest memory in two regions, at 0 and at 4 GiB, each between guards: what leaves it faults, whichever
 * mapping would have been its neighbour. Not by gmem_open(), which has a least size.
 */
FZ void fz_mem_open(struct gmem *mem)
{
	const uint64_t len[] = { FZ_LOW, FZ_HIGH }, base[] = { 0, FZ_HIGH_BASE };

	*mem = (struct gmem){ 0 };
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *all = mmap(NULL, 2 * FZ_GUARD + len[i], PROT_NONE,
		                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		FZ_CHECK(all != MAP_FAILED);
		FZ_CHECK(mprotect(all + FZ_GUARD, len[i], PROT_READ | PROT_WRITE) == 0);
		mem->region[mem->nr_regions++] = (struct gmem_region){
			.gpa = base[i], .len = len[i], .hva = all + FZ_GUARD, .file_off = mem->size
		};
		mem->size += len[i];
	}
}

FZ void fz_mem_clear(const struct gmem *mem)
{
	for (unsigned i = 0; i < mem->nr_regions; i++)
		memset(mem->region[i].hva, 0, mem->region[i].len);
}

/* An address that is worth trying: mostly in memory, else at its edges or where sums wrap. */
FZ uint64_t fz_gpa(struct fz_in *in)
{
	static const uint64_t edge[] = { FZ_LOW,
		                         FZ_HIGH_BASE,
		                         FZ_HIGH_BASE + FZ_HIGH,
		                         0xd0001000,
		                         0,
		                         0xfffffffffffffffcull,
		                         1ull << 63,
		                         1ull << 52 };
	uint8_t kind = fz_u8(in);

	if (kind < 0xc0)
		return (kind & 1 ? FZ_HIGH_BASE : 0) + fz_u16(in);
	if (kind < 0xe0)
		return fz_u64(in);
	return edge[kind % ARRAY_LEN(edge)] - (fz_u8(in) & 0x1f) * (uint64_t)(kind & 8 ? 1 : 16);
}

/* A new file in memory with these bytes, read from its start. */
FZ int fz_file(const void *data, size_t n)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	FZ_CHECK(fd >= 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
	return fd;
}

/* Writes a file of that name in `dir`, whole. */
FZ void fz_put(int dir, const char *name, const void *data, size_t n)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	FZ_CHECK(fd >= 0 && write(fd, data, n) == (ssize_t)n);
	(void)close(fd);
}

static char fz_dir_path[64];

FZ void fz_dir_remove(void)
{
	char command[96];

	(void)snprintf(command, sizeof(command), "rm -rf '%s'", fz_dir_path);
	if (system(command) != 0)
		fprintf(stderr, "%s is left behind\n", fz_dir_path);
}

/* A folder of this process, in memory where there is such a file system, gone at its end. Its path. */
FZ const char *fz_dir(void)
{
	if (fz_dir_path[0])
		return fz_dir_path;
	(void)snprintf(fz_dir_path, sizeof(fz_dir_path), "%s/thawbox-fuzz-XXXXXX",
	               access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	FZ_CHECK(mkdtemp(fz_dir_path));
	(void)atexit(fz_dir_remove);
	return fz_dir_path;
}

FZ uint64_t fz_le(const uint8_t *p, unsigned width)
{
	uint64_t v = 0;

	memcpy(&v, p, width);
	return v;
}

/* Checksums of sections, over the first 12 bytes of the header and the body: a forger makes them right. */
FZ void fz_mend(uint8_t *p, size_t n)
{
	while (n >= 16 && fz_le(p + 8, 4) <= n - 16) {
		size_t body = fz_le(p + 8, 4);
		uint8_t *flat = malloc(12 + body);
		uint32_t crc;

		FZ_CHECK(flat);
		memcpy(flat, p, 12);
		memcpy(flat + 12, p + 16, body);
		crc = state_crc(flat, 12 + body);
		memcpy(p + 12, &crc, 4);
		free(flat);
		p += 16 + body;
		n -= 16 + body;
	}
}

/* What a guest can make the devices log is not read here. SIGPIPE is ignored, as by the programs. */
FZ void fz_quiet(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
	log_open(STDERR_FILENO, LOG_LVL_ERR, "fuzz");
}

#endif
