/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile driver: the input is a list of what a guest can do to a virtio device (registers, rings,
 * descriptors, its own memory) while the device's loop turns. It starts with a handshake that is right, so
 * that inputs get behind it. Offsets and widths are the input's.
 */
#ifndef TESTS_FUZZ_DRIVER_H
#define TESTS_FUZZ_DRIVER_H

#include "devices/vdev.h"
#include "devices/vmmio.h"
#include "tests/fuzz/fuzz.h"

#define DR_SIZE  16u    /* entries of each queue */
#define DR_QUEUE 0x800u /* bytes of guest memory for the rings of each queue */
#define DR_DESC  0x000u
#define DR_AVAIL 0x200u
#define DR_USED  0x400u
#define DR_TABLE 0x600u /* an indirect table */
#define DR_DATA  0x4000u

struct driver {
	struct gmem mem;
	struct loop loop;
	struct vdev *dev;
	uint16_t added[VDEV_MAX_QUEUES]; /* the driver's index */
	unsigned irqs;
};

FZ void dr_irq(void *ctx, unsigned pin)
{
	struct driver *d = ctx;

	FZ_CHECK(pin == 5);
	d->irqs++;
}

/* Memory and loop, once for the process; the rest for each device. */
FZ struct vdev_host dr_host(struct driver *d)
{
	if (!d->mem.size) {
		struct err err;

		fz_quiet();
		fz_mem_open(&d->mem);
		FZ_CHECK(loop_open(&d->loop, 64, &err) == 0);
	}
	fz_mem_clear(&d->mem);
	memset(d->added, 0, sizeof(d->added));
	d->irqs = 0;
	return (struct vdev_host){
		.loop = &d->loop, .mem = &d->mem, .irq = dr_irq, .irq_ctx = d, .pin = 5
	};
}

FZ void dr_write(struct driver *d, uint32_t off, uint32_t value)
{
	vmmio_write(d->dev, off, &value, sizeof(value));
}

FZ uint32_t dr_read(struct driver *d, uint32_t off)
{
	uint32_t value;

	vmmio_read(d->dev, off, &value, sizeof(value));
	return value;
}

FZ void dr_put16(struct driver *d, uint64_t at, uint16_t value)
{
	if (gmem_write(&d->mem, gpa(at), &value, sizeof(value)) < 0)
		abort();
}

/* The handshake as Linux does it, with queues of DR_SIZE entries; `bits` chooses among the features. */
FZ void dr_start(struct driver *d, struct vdev *dev, uint8_t bits)
{
	uint64_t features = vdev_features(dev);

	if (bits & 1)
		features &= ~(1ull << VIRTIO_F_EVENT_IDX);
	if (bits & 2)
		features &= ~(1ull << VIRTIO_F_INDIRECT_DESC);
	d->dev = dev;
	dr_write(d, 0x70, 0);
	dr_write(d, 0x70, VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER);
	for (uint32_t half = 0; half < 2; half++) {
		dr_write(d, 0x24, half);
		dr_write(d, 0x20, (uint32_t)(features >> (32 * half)));
	}
	dr_write(d, 0x70, 0xf & ~VIRTIO_STATUS_DRIVER_OK);
	for (uint32_t q = 0; q < dev->ops->nr_queues; q++) {
		dr_write(d, 0x30, q);
		dr_write(d, 0x38, DR_SIZE);
		dr_write(d, 0x80, q * DR_QUEUE + DR_DESC);
		dr_write(d, 0x90, q * DR_QUEUE + DR_AVAIL);
		dr_write(d, 0xa0, q * DR_QUEUE + DR_USED);
		dr_write(d, 0x44, 1);
	}
	if (!(bits & 4))
		dr_write(d, 0x70, 0xf);
}

FZ void dr_nothing(struct loop_event *event)
{
	(void)event;
}

FZ bool dr_counted(void *ctx)
{
	return (*(int *)ctx)-- <= 0;
}

/* One turn of the loop, which waits for nothing. */
FZ void dr_turn(struct driver *d)
{
	struct loop_event event = { .fire = dr_nothing };
	int turns = 1;

	loop_post(&d->loop, &event);
	FZ_CHECK(loop_run_until(&d->loop, dr_counted, &turns) == 0);
	loop_unpost(&d->loop, &event);
}

FZ bool dr_is_idle(void *ctx)
{
	return vdev_quiesce(ctx);
}

/* Until nothing is in flight. The device is then paused. */
FZ void dr_settle(struct driver *d)
{
	FZ_CHECK(loop_run_until(&d->loop, dr_is_idle, d->dev) == 0);
}

FZ void dr_desc(struct driver *d, uint64_t table, unsigned i, uint64_t addr, uint32_t len,
                uint16_t flags, uint16_t next)
{
	uint8_t raw[16];

	memcpy(raw, &addr, 8);
	memcpy(raw + 8, &len, 4);
	memcpy(raw + 12, &flags, 2);
	memcpy(raw + 14, &next, 2);
	if (gmem_write(&d->mem, gpa(table + (uint64_t)i * sizeof(raw)), raw, sizeof(raw)) < 0)
		abort();
}

FZ void dr_publish(struct driver *d, unsigned q, uint16_t head)
{
	uint64_t avail = q * DR_QUEUE + DR_AVAIL;

	dr_put16(d, avail + 4 + 2ull * (d->added[q] % DR_SIZE), head);
	dr_put16(d, avail + 2, ++d->added[q]);
}

