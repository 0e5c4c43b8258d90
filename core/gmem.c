/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gmem.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define MIN_SIZE (1u << 20)

/* The compiler must not turn a finished copy back into a second read of guest memory. */
#define fetch_barrier() __asm__ volatile("" ::: "memory")

static int map_region(struct gmem *mem, uint64_t gpa, uint64_t len, uint64_t file_off, int fd)
{
	int flags = MAP_PRIVATE | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
	void *hva =
		mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, fd < 0 ? 0 : (off_t)file_off);

	if (hva == MAP_FAILED)
		return -errno;
	mem->region[mem->nr_regions++] =
		(struct gmem_region){ .gpa = gpa, .len = len, .hva = hva, .file_off = file_off };
	mem->size += len;
	return 0;
}

int gmem_open(struct gmem *mem, uint64_t size, uint64_t hole_start, uint64_t hole_end, int fd)
{
	uint64_t low = size < hole_start ? size : hole_start;
	int ret;

	*mem = (struct gmem){ 0 };
	if (size < MIN_SIZE || size % GMEM_PAGE || hole_start % GMEM_PAGE || hole_end % GMEM_PAGE ||
	    hole_end < hole_start)
		return -EINVAL;
	ret = map_region(mem, 0, low, 0, fd);
	if (ret == 0 && size > low)
		ret = map_region(mem, hole_end, size - low, low, fd);
	if (ret < 0)
		gmem_close(mem);
	return ret;
}

void gmem_close(struct gmem *mem)
{
	for (unsigned i = 0; i < mem->nr_regions; i++)
		munmap(mem->region[i].hva, mem->region[i].len);
	*mem = (struct gmem){ 0 };
}

int gmem_view(const struct gmem *mem, gpa_t addr, uint64_t len, struct gview *view)
{
	for (unsigned i = 0; i < mem->nr_regions; i++) {
		const struct gmem_region *r = &mem->region[i];
		uint64_t off = addr.v - r->gpa;

		if (addr.v < r->gpa || off >= r->len || len > r->len - off)
			continue;
		*view = (struct gview){ .hva = r->hva + off, .len = (size_t)len };
		return 0;
	}
	*view = (struct gview){ 0 };
	return -EFAULT;
}

static bool inside(const struct gview *view, size_t off, size_t n)
{
	return off <= view->len && n <= view->len - off;
}

int gview_read(const struct gview *view, size_t off, void *dst, size_t n)
{
	if (!inside(view, off, n))
		return -EFAULT;
	if (n)
		memcpy(dst, view->hva + off, n);
	fetch_barrier();
	return 0;
}

int gview_write(const struct gview *view, size_t off, const void *src, size_t n)
{
	if (!inside(view, off, n))
		return -EFAULT;
	if (n)
		memcpy(view->hva + off, src, n);
	fetch_barrier();
	return 0;
}

int gview_iov(const struct gview *view, size_t off, size_t n, struct iovec *iov)
{
	if (!inside(view, off, n))
		return -EFAULT;
	*iov = (struct iovec){ .iov_base = view->hva + off, .iov_len = n };
	return 0;
}

static uint16_t *index_at(const struct gview *view, size_t off)
{
	uint8_t *p = view->hva + off;

	BUG_ON(!inside(view, off, sizeof(uint16_t)) || (uintptr_t)p % sizeof(uint16_t));
	return (uint16_t *)(void *)p;
}

uint16_t gview_load16(const struct gview *view, size_t off)
{
	return __atomic_load_n(index_at(view, off), __ATOMIC_ACQUIRE);
}

void gview_store16(const struct gview *view, size_t off, uint16_t value)
{
	__atomic_store_n(index_at(view, off), value, __ATOMIC_RELEASE);
}

int gmem_read(const struct gmem *mem, gpa_t addr, void *dst, size_t n)
{
	struct gview view;
	int ret = gmem_view(mem, addr, n, &view);

	return ret < 0 ? ret : gview_read(&view, 0, dst, n);
}

int gmem_write(const struct gmem *mem, gpa_t addr, const void *src, size_t n)
{
	struct gview view;
	int ret = gmem_view(mem, addr, n, &view);

	return ret < 0 ? ret : gview_write(&view, 0, src, n);
}
