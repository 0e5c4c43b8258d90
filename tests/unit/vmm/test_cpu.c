/* SPDX-License-Identifier: Apache-2.0 */
/* A vCPU's saved state on the real KVM: what a guest is offered, and that a second vCPU becomes the first. */
#include "tests/unit/vmm/tiny.h"

#include <errno.h>

#define MSR_TSC_DEADLINE 0x6e0u
#define MSR_KERNEL_GS    0xc0000102u

static const uint8_t spin[] = { 0xeb, 0xfe };

static const struct kvm_cpuid_entry2 *leaf(const struct cpu_state *s, uint32_t function)
{
	for (uint32_t i = 0; i < s->nr_cpuid; i++)
		if (s->cpuid[i].function == function)
			return &s->cpuid[i];
	return NULL;
}

static uint64_t read_msr(int fd, uint32_t index)
{
	union {
		struct kvm_msrs head;
		uint8_t room[sizeof(struct kvm_msrs) + sizeof(struct kvm_msr_entry)];
	} call = { .head.nmsrs = 1 };
	struct err err = { 0 };

	call.head.entries[0].index = index;
	cr_assert_eq(KVM_DO(fd, KVM_GET_MSRS, &call, &err), 1, "%s", err.msg);
	return call.head.entries[0].data;
}

static void write_msr(int fd, uint32_t index, uint64_t data)
{
	union {
		struct kvm_msrs head;
		uint8_t room[sizeof(struct kvm_msrs) + sizeof(struct kvm_msr_entry)];
	} call = { .head.nmsrs = 1 };
	struct err err = { 0 };

	call.head.entries[0] = (struct kvm_msr_entry){ .index = index, .data = data };
	cr_assert_eq(KVM_DO(fd, KVM_SET_MSRS, &call, &err), 1, "%s", err.msg);
}

/* Two bits without which a guest finds neither kvm-clock nor a timer, and features that write guest pages. */
Test(cpu, what_a_guest_is_offered)
{
	static struct tiny t;
	static struct cpu_state s;
	struct err err = { 0 };

	tiny_open(&t, spin, sizeof(spin));
	tiny_boot(&t);
	cr_assert_eq(cpu_save(&t.vm, t.vcpu.fd, &s, &err), 0, "%s", err.msg);
	cr_assert(leaf(&s, 1)->ecx & (1u << 31), "hypervisor bit");
	cr_assert(leaf(&s, 1)->ecx & (1u << 24), "TSC deadline");
	cr_assert(leaf(&s, 6)->eax & (1u << 2), "ARAT");
	cr_assert(leaf(&s, 0x40000001)->eax & (1u << 3), "kvm-clock");
	cr_assert_not(leaf(&s, 0x40000001)->eax & (1u << 4), "async page faults are offered");
	cr_assert_not(leaf(&s, 0x40000001)->eax & (1u << 5), "steal time is offered");
	tiny_close(&t);
}

static void make_state(struct cpu_state *s)
{
	static struct tiny t;
	struct kvm_regs regs;
	struct err err = { 0 };

	tiny_open(&t, spin, sizeof(spin));
	tiny_boot(&t);
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_GET_REGS, &regs, &err), 0);
	regs.r15 = 0x1122334455667788;
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_SET_REGS, &regs, &err), 0);
	write_msr(t.vcpu.fd, MSR_KERNEL_GS, 0xffff888000001000);
	cr_assert_eq(cpu_save(&t.vm, t.vcpu.fd, s, &err), 0, "%s", err.msg);
	/* The LVT timer in deadline mode, as a guest that uses it has. */
	s->lapic.regs[0x322] = 0x04;
	s->lapic.regs[0xf1] |= 1; /* APIC software enabled */
	tiny_close(&t);
}

static void load(struct tiny *t, const struct cpu_state *s)
{
	struct err err = { 0 };

	tiny_open(t, spin, sizeof(spin));
	cr_assert_eq(cpu_load(t->vcpu.fd, s, CPU_AHEAD_MS, &err), 0, "%s", err.msg);
}

Test(cpu, state_survives_a_file_and_another_vm)
{
	static struct tiny t;
	static struct cpu_state s, read;
	struct state_buf buf = { 0 };
	struct kvm_regs regs;
	struct err err = { 0 };

	make_state(&s);
	cpu_state_put(&buf, 0, &s);
	cr_assert_eq(buf.err, 0);
	cr_assert_eq(cpu_state_get(&buf, 0, &read, &err), 0, "%s", err.msg);
	state_buf_free(&buf);
	load(&t, &read);
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_GET_REGS, &regs, &err), 0);
	cr_assert_eq(regs.r15, 0x1122334455667788ull);
	cr_assert_eq(regs.rip, TINY_CODE);
	cr_assert_eq(read_msr(t.vcpu.fd, MSR_KERNEL_GS), 0xffff888000001000ull);
	tiny_close(&t);
}

