/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of devices across a pause, a snapshot and a thaw. */
#include "tests/unit/devices/fake_dev.h"

#include <sched.h>

static struct loop loop;
static struct drv d;
static struct fake dev;
static uint64_t buffers;

static void setup(void)
{
	struct vdev_host host;

	cr_assert_eq(loop_open(&loop, 8, NULL), 0);
	drv_open(&d, &loop, &host);
	dev = (struct fake){ .payload = 77 };
	vdev_init(&dev.vdev, &fake_ops, &host, 3);
	drv_start(&d, &dev.vdev, DRV_ALL_FEATURES, 64);
	dev.resets = 0;
	buffers = drv_alloc(&d, 4096, 16);
}

static void teardown(void)
{
	vdev_close(&dev.vdev);
	loop_close(&loop);
	drv_close(&d);
}

TestSuite(vdev, .init = setup, .fini = teardown);

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

static void add(unsigned n)
{
	struct drv_seg seg[] = { { buffers, 4 }, { buffers + 64, 4 } };

	cr_assert_geq(drv_add(&d, n, seg, 1, 1), 0);
}

static int load(struct fake *to, struct state_buf *buf, struct err *err)
{
	struct vdev_host host = dev.vdev.host;

	*to = (struct fake){ 0 };
	vdev_init(&to->vdev, &fake_ops, &host, 3);
	return vdev_load(&to->vdev, buf, err);
}

Test(vdev, pause_takes_nothing_and_resume_looks_at_all_queues)
{
	cr_assert(vdev_quiesce(&dev.vdev));
	add(0);
	add(1);
	drv_kick(&d, 0);
	drv_kick(&d, 1);
	serve();
	cr_assert_eq(dev.kicks, 0);
	cr_assert_eq(drv_used(&d, 0, NULL), -1);
	vdev_resume(&dev.vdev);
	cr_assert_eq(dev.resumed, 1);
	cr_assert_geq(drv_used(&d, 0, NULL), 0);
	cr_assert_geq(drv_used(&d, 1, NULL), 0);
	add(0);
	cr_assert(drv_kick(&d, 0), "kicks are on again");
	serve();
	cr_assert_geq(drv_used(&d, 0, NULL), 0);
}

Test(vdev, quiesce_waits_for_what_is_in_flight)
{
	dev.in_flight = 1;
	cr_assert_not(vdev_quiesce(&dev.vdev));
	cr_assert(dev.vdev.paused);
	dev.in_flight = 0;
	cr_assert(vdev_quiesce(&dev.vdev));
}

Test(vdev, quiesce_finishes_a_pending_reset)
{
	drv_write(&d, 0x70, 0);
	cr_assert(vdev_quiesce(&dev.vdev));
	cr_assert_eq(dev.resets, 1);
	cr_assert_eq(drv_read(&d, 0x70), 0);
	vdev_resume(&dev.vdev);
	cr_assert_eq(dev.resumed, 0);
}

/* ---- a vCPU's thread beside the loop's ---- */

#define ROUNDS 3000u

static _Atomic unsigned echoed;

static bool all_echoed(void *ctx)
{
	(void)ctx;
	return echoed == ROUNDS;
}

/* Up to three chains, a kick if the device wants one, and then nothing until they come back. */
static void *drive(void *ctx)
{
	unsigned in_flight = 0;

	while (echoed < ROUNDS) {
		for (; in_flight < 1 + echoed % 3; in_flight++)
			add(0);
		drv_kick(&d, 0);
		while (in_flight) {
			if (drv_used(&d, 0, NULL) < 0) {
				sched_yield();
				continue;
			}
			in_flight--;
			echoed++;
		}
		drv_isr(&d);
		if (echoed >= ROUNDS - 3)
			echoed = ROUNDS;
	}
	loop_post(&loop, &dev.vdev.kick_event);
	return ctx;
}

/* A kick that got lost between kicks_on and the wait would leave both sides waiting: a timeout. */
Test(vdev, no_kick_is_lost_between_threads, .timeout = 300)
{
	pthread_t thread;

	cr_assert_eq(pthread_create(&thread, NULL, drive, NULL), 0);
	cr_assert_eq(loop_run_until(&loop, all_echoed, NULL), 0);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_geq(dev.kicks, 1);
}

/* Work was added before the freeze with a kick that nobody served; the interrupt of an earlier batch
 * is lost as well. Both sides go on after the thaw. */
