/* SPDX-License-Identifier: Apache-2.0 */
/* A vCPU's life on the real KVM: exits answered, parked at a clean point, and every end told in words. */
#include "tests/unit/vmm/tiny.h"
#include "vmm/clock.h"

Test(vcpu, mmio_write_reaches_the_host, .timeout = 30)
{
	/* movl $0x1234,(%rbx); 1: jmp 1b */
	const uint8_t code[] = { CODE_RBX_MMIO, 0xc7, 0x03, 0x34, 0x12, 0, 0, 0xeb, 0xfe };
	static struct tiny t;

	tiny_open(&t, code, sizeof(code));
	tiny_boot(&t);
	tiny_start(&t);
	tiny_wait(&t, &t.written);
	vcpu_pause(&t.vcpu);
	cr_assert_eq(t.wrote_at, TINY_MMIO);
	cr_assert_eq(t.wrote, 0x1234u);
	cr_assert_eq(atomic_load(&t.vcpu.exits.mmio), 1u);
	tiny_close(&t);
}

/* The freeze point: parked inside the read, the register has the answer and RIP is past it. */
Test(vcpu, parks_with_the_read_completed, .timeout = 30)
{
	/* movl (%rbx),%eax; movl %eax,4(%rbx); 1: jmp 1b */
	const uint8_t code[] = { CODE_RBX_MMIO, 0x8b, 0x03, 0x89, 0x43, 0x04, 0xeb, 0xfe };
	static struct tiny t;
	struct kvm_regs regs;
	struct err err = { 0 };

	tiny_open(&t, code, sizeof(code));
	t.answer = 0xffffffff;
	t.park_on_read = true;
	tiny_boot(&t);
	tiny_start(&t);
	vcpu_wait_running(&t.vcpu);
	vcpu_pause(&t.vcpu);
	while (atomic_load(&t.vcpu.exits.mmio) == 0) {
		vcpu_run(&t.vcpu);
		vcpu_pause(&t.vcpu);
	}
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_GET_REGS, &regs, &err), 0);
	cr_assert_eq(regs.rip, TINY_CODE + 7);
	cr_assert_eq((uint32_t)regs.rax, 0xffffffffu);
	cr_assert_eq(t.nr_writes, 0u);
	regs.rax = 77; /* what a thaw does */
	cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_SET_REGS, &regs, &err), 0);
	vcpu_run(&t.vcpu);
	tiny_wait(&t, &t.written);
	cr_assert_eq(t.wrote, 77u);
	tiny_close(&t);
}

Test(vcpu, pause_and_run_many_times, .timeout = 60)
{
	/* 1: incq %rcx; jmp 1b */
	const uint8_t code[] = { 0x48, 0xff, 0xc1, 0xeb, 0xfb };
	static struct tiny t;
	struct kvm_regs regs;
	struct err err = { 0 };
	uint64_t last = 0, begin_ns = clock_mono_ns(), lag_ns;

	tiny_open(&t, code, sizeof(code));
	tiny_boot(&t);
	tiny_start(&t);
	(void)vcpu_wait_running(&t.vcpu);
	lag_ns = vcpu_lag_ns(&t.vcpu);
	cr_assert(lag_ns > 0 && lag_ns < clock_mono_ns() - begin_ns);
	for (int i = 0; i < 200 || last == 0; i++) {
		vcpu_pause(&t.vcpu);
		cr_assert_eq(KVM_DO(t.vcpu.fd, KVM_GET_REGS, &regs, &err), 0);
		cr_assert_geq(regs.rcx, last);
		last = regs.rcx;
		vcpu_run(&t.vcpu);
	}
	tiny_close(&t);
}

Test(vcpu, reboot_by_the_keyboard_controller, .timeout = 30)
{
	/* 1: in $0x64,%al; test $2,%al; jnz 1b; mov $0xfe,%al; out %al,$0x64 */
	const uint8_t code[] = { 0xe4, 0x64, 0xa8, 0x02, 0x75, 0xfa,
		                 0xb0, 0xfe, 0xe6, 0x64, 0xeb, 0xfe };
	static struct tiny t;

	tiny_open(&t, code, sizeof(code));
	tiny_boot(&t);
	tiny_start(&t);
	tiny_wait(&t, &t.ended);
	cr_assert_eq(t.end, VCPU_END_REBOOT);
	tiny_close(&t);
}

