/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's side of a virtio-mmio device, as Linux does it, for tests: guest memory, rings, the
 * register handshake, chains, kicks by EVENT_IDX. Only valid use is checked here; tests that play a
 * hostile driver write the rings by hand (drv_store16 and friends). One thread.
 */
#ifndef TESTS_DEVICES_DRIVER_H
#define TESTS_DEVICES_DRIVER_H

#include "devices/vdev.h"
#include "devices/vmmio.h"

#include <criterion/criterion.h>
#include <string.h>

#define DRV __attribute__((unused)) static

#define DRV_ALL_FEATURES \
	(1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_F_EVENT_IDX | 1ull << VIRTIO_F_INDIRECT_DESC)

struct drv_queue {
	uint16_t size;
	uint64_t desc, avail, used; /* guest-physical */
	uint16_t next_avail, last_used, kicked_at;
	uint16_t free[VIRTQ_MAX_SIZE], nr_free;
	uint16_t len[VIRTQ_MAX_SIZE]; /* descriptors of the chain that begins here */
};

struct drv {
	struct gmem mem;
	struct vdev *dev;
	uint64_t features;
	uint64_t heap; /* next free guest-physical byte */
	unsigned irqs; /* edges so far */
	struct drv_queue q[VDEV_MAX_QUEUES];
};

struct drv_desc {
	uint64_t addr;
	uint32_t len;
	uint16_t flags;
	uint16_t next;
};

struct drv_seg {
	uint64_t addr;
	uint32_t len;
};

DRV void drv_irq(void *ctx, unsigned pin)
{
	struct drv *d = ctx;

	(void)pin;
	d->irqs++;
}

/* 16 MiB of guest memory, and the host side that a device's open wants. */
DRV void drv_open(struct drv *d, struct loop *loop, struct vdev_host *host)
{
	*d = (struct drv){ .heap = 0x10000 };
	cr_assert_eq(gmem_open(&d->mem, 16u << 20, 0xc0000000, 0x100000000, -1), 0);
	*host = (struct vdev_host){
		.loop = loop, .mem = &d->mem, .irq = drv_irq, .irq_ctx = d, .pin = 5
	};
}

DRV void drv_close(struct drv *d)
{
	gmem_close(&d->mem);
}

DRV uint64_t drv_alloc(struct drv *d, uint64_t n, uint64_t align)
{
	uint64_t at = (d->heap + align - 1) / align * align;

	d->heap = at + n;
	cr_assert_leq(d->heap, d->mem.size);
	return at;
}

DRV void drv_put(struct drv *d, uint64_t addr, const void *src, size_t n)
{
	cr_assert_eq(gmem_write(&d->mem, gpa(addr), src, n), 0);
}

DRV void drv_get(struct drv *d, uint64_t addr, void *dst, size_t n)
{
	cr_assert_eq(gmem_read(&d->mem, gpa(addr), dst, n), 0);
}

DRV uint16_t drv_load16(struct drv *d, uint64_t addr)
{
	struct gview view;

	cr_assert_eq(gmem_view(&d->mem, gpa(addr), 2, &view), 0);
	return gview_load16(&view, 0);
}

DRV void drv_store16(struct drv *d, uint64_t addr, uint16_t value)
{
	struct gview view;

	cr_assert_eq(gmem_view(&d->mem, gpa(addr), 2, &view), 0);
	gview_store16(&view, 0, value);
}

DRV uint32_t drv_read(struct drv *d, uint32_t off)
{
	uint32_t value;

	vmmio_read(d->dev, off, &value, sizeof(value));
	return value;
}

DRV void drv_write(struct drv *d, uint32_t off, uint32_t value)
{
	vmmio_write(d->dev, off, &value, sizeof(value));
}

DRV uint64_t drv_offered(struct drv *d)
{
	uint64_t features;

	drv_write(d, 0x14, 1);
	features = (uint64_t)drv_read(d, 0x10) << 32;
	drv_write(d, 0x14, 0);
	return features | drv_read(d, 0x10);
}

