/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cpu.h"

#include "core/own.h"

#include <cpuid.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MSR_TSC          0x10u
#define MSR_TSC_DEADLINE 0x6e0u
#define KVM_MSR_FIRST    0x4b564d00u
#define KVM_MSR_LAST     0x4b564d07u

/* CPUID.1 */
#define C1_ECX_MONITOR      (1u << 3)
#define C1_ECX_VMX          (1u << 5)
#define C1_ECX_X2APIC       (1u << 21)
#define C1_ECX_TSC_DEADLINE (1u << 24)
#define C1_ECX_OSXSAVE      (1u << 27)
#define C1_ECX_HYPERVISOR   (1u << 31)
#define C6_EAX_ARAT         (1u << 2)
#define C7_ECX_OSPKE        (1u << 4)
#define C8_ECX_SVM          (1u << 2)
/* KVM's own features that we offer: two kvm-clocks, no I/O delay, stable clock. The others (async page
 * faults, steal time, PV EOI) would have KVM write guest pages, or put the guest to sleep, on the
 * path of a first cell. */
#define KVM_FEATURES_KEPT ((1u << 0) | (1u << 1) | (1u << 3) | (1u << 24))

#define MS_PER_SEC 1000u
#define RFLAGS_IF  0x200ull

void cpu_fingerprint(char out[CPU_FINGERPRINT_MAX])
{
	unsigned a = 0, b = 0, c = 0, d = 0, vendor[3] = { 0 };
	unsigned sig = 0, leaf[5] = { 0 };

	/* Each CPUID costs tens of microseconds where it is trapped: three leaves name the CPU well. */
	if (__get_cpuid(0, &a, &vendor[0], &vendor[2], &vendor[1]) == 0)
		vendor[0] = 0;
	(void)__get_cpuid(1, &sig, &b, &c, &d); /* leaf 1 is always there on x86-64 */
	leaf[0] = c & ~C1_ECX_OSXSAVE;
	leaf[1] = d;
	if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
		leaf[2] = b;
		leaf[3] = c & ~C7_ECX_OSPKE;
		leaf[4] = d;
	}
	(void)snprintf(out, CPU_FINGERPRINT_MAX, "%.12s %08x %08x %s", (const char *)vendor, sig,
	               state_crc(leaf, sizeof(leaf)), kvm_kind() == KVM_KIND_PVM ? "pvm" : "hw");
}

static void filter_cpuid(struct kvm_cpuid2 *table, unsigned id)
{
	for (uint32_t i = 0; i < table->nent; i++) {
		struct kvm_cpuid_entry2 *e = &table->entries[i];

		switch (e->function) {
		case 1:
			e->ebx = (e->ebx & 0xffff) | (1u << 16) | (id << 24);
			e->ecx |= C1_ECX_HYPERVISOR | C1_ECX_TSC_DEADLINE | C1_ECX_X2APIC;
			e->ecx &= ~(C1_ECX_VMX | C1_ECX_MONITOR);
			break;
		case 4:
			e->eax &= 0x3fff; /* one thread, one core to each cache */
			break;
		case 6:
			e->eax |= C6_EAX_ARAT;
			break;
		case 0xa: /* no performance counters */
			e->eax = e->ebx = e->ecx = e->edx = 0;
			break;
		case 0xb:
		case 0x1f:
			e->edx = id;
			break;
		case 0x80000001:
			e->ecx &= ~C8_ECX_SVM;
			break;
		case 0x40000001:
			e->eax &= KVM_FEATURES_KEPT;
			break;
		default:
			break;
		}
	}
}

static struct kvm_segment segment(uint16_t selector, uint8_t type, bool code64, bool flat32)
{
	return (struct kvm_segment){
		.limit = 0xffffffff,
		.selector = selector,
		.type = type,
		.present = 1,
		.db = flat32,
		.s = 1,
		.l = code64,
		.g = 1,
	};
}