Test(vdev, a_thawed_device_serves_what_was_pending)
{
	struct state_buf buf = { 0 };
	struct fake thawed;
	struct err err = { 0 };
	unsigned irqs;

	add(0);
	drv_kick(&d, 0);
	serve();
	add(0);
	cr_assert(vdev_quiesce(&dev.vdev));
	vdev_save(&dev.vdev, &buf);
	cr_assert_eq(buf.err, 0);
	cr_assert_eq(load(&thawed, &buf, &err), 0, "%s", err.msg);
	cr_assert_eq(thawed.payload, 77);
	cr_assert_eq(buf.pos, buf.len);
	d.dev = &thawed.vdev;
	cr_assert_eq(drv_read(&d, 0x70) & VIRTIO_STATUS_DRIVER_OK, VIRTIO_STATUS_DRIVER_OK);
	cr_assert_eq(thawed.resumed, 0, "nothing before it is told to go on");
	irqs = d.irqs;
	vdev_resume(&thawed.vdev);
	cr_assert_eq(d.irqs, irqs + 1, "told, though used_event is behind");
	cr_assert_geq(drv_used(&d, 0, NULL), 0);
	cr_assert_geq(drv_used(&d, 0, NULL), 0);
	vdev_close(&thawed.vdev);
	state_buf_free(&buf);
}

/* Each forged state is refused with a message, and leaves a device after reset. */
static void refuse(void (*forge)(void), int code)
{
	struct state_buf buf = { 0 };
	struct fake thawed;
	struct err err = { 0 };

	cr_assert(vdev_quiesce(&dev.vdev));
	forge();
	vdev_save(&dev.vdev, &buf);
	cr_assert_eq(load(&thawed, &buf, &err), code, "%s", err.msg);
	cr_assert(strstr(err.msg, "device fake3: "), "%s", err.msg);
	cr_assert_eq(thawed.vdev.s.status, 0);
	cr_assert_eq(thawed.vdev.vq[0].s.ready, 0);
	vdev_close(&thawed.vdev);
	state_buf_free(&buf);
}

static void forge_status(void)
{
	dev.vdev.s.status |= 1u << 4;
}

static void forge_features(void)
{
	dev.vdev.s.driver_features |= 1u << 9;
}

static void forge_steps(void)
{
	dev.vdev.s.status &= ~VIRTIO_STATUS_FEATURES_OK;
}

static void forge_size(void)
{
	dev.vdev.vq[1].s.size = 1024;
}

static void forge_odd_size(void)
{
	dev.vdev.vq[1].s.size = 65;
}

static void forge_address(void)
{
	dev.vdev.vq[0].s.used = d.mem.size;
}

Test(vdev, forged_states_are_refused)
{
	void (*const forge[])(void) = { forge_status, forge_features, forge_steps,
		                        forge_size,   forge_odd_size, forge_address };

	for (size_t i = 0; i < ARRAY_LEN(forge); i++) {
		struct vdev_state s = dev.vdev.s;
		struct virtq_state a = dev.vdev.vq[0].s, b = dev.vdev.vq[1].s;

		refuse(forge[i], -EBADMSG);
		dev.vdev.s = s;
		dev.vdev.vq[0].s = a;
		dev.vdev.vq[1].s = b;
	}
}

Test(vdev, a_device_that_refuses_its_section_is_left_reset)
{
	struct state_buf buf = { 0 };
	struct fake thawed = { 0 };
	struct err err = { 0 };

	vdev_save(&dev.vdev, &buf);
	vdev_init(&thawed.vdev, &fake_ops, &dev.vdev.host, 3);
	thawed.load_ret = -EBADMSG;
	cr_assert_eq(vdev_load(&thawed.vdev, &buf, &err), -EBADMSG);
	cr_assert_eq(thawed.vdev.s.status, 0);
	vdev_close(&thawed.vdev);
	state_buf_free(&buf);
}

/* After a thaw the ring may be anything, as the driver could have written it before. */
Test(vdev, positions_that_do_not_fit_the_ring_break_the_device)
{
	struct state_buf buf = { 0 };
	struct fake thawed;

	dev.vdev.vq[0].s.next_avail = 1000;
	vdev_save(&dev.vdev, &buf);
	cr_assert_eq(load(&thawed, &buf, NULL), 0);
	vdev_resume(&thawed.vdev);
	cr_assert(thawed.vdev.s.status & VIRTIO_STATUS_NEEDS_RESET);
	vdev_close(&thawed.vdev);
	state_buf_free(&buf);
}