Test(vcpu, ports_float_high, .timeout = 30)
{
	/* in $0x60,%eax; movl %eax,(%rbx) */
	const uint8_t code[] = { CODE_RBX_MMIO, 0xe5, 0x60, 0x89, 0x03, 0xeb, 0xfe };
	static struct tiny t;

	tiny_open(&t, code, sizeof(code));
	tiny_boot(&t);
	tiny_start(&t);
	tiny_wait(&t, &t.written);
	cr_assert_eq((uint32_t)t.wrote, 0xffffffffu);
	tiny_close(&t);
}

Test(vcpu, triple_fault_in_words, .timeout = 30)
{
	const uint8_t code[] = { 0x0f, 0x0b }; /* ud2, and no IDT */
	static struct tiny t;

	tiny_open(&t, code, sizeof(code));
	tiny_boot(&t);
	tiny_start(&t);
	tiny_wait(&t, &t.ended);
	cr_assert_neq(t.detail[0], '\0');
	cr_assert_not_null(strstr(t.detail, "rip="), "%s", t.detail);
	if (t.end == VCPU_END_TRIPLE_FAULT)
		cr_assert_not_null(strstr(t.detail, "triple fault"));
	else
		cr_assert_eq(t.end, VCPU_END_KVM_ERROR, "%s", t.detail);
	tiny_close(&t);
}

Test(vcpu, instruction_that_kvm_cannot_emulate, .timeout = 30)
{
	/* movaps-class access to MMIO by an instruction that no emulator knows: vmovdqu (%rbx),%ymm0 */
	const uint8_t code[] = { CODE_RBX_MMIO, 0xc5, 0xfe, 0x6f, 0x03, 0xeb, 0xfe };
	static struct tiny t;

	tiny_open(&t, code, sizeof(code));
	tiny_boot(&t);
	tiny_start(&t);
	tiny_wait(&t, &t.ended);
	cr_assert_not_null(strstr(t.detail, "rip="), "%s", t.detail);
	if (t.end == VCPU_END_KVM_ERROR && strstr(t.detail, "not emulated"))
		cr_assert_not_null(strstr(t.detail, "instruction="), "%s", t.detail);
	tiny_close(&t);
}

/* Fails the first time, and says on which thread it was called. */
static int job(void *ctx, struct err *err)
{
	pthread_t *where = ctx;
	bool again = *where != 0;

	*where = pthread_self();
	return again ? 3 : err_set(err, -7, "no machine");
}

Test(vcpu, jobs_run_on_its_thread_one_after_another, .timeout = 30)
{
	static struct vcpu_host host;
	static struct vcpu vcpu;
	struct err err = { 0 };
	pthread_t where = 0;

	vcpu_init(&vcpu, 0, &host);
	cr_assert_eq(vcpu_start(&vcpu, &err), 0);
	vcpu_call(&vcpu, job, &where);
	cr_assert_eq(vcpu_wait_job(&vcpu, &err), -7);
	cr_assert_str_eq(err.msg, "no machine");
	vcpu_call(&vcpu, job, &where);
	cr_assert_eq(vcpu_wait_job(&vcpu, &err), 3);
	cr_assert(pthread_equal(where, vcpu.thread));
	vcpu_close(&vcpu);
}

Test(vcpu, job_that_was_not_waited_for_ends_before_the_thread, .timeout = 30)
{
	static struct vcpu_host host;
	static struct vcpu vcpu;
	struct err err = { 0 };
	pthread_t where = 0;

	vcpu_init(&vcpu, 0, &host);
	cr_assert_eq(vcpu_start(&vcpu, &err), 0);
	vcpu_call(&vcpu, job, &where);
	vcpu_close(&vcpu);
	cr_assert_neq(where, 0);
}