static int boot_registers(int fd, const struct boot_regs *b, struct err *err)
{
	struct kvm_regs regs = { .rip = b->rip, .rsi = b->rsi, .rbx = b->rbx, .rflags = 2 };
	bool linux64 = b->entry == BOOT_LINUX64;
	struct kvm_sregs sregs;
	int ret = KVM_DO(fd, KVM_GET_SREGS, &sregs, err);

	if (ret < 0)
		return ret;
	sregs.cs = segment(BOOT_SEL_CODE, 11, linux64, !linux64);
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss =
		segment(BOOT_SEL_DATA, 3, false, true);
	sregs.tr = (struct kvm_segment){ .limit = 0x67, .type = 11, .present = 1 };
	sregs.gdt.base = b->gdt;
	sregs.gdt.limit = b->gdt_limit;
	sregs.idt.limit = 0;
	sregs.cr0 = 0x11; /* PE, ET */
	sregs.cr4 = 0;
	if (linux64) {
		sregs.cr0 = 0x80010033; /* PG, WP, NE, ET, MP, PE */
		sregs.cr3 = b->cr3;
		sregs.cr4 = 0x20;   /* PAE */
		sregs.efer = 0x500; /* LME, LMA */
	}
	ret = KVM_DO(fd, KVM_SET_SREGS, &sregs, err);
	return ret < 0 ? ret : KVM_DO(fd, KVM_SET_REGS, &regs, err);
}

int cpu_boot(const struct kvm_vm *vm, int vcpu_fd, unsigned id, const struct boot_regs *regs,
             struct err *err)
{
	size_t size = sizeof(struct kvm_cpuid2) + CPU_MAX_CPUID * sizeof(struct kvm_cpuid_entry2);
	own_free struct kvm_cpuid2 *table = calloc(1, size);
	int ret;

	if (!table)
		return err_set(err, -ENOMEM, "CPUID table: out of memory");
	table->nent = CPU_MAX_CPUID;
	ret = KVM_DO(vm->sys_fd, KVM_GET_SUPPORTED_CPUID, table, err);
	if (ret < 0)
		return ret;
	filter_cpuid(table, id);
	ret = KVM_DO(vcpu_fd, KVM_SET_CPUID2, table, err);
	if (ret < 0)
		return ret;
	return id == 0 ? boot_registers(vcpu_fd, regs, err) : 0;
}

static int save_cpuid(int fd, struct cpu_state *s, struct err *err)
{
	size_t size = sizeof(struct kvm_cpuid2) + sizeof(s->cpuid);
	own_free struct kvm_cpuid2 *table = calloc(1, size);
	int ret;

	if (!table)
		return err_set(err, -ENOMEM, "CPUID table: out of memory");
	table->nent = CPU_MAX_CPUID;
	ret = KVM_DO(fd, KVM_GET_CPUID2, table, err);
	if (ret < 0)
		return ret;
	s->nr_cpuid = table->nent;
	memcpy(s->cpuid, table->entries, table->nent * sizeof(s->cpuid[0]));
	return 0;
}

union msr_call {
	struct kvm_msrs head;
	uint8_t room[sizeof(struct kvm_msrs) + CPU_MAX_MSRS * sizeof(struct kvm_msr_entry)];
};

static int one_msr(int fd, unsigned long request, const char *name, uint32_t index, uint64_t *value,
                   struct err *err)
{
	union msr_call call = { .head.nmsrs = 1 };
	int ret;

	call.head.entries[0] = (struct kvm_msr_entry){ .index = index, .data = *value };
	ret = kvm_ioctl(fd, request, name, (unsigned long)&call, err);

	if (ret < 0)
		return ret;
	if (ret != 1)
		return err_set(err, -EIO, "%s: MSR 0x%x refused", name, index);
	*value = call.head.entries[0].data;
	return 0;
}
#define ONE_MSR(fd, request, index, value, err) one_msr(fd, request, #request, index, value, err)