/* Reset to FEATURES_OK. False when the device refuses the features. */
DRV bool drv_negotiate(struct drv *d, uint64_t features)
{
	drv_write(d, 0x70, 0);
	drv_write(d, 0x70, VIRTIO_STATUS_ACKNOWLEDGE);
	drv_write(d, 0x70, VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER);
	drv_write(d, 0x24, 1);
	drv_write(d, 0x20, (uint32_t)(features >> 32));
	drv_write(d, 0x24, 0);
	drv_write(d, 0x20, (uint32_t)features);
	drv_write(d, 0x70, drv_read(d, 0x70) | VIRTIO_STATUS_FEATURES_OK);
	d->features = features;
	return drv_read(d, 0x70) & VIRTIO_STATUS_FEATURES_OK;
}

/* Lays an empty queue n out in guest memory. */
DRV void drv_layout(struct drv *d, unsigned n, uint16_t size)
{
	struct drv_queue *q = &d->q[n];

	*q = (struct drv_queue){ .size = size };
	q->desc = drv_alloc(d, 16ull * size, 16);
	q->avail = drv_alloc(d, 6 + 2ull * size, 2);
	q->used = drv_alloc(d, 6 + 8ull * size, 4);
	for (uint16_t i = 0; i < size; i++)
		q->free[q->nr_free++] = (uint16_t)(size - 1 - i);
}

/* Lays queue n out and describes it to the device. */
DRV void drv_queue(struct drv *d, unsigned n, uint16_t size)
{
	struct drv_queue *q = &d->q[n];

	drv_layout(d, n, size);
	drv_write(d, 0x30, n);
	drv_write(d, 0x38, size);
	drv_write(d, 0x80, (uint32_t)q->desc);
	drv_write(d, 0x84, (uint32_t)(q->desc >> 32));
	drv_write(d, 0x90, (uint32_t)q->avail);
	drv_write(d, 0x94, (uint32_t)(q->avail >> 32));
	drv_write(d, 0xa0, (uint32_t)q->used);
	drv_write(d, 0xa4, (uint32_t)(q->used >> 32));
	drv_write(d, 0x44, 1);
	cr_assert_eq(drv_read(d, 0x44), 1);
}

/* The whole handshake with all queues of `size` entries. */
DRV void drv_start(struct drv *d, struct vdev *dev, uint64_t features, uint16_t size)
{
	d->dev = dev;
	cr_assert_eq(drv_read(d, 0x00), 0x74726976);
	cr_assert_eq(drv_read(d, 0x04), 2);
	cr_assert(drv_negotiate(d, features));
	for (unsigned n = 0; n < dev->ops->nr_queues; n++)
		drv_queue(d, n, size);
	drv_write(d, 0x70, drv_read(d, 0x70) | VIRTIO_STATUS_DRIVER_OK);
	cr_assert(drv_read(d, 0x70) & VIRTIO_STATUS_DRIVER_OK);
}

DRV void drv_put_desc(struct drv *d, uint64_t table, uint16_t index, uint64_t addr, uint32_t len,
                      uint16_t flags, uint16_t next)
{
	struct drv_desc desc = { addr, len, flags, next };

	drv_put(d, table + 16ull * index, &desc, sizeof(desc));
}

/* Makes `head` available, without a kick. */
DRV void drv_publish(struct drv *d, unsigned n, uint16_t head)
{
	struct drv_queue *q = &d->q[n];

	drv_store16(d, q->avail + 4 + 2ull * (q->next_avail % q->size), head);
	q->next_avail++;
	drv_store16(d, q->avail + 2, q->next_avail);
}

