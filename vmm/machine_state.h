/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sections of a machine in a state file, in their order: GSYM, CLCK, the vCPUs, BELL, I/O APIC,
 * serial, virtio slots. Saving and loading stand side by side so that they stay the same.
 */
#ifndef VMM_MACHINE_STATE_H
#define VMM_MACHINE_STATE_H

#include "vmm/vm.h"

/* Appends all sections of a paused machine whose devices are idle. Errors of `buf` are sticky. */
NODISCARD int machine_state_put(struct vm *vm, struct state_buf *buf, struct err *err);

/* What stands before the devices, read before there is a VM. */
struct machine {
	struct guestsym_state gsym;
	uint64_t kvmclock_ns; /* KVM_GET_CLOCK when it was saved */
	struct cpu_state cpu[SNAPSHOT_MAX_VCPUS];
	struct doorbell_state bell; /* its pages are not yet checked: machine_state_check_bell() */
};
NODISCARD int machine_state_get(struct state_buf *buf, unsigned nr_vcpus, struct machine *machine,
                                struct err *err);
/* The mailbox lies in the memory of the machine. */
NODISCARD int machine_state_check_bell(const struct doorbell_state *bell, const struct gmem *mem,
                                       struct err *err);
/* The devices, which are open and not yet used. */
NODISCARD int machine_state_get_devices(struct vm *vm, struct state_buf *buf, struct err *err);

#endif
