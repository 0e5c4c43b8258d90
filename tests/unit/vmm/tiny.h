/* SPDX-License-Identifier: Apache-2.0 */
/* A machine of 4 MiB that runs a few bytes of 64-bit code on the real KVM. */
#ifndef TESTS_TINY_H
#define TESTS_TINY_H

#include "vmm/cpu.h"
#include "vmm/vcpu.h"

#include <criterion/criterion.h>
#include <string.h>

#define TINY_RAM  (4u << 20)
#define TINY_CODE 0x100000ull
#define TINY_MMIO 0xd0000000ull

struct tiny {
	struct gmem mem;
	struct kvm_vm vm;
	struct vcpu vcpu;
	struct vcpu_host host;
	/* vCPU thread, read when it is parked */
	uint64_t wrote_at, wrote, nr_writes, answer;
	enum vcpu_end end;
	char detail[1024];
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool ended, written; /* lock */
	bool park_on_read;
};

static inline void tiny_read(void *ctx, uint64_t addr, void *data, uint32_t n)
{
	struct tiny *t = ctx;

	(void)addr;
	memcpy(data, &t->answer, n);
	if (t->park_on_read)
		vcpu_park_here(&t->vcpu);
}

static inline void tiny_write(void *ctx, uint64_t addr, const void *data, uint32_t n)
{
	struct tiny *t = ctx;

	pthread_mutex_lock(&t->lock);
	t->wrote_at = addr;
	t->wrote = 0;
	memcpy(&t->wrote, data, n);
	t->nr_writes++;
	t->written = true;
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
}

static inline void tiny_ended(void *ctx, enum vcpu_end end, const char *detail)
{
	struct tiny *t = ctx;

	pthread_mutex_lock(&t->lock);
	t->end = end;
	strncpy(t->detail, detail, sizeof(t->detail) - 1);
	t->ended = true;
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
}

static inline void tiny_wait(struct tiny *t, const bool *what)
{
	pthread_mutex_lock(&t->lock);
	while (!*what)
		pthread_cond_wait(&t->cond, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

static inline void tiny_store(struct tiny *t, uint64_t at, uint64_t value)
{
	cr_assert_eq(gmem_write(&t->mem, gpa(at), &value, sizeof(value)), 0);
}

/* Memory, VM and a vCPU object; identity page tables for the first GiB, and for the MMIO page. */
static inline void tiny_open(struct tiny *t, const void *code, size_t n)
{
	struct err err = { 0 };

	memset(t, 0, sizeof(*t));
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->cond, NULL);
	cr_assert_eq(gmem_open(&t->mem, TINY_RAM, 0xd0000000, 0x100000000, -1), 0);
	cr_assert_eq(gmem_write(&t->mem, gpa(TINY_CODE), code, n), 0);
	tiny_store(t, 0x9000, 0xa000 | 3);
	tiny_store(t, 0xa000, 0xb000 | 3);
	tiny_store(t, 0xa018, 0xc000 | 3);
	for (uint64_t i = 0; i < 512; i++)
		tiny_store(t, 0xb000 + i * 8, (i << 21) | 0x83);
	tiny_store(t, 0xc000 + 128 * 8,
	           TINY_MMIO | 0x83); /* 0xd0000000 is entry 128 of the fourth GiB */
	t->host = (struct vcpu_host){ tiny_read, tiny_write, tiny_ended, t };
	vcpu_init(&t->vcpu, 0, &t->host);
	t->vm = (struct kvm_vm)KVM_VM_NONE;
	cr_assert_eq(kvm_vm_create(&t->vm, &err), 0, "%s", err.msg);
	cr_assert_eq(kvm_vm_set_up(&t->vm, &t->mem, &err), 0, "%s", err.msg);
	cr_assert_eq(vcpu_open(&t->vcpu, &t->vm, &err), 0, "%s", err.msg);
}

static inline void tiny_boot(struct tiny *t)
{
	struct boot_regs regs = {
		.entry = BOOT_LINUX64, .rip = TINY_CODE, .cr3 = 0x9000, .gdt = 0x500
	};
	struct err err = { 0 };

	cr_assert_eq(cpu_boot(&t->vm, t->vcpu.fd, 0, &regs, &err), 0, "%s", err.msg);
}

static inline void tiny_start(struct tiny *t)
{
	struct err err = { 0 };

	cr_assert_eq(vcpu_start(&t->vcpu, &err), 0, "%s", err.msg);
	vcpu_run(&t->vcpu);
}

static inline void tiny_close(struct tiny *t)
{
	vcpu_close(&t->vcpu);
	kvm_vm_close(&t->vm);
	gmem_close(&t->mem);
}

/* mov $0xd0000000,%ebx */
#define CODE_RBX_MMIO 0xbb, 0x00, 0x00, 0x00, 0xd0

#endif
