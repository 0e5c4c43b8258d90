/* SPDX-License-Identifier: Apache-2.0 */
/* A device that echoes: what a chain's read part holds goes into its write part. Counts its calls. */
#ifndef TESTS_DEVICES_FAKE_DEV_H
#define TESTS_DEVICES_FAKE_DEV_H

#include "tests/unit/devices/driver.h"

#include <errno.h>

struct fake {
	struct vdev vdev;
	unsigned activated, kicks, resets, resumed;
	unsigned in_flight; /* quiesce() says no while it is not 0 */
	uint64_t features;
	uint32_t payload; /* what save() writes and load() reads */
	int load_ret;
};

#define FAKE_STATE(F, A) F(1, uint32_t, payload)
STATE_STRUCT(fake_state, FAKE_STATE);
const struct state_desc *fake_state_desc(void);
STATE_DESC(fake_state, FAKE_STATE, "FAKE", 1, NULL)

DRV struct fake *fake_of(struct vdev *dev)
{
	return container_of(dev, struct fake, vdev);
}

DRV uint64_t fake_features(const struct vdev *dev)
{
	return fake_of((struct vdev *)(uintptr_t)dev)->features;
}

DRV void fake_config_read(struct vdev *dev, uint32_t off, void *dst, uint32_t n)
{
	static const char config[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

	(void)dev;
	for (uint32_t i = 0; i < n && off + i < sizeof(config); i++)
		((char *)dst)[i] = config[off + i];
}

DRV void fake_activate(struct vdev *dev)
{
	fake_of(dev)->activated++;
}

DRV void fake_kick(struct vdev *dev, unsigned n)
{
	static struct virtq_chain chain;
	uint8_t bytes[64];
	int ret;

	fake_of(dev)->kicks++;
	while ((ret = virtq_pop(&dev->vq[n], &chain)) == 1) {
		uint32_t len = chain.read_len < 64 ? chain.read_len : 64;

		if (chain_read(&chain, 0, bytes, len) < 0 ||
		    chain_write(&chain, 0, bytes, len) < 0 ||
		    virtq_push(&dev->vq[n], &chain, len) < 0)
			ret = -EPROTO;
		if (ret < 0)
			break;
	}
	if (ret < 0) {
		vdev_break(dev, "bad chain");
		return;
	}
	virtq_kicks_on(&dev->vq[n]);
	vdev_signal_queue(dev, n);
}

DRV void fake_reset(struct vdev *dev)
{
	cr_assert_eq(fake_of(dev)->in_flight, 0);
	fake_of(dev)->resets++;
}

DRV bool fake_quiesce(struct vdev *dev)
{
	return !fake_of(dev)->in_flight;
}

DRV void fake_resume(struct vdev *dev)
{
	fake_of(dev)->resumed++;
	for (unsigned n = 0; n < dev->ops->nr_queues; n++)
		fake_kick(dev, n);
}

DRV void fake_save(struct vdev *dev, struct state_buf *buf)
{
	struct fake_state s = { fake_of(dev)->payload };

	state_put(buf, fake_state_desc(), (uint16_t)dev->instance, &s);
}

DRV int fake_load(struct vdev *dev, struct state_buf *buf, struct err *err)
{
	struct fake_state s = { 0 };
	int ret = state_get(buf, fake_state_desc(), (uint16_t)dev->instance, &s, err);

	fake_of(dev)->payload = s.payload;
	if (ret == 0 && fake_of(dev)->load_ret < 0)
		ret = err_set(err, fake_of(dev)->load_ret, "as the test asked");
	return ret;
}

static const struct vdev_ops fake_ops = {
	.name = "fake",
	.virtio_id = 42,
	.nr_queues = 2,
	.features = fake_features,
	.config_read = fake_config_read,
	.activate = fake_activate,
	.kick = fake_kick,
	.reset = fake_reset,
	.quiesce = fake_quiesce,
	.resume = fake_resume,
	.save = fake_save,
	.load = fake_load,
};

#endif