FZ uint32_t dr_len(struct fz_in *in)
{
	static const uint32_t sizes[] = { 0,   1,   4,    16,    20,       44,         45,
		                          512, 513, 4096, 65536, 1u << 26, 0xffffffffu };
	uint8_t kind = fz_u8(in);

	return kind < 0x80 ? sizes[kind % ARRAY_LEN(sizes)] : kind < 0xc0 ? fz_u16(in) : fz_u32(in);
}

/* One descriptor as the input has it, in the ring's own table or in the indirect one. */
FZ void dr_any_desc(struct driver *d, struct fz_in *in, unsigned q)
{
	uint8_t at = fz_u8(in);
	uint64_t addr = fz_gpa(in);
	uint32_t len = dr_len(in);
	uint16_t flags = fz_u8(in) & 7, next = fz_u8(in) % (DR_SIZE + 4);

	dr_desc(d, q * DR_QUEUE + (at & 0x80 ? DR_TABLE : DR_DESC), at % DR_SIZE, addr, len, flags,
	        next);
}

/* A register write or read of any width and place; most are whole registers that exist. */
FZ void dr_any_reg(struct driver *d, struct fz_in *in)
{
	static const uint16_t regs[] = { 0x14, 0x20, 0x24, 0x30, 0x38, 0x44, 0x50, 0x64,
		                         0x70, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4, 0x100 };
	uint8_t kind = fz_u8(in), raw[8];
	uint32_t off = kind & 0x40 ? fz_u16(in) % VMMIO_LEN : regs[kind & 15],
		 n = kind & 0x20 ? 1u << (fz_u8(in) % 4) : 4;

	if (off + n > VMMIO_LEN) /* the bus has seen to it: vmm/vm.c */
		return;
	memset(raw, 0, sizeof(raw));
	if (kind & 0x80) {
		vmmio_read(d->dev, off, raw, n);
		return;
	}
	if (kind & 0x10)
		fz_bytes(in, raw, n);
	else
		raw[0] = fz_u8(in);
	vmmio_write(d->dev, off, raw, n);
}

FZ void dr_any_store(struct driver *d, struct fz_in *in)
{
	uint64_t addr = fz_gpa(in);
	struct fz_in bytes = fz_part(in, fz_u8(in));

	if (bytes.n && gmem_write(&d->mem, gpa(addr), bytes.p, bytes.n) < 0)
		return; /* the guest's own store faults there */
}

enum dr_op {
	DR_OP_REG,
	DR_OP_DESC,
	DR_OP_PUBLISH,
	DR_OP_INDEX, /* any index at all */
	DR_OP_STORE,
	DR_OP_KICK,
	DR_OP_TURN,
	DR_OP_PAUSE,
	DR_OP_RESTART,
	DR_NR_OPS
};

/* One of the above; a target has its own beside them. */
FZ void dr_do(struct driver *d, struct fz_in *in, enum dr_op op)
{
	unsigned q = fz_u8(in) % d->dev->ops->nr_queues;

	switch (op) {
	case DR_OP_REG:
		dr_any_reg(d, in);
		break;
	case DR_OP_DESC:
		dr_any_desc(d, in, q);
		break;
	case DR_OP_PUBLISH:
		dr_publish(d, q, fz_u8(in) % (DR_SIZE + 2));
		break;
	case DR_OP_INDEX:
		dr_put16(d, q * DR_QUEUE + DR_AVAIL + 2, fz_u16(in));
		break;
	case DR_OP_STORE:
		dr_any_store(d, in);
		break;
	case DR_OP_KICK:
		dr_write(d, 0x50, q);
		break;
	case DR_OP_TURN:
		dr_turn(d);
		break;
	case DR_OP_PAUSE:
		dr_settle(d);
		vdev_resume(d->dev);
		break;
	case DR_OP_RESTART:
		dr_write(d, 0x70, 0);
		dr_turn(d);
		memset(d->added, 0, sizeof(d->added));
		dr_start(d, d->dev, fz_u8(in));
		break;
	case DR_NR_OPS:
		break;
	}
}

/*
 * What holds of a device at rest whatever the driver did: nothing was given back that was not taken, status
 * and interrupt bits are those that exist, and a broken device says so.
 */
FZ void dr_check(const struct driver *d)
{
	const struct vdev *dev = d->dev;

	FZ_CHECK(!(dev->s.status & ~0xcfu) && !(dev->s.isr & ~3u));
	for (unsigned i = 0; i < dev->ops->nr_queues; i++) {
		const struct virtq_state *q = &dev->vq[i].s;
		uint16_t out = (uint16_t)(q->next_avail - q->next_used);

		FZ_CHECK(q->size <= VIRTQ_MAX_SIZE);
		/* A broken device keeps what it had; a live one at rest has nothing. */
		FZ_CHECK(out == 0 || out <= VIRTQ_MAX_SIZE);
	}
}

/* At rest, the state must load into a device of the same kind, and be the same when saved again. */
FZ void dr_check_state(const struct driver *d, struct vdev *other)
{
	struct state_buf first = { 0 }, again = { 0 };
	struct err err = { 0 };

	vdev_save(d->dev, &first);
	FZ_CHECK(first.err == 0 && vdev_load(other, &first, &err) == 0 && first.pos == first.len);
	vdev_save(other, &again);
	FZ_CHECK(first.len == again.len);
	state_buf_free(&first);
	state_buf_free(&again);
}

#endif
