/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One vCPU's architectural state: what it boots with, and how it is saved and restored. The order of
 * the KVM_SET_* calls is that which Linux's KVM needs (CPUID first, LAPIC before MSRs, the timer
 * deadline last; docs/snapshot.md). While the vCPU is out of KVM_RUN only.
 */
#ifndef VMM_CPU_H
#define VMM_CPU_H

#include "core/err.h"
#include "core/state.h"
#include "vmm/boot.h"
#include "vmm/kvm.h"

#include <linux/kvm.h>

#define CPU_MAX_CPUID 256
#define CPU_MAX_MSRS  255 /* KVM refuses more in one call */
#define CPU_MAX_XSAVE 16384

/* One line that names the host's CPU and kind of KVM: a snapshot runs only where it is the same. */
#define CPU_FINGERPRINT_MAX 96
void cpu_fingerprint(char out[CPU_FINGERPRINT_MAX]);

/* Everything that a snapshot keeps of a vCPU. Large: not for the stack of a deep call. */
struct cpu_state {
	struct kvm_mp_state mp_state;
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xcrs xcrs;
	struct kvm_debugregs debugregs;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
	uint64_t tsc_khz;
	uint64_t tsc;      /* the guest's, when it was saved */
	uint64_t deadline; /* IA32_TSC_DEADLINE; 0: not armed, or due */
	uint32_t nr_cpuid, nr_msrs, xsave_len;
	struct kvm_cpuid_entry2 cpuid[CPU_MAX_CPUID];
	struct kvm_msr_entry msrs[CPU_MAX_MSRS]; /* IA32_TSC first, no IA32_TSC_DEADLINE */
	uint8_t xsave[CPU_MAX_XSAVE] __attribute__((aligned(64)));
};

/* Gives a new vCPU its CPUID and the registers for a boot (id 0), or leaves it waiting for INIT (others). */
NODISCARD int cpu_boot(const struct kvm_vm *vm, int vcpu_fd, unsigned id,
                       const struct boot_regs *regs, struct err *err);

/* Reads the vCPU's state. The vCPU has completed its last exit. */
NODISCARD int cpu_save(const struct kvm_vm *vm, int vcpu_fd, struct cpu_state *state,
                       struct err *err);

/*
 * Puts `state` into a new vCPU. The timer deadline is moved to the same distance from the guest's TSC as it had,
 * but at least `ahead_ms` ahead. CPU_AHEAD_MS, so that no tick interrupts a first cell, and not more, as the
 * guest believes the old one and programs no later timer before it.
 */
#define CPU_AHEAD_MS 30u
NODISCARD int cpu_load(int vcpu_fd, const struct cpu_state *state, unsigned ahead_ms,
                       struct err *err);

/*
 * A vCPU that stands still for long: cpu_rest() keeps its registers in `state` (which cpu_load() has loaded,
 * or cpu_save() filled) and stops the timer, cpu_wake() gives it the registers of `state` and a tick
 * CPU_AHEAD_MS ahead.
 */
NODISCARD int cpu_rest(int vcpu_fd, struct cpu_state *state, struct err *err);
NODISCARD int cpu_wake(int vcpu_fd, const struct cpu_state *state, struct err *err);
/*
 * The next tick of a parked vCPU, due or not, comes `ahead_ms` from now at the soonest: what the guest does first is
 * not held up by it. `tsc_khz` as in struct cpu_state.
 */
NODISCARD int cpu_put_off_tick(int vcpu_fd, uint64_t tsc_khz, unsigned ahead_ms, struct err *err);

/*
 * Whether the vCPU has its interrupts off (RFLAGS.IF): 1 or 0. One that waits for INIT runs nothing, and does not count. The
 * vCPU has completed its last exit.
 */
NODISCARD int cpu_is_masked(int vcpu_fd, struct err *err);
/* The same of a saved one. */
bool cpu_state_is_masked(const struct cpu_state *state);

void cpu_state_put(struct state_buf *buf, uint16_t id, const struct cpu_state *state);
NODISCARD int cpu_state_get(struct state_buf *buf, uint16_t id, struct cpu_state *state,
                            struct err *err);

/* Registers and the bytes at RIP in words, for a report. */
void cpu_describe(int vcpu_fd, const struct kvm_run *run, char *out, size_t room);

#endif
