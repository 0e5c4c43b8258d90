/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole machine without its CPU: the monitor's own dispatch of accesses, all devices, two disks, guest memory
 * between guards. The loop is opened once, the devices for each input. One thread.
 */
#ifndef TESTS_FUZZ_MACHINE_H
#define TESTS_FUZZ_MACHINE_H

#include "tests/fuzz/driver.h"
#include "vmm/vm.h"

#include <sys/socket.h>

#define MC_DISK 4096u

static struct vm mc_vm;
static int mc_peer = -1; /* reads what comes of the first stream */

FZ void mc_pin(void *ctx, unsigned pin)
{
	(void)ctx;
	ioapic_edge(&mc_vm.ioapic, pin);
}

FZ void mc_nothing(void *ctx, enum vm_event event)
{
	(void)ctx;
	(void)event;
}

FZ void mc_init(void)
{
	struct err err;

	if (mc_vm.loop.open)
		return;
	fz_quiet();
	vm_init(&mc_vm, mc_nothing, NULL);
	fz_mem_open(&mc_vm.mem);
	FZ_CHECK(loop_open(&mc_vm.loop, 64, &err) == 0);
	vcpu_init(&mc_vm.vcpu[0], 0, &mc_vm.vcpu_host);
	mc_vm.nr_vcpus = 1;
}

FZ struct vdev_host mc_host(unsigned slot)
{
	return (struct vdev_host){ .loop = &mc_vm.loop,
		                   .mem = &mc_vm.mem,
		                   .irq = mc_pin,
		                   .pin = LAYOUT_PIN_VIRTIO + slot };
}

FZ void mc_open_disk(unsigned n, bool readonly)
{
	static const uint8_t zeros[MC_DISK];
	struct vdev_host host = mc_host(n + 1);
	struct blk_config config = { .base_fd = fz_file(zeros, sizeof(zeros)),
		                     .overlay_fd = readonly ? -1 : fz_file("", 0),
		                     .readonly = readonly };
	struct err err;

	FZ_CHECK(blk_open(&mc_vm.disk[n], &config, &host, n + 1, &err) == 0);
	mc_vm.slot[n + 1] = blk_vdev(mc_vm.disk[n]);
	mc_vm.nr_disks = n + 1;
}

/* Devices as after a power-on: vsock, a read-only disk, one with an overlay. */
FZ void mc_open(void)
{
	struct vsock_config config = { .guest_cid = VSOCK_GUEST_CID };
	struct vdev_host host = mc_host(0);
	struct serial_host console = { .loop = &mc_vm.loop,
		                       .irq = mc_pin,
		                       .pin = LAYOUT_PIN_SERIAL,
		                       .out_fd = -1,
		                       .in_fd = -1 };
	int pair[2];
	struct err err;

	mc_init();
	fz_mem_clear(&mc_vm.mem);
	memset(&mc_vm.bell.s, 0, sizeof(mc_vm.bell.s));
	memset(&mc_vm.ioapic.s, 0, sizeof(mc_vm.ioapic.s));
	for (unsigned i = 0; i < IOAPIC_PINS; i++)
		mc_vm.ioapic.s.redirection[i] = 1u << 16;
	mc_vm.nr_msis = 0;
	mc_vm.end_detail[0] = '\0';
	atomic_store(&mc_vm.vcpu[0].dead, false);
	FZ_CHECK(serial_open(&mc_vm.serial, &console, &err) == 0);
	FZ_CHECK(vsock_open(&mc_vm.vsock, &config, &host, 0, &err) == 0);
	mc_vm.slot[0] = vsock_vdev(mc_vm.vsock);
	mc_open_disk(0, true);
	mc_open_disk(1, false);
	FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
	first_open(&mc_vm.first, pair[0]);
	mc_peer = pair[1];
}

FZ bool mc_is_idle(void *ctx)
{
	bool idle = true;

	(void)ctx;
	for (unsigned i = 0; i < LAYOUT_VIRTIO_SLOTS; i++)
		if (mc_vm.slot[i] && !vdev_quiesce(mc_vm.slot[i]))
			idle = false;
	return idle;
}

FZ void mc_settle(void)
{
	FZ_CHECK(loop_run_until(&mc_vm.loop, mc_is_idle, NULL) == 0);
}

FZ void mc_turn(void)
{
	struct loop_event event = { .fire = dr_nothing };
	int turns = 1;

	loop_post(&mc_vm.loop, &event);
	FZ_CHECK(loop_run_until(&mc_vm.loop, dr_counted, &turns) == 0);
	loop_unpost(&mc_vm.loop, &event);
}

FZ void mc_resume(void)
{
	serial_start(mc_vm.serial);
	for (unsigned i = 0; i < LAYOUT_VIRTIO_SLOTS; i++)
		if (mc_vm.slot[i])
			vdev_resume(mc_vm.slot[i]);
}

/* The devices must be at rest. */
FZ void mc_close(void)
{
	loop_unpost(&mc_vm.loop, &mc_vm.parked_event);
	loop_unpost(&mc_vm.loop, &mc_vm.first_event);
	loop_unpost(&mc_vm.loop, &mc_vm.ended_event);
	first_close(&mc_vm.first);
	vsock_close(mc_vm.vsock);
	for (unsigned i = 0; i < mc_vm.nr_disks; i++)
		blk_close(mc_vm.disk[i]);
	serial_close(mc_vm.serial);
	memset(mc_vm.slot, 0, sizeof(mc_vm.slot));
	mc_vm.nr_disks = 0;
	(void)close(mc_peer);
}

#endif
