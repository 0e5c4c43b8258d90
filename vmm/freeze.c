/* SPDX-License-Identifier: Apache-2.0 */
/* Freezing a machine into a snapshot. */
#include "core/log.h"
#include "core/own.h"
#include "core/random.h"
#include "vmm/clock.h"
#include "vmm/guestpages.h"
#include "vmm/machine_state.h"
#include "vmm/vm.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define MOMENT_NS   1000000u
#define MOMENTS_MAX 100u

static void on_moment(struct loop_op *op, int res)
{
	(void)op; /* it is not busy any more */
	(void)res;
}

static bool moment_is_over(void *ctx)
{
	const struct loop_op *op = ctx;

	return !op->busy;
}

static int run_on(struct vm *vm, struct err *err)
{
	int ret;

	vm->moment_op.done = on_moment;
	vm_resume(vm);
	loop_timer(&vm->loop, &vm->moment_op, MOMENT_NS);
	ret = loop_run_until(&vm->loop, moment_is_over, &vm->moment_op);
	vm_pause(vm);
	return ret < 0 ? err_set(err, ret, "letting the guest run on: %s", strerror(-ret)) : 0;
}

static int any_masked(const struct vm *vm, struct err *err)
{
	int ret = 0;

	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		if (!atomic_load(&vm->vcpu[i].dead))
			ret = cpu_is_masked(vm->vcpu[i].fd, err);
	return ret;
}

/*
 * A kernel changes with interrupts off what a thaw replaces in it. One that was met there is let run on for a moment, again and
 * again: KVM does not tell when they are on.
 */
static int leave_masked(struct vm *vm, struct err *err)
{
	int ret = 0;

	if (!guestsym_is_known(&vm->gsym))
		return 0; /* nothing is replaced in it */
	for (unsigned n = 0; ret == 0 && n < MOMENTS_MAX; n++) {
		ret = any_masked(vm, err);
		if (ret <= 0)
			return ret;
		ret = run_on(vm, err);
	}
	if (ret < 0)
		return ret;
	(void)err_set(err, -EBUSY, "the guest's kernel keeps its interrupts off");
	return err_remedy(err, "try again when the guest is idle");
}

static bool devices_idle(void *ctx)
{
	struct vm *vm = ctx;
	bool idle = true;

	for (unsigned i = 0; i < LAYOUT_VIRTIO_SLOTS; i++)
		if (vm->slot[i] && !vdev_quiesce(vm->slot[i]))
			idle = false;
	return idle;
}

static int put_disks(struct vm *vm, const struct snapshot_out *out, const uint8_t *id,
                     struct err *err)
{
	int ret = 0;

	for (unsigned i = 0; ret == 0 && i < vm->nr_disks; i++) {
		char name[16];
		int fd;

		if (vm->disk_info[i].readonly)
			continue;
		snapshot_disk_name(i, name);
		fd = snapshot_part(out, name, err);
		ret = fd < 0 ? fd : blk_flatten(vm->disk[i], fd, err);
		if (ret == 0)
			ret = snapshot_seal(fd, blk_size(vm->disk[i]), id, err);
	}
	return ret;
}

static int put_manifest(struct vm *vm, const struct snapshot_out *out,
                        const struct snapshot_head *head, struct err *err)
{
	char id[2 * SNAPSHOT_ID_LEN + 1];
	json_t *disks = json_array(), *manifest;
	char *text;
	int ret;

	for (unsigned i = 0; i < SNAPSHOT_ID_LEN; i++)
		snprintf(id + (size_t)2 * i, 3, "%02x", head->id[i]);
	for (unsigned i = 0; i < vm->nr_disks; i++)
		json_array_append_new(disks, json_pack("{s:b, s:I, s:s}", "readonly",
		                                       vm->disk_info[i].readonly, "size",
		                                       (json_int_t)blk_size(vm->disk[i]), "path",
		                                       (const char *)vm->disk_info[i].path));
	manifest = json_pack("{s:s, s:s, s:I, s:I, s:i, s:s, s:o, s:b, s:b}", "format",
	                     SNAPSHOT_MAGIC, "id", id, "created_ns", (json_int_t)head->created_ns,
	                     "memory_size", (json_int_t)head->memory_size, "vcpus",
	                     (int)head->nr_vcpus, "cpu", (const char *)head->fingerprint, "disks",
	                     disks, "parked", vm->bell.s.phase == DOORBELL_PARKED, "kernel_symbols",
	                     guestsym_is_known(&vm->gsym));
	text = manifest ? json_dumps(manifest, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	json_decref(manifest);
	if (!text)
		return err_set(err, -ENOMEM, "manifest: out of memory");
	ret = snapshot_put(out, "manifest", text, strlen(text), err);
	free(text);
	return ret;
}

static int put_state(struct vm *vm, const struct snapshot_out *out,
                     const struct snapshot_head *head, struct err *err)
{
	struct state_buf buf = { 0 };
	int ret;

	snapshot_put_head(&buf, head, vm->disk_info);
	ret = machine_state_put(vm, &buf, err);
	if (ret == 0 && buf.err)
		ret = err_set(err, buf.err, "state: %s", strerror(-buf.err));
	if (ret == 0)
		ret = snapshot_put(out, "state", buf.p, buf.len, err);
	state_buf_free(&buf);
	return ret;
}

/* All that the parked interpreter has mapped may be mapped ahead of its use, by a KVM that shadows its tables. */
static int touch_pages(struct vm *vm, struct err *err)
{
	struct kvm_sregs sregs;
	int ret;

	if (vm->bell.s.phase != DOORBELL_PARKED)
		return 0;
	ret = KVM_DO(vm->vcpu[0].fd, KVM_GET_SREGS, &sregs, err);
	if (ret < 0 || !guestpages_can_walk(&sregs))
		return ret;
	ret = guestpages_touch(&vm->mem, sregs.cr3);
	return ret < 0 ? err_set(err, ret, "the guest's page tables: %s", strerror(-ret)) : 0;
}

static int put_parts(struct vm *vm, const struct snapshot_out *out, struct err *err)
{
	struct snapshot_head head = { .memory_size = vm->mem.size,
		                      .created_ns = clock_real_ns(),
		                      .nr_vcpus = vm->nr_vcpus,
		                      .nr_disks = vm->nr_disks };
	int ret;

	cpu_fingerprint((char *)head.fingerprint);
	ret = random_fill(head.id, sizeof(head.id), err);
	if (ret == 0)
		ret = put_state(vm, out, &head, err);
	if (ret == 0)
		ret = touch_pages(vm, err);
	if (ret == 0)
		ret = snapshot_put_memory(out, &vm->mem, head.id, err);
	if (ret == 0)
		ret = put_disks(vm, out, head.id, err);
	return ret < 0 ? ret : put_manifest(vm, out, &head, err);
}

int vm_snapshot(struct vm *vm, const struct snapshot_out *out, struct err *err)
{
	int ret;

	vm_pause(vm);
	ret = leave_masked(vm, err);
	if (ret < 0)
		return err_wrap(err, "snapshot");
	ret = loop_run_until(&vm->loop, devices_idle, vm);
	if (ret < 0)
		return err_set(err, ret, "draining devices: %s", strerror(-ret));
	if (vm->bell.s.phase == DOORBELL_PARKED && guestsym_is_known(&vm->gsym)) {
		ret = guestsym_check(&vm->mem, &vm->gsym, err);
		if (ret < 0)
			return ret;
	}
	ret = put_parts(vm, out, err);
	return ret < 0 ? err_wrap(err, "snapshot") : 0;
}