static void add_msr(struct cpu_state *s, int fd, uint32_t index)
{
	struct err err;
	uint64_t value = 0;

	for (uint32_t i = 0; i < s->nr_msrs; i++)
		if (s->msrs[i].index == index)
			return;
	/* The list names MSRs that this vCPU may not have: those are no state. */
	if (s->nr_msrs == CPU_MAX_MSRS || ONE_MSR(fd, KVM_GET_MSRS, index, &value, &err) < 0)
		return;
	s->msrs[s->nr_msrs++] = (struct kvm_msr_entry){ .index = index, .data = value };
}

static int save_msrs(const struct kvm_vm *vm, int fd, struct cpu_state *s, struct err *err)
{
	own_free struct kvm_msr_list *list = calloc(1, sizeof(*list) + 1024 * sizeof(uint32_t));
	int ret;

	if (!list)
		return err_set(err, -ENOMEM, "MSR list: out of memory");
	list->nmsrs = 1024;
	ret = KVM_DO(vm->sys_fd, KVM_GET_MSR_INDEX_LIST, list, err);
	if (ret < 0)
		return ret;
	s->nr_msrs = 0;
	add_msr(s, fd, MSR_TSC);
	if (s->nr_msrs != 1)
		return err_set(err, -EIO, "KVM_GET_MSRS: IA32_TSC refused");
	for (uint32_t i = 0; i < list->nmsrs; i++)
		if (list->indices[i] != MSR_TSC_DEADLINE)
			add_msr(s, fd, list->indices[i]);
	for (uint32_t i = KVM_MSR_FIRST; i <= KVM_MSR_LAST; i++)
		add_msr(s, fd, i);
	s->deadline = 0;
	s->tsc = s->msrs[0].data;
	return ONE_MSR(fd, KVM_GET_MSRS, MSR_TSC_DEADLINE, &s->deadline, err);
}

static int save_xsave(const struct kvm_vm *vm, int fd, struct cpu_state *s, struct err *err)
{
	int size = KVM_DO(vm->fd, KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2, err);

	if (size < 0)
		return size;
	s->xsave_len = size > (int)sizeof(struct kvm_xsave) ? (uint32_t)size
	                                                    : (uint32_t)sizeof(struct kvm_xsave);
	if (s->xsave_len > CPU_MAX_XSAVE)
		return err_set(err, -E2BIG,
		               "KVM_GET_XSAVE2: the state is %u bytes, at most %u are supported",
		               s->xsave_len, CPU_MAX_XSAVE);
	return size > 0 ? KVM_DO(fd, KVM_GET_XSAVE2, s->xsave, err)
	                : KVM_DO(fd, KVM_GET_XSAVE, s->xsave, err);
}

static bool is_masked(const struct kvm_mp_state *mp_state, const struct kvm_regs *regs)
{
	return (mp_state->mp_state == KVM_MP_STATE_RUNNABLE ||
	        mp_state->mp_state == KVM_MP_STATE_HALTED) &&
	       !(regs->rflags & RFLAGS_IF);
}

int cpu_is_masked(int vcpu_fd, struct err *err)
{
	struct kvm_mp_state mp_state;
	struct kvm_regs regs;
	int ret;

	if ((ret = KVM_DO(vcpu_fd, KVM_GET_MP_STATE, &mp_state, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_REGS, &regs, err)) < 0)
		return ret;
	return is_masked(&mp_state, &regs);
}

bool cpu_state_is_masked(const struct cpu_state *s)
{
	return is_masked(&s->mp_state, &s->regs);
}

int cpu_save(const struct kvm_vm *vm, int vcpu_fd, struct cpu_state *s, struct err *err)
{
	int ret;

	memset(s, 0, sizeof(*s));
	/* MP_STATE first (it flushes INIT and SIPI), events last. */
	if ((ret = KVM_DO(vcpu_fd, KVM_GET_MP_STATE, &s->mp_state, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_REGS, &s->regs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_SREGS, &s->sregs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_XCRS, &s->xcrs, err)) < 0 ||
	    (ret = save_xsave(vm, vcpu_fd, s, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_DEBUGREGS, &s->debugregs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_LAPIC, &s->lapic, err)) < 0 ||
	    (ret = save_msrs(vm, vcpu_fd, s, err)) < 0 || (ret = save_cpuid(vcpu_fd, s, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_GET_TSC_KHZ, 0, err)) < 0)
		return ret;
	s->tsc_khz = (uint64_t)ret;
	ret = KVM_DO(vcpu_fd, KVM_GET_VCPU_EVENTS, &s->events, err);
	return ret < 0 ? ret : 0;
}