/* A snapshot of any age: the deadline is never in the past, never more than its distance ahead. */
static void deadline_is_ahead(uint64_t age_ms, uint64_t saved_ahead_ms)
{
	static struct tiny t;
	static struct cpu_state s;
	uint64_t now, deadline, ahead;

	make_state(&s);
	s.deadline = saved_ahead_ms ? s.tsc + saved_ahead_ms * s.tsc_khz : 0;
	s.tsc -= age_ms * s.tsc_khz;
	s.msrs[0].data = s.tsc;
	if (s.deadline)
		s.deadline -= age_ms * s.tsc_khz;
	load(&t, &s);
	now = read_msr(t.vcpu.fd, 0x10);
	deadline = read_msr(t.vcpu.fd, MSR_TSC_DEADLINE);
	ahead = saved_ahead_ms > 30 ? saved_ahead_ms : 30;
	cr_assert_gt(deadline, now,
	             "a deadline in the past (%llu, TSC %llu) begins the thaw with a tick",
	             (unsigned long long)deadline, (unsigned long long)now);
	cr_assert_leq(deadline - now, ahead * s.tsc_khz);
	tiny_close(&t);
}

Test(cpu, deadline_not_armed)
{
	deadline_is_ahead(0, 0);
}

Test(cpu, deadline_a_day_old)
{
	deadline_is_ahead(86400000, 4);
}

Test(cpu, deadline_far_ahead)
{
	deadline_is_ahead(1000, 5000);
}

Test(cpu, refused_msr_is_named)
{
	static struct tiny t;
	static struct cpu_state s;
	struct err err = { 0 };

	make_state(&s);
	s.msrs[1].index = 0xdeadbeef;
	tiny_open(&t, spin, sizeof(spin));
	cr_assert_lt(cpu_load(t.vcpu.fd, &s, CPU_AHEAD_MS, &err), 0);
	cr_assert_not_null(strstr(err.msg, "0xdeadbeef"), "%s", err.msg);
	tiny_close(&t);
}

Test(cpu, forged_lists_are_refused)
{
	static struct cpu_state s, read;
	struct state_buf buf = { 0 };
	struct err err = { 0 };

	make_state(&s);
	s.msrs[0].index = 0x11;
	cpu_state_put(&buf, 0, &s);
	cr_assert_eq(cpu_state_get(&buf, 0, &read, &err), -EBADMSG);
	state_buf_free(&buf);
}

Test(cpu, fingerprint_is_stable)
{
	char a[CPU_FINGERPRINT_MAX], b[CPU_FINGERPRINT_MAX];

	cpu_fingerprint(a);
	cpu_fingerprint(b);
	cr_assert_str_eq(a, b);
	cr_assert_gt(strlen(a), 20u);
}

Test(cpu, interrupts_that_are_off)
{
	static struct cpu_state s = { .mp_state.mp_state = KVM_MP_STATE_RUNNABLE,
		                      .regs.rflags = 2 };
	static struct tiny t;
	struct kvm_regs regs;
	struct err err = { 0 };

	cr_assert(cpu_state_is_masked(&s));
	s.mp_state.mp_state = KVM_MP_STATE_HALTED;
	cr_assert(cpu_state_is_masked(&s));
	s.mp_state.mp_state = KVM_MP_STATE_UNINITIALIZED;
	cr_assert_not(cpu_state_is_masked(&s), "it runs nothing");
	s.mp_state.mp_state = KVM_MP_STATE_RUNNABLE;
	s.regs.rflags = 0x202;
	cr_assert_not(cpu_state_is_masked(&s));

	tiny_open(&t, spin, sizeof(spin));
	tiny_boot(&t);
	cr_assert_eq(cpu_is_masked(t.vcpu.fd, &err), 1, "%s", err.msg);
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_GET_REGS, &regs, &err), 0);
	regs.rflags = 0x202;
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_SET_REGS, &regs, &err), 0);
	cr_assert_eq(cpu_is_masked(t.vcpu.fd, &err), 0, "%s", err.msg);
	tiny_close(&t);
	cr_assert_eq(cpu_is_masked(-1, &err), -EBADF);
}
