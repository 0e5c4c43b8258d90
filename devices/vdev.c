/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/vdev.h"

#include "core/log.h"

#include <errno.h>

/* InterruptStatus, virtio 1.2 section 4.2.2 */
#define ISR_QUEUE  1u
#define ISR_CONFIG 2u

#define ALL_STATUS                                                                    \
	(VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER | VIRTIO_STATUS_DRIVER_OK | \
	 VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_NEEDS_RESET | VIRTIO_STATUS_FAILED)

static int vdev_state_check(void *state, uint16_t from, struct err *err)
{
	const struct vdev_state *s = state;
	bool features_ok = s->status & VIRTIO_STATUS_FEATURES_OK;

	(void)from; /* one version so far */
	if ((s->status & ~ALL_STATUS) || (s->isr & ~(ISR_QUEUE | ISR_CONFIG)))
		return err_set(err, -EBADMSG, "status 0x%x or isr 0x%x out of range", s->status,
		               s->isr);
	if ((s->status & VIRTIO_STATUS_DRIVER_OK) && !features_ok)
		return err_set(err, -EBADMSG, "DRIVER_OK without FEATURES_OK");
	if (features_ok && !(s->driver_features & (1ull << VIRTIO_F_VERSION_1)))
		return err_set(err, -EBADMSG, "FEATURES_OK without VERSION_1");
	return 0;
}
STATE_DESC(vdev_state, VDEV_STATE, "VDEV", 1, vdev_state_check)

static void clear(struct vdev *dev)
{
	dev->s = (struct vdev_state){ 0 };
	for (unsigned i = 0; i < VDEV_MAX_QUEUES; i++)
		virtq_reset(&dev->vq[i]);
	dev->kicked = 0;
	dev->reset_pending = false;
}

/* True when the device has come to rest and the reset is done. Lock held, loop's thread. */
static bool try_reset(struct vdev *dev)
{
	if (!dev->ops->quiesce(dev))
		return false;
	dev->ops->reset(dev);
	clear(dev);
	return true;
}

static void serve_kicks(struct vdev *dev)
{
	uint32_t kicked = dev->kicked;

	dev->kicked = 0;
	for (unsigned q = 0; q < dev->ops->nr_queues; q++)
		if ((kicked & (1u << q)) && dev->vq[q].s.ready && vdev_is_live(dev))
			dev->ops->kick(dev, q);
}

static void on_kick(struct loop_event *event)
{
	struct vdev *dev = container_of(event, struct vdev, kick_event);

	pthread_mutex_lock(&dev->lock);
	if (dev->reset_pending) {
		/* I/O in flight ends within the loop's next turns: ask again then. */
		if (!try_reset(dev))
			loop_post(dev->host.loop, event);
	} else if (vdev_may_pop(dev)) {
		serve_kicks(dev);
	}
	pthread_mutex_unlock(&dev->lock);
}

void vdev_init(struct vdev *dev, const struct vdev_ops *ops, const struct vdev_host *host,
               unsigned instance)
{
	*dev = (struct vdev){ .ops = ops, .host = *host, .instance = instance };
	pthread_mutex_init(&dev->lock, NULL);
	dev->kick_event.fire = on_kick;
}

void vdev_close(struct vdev *dev)
{
	if (dev->host.loop->open)
		loop_unpost(dev->host.loop, &dev->kick_event);
	pthread_mutex_destroy(&dev->lock);
}

uint64_t vdev_features(const struct vdev *dev)
{
	return dev->ops->features(dev) | (1ull << VIRTIO_F_VERSION_1) |
	       (1ull << VIRTIO_F_INDIRECT_DESC) | (1ull << VIRTIO_F_EVENT_IDX);
}

void vdev_break(struct vdev *dev, const char *why)
{
	log_guest("%s%u: %s: the driver must reset the device", dev->ops->name, dev->instance, why);
	if (dev->s.status & VIRTIO_STATUS_NEEDS_RESET)
		return;
	dev->s.status |= VIRTIO_STATUS_NEEDS_RESET;
	/* virtio 1.2 section 2.1.2: the notification is for a driver that has said DRIVER_OK. */
	if (dev->s.status & VIRTIO_STATUS_DRIVER_OK)
		vdev_signal_config(dev);
}

