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

/* What the vCPUs and their VM need, read before there is a VM. */
struct machine_cpus {
	uint64_t kvmclock_ns; /* KVM_GET_CLOCK when it was saved */
	struct cpu_state cpu[SNAPSHOT_MAX_VCPUS];
};
NODISCARD int machine_state_get_cpus(struct vm *vm, struct state_buf *buf, unsigned nr_vcpus,
                                     struct machine_cpus *cpus, struct err *err);
/* The doorbell: comes next, for the first request goes through it. */
NODISCARD int machine_state_get_bell(struct vm *vm, struct state_buf *buf, struct err *err);
/* The devices, which are open and not yet used. */
NODISCARD int machine_state_get_devices(struct vm *vm, struct state_buf *buf, struct err *err);

#endif
