/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/vmmio.h"

#include <string.h>

/* virtio 1.2 table 4.1 */
enum {
	REG_MAGIC = 0x00,
	REG_VERSION = 0x04,
	REG_DEVICE_ID = 0x08,
	REG_VENDOR_ID = 0x0c,
	REG_DEVICE_FEATURES = 0x10,
	REG_DEVICE_FEATURES_SEL = 0x14,
	REG_DRIVER_FEATURES = 0x20,
	REG_DRIVER_FEATURES_SEL = 0x24,
	REG_QUEUE_SEL = 0x30,
	REG_QUEUE_SIZE_MAX = 0x34,
	REG_QUEUE_SIZE = 0x38,
	REG_QUEUE_READY = 0x44,
	REG_QUEUE_NOTIFY = 0x50,
	REG_INTERRUPT_STATUS = 0x60,
	REG_INTERRUPT_ACK = 0x64,
	REG_STATUS = 0x70,
	REG_QUEUE_DESC_LOW = 0x80,
	REG_QUEUE_DESC_HIGH = 0x84,
	REG_QUEUE_DRIVER_LOW = 0x90,
	REG_QUEUE_DRIVER_HIGH = 0x94,
	REG_QUEUE_DEVICE_LOW = 0xa0,
	REG_QUEUE_DEVICE_HIGH = 0xa4,
	REG_SHM_LEN_LOW = 0xb0,
	REG_SHM_BASE_HIGH = 0xbc,
	REG_CONFIG_GENERATION = 0xfc,
	REG_CONFIG = 0x100,
};

#define MAGIC     0x74726976u /* "virt" */
#define VERSION   2u
#define VENDOR_ID 0x58425754u /* "TWBX" */

#define DRIVER_STATUS                                                                 \
	(VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER | VIRTIO_STATUS_DRIVER_OK | \
	 VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_FAILED)

static struct virtq *selected(struct vdev *dev)
{
	return dev->s.queue_sel < dev->ops->nr_queues ? &dev->vq[dev->s.queue_sel] : NULL;
}

static uint32_t read_queue_reg(struct vdev *dev, uint32_t off)
{
	const struct virtq *q = selected(dev);

	if (!q)
		return 0;
	if (off == REG_QUEUE_SIZE_MAX)
		return VIRTQ_MAX_SIZE;
	/* Linux takes its queues down right after it has asked for the reset. */
	return q->s.ready && !dev->reset_pending;
}

static uint32_t device_features(const struct vdev *dev)
{
	switch (dev->s.device_features_sel) {
	case 0:
		return (uint32_t)vdev_features(dev);
	case 1:
		return (uint32_t)(vdev_features(dev) >> 32);
	default:
		return 0;
	}
}

static uint32_t read_reg(struct vdev *dev, uint32_t off)
{
	switch (off) {
	case REG_MAGIC:
		return MAGIC;
	case REG_VERSION:
		return VERSION;
	case REG_DEVICE_ID:
		return dev->ops->virtio_id;
	case REG_VENDOR_ID:
		return VENDOR_ID;
	case REG_DEVICE_FEATURES:
		return device_features(dev);
	case REG_QUEUE_SIZE_MAX:
	case REG_QUEUE_READY:
		return read_queue_reg(dev, off);
	case REG_INTERRUPT_STATUS:
		return dev->s.isr;
	case REG_STATUS:
		return dev->s.status;
	case REG_CONFIG_GENERATION:
		return dev->s.config_gen;
	default:
		/* No shared memory regions: all ones (section 4.2.2). */
		return off >= REG_SHM_LEN_LOW && off <= REG_SHM_BASE_HIGH ? ~0u : 0;
	}
}

static void write_half(uint64_t *reg, bool high, uint32_t value)
{
	*reg = high ? (uint32_t)*reg | (uint64_t)value << 32 : (*reg & ~0xffffffffull) | value;
}

static void write_driver_features(struct vdev *dev, uint32_t value)
{
	if ((dev->s.status & VIRTIO_STATUS_FEATURES_OK) || dev->s.driver_features_sel > 1)
		return;
	write_half(&dev->s.driver_features, dev->s.driver_features_sel == 1, value);
}

static void write_ready(struct vdev *dev, struct virtq *q, uint32_t value)
{
	if (value == 0)
		q->s.ready = 0;
	else if (value == 1 && !q->s.ready &&
	         virtq_enable(q, dev->host.mem, dev->s.driver_features) < 0)
		vdev_break(dev, "queue size or addresses not allowed");
}