/* Adds a chain, the first `nr_read` segments for the device to read. Its head, or -1: the ring is full. */
DRV int drv_add(struct drv *d, unsigned n, const struct drv_seg *seg, unsigned nr_read,
                unsigned nr_write)
{
	struct drv_queue *q = &d->q[n];
	unsigned nr = nr_read + nr_write;
	uint16_t head;

	if (q->nr_free < nr)
		return -1;
	head = q->free[q->nr_free - 1];
	for (unsigned i = 0; i < nr; i++) {
		uint16_t at = q->free[--q->nr_free];
		uint16_t flags = (uint16_t)((i >= nr_read ? 2 : 0) | (i + 1 < nr ? 1 : 0));

		drv_put_desc(d, q->desc, at, seg[i].addr, seg[i].len, flags,
		             i + 1 < nr ? q->free[q->nr_free - 1] : 0);
	}
	q->len[head] = (uint16_t)nr;
	drv_publish(d, n, head);
	return head;
}

/* As drv_add by an indirect table at `table` (16 bytes for each segment). */
DRV int drv_add_indirect(struct drv *d, unsigned n, uint64_t table, const struct drv_seg *seg,
                         unsigned nr_read, unsigned nr_write)
{
	struct drv_queue *q = &d->q[n];
	unsigned nr = nr_read + nr_write;
	uint16_t head;

	if (!q->nr_free)
		return -1;
	for (unsigned i = 0; i < nr; i++)
		drv_put_desc(d, table, (uint16_t)i, seg[i].addr, seg[i].len,
		             (uint16_t)((i >= nr_read ? 2 : 0) | (i + 1 < nr ? 1 : 0)),
		             (uint16_t)(i + 1));
	head = q->free[--q->nr_free];
	drv_put_desc(d, q->desc, head, table, 16 * nr, 4, 0);
	q->len[head] = 1;
	drv_publish(d, n, head);
	return head;
}

/* Kicks when the device has asked for it, as Linux decides. True when it did. */
DRV bool drv_kick(struct drv *d, unsigned n)
{
	struct drv_queue *q = &d->q[n];
	uint16_t old = q->kicked_at, now = q->next_avail, event;
	bool want;

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	q->kicked_at = now;
	if (d->features & (1ull << VIRTIO_F_EVENT_IDX)) {
		event = drv_load16(d, q->used + 4 + 8ull * q->size);
		want = (uint16_t)(now - event - 1) < (uint16_t)(now - old);
	} else {
		want = !(drv_load16(d, q->used) & 1);
	}
	if (want)
		drv_write(d, 0x50, n);
	return want;
}

/* The next used chain: its head (its descriptors are free again) with the bytes written, or -1. */
DRV int drv_used(struct drv *d, unsigned n, uint32_t *written)
{
	struct drv_queue *q = &d->q[n];
	struct {
		uint32_t id, len;
	} elem;
	uint16_t at, nr;

	if (drv_load16(d, q->used + 2) == q->last_used)
		return -1;
	drv_get(d, q->used + 4 + 8ull * (q->last_used % q->size), &elem, sizeof(elem));
	cr_assert_lt(elem.id, q->size);
	q->last_used++;
	if (d->features & (1ull << VIRTIO_F_EVENT_IDX))
		drv_store16(d, q->avail + 4 + 2ull * q->size, q->last_used);
	at = (uint16_t)elem.id;
	nr = q->len[at];
	cr_assert_gt(nr, 0, "chain %u came back twice", at);
	q->len[at] = 0;
	while (nr--) {
		struct drv_desc desc;

		drv_get(d, q->desc + 16ull * at, &desc, sizeof(desc));
		q->free[q->nr_free++] = at;
		at = desc.next;
	}
	if (written)
		*written = elem.len;
	return (int)elem.id;
}

/* Reads and acknowledges the interrupt status. */
DRV uint32_t drv_isr(struct drv *d)
{
	uint32_t isr = drv_read(d, 0x60);

	drv_write(d, 0x64, isr);
	return isr;
}

#endif
