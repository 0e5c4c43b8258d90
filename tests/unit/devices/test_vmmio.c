/* SPDX-License-Identifier: Apache-2.0 */
/* The register file: what a driver may do in which step, and what it may never do. */
#include "tests/unit/devices/fake_dev.h"

#define REG_STATUS 0x70
#define OK_STEPS   (VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER | VIRTIO_STATUS_FEATURES_OK)

static struct loop loop;
static struct drv d;
static struct fake dev;

static void setup(void)
{
	struct vdev_host host;

	cr_assert_eq(loop_open(&loop, 8, NULL), 0);
	drv_open(&d, &loop, &host);
	dev = (struct fake){ .features = 1ull << 7 };
	vdev_init(&dev.vdev, &fake_ops, &host, 0);
	d.dev = &dev.vdev;
}

static void teardown(void)
{
	vdev_close(&dev.vdev);
	loop_close(&loop);
	drv_close(&d);
}

TestSuite(vmmio, .init = setup, .fini = teardown);

/* Serves what has been posted by now. */
static bool once(void *ctx)
{
	return (*(int *)ctx)++ > 0;
}

static void serve(void)
{
	int turns = 0;

	loop_post(&loop, &dev.vdev.kick_event);
	cr_assert_eq(loop_run_until(&loop, once, &turns), 0);
}

Test(vmmio, identity)
{
	cr_assert_eq(drv_read(&d, 0x00), 0x74726976);
	cr_assert_eq(drv_read(&d, 0x04), 2);
	cr_assert_eq(drv_read(&d, 0x08), 42);
	cr_assert_eq(drv_read(&d, 0x34), VIRTQ_MAX_SIZE);
	cr_assert_eq(drv_read(&d, 0xb0), UINT32_MAX, "no shared memory");
	cr_assert_eq(drv_read(&d, 0xbc), UINT32_MAX);
	cr_assert_eq(drv_read(&d, 0xc0), 0);
	cr_assert_eq(drv_offered(&d), 1ull << 7 | DRV_ALL_FEATURES);
	drv_write(&d, 0x14, 2);
	cr_assert_eq(drv_read(&d, 0x10), 0, "features beyond 64");
}

Test(vmmio, a_driver_comes_up_and_exchanges)
{
	uint64_t at = drv_alloc(&d, 32, 1);
	struct drv_seg seg[] = { { at, 4 }, { at + 16, 4 } };
	uint32_t written;
	char back[4];

	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
	cr_assert_eq(dev.activated, 1);
	drv_put(&d, at, "ping", 4);
	drv_add(&d, 1, seg, 1, 1);
	cr_assert(drv_kick(&d, 1));
	serve();
	cr_assert_eq(drv_used(&d, 1, &written), 0);
	cr_assert_eq(drv_used(&d, 0, NULL), -1, "nothing in the other queue");
	cr_assert_eq(written, 4);
	drv_get(&d, at + 16, back, 4);
	cr_assert_eq(memcmp(back, "ping", 4), 0);
	cr_assert_eq(d.irqs, 1);
	cr_assert_eq(drv_isr(&d), 1);
	cr_assert_eq(drv_read(&d, 0x60), 0);
}

Test(vmmio, features_that_were_not_offered_are_refused)
{
	cr_assert_not(drv_negotiate(&d, DRV_ALL_FEATURES | 1ull << 5));
	cr_assert_not(drv_negotiate(&d, DRV_ALL_FEATURES & ~(1ull << VIRTIO_F_VERSION_1)));
	cr_assert_not(drv_negotiate(&d, 0));
	cr_assert(drv_negotiate(&d, 1ull << VIRTIO_F_VERSION_1));
	drv_write(&d, 0x20, UINT32_MAX);
	cr_assert_eq(dev.vdev.s.driver_features, 1ull << VIRTIO_F_VERSION_1,
	             "they stand after FEATURES_OK");
}

Test(vmmio, driver_ok_needs_features_ok)
{
	drv_write(&d, REG_STATUS, VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER_OK);
	cr_assert_eq(drv_read(&d, REG_STATUS), VIRTIO_STATUS_ACKNOWLEDGE);
	cr_assert_eq(dev.activated, 0);
}