static int load_cpuid(int fd, const struct cpu_state *s, struct err *err)
{
	union {
		struct kvm_cpuid2 head;
		uint8_t room[sizeof(struct kvm_cpuid2) + sizeof(s->cpuid)];
	} table = { .head.nent = s->nr_cpuid };

	memcpy(table.head.entries, s->cpuid, s->nr_cpuid * sizeof(s->cpuid[0]));
	return KVM_DO(fd, KVM_SET_CPUID2, &table, err);
}

/* The guest's TSC now, and its deadline from there: at the distance that it had, at least so far ahead. */
static int arm_timer(int fd, const struct cpu_state *s, uint64_t tsc, unsigned ahead_ms,
                     struct err *err)
{
	uint64_t ahead = s->tsc_khz * ahead_ms, deadline = tsc + ahead;

	if (s->deadline > s->tsc && s->deadline - s->tsc > ahead)
		deadline = tsc + (s->deadline - s->tsc);
	return ONE_MSR(fd, KVM_SET_MSRS, MSR_TSC_DEADLINE, &deadline, err);
}

static int load_msrs(int fd, const struct cpu_state *s, unsigned ahead_ms, struct err *err)
{
	union msr_call call = { .head.nmsrs = s->nr_msrs };
	uint64_t tsc = 0;
	int ret;

	memcpy(call.head.entries, s->msrs, s->nr_msrs * sizeof(s->msrs[0]));
	ret = KVM_DO(fd, KVM_SET_MSRS, &call, err);
	if (ret < 0)
		return ret;
	if ((uint32_t)ret != s->nr_msrs) /* KVM stops silently at the first it refuses */
		return err_set(err, -EIO, "KVM_SET_MSRS: MSR 0x%x refused", s->msrs[ret].index);
	ret = ONE_MSR(fd, KVM_GET_MSRS, MSR_TSC, &tsc, err);
	/*
	 * Some hosts cannot rewind the TSC: the guest goes on seeing the host's, while KVM reckons the
	 * deadline with the value that was set. Setting what is really there makes the two agree.
	 */
	if (ret == 0 && tsc - s->tsc > s->tsc_khz * MS_PER_SEC)
		ret = ONE_MSR(fd, KVM_SET_MSRS, MSR_TSC, &tsc, err);
	return ret < 0 ? ret : arm_timer(fd, s, tsc, ahead_ms, err);
}

int cpu_rest(int vcpu_fd, struct cpu_state *s, struct err *err)
{
	uint64_t off = 0;
	int ret;

	s->tsc = s->deadline =
		0; /* whatever it was: the next tick comes soon after it has been woken */
	if ((ret = KVM_DO(vcpu_fd, KVM_GET_REGS, &s->regs, err)) < 0 ||
	    (ret = ONE_MSR(vcpu_fd, KVM_SET_MSRS, MSR_TSC_DEADLINE, &off, err)) < 0 ||
	    /* A tick that is due and not yet delivered goes when the LAPIC is set. */
	    (ret = KVM_DO(vcpu_fd, KVM_GET_LAPIC, &s->lapic, err)) < 0)
		return ret;
	ret = KVM_DO(vcpu_fd, KVM_SET_LAPIC, &s->lapic, err);
	return ret < 0 ? ret : 0;
}