bool vdev_is_live(const struct vdev *dev)
{
	return (dev->s.status & VIRTIO_STATUS_DRIVER_OK) &&
	       !(dev->s.status & (VIRTIO_STATUS_NEEDS_RESET | VIRTIO_STATUS_FAILED));
}

bool vdev_may_pop(const struct vdev *dev)
{
	return vdev_is_live(dev) && !dev->paused && !dev->reset_pending;
}

void vdev_signal_queue(struct vdev *dev, unsigned q)
{
	if (!virtq_should_irq(&dev->vq[q]))
		return;
	dev->s.isr |= ISR_QUEUE;
	dev->host.irq(dev->host.irq_ctx, dev->host.pin);
}

void vdev_signal_config(struct vdev *dev)
{
	dev->s.config_gen++;
	dev->s.isr |= ISR_CONFIG;
	dev->host.irq(dev->host.irq_ctx, dev->host.pin);
}

void vdev_kick(struct vdev *dev, unsigned q)
{
	dev->kicked |= 1u << q;
	loop_post(dev->host.loop, &dev->kick_event);
}

void vdev_reset(struct vdev *dev)
{
	if (dev->s.status & VIRTIO_STATUS_DRIVER_OK) {
		dev->reset_pending = true;
		loop_post(dev->host.loop, &dev->kick_event);
	} else {
		dev->ops->reset(dev);
		clear(dev);
	}
}

bool vdev_quiesce(struct vdev *dev)
{
	bool idle;

	pthread_mutex_lock(&dev->lock);
	dev->paused = true;
	idle = dev->reset_pending ? try_reset(dev) : dev->ops->quiesce(dev);
	pthread_mutex_unlock(&dev->lock);
	return idle;
}

void vdev_resume(struct vdev *dev)
{
	pthread_mutex_lock(&dev->lock);
	dev->paused = false;
	dev->kicked = 0; /* resume looks at all queues */
	if (vdev_may_pop(dev))
		dev->ops->resume(dev);
	else if (dev->reset_pending)
		loop_post(dev->host.loop, &dev->kick_event);
	pthread_mutex_unlock(&dev->lock);
}

static uint16_t queue_instance(const struct vdev *dev, unsigned q)
{
	return (uint16_t)(dev->instance * VDEV_MAX_QUEUES + q);
}

void vdev_save(struct vdev *dev, struct state_buf *buf)
{
	pthread_mutex_lock(&dev->lock);
	state_put(buf, vdev_state_desc(), (uint16_t)dev->instance, &dev->s);
	for (unsigned q = 0; q < dev->ops->nr_queues; q++)
		state_put(buf, virtq_state_desc(), queue_instance(dev, q), &dev->vq[q].s);
	dev->ops->save(dev, buf);
	pthread_mutex_unlock(&dev->lock);
}

static int load_common(struct vdev *dev, struct state_buf *buf, struct err *err)
{
	uint64_t extra;
	int ret = state_get(buf, vdev_state_desc(), (uint16_t)dev->instance, &dev->s, err);

	if (ret < 0)
		return ret;
	extra = dev->s.driver_features & ~vdev_features(dev);
	if ((dev->s.status & VIRTIO_STATUS_FEATURES_OK) && extra)
		return err_set(err, -EBADMSG, "features 0x%llx are not offered by this build",
		               (unsigned long long)extra);
	for (unsigned q = 0; q < dev->ops->nr_queues; q++) {
		struct virtq *vq = &dev->vq[q];

		ret = state_get(buf, virtq_state_desc(), queue_instance(dev, q), &vq->s, err);
		if (ret < 0)
			return ret;
		if (vq->s.ready && virtq_enable(vq, dev->host.mem, dev->s.driver_features) < 0)
			return err_set(err, -EBADMSG, "queue %u is not in guest memory", q);
		/* The driver's last interrupt may be lost in the snapshot: the next push is told. */
		vq->s.signalled_valid = 0;
	}
	return 0;
}

int vdev_load(struct vdev *dev, struct state_buf *buf, struct err *err)
{
	int ret;

	pthread_mutex_lock(&dev->lock);
	dev->paused = true;
	ret = load_common(dev, buf, err);
	if (ret == 0)
		ret = dev->ops->load(dev, buf, err);
	if (ret < 0) {
		clear(dev);
		ret = err_wrap(err, "device %s%u", dev->ops->name, dev->instance);
	}
	pthread_mutex_unlock(&dev->lock);
	return ret;
}
