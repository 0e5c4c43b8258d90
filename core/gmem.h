/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guest-physical memory and the only way to it. A guest address becomes a host pointer here and
 * nowhere else: gmem_view() checks address *and* length once, the gview_* accessors then copy. Guest
 * memory changes under our feet: every field is fetched once into host memory, then validated.
 * A gview is valid as long as the gmem is open; do not keep one in device state.
 * All functions may be called from any thread; open and close from the owner only.
 */
#ifndef CORE_GMEM_H
#define CORE_GMEM_H

#include "core/compiler.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define GMEM_PAGE        4096u
#define GMEM_MAX_REGIONS 2

/* A guest-physical address: a struct, so that neither an integer nor a host pointer compiles in its place. */
typedef struct {
	uint64_t v;
} gpa_t;

static inline gpa_t gpa(uint64_t v)
{
	return (gpa_t){ v };
}

struct gmem_region {
	uint64_t gpa;      /* bytes, page aligned */
	uint64_t len;      /* bytes, page aligned */
	uint8_t *hva;      /* owned mapping */
	uint64_t file_off; /* where the region lies in a snapshot's memory file */
};

struct gmem { /* const after open */
	struct gmem_region region[GMEM_MAX_REGIONS];
	unsigned nr_regions;
	uint64_t size; /* bytes, all regions */
};

/* A checked window of guest memory. The fields are for gmem.c and virtq.c alone. */
struct gview {
	uint8_t *hva;
	size_t len;
};

/*
 * Lays `size` bytes (page aligned, at least 1 MiB) out as RAM below `hole_start` and, if more, from
 * `hole_end` on, backed by `fd` from its offset 0, private copy-on-write (not owned; -1: anonymous
 * zeroed memory). Returns 0 or -errno; nothing is left mapped on error.
 */
NODISCARD int gmem_open(struct gmem *mem, uint64_t size, uint64_t hole_start, uint64_t hole_end,
                        int fd);

/* Unmaps. Safe on a zeroed object, idempotent. */
void gmem_close(struct gmem *mem);

/* -EFAULT unless [addr, addr + len) lies wholly in one region. len 0 is allowed inside a region. */
NODISCARD int gmem_view(const struct gmem *mem, gpa_t addr, uint64_t len, struct gview *view);

/* Bytes between guest and host memory, one fetch each. -EFAULT when [off, off + n) is outside the view. */
NODISCARD int gview_read(const struct gview *view, size_t off, void *dst, size_t n);
NODISCARD int gview_write(const struct gview *view, size_t off, const void *src, size_t n);

/* The window [off, off + n) as an iovec for the kernel to read or write. -EFAULT when outside. */
NODISCARD int gview_iov(const struct gview *view, size_t off, size_t n, struct iovec *iov);

/* Aligned 16-bit ring indices: acquire load, release store. The caller has checked the view; misuse traps. */
uint16_t gview_load16(const struct gview *view, size_t off);
void gview_store16(const struct gview *view, size_t off, uint16_t value);

/* gmem_view plus gview_read or gview_write in one call. */
NODISCARD int gmem_read(const struct gmem *mem, gpa_t addr, void *dst, size_t n);
NODISCARD int gmem_write(const struct gmem *mem, gpa_t addr, const void *src, size_t n);

#endif