Test(vmmio, status_bits_are_only_added)
{
	cr_assert(drv_negotiate(&d, DRV_ALL_FEATURES));
	drv_write(&d, REG_STATUS, VIRTIO_STATUS_ACKNOWLEDGE);
	cr_assert_eq(drv_read(&d, REG_STATUS), OK_STEPS);
	drv_write(&d, REG_STATUS, 0xffffff00);
	cr_assert_eq(drv_read(&d, REG_STATUS), OK_STEPS);
	drv_write(&d, REG_STATUS, OK_STEPS | VIRTIO_STATUS_NEEDS_RESET);
	cr_assert_eq(drv_read(&d, REG_STATUS), OK_STEPS, "that bit is the device's");
}

Test(vmmio, queues_are_described_between_features_ok_and_driver_ok)
{
	drv_write(&d, 0x38, 64);
	cr_assert_eq(dev.vdev.vq[0].s.size, 0, "before FEATURES_OK");
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
	drv_write(&d, 0x30, 0);
	drv_write(&d, 0x38, 256);
	drv_write(&d, 0x80, 0x1000);
	drv_write(&d, 0x44, 0);
	cr_assert_eq(dev.vdev.vq[0].s.size, 64, "a live queue does not change");
	cr_assert_eq(dev.vdev.vq[0].s.desc, d.q[0].desc);
	cr_assert_eq(drv_read(&d, 0x44), 1);
}

Test(vmmio, a_ready_queue_does_not_change)
{
	cr_assert(drv_negotiate(&d, DRV_ALL_FEATURES));
	drv_queue(&d, 0, 64);
	drv_write(&d, 0x38, 256);
	cr_assert_eq(dev.vdev.vq[0].s.size, 64);
	drv_write(&d, 0x44, 0);
	drv_write(&d, 0x38, 256);
	cr_assert_eq(dev.vdev.vq[0].s.size, 256);
}

Test(vmmio, queue_selector_is_bounded)
{
	static const uint32_t bad[] = { 2, 3, 255, 256, 1u << 31, UINT32_MAX };

	cr_assert(drv_negotiate(&d, DRV_ALL_FEATURES));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		drv_write(&d, 0x30, bad[i]);
		cr_assert_eq(drv_read(&d, 0x34), 0);
		cr_assert_eq(drv_read(&d, 0x44), 0);
		for (uint32_t off = 0x38; off < 0xa8; off += 4)
			if (off != 0x50 && off != 0x60 && off != 0x64 && off != REG_STATUS)
				drv_write(&d, off, 1);
	}
	cr_assert_eq(dev.vdev.vq[0].s.size, 0);
	cr_assert_eq(dev.vdev.vq[1].s.size, 0);
	cr_assert_eq(drv_read(&d, REG_STATUS), OK_STEPS, "not broken");
}

Test(vmmio, a_bad_queue_needs_a_reset)
{
	cr_assert(drv_negotiate(&d, DRV_ALL_FEATURES));
	drv_write(&d, 0x30, 0);
	drv_write(&d, 0x38, 100);
	drv_write(&d, 0x44, 1);
	cr_assert_eq(drv_read(&d, 0x44), 0);
	cr_assert(drv_read(&d, REG_STATUS) & VIRTIO_STATUS_NEEDS_RESET);
	drv_write(&d, REG_STATUS, OK_STEPS | VIRTIO_STATUS_DRIVER_OK);
	cr_assert_eq(dev.activated, 0);
	drv_write(&d, REG_STATUS, 0);
	cr_assert_eq(drv_read(&d, REG_STATUS), 0, "a device that never ran is reset at once");
	cr_assert(drv_negotiate(&d, DRV_ALL_FEATURES));
	drv_write(&d, 0x38, 65536 + 64);
	cr_assert_eq(dev.vdev.vq[0].s.size, 0, "not cut to 16 bits");
}

Test(vmmio, notify_is_bounded)
{
	drv_write(&d, 0x50, 0);
	cr_assert_eq(dev.vdev.kicked, 0, "before DRIVER_OK");
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
	drv_write(&d, 0x50, 2);
	drv_write(&d, 0x50, 32);
	drv_write(&d, 0x50, UINT32_MAX);
	cr_assert_eq(dev.vdev.kicked, 0);
	drv_write(&d, 0x50, 1);
	cr_assert_eq(dev.vdev.kicked, 2);
	serve();
	cr_assert_eq(dev.kicks, 1);
}