/* A queue is described once, between FEATURES_OK and DRIVER_OK, and never while it is in use. */
static void write_queue_reg(struct vdev *dev, uint32_t off, uint32_t value)
{
	uint32_t steps = VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_DRIVER_OK;
	struct virtq *q = selected(dev);

	if (!q || (dev->s.status & steps) != VIRTIO_STATUS_FEATURES_OK)
		return;
	if (off == REG_QUEUE_READY) {
		write_ready(dev, q, value);
		return;
	}
	if (q->s.ready)
		return;
	switch (off) {
	case REG_QUEUE_SIZE:
		q->s.size = value <= VIRTQ_MAX_SIZE ? (uint16_t)value : 0;
		break;
	case REG_QUEUE_DESC_LOW:
	case REG_QUEUE_DESC_HIGH:
		write_half(&q->s.desc, off == REG_QUEUE_DESC_HIGH, value);
		break;
	case REG_QUEUE_DRIVER_LOW:
	case REG_QUEUE_DRIVER_HIGH:
		write_half(&q->s.avail, off == REG_QUEUE_DRIVER_HIGH, value);
		break;
	case REG_QUEUE_DEVICE_LOW:
	case REG_QUEUE_DEVICE_HIGH:
		write_half(&q->s.used, off == REG_QUEUE_DEVICE_HIGH, value);
		break;
	default:
		break;
	}
}

static void write_notify(struct vdev *dev, uint32_t value)
{
	if (value < dev->ops->nr_queues && dev->vq[value].s.ready && vdev_is_live(dev))
		vdev_kick(dev, value);
}

static bool features_allowed(const struct vdev *dev)
{
	uint64_t f = dev->s.driver_features;

	return (f & (1ull << VIRTIO_F_VERSION_1)) && !(f & ~vdev_features(dev));
}

/* virtio 1.2 sections 2.1 and 3.1.1: bits are only added, in order, until a reset. */
static void write_status(struct vdev *dev, uint32_t value)
{
	uint32_t old = dev->s.status, fresh = value & DRIVER_STATUS & ~old;

	if (value == 0) {
		vdev_reset(dev);
		return;
	}
	if ((fresh & VIRTIO_STATUS_FEATURES_OK) && !features_allowed(dev))
		fresh &= ~VIRTIO_STATUS_FEATURES_OK;
	if (!((old | fresh) & VIRTIO_STATUS_FEATURES_OK) || (old & VIRTIO_STATUS_NEEDS_RESET))
		fresh &= ~VIRTIO_STATUS_DRIVER_OK;
	dev->s.status |= fresh;
	if ((fresh & VIRTIO_STATUS_DRIVER_OK) && vdev_is_live(dev))
		dev->ops->activate(dev);
}

static void write_reg(struct vdev *dev, uint32_t off, uint32_t value)
{
	/* The driver waits for status 0 (section 4.2.3.1); what it writes before that is void. */
	if (dev->reset_pending && off != REG_INTERRUPT_ACK)
		return;
	switch (off) {
	case REG_DEVICE_FEATURES_SEL:
		dev->s.device_features_sel = value;
		break;
	case REG_DRIVER_FEATURES:
		write_driver_features(dev, value);
		break;
	case REG_DRIVER_FEATURES_SEL:
		dev->s.driver_features_sel = value;
		break;
	case REG_QUEUE_SEL:
		dev->s.queue_sel = value;
		break;
	case REG_QUEUE_NOTIFY:
		write_notify(dev, value);
		break;
	case REG_INTERRUPT_ACK:
		dev->s.isr &= ~value;
		break;
	case REG_STATUS:
		write_status(dev, value);
		break;
	default:
		write_queue_reg(dev, off, value);
		break;
	}
}

void vmmio_read(struct vdev *dev, uint32_t off, void *dst, uint32_t n)
{
	uint32_t value;

	memset(dst, 0, n);
	pthread_mutex_lock(&dev->lock);
	if (off >= REG_CONFIG && off < VMMIO_LEN) {
		dev->ops->config_read(dev, off - REG_CONFIG, dst, n);
	} else if (n == sizeof(value) && off % sizeof(value) == 0) {
		value = read_reg(dev, off);
		memcpy(dst, &value, sizeof(value));
	}
	pthread_mutex_unlock(&dev->lock);
}

/* No device here has a configuration space that the driver may write. */
void vmmio_write(struct vdev *dev, uint32_t off, const void *src, uint32_t n)
{
	uint32_t value;

	if (n != sizeof(value) || off % sizeof(value) || off >= REG_CONFIG)
		return;
	memcpy(&value, src, sizeof(value));
	pthread_mutex_lock(&dev->lock);
	write_reg(dev, off, value);
	pthread_mutex_unlock(&dev->lock);
}
