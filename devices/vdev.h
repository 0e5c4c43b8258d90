/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every virtio device model is made of. A device has one lock: register accesses come on a vCPU
 * thread, queue work and host I/O on the loop's thread, both under it. Devices know neither KVM nor
 * the memory map: the host side is in struct vdev_host.
 */
#ifndef DEVICES_VDEV_H
#define DEVICES_VDEV_H

#include "core/gmem.h"
#include "core/loop.h"
#include "core/state.h"
#include "devices/virtq.h"

#include <pthread.h>

#define VDEV_MAX_QUEUES 3

/* virtio 1.2 section 2.1 and 5; 6 */
#define VIRTIO_STATUS_ACKNOWLEDGE 1u
#define VIRTIO_STATUS_DRIVER      2u
#define VIRTIO_STATUS_DRIVER_OK   4u
#define VIRTIO_STATUS_FEATURES_OK 8u
#define VIRTIO_STATUS_NEEDS_RESET 64u
#define VIRTIO_STATUS_FAILED      128u
#define VIRTIO_F_INDIRECT_DESC    28
#define VIRTIO_F_EVENT_IDX        29
#define VIRTIO_F_VERSION_1        32

struct vdev;

struct vdev_ops {
	const char *name;
	uint32_t virtio_id;
	uint8_t nr_queues;
	/* Device features offered (without VERSION_1, INDIRECT_DESC, EVENT_IDX: vdev.c adds those). */
	uint64_t (*features)(const struct vdev *dev);
	/* Reads n bytes of the configuration space at off; bytes outside read 0. Lock held. */
	void (*config_read)(struct vdev *dev, uint32_t off, void *dst, uint32_t n);
	/* DRIVER_OK was set and all ready queues are enabled. Lock held, vCPU thread. */
	void (*activate)(struct vdev *dev);
	/* The driver has put chains into queue q. Lock held, loop's thread. */
	void (*kick)(struct vdev *dev, unsigned q);
	/* The driver resets the device: forget what is in flight. Lock held, loop's thread or, for a
	 * device that never ran, the vCPU thread. Must leave no op that touches guest memory busy. */
	void (*reset)(struct vdev *dev);
	/* Takes no more chains and returns true when nothing is in flight (asked again until then).
	 * Lock held, loop's thread. */
	bool (*quiesce)(struct vdev *dev);
	/* After a pause or a thaw: goes on, looks at all queues. Lock held, loop's thread. */
	void (*resume)(struct vdev *dev);
	/* Appends, restores the device's own sections (after the common ones). Paused machine. */
	void (*save)(struct vdev *dev, struct state_buf *buf);
	int (*load)(struct vdev *dev, struct state_buf *buf, struct err *err);
};

/* The host's side, the same for the whole life of the device. */
struct vdev_host {
	struct loop *loop;
	const struct gmem *mem;
	void (*irq)(void *ctx, unsigned pin); /* raises an edge; any thread */
	void *irq_ctx;
	unsigned pin;
};

#define VDEV_STATE(F, A)                    \
	F(1, uint32_t, status)              \
	F(1, uint32_t, isr)                 \
	F(1, uint32_t, config_gen)          \
	F(1, uint32_t, device_features_sel) \
	F(1, uint32_t, driver_features_sel) \
	F(1, uint32_t, queue_sel)           \
	F(1, uint64_t, driver_features)
STATE_STRUCT(vdev_state, VDEV_STATE);
const struct state_desc *vdev_state_desc(void);

struct vdev {
	const struct vdev_ops *ops; /* const after init */
	struct vdev_host host;      /* const after init */
	unsigned instance;          /* const after init: which section in a snapshot */
	pthread_mutex_t lock;
	/* lock */
	struct vdev_state s;
	struct virtq vq[VDEV_MAX_QUEUES];
	uint32_t kicked; /* bit per queue */
	bool reset_pending;
	bool paused;
	struct loop_event kick_event;
};

/* Prepares the common part; called by the device's own open. */
void vdev_init(struct vdev *dev, const struct vdev_ops *ops, const struct vdev_host *host,
               unsigned instance);
/* Takes back what it has asked of the loop; called by the device's own close. Loop's thread or after it. */
void vdev_close(struct vdev *dev);
/* All features offered: the device's own and those that vdev.c and virtq.c serve. */
uint64_t vdev_features(const struct vdev *dev);

/* The guest's fault: DEVICE_NEEDS_RESET, a configuration interrupt, a limited log line. Lock held. */
void vdev_break(struct vdev *dev, const char *why);
bool vdev_is_live(const struct vdev *dev); /* DRIVER_OK and not broken. Lock held. */
/* Live, and neither paused nor about to be reset: chains may be popped. Lock held. */
bool vdev_may_pop(const struct vdev *dev);
/* Interrupts the driver for queue q if it wants that (ISR bit 0). Lock held. */
void vdev_signal_queue(struct vdev *dev, unsigned q);
/* The configuration space has changed (ISR bit 1). Lock held. */
void vdev_signal_config(struct vdev *dev);

/* The register file's side: the driver has kicked queue q; has written 0 to the status. Lock held. */
void vdev_kick(struct vdev *dev, unsigned q);
void vdev_reset(struct vdev *dev);

/* Whole-device steps of a snapshot; take the lock themselves. Loop's thread. */
bool vdev_quiesce(struct vdev *dev);
void vdev_resume(struct vdev *dev);
/* Sections: VDEV, one VIRTQ for each queue, the device's own. A loaded queue is enabled as by a driver. */
void vdev_save(struct vdev *dev, struct state_buf *buf);
NODISCARD int vdev_load(struct vdev *dev, struct state_buf *buf, struct err *err);

#endif