int cpu_wake(int vcpu_fd, const struct cpu_state *s, struct err *err)
{
	uint64_t tsc = 0;
	int ret;

	if ((ret = KVM_DO(vcpu_fd, KVM_SET_REGS, &s->regs, err)) < 0 ||
	    (ret = ONE_MSR(vcpu_fd, KVM_GET_MSRS, MSR_TSC, &tsc, err)) < 0)
		return ret;
	return arm_timer(vcpu_fd, s, tsc, CPU_AHEAD_MS, err);
}

int cpu_put_off_tick(int vcpu_fd, uint64_t tsc_khz, unsigned ahead_ms, struct err *err)
{
	struct kvm_lapic_state lapic;
	uint64_t tsc = 0, deadline = 0, soonest;
	int ret;

	if ((ret = ONE_MSR(vcpu_fd, KVM_GET_MSRS, MSR_TSC, &tsc, err)) < 0 ||
	    (ret = ONE_MSR(vcpu_fd, KVM_GET_MSRS, MSR_TSC_DEADLINE, &deadline, err)) < 0)
		return ret;
	soonest = tsc + tsc_khz * ahead_ms;
	if (deadline > soonest)
		return 0;
	/* As in cpu_rest(): one that is due goes when the LAPIC is set. */
	if (!deadline && ((ret = KVM_DO(vcpu_fd, KVM_GET_LAPIC, &lapic, err)) < 0 ||
	                  (ret = KVM_DO(vcpu_fd, KVM_SET_LAPIC, &lapic, err)) < 0))
		return ret;
	return ONE_MSR(vcpu_fd, KVM_SET_MSRS, MSR_TSC_DEADLINE, &soonest, err);
}

int cpu_load(int vcpu_fd, const struct cpu_state *s, unsigned ahead_ms, struct err *err)
{
	int ret;

	if ((ret = load_cpuid(vcpu_fd, s, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_SREGS, &s->sregs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_XCRS, &s->xcrs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_XSAVE, s->xsave, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_REGS, &s->regs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_DEBUGREGS, &s->debugregs, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_LAPIC, &s->lapic, err)) < 0 ||
	    (ret = load_msrs(vcpu_fd, s, ahead_ms, err)) < 0 ||
	    (ret = KVM_DO(vcpu_fd, KVM_SET_VCPU_EVENTS, &s->events, err)) < 0)
		return ret;
	ret = KVM_DO(vcpu_fd, KVM_SET_MP_STATE, &s->mp_state, err);
	return ret < 0 ? ret : 0;
}

void cpu_state_put(struct state_buf *buf, uint16_t id, const struct cpu_state *s)
{
	uint64_t tsc[3] = { s->tsc_khz, s->tsc, s->deadline };

	state_put_raw(buf, "CPID", id, s->cpuid, s->nr_cpuid * sizeof(s->cpuid[0]));
	state_put_raw(buf, "REGS", id, &s->regs, sizeof(s->regs));
	state_put_raw(buf, "SREG", id, &s->sregs, sizeof(s->sregs));
	state_put_raw(buf, "XCRS", id, &s->xcrs, sizeof(s->xcrs));
	state_put_raw(buf, "XSAV", id, s->xsave, s->xsave_len);
	state_put_raw(buf, "DREG", id, &s->debugregs, sizeof(s->debugregs));
	state_put_raw(buf, "LAPC", id, &s->lapic, sizeof(s->lapic));
	state_put_raw(buf, "MSRS", id, s->msrs, s->nr_msrs * sizeof(s->msrs[0]));
	state_put_raw(buf, "EVNT", id, &s->events, sizeof(s->events));
	state_put_raw(buf, "MPST", id, &s->mp_state, sizeof(s->mp_state));
	state_put_raw(buf, "TSCD", id, tsc, sizeof(tsc));
}

