/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/machine_state.h"

#include "core/own.h"

#include <errno.h>
#include <string.h>

#define MACHINE_CLOCK(F, A) F(1, uint64_t, kvmclock_ns)
STATE_STRUCT(machine_clock, MACHINE_CLOCK);
static STATE_DESC(machine_clock, MACHINE_CLOCK, "CLCK", 1, NULL);

static int put_cpus(struct vm *vm, struct state_buf *buf, struct err *err)
{
	struct kvm_clock_data clock = { 0 };
	struct machine_clock saved;
	own_free struct cpu_state *cpu = malloc(sizeof(*cpu));
	int ret = KVM_DO(vm->kvm.fd, KVM_GET_CLOCK, &clock, err);

	if (!cpu)
		return err_set(err, -ENOMEM, "vCPU state: out of memory");
	saved.kvmclock_ns = clock.clock;
	state_put(buf, machine_clock_desc(), 0, &saved);
	for (unsigned i = 0; ret >= 0 && i < vm->nr_vcpus; i++) {
		ret = cpu_save(&vm->kvm, vm->vcpu[i].fd, cpu, err);
		if (ret == 0)
			cpu_state_put(buf, (uint16_t)i, cpu);
	}
	return ret < 0 ? ret : 0;
}

int machine_state_put(struct vm *vm, struct state_buf *buf, struct err *err)
{
	int ret;

	state_put(buf, guestsym_state_desc(), 0, &vm->gsym);
	ret = put_cpus(vm, buf, err);
	if (ret < 0)
		return ret;
	state_put(buf, doorbell_state_desc(), 0, &vm->bell.s);
	state_put(buf, ioapic_state_desc(), 0, &vm->ioapic.s);
	serial_save(vm->serial, buf);
	for (unsigned i = 0; i < LAYOUT_VIRTIO_SLOTS; i++)
		if (vm->slot[i])
			vdev_save(vm->slot[i], buf);
	return 0;
}

int machine_state_get(struct state_buf *buf, unsigned nr_vcpus, struct machine *machine,
                      struct err *err)
{
	struct machine_clock clock = { 0 };
	int ret = state_get(buf, guestsym_state_desc(), 0, &machine->gsym, err);

	if (ret == 0)
		ret = state_get(buf, machine_clock_desc(), 0, &clock, err);
	machine->kvmclock_ns = clock.kvmclock_ns;
	for (unsigned i = 0; ret == 0 && i < nr_vcpus; i++)
		ret = cpu_state_get(buf, (uint16_t)i, &machine->cpu[i], err);
	if (ret == 0)
		ret = state_get(buf, doorbell_state_desc(), 0, &machine->bell, err);
	return ret;
}

int machine_state_check_bell(const struct doorbell_state *bell, const struct gmem *mem,
                             struct err *err)
{
	struct gview view;

	for (unsigned i = 0; i < bell->nr_pages; i++)
		if (gmem_view(mem, gpa(bell->page[i]), GMEM_PAGE, &view) < 0)
			return err_set(err, -EBADMSG,
			               "section BELL: a mailbox page outside the guest's memory");
	return 0;
}

int machine_state_get_devices(struct vm *vm, struct state_buf *buf, struct err *err)
{
	int ret = state_get(buf, ioapic_state_desc(), 0, &vm->ioapic.s, err);

	if (ret == 0)
		ret = serial_load(vm->serial, buf, err);
	for (unsigned i = 0; ret == 0 && i < LAYOUT_VIRTIO_SLOTS; i++)
		if (vm->slot[i])
			ret = vdev_load(vm->slot[i], buf, err);
	if (ret == 0 && buf->pos != buf->len)
		ret = err_set(err, -EBADMSG, "state: %zu bytes too many", buf->len - buf->pos);
	return ret;
}