Test(vmmio, configuration_space)
{
	uint8_t wide[8];
	uint16_t half;
	uint8_t byte;

	vmmio_read(&dev.vdev, 0x100, wide, 8);
	cr_assert_eq(memcmp(wide, "\1\2\3\4\5\6\7\10", 8), 0);
	vmmio_read(&dev.vdev, 0x102, &half, 2);
	cr_assert_eq(half, 0x0403);
	vmmio_read(&dev.vdev, 0x107, &half, 2);
	cr_assert_eq(half, 0x0008, "outside reads 0");
	vmmio_read(&dev.vdev, 0x1ff, &byte, 1);
	cr_assert_eq(byte, 0);
	vmmio_write(&dev.vdev, 0x100, "\377", 1);
	vmmio_read(&dev.vdev, 0x100, &byte, 1);
	cr_assert_eq(byte, 1);
}

Test(vmmio, other_widths_do_nothing)
{
	uint64_t wide = UINT64_MAX;
	uint16_t half = 0xffff;

	vmmio_read(&dev.vdev, 0x00, &wide, 8);
	cr_assert_eq(wide, 0);
	vmmio_read(&dev.vdev, 0x00, &half, 2);
	cr_assert_eq(half, 0);
	half = 1;
	vmmio_write(&dev.vdev, REG_STATUS, &half, 2);
	cr_assert_eq(drv_read(&d, REG_STATUS), 0);
	vmmio_read(&dev.vdev, 0x02, &half, 2);
	cr_assert_eq(half, 0);
}

/* ---- reset of a live device ---- */

Test(vmmio, a_live_reset_waits_for_what_is_in_flight)
{
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
	dev.resets = 0;
	dev.in_flight = 1;
	drv_write(&d, REG_STATUS, 0);
	cr_assert_neq(drv_read(&d, REG_STATUS), 0);
	cr_assert_eq(drv_read(&d, 0x44), 0, "the queues are the driver's again");
	serve();
	cr_assert_eq(dev.resets, 0);
	drv_write(&d, REG_STATUS, 0);
	drv_write(&d, REG_STATUS, OK_STEPS);
	drv_write(&d, 0x50, 0);
	serve();
	cr_assert_eq(dev.kicks, 0, "nothing is taken any more");
	cr_assert_neq(drv_read(&d, REG_STATUS), 0);
	dev.in_flight = 0;
	serve();
	cr_assert_eq(dev.resets, 1);
	cr_assert_eq(drv_read(&d, REG_STATUS), 0);
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 32);
	cr_assert_eq(dev.activated, 2);
}

Test(vmmio, a_broken_ring_sets_needs_reset_and_stops_the_device)
{
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
	drv_publish(&d, 0, 64);
	drv_write(&d, 0x50, 0);
	serve();
	cr_assert(drv_read(&d, REG_STATUS) & VIRTIO_STATUS_NEEDS_RESET);
	cr_assert_eq(d.irqs, 1);
	cr_assert_eq(drv_isr(&d), 2, "a configuration interrupt");
	cr_assert_eq(drv_read(&d, 0xfc), 1);
	drv_write(&d, 0x50, 1);
	serve();
	cr_assert_eq(dev.kicks, 1);
	drv_write(&d, REG_STATUS, 0);
	serve();
	cr_assert_eq(drv_read(&d, REG_STATUS), 0);
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
}

/* Any register, any value, any width, any time: no crash, and queues stay inside guest memory. */
Test(vmmio, random_accesses)
{
	uint64_t seed = 0x2545f4914f6cdd1dull;

	for (unsigned i = 0; i < 200000; i++) {
		uint32_t off, n;
		uint64_t value;

		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		off = (uint32_t)(seed >> 8) % 64 * (seed % 5 ? 4 : 1);
		n = seed % 7 ? 4 : 1u << (seed >> 40) % 4;
		value = seed % 3 ? seed >> 60 : seed >> (seed % 50);
		if (seed & (1u << 30))
			vmmio_write(&dev.vdev, off, &value, n);
		else
			vmmio_read(&dev.vdev, off, &value, n);
		if (i % 64 == 0)
			serve();
		for (unsigned q = 0; q < 2; q++)
			cr_assert_leq(dev.vdev.vq[q].s.size, VIRTQ_MAX_SIZE);
	}
}