int cpu_state_get(struct state_buf *buf, uint16_t id, struct cpu_state *s, struct err *err)
{
	size_t cpuid_len, msrs_len, xsave_len;
	uint64_t tsc[3];
	int ret;

	if ((ret = state_get_var(buf, "CPID", id, s->cpuid, sizeof(s->cpuid[0]), sizeof(s->cpuid),
	                         &cpuid_len, err)) < 0 ||
	    (ret = state_get_raw(buf, "REGS", id, &s->regs, sizeof(s->regs), err)) < 0 ||
	    (ret = state_get_raw(buf, "SREG", id, &s->sregs, sizeof(s->sregs), err)) < 0 ||
	    (ret = state_get_raw(buf, "XCRS", id, &s->xcrs, sizeof(s->xcrs), err)) < 0 ||
	    (ret = state_get_var(buf, "XSAV", id, s->xsave, sizeof(struct kvm_xsave),
	                         sizeof(s->xsave), &xsave_len, err)) < 0 ||
	    (ret = state_get_raw(buf, "DREG", id, &s->debugregs, sizeof(s->debugregs), err)) < 0 ||
	    (ret = state_get_raw(buf, "LAPC", id, &s->lapic, sizeof(s->lapic), err)) < 0 ||
	    (ret = state_get_var(buf, "MSRS", id, s->msrs, sizeof(s->msrs[0]), sizeof(s->msrs),
	                         &msrs_len, err)) < 0 ||
	    (ret = state_get_raw(buf, "EVNT", id, &s->events, sizeof(s->events), err)) < 0 ||
	    (ret = state_get_raw(buf, "MPST", id, &s->mp_state, sizeof(s->mp_state), err)) < 0 ||
	    (ret = state_get_raw(buf, "TSCD", id, tsc, sizeof(tsc), err)) < 0)
		return ret;
	if (cpuid_len % sizeof(s->cpuid[0]) || msrs_len % sizeof(s->msrs[0]) ||
	    s->msrs[0].index != MSR_TSC)
		return err_set(err, -EBADMSG, "CPUID or MSR list of vCPU %u is damaged", id);
	s->nr_cpuid = (uint32_t)(cpuid_len / sizeof(s->cpuid[0]));
	s->nr_msrs = (uint32_t)(msrs_len / sizeof(s->msrs[0]));
	s->xsave_len = (uint32_t)xsave_len;
	s->tsc_khz = tsc[0];
	s->tsc = tsc[1];
	s->deadline = tsc[2];
	return 0;
}

void cpu_describe(int vcpu_fd, const struct kvm_run *run, char *out, size_t room)
{
	struct kvm_regs r = { 0 };
	struct kvm_sregs s = { 0 };
	struct err err;
	int n;

	if (KVM_DO(vcpu_fd, KVM_GET_REGS, &r, &err) < 0 ||
	    KVM_DO(vcpu_fd, KVM_GET_SREGS, &s, &err) < 0) {
		(void)snprintf(out, room, "registers not readable: %s", err.msg);
		return;
	}
	n = snprintf(
		out, room,
		"rip=%#llx cs=%#x cpl=%u rflags=%#llx rax=%#llx rbx=%#llx rcx=%#llx rdx=%#llx "
		"rsi=%#llx "
		"rdi=%#llx rsp=%#llx rbp=%#llx cr0=%#llx cr2=%#llx cr3=%#llx cr4=%#llx efer=%#llx",
		r.rip, s.cs.selector, s.cs.dpl, r.rflags, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi,
		r.rsp, r.rbp, s.cr0, s.cr2, s.cr3, s.cr4, s.efer);
	if (run->exit_reason != KVM_EXIT_INTERNAL_ERROR || n < 0 || (size_t)n >= room)
		return;
	if (run->internal.suberror == KVM_INTERNAL_ERROR_EMULATION &&
	    run->emulation_failure.ndata >= 1 &&
	    (run->emulation_failure.flags & KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES)) {
		size_t count = run->emulation_failure.insn_size;

		n += snprintf(out + n, room - (size_t)n, " instruction=");
		for (size_t i = 0; i < count && i < 15 && (size_t)n + 3 < room; i++)
			n += snprintf(out + n, room - (size_t)n, "%02x",
			              run->emulation_failure.insn_bytes[i]);
	}
}
