/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thawing a machine. Two threads share the work: the vCPU's makes the VM and loads its state, the
 * loop's brings the working set in and opens the devices; then the guest runs. What could be done at
 * the bake has been: nothing is parsed but fixed sections, nothing is hashed but those.
 */
#include "core/log.h"
#include "core/own.h"
#include "vmm/clock.h"
#include "vmm/machine_state.h"
#include "vmm/vm.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define WAKE_MAGIC 0x454b4157u /* "WAKE", docs/protocol.md section 5 */
#define NS_PER_SEC 1000000000ull
#define RFLAGS_IF  0x200ull
#define NS_PER_MS  1000000ull
#define CR4_PAE    (1ull << 5)
#define CR4_LA57   (1ull << 12)
#define EFER_LMA   (1ull << 10)

struct wake_head {
	uint32_t magic, wake_len;
	uint8_t entropy[64];
	uint64_t realtime_ns;
} __attribute__((packed));

/* What the vCPU's thread needs. */
struct thaw {
	struct vm *vm;
	const struct vm_thaw_config *config;
	struct machine_cpus cpus;
	struct guestsym_wake wake;
	const char *wake_json;
	bool wakes;          /* an interpreter waits for the mailbox */
	uint8_t entropy[64]; /* for the interpreter's own generators */
	bool known;          /* the kernel's memory can be written */
	sem_t has_slots;     /* posted when KVM has been given the memory, or will not be */
	sem_t has_pages;     /* posted when the working set has been read, or could not be */
};

/* The saved TSC as it would be had the host run on for `age_ns` since. */
static void make_older(struct machine_cpus *cpus, unsigned nr, uint64_t age_ns)
{
	for (unsigned i = 0; age_ns && i < nr; i++) {
		struct cpu_state *cpu = &cpus->cpu[i];
		uint64_t ticks = age_ns / NS_PER_MS * cpu->tsc_khz;

		cpu->tsc -= ticks;
		cpu->msrs[0].data -= ticks;
		if (cpu->deadline)
			cpu->deadline -= ticks;
	}
}

/* A sandbox frozen while its kernel was changing the clock keeps the old time. */
static int replace_kernel_state(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret = guestsym_apply(&vm->mem, &vm->gsym, &thaw->wake, err);

	if (ret == -EPROTO && vm->bell.s.phase == DOORBELL_DONE) {
		thaw->wake.parts &= ~(unsigned)GUESTSYM_CLOCK;
		ret = guestsym_apply(&vm->mem, &vm->gsym, &thaw->wake, err);
	}
	return ret;
}

static void wait_for(sem_t *sem)
{
	while (sem_wait(sem) < 0)
		; /* a signal */
}

/* On the vCPU's thread: everything of KVM, in the order of docs/snapshot.md. */
static int load_vm(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	struct kvm_clock_data clock = { .clock = thaw->cpus.kvmclock_ns };
	int ret = kvm_vm_open(&vm->kvm, &vm->mem, err);

	sem_post(&thaw->has_slots);
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		ret = vcpu_open(&vm->vcpu[i], &vm->kvm, err);
	vm->timing.vm = clock_mono_ns();
	/* From here on guest memory is touched: asked for as a whole, no page brings neighbours along. */
	wait_for(&thaw->has_pages);
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		ret = cpu_load(vm->vcpu[i].fd, &thaw->cpus.cpu[i], err);
	if (ret == 0)
		ret = KVM_DO(vm->kvm.fd, KVM_SET_CLOCK, &clock, err);
	if (ret < 0)
		return ret;
	thaw->wake.kvmclock_ns = thaw->cpus.kvmclock_ns;
	thaw->wake.realtime_ns = clock_real_ns();
	ret = thaw->known ? replace_kernel_state(thaw, err) : 0;
	if (ret < 0)
		return ret;
	for (unsigned i = 0; i < vm->nr_vcpus; i++) {
		struct err ignored;

		/* A guest without kvm-clock has nobody to tell that it was stopped: EINVAL. */
		(void)KVM_DO(vm->vcpu[i].fd, KVM_KVMCLOCK_CTRL, 0, &ignored);
	}
	vm->timing.state = clock_mono_ns();
	return 0;
}

/* The vCPU's thread: its own work, then a share of the other's. */
static int make_vm(void *ctx, struct err *err)
{
	struct thaw *thaw = ctx;
	int ret = load_vm(thaw, err);

	return ret < 0 ? ret : pagein_populate(&thaw->vm->pagein, &thaw->vm->mem, err);
}

static struct wake_head wake_head(const struct thaw *thaw)
{
	struct wake_head head = { .magic = WAKE_MAGIC,
		                  .wake_len = (uint32_t)strlen(thaw->wake_json) };

	head.realtime_ns = clock_real_ns();
	if (thaw->config->reseed)
		memcpy(head.entropy, thaw->entropy, sizeof(head.entropy));
	return head;
}

/* The wake, and the first request behind it. */
static int put_mailbox(struct thaw *thaw, struct err *err)
{
	struct wake_head head = wake_head(thaw);
	struct vm *vm = thaw->vm;
	int ret = doorbell_put(&vm->bell, 0, &head, sizeof(head));

	if (ret == 0)
		ret = doorbell_put(&vm->bell, sizeof(head), thaw->wake_json, head.wake_len);
	if (ret == 0 && vm->first.frame)
		ret = doorbell_put(&vm->bell, sizeof(head) + head.wake_len, vm->first.buf,
		                   vm->first.frame);
	return ret < 0 ? err_set(err, ret, "mailbox: %s", strerror(-ret)) : 0;
}

/*
 * What the interpreter's read shall answer: it stands one instruction after `mov (%reg),%eax`, with the
 * marker in EAX. The mailbox is filled later (put_mailbox): its pages may have to be read first.
 */
static int answer_park(struct thaw *thaw, struct err *err)
{
	struct kvm_regs *regs = &thaw->cpus.cpu[0].regs;
	struct vm *vm = thaw->vm;
	size_t room = doorbell_request_room(&vm->bell);
	size_t used = sizeof(struct wake_head) + strlen(thaw->wake_json);

	if (vm->bell.s.phase != DOORBELL_PARKED)
		return 0;
	if ((uint32_t)regs->rax != DOORBELL_AGAIN)
		return err_set(err, -EBADMSG,
		               "state: no interpreter at the freeze point (rax %#llx)", regs->rax);
	if (used > room)
		return err_set(
			err, -EMSGSIZE, "environment and names of %zu bytes: at most %zu fit",
			strlen(thaw->wake_json),
			room > sizeof(struct wake_head) ? room - sizeof(struct wake_head) : 0);
	if (vm->first.frame > room - used)
		vm->first.frame = 0;
	regs->rax = vm->first.frame;
	vm->bell.s.phase = vm->first.frame ? DOORBELL_FIRST : DOORBELL_DONE;
	thaw->wakes = true;
	return 0;
}

static int open_devices(struct thaw *thaw, struct snapshot *snap, struct err *err)
{
	const struct vm_thaw_config *config = thaw->config;
	struct vm *vm = thaw->vm;
	int ret = vm_open_devices(vm, config->vsock_path, false, err);

	for (unsigned i = 0; ret == 0 && i < snap->head.nr_disks; i++)
		ret = vm_open_disk(vm, i, fd_take(&snap->disk_fd[i]), &snap->disk[i],
		                   snap->disk[i].readonly ? NULL : config->overlay_dir, err);
	if (ret == 0)
		ret = machine_state_get_devices(vm, &snap->state, err);
	vm->timing.devices = clock_mono_ns();
	return ret;
}

/* The kernel changes what we replace with interrupts off: a vCPU that has them off is let alone. */
static bool may_replace(const struct thaw *thaw)
{
	bool may = guestsym_is_known(&thaw->vm->gsym);

	for (unsigned i = 0; i < thaw->vm->nr_vcpus; i++)
		may = may && (thaw->cpus.cpu[i].regs.rflags & RFLAGS_IF);
	return may;
}

static int prepare_wake(struct thaw *thaw, struct err *err)
{
	const struct vm_thaw_config *config = thaw->config;
	struct guestsym_wake *wake = &thaw->wake;
	uint8_t random[sizeof(wake->crng_key) + sizeof(wake->pool_entropy) + sizeof(wake->boot_id) +
	               sizeof(thaw->entropy)];
	const uint8_t *p = random;

	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return err_set(err, -errno, "getrandom: %s", strerror(errno));
	memcpy(wake->crng_key, p, sizeof(wake->crng_key));
	p += sizeof(wake->crng_key);
	memcpy(wake->pool_entropy, p, sizeof(wake->pool_entropy));
	p += sizeof(wake->pool_entropy);
	memcpy(wake->boot_id, p, sizeof(wake->boot_id));
	p += sizeof(wake->boot_id);
	memcpy(thaw->entropy, p, sizeof(thaw->entropy));
	wake->hostname = config->hostname;
	wake->parts = GUESTSYM_CLOCK | GUESTSYM_BOOT_ID |
	              (config->hostname ? GUESTSYM_HOSTNAME : 0u) |
	              (config->reseed ? GUESTSYM_RANDOM : 0u);
	thaw->known = may_replace(thaw);
	return 0;
}

/* A thaw that is recorded begins without a working set: what is populated would count as written. */
static int open_pages(struct thaw *thaw, const struct snapshot *snap, struct err *err)
{
	const struct kvm_sregs *sregs = &thaw->cpus.cpu[0].sregs;
	struct vm *vm = thaw->vm;
	int ret;

	if (!thaw->config->record)
		return pagein_open(&vm->pagein, &vm->mem, snap->dir_fd, vm->snapshot_id, err);
	if (!(sregs->cr4 & CR4_PAE) || !(sregs->efer & EFER_LMA) || (sregs->cr4 & CR4_LA57))
		return 0;
	ret = pagein_watch(&vm->watch, &vm->mem, snap->memory_fd, sregs->cr3);
	return ret < 0 ? err_set(err, ret, "the guest's page tables: %s", strerror(-ret)) : 0;
}

/* What must be known before the vCPU's thread starts. */
static int prepare(struct thaw *thaw, struct snapshot *snap, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret;

	memcpy(vm->snapshot_id, snap->head.id, sizeof(vm->snapshot_id));
	ret = gmem_open(&vm->mem, snap->head.memory_size, LAYOUT_HOLE_START, LAYOUT_HOLE_END,
	                snap->memory_fd);
	if (ret < 0)
		return err_set(err, ret, "mapping %llu bytes of memory: %s",
		               (unsigned long long)snap->head.memory_size, strerror(-ret));
	vm->timing.memory = clock_mono_ns();
	ret = machine_state_get_cpus(vm, &snap->state, snap->head.nr_vcpus, &thaw->cpus, err);
	if (ret == 0)
		ret = machine_state_get_bell(vm, &snap->state, err);
	if (ret < 0)
		return err_wrap(err, "state");
	make_older(&thaw->cpus, snap->head.nr_vcpus, thaw->config->age_ns);
	for (unsigned i = 0; i < snap->head.nr_vcpus; i++)
		vcpu_init(&vm->vcpu[i], i, &vm->vcpu_host);
	vm->nr_vcpus = snap->head.nr_vcpus;
	ret = prepare_wake(thaw, err);
	return ret < 0 ? ret : answer_park(thaw, err);
}

static int build(struct thaw *thaw, struct snapshot *snap, struct err *err)
{
	struct vm *vm = thaw->vm;
	struct err vm_err = { 0 };
	int ret = vcpu_start(&vm->vcpu[0], make_vm, thaw, err), vm_ret;

	if (ret < 0)
		return ret;
	ret = open_pages(thaw, snap, err);
	sem_post(&thaw->has_pages);
	if (ret == 0 && thaw->wakes)
		ret = put_mailbox(thaw, err);
	if (ret == 0)
		ret = open_devices(thaw, snap, err);
	/*
	 * Making the VM takes the lock of the address space, which page faults hold: one after the other is
	 * faster than both at once.
	 */
	wait_for(&thaw->has_slots);
	if (ret == 0)
		ret = pagein_populate(&vm->pagein, &vm->mem, err);
	vm->timing.populated = clock_mono_ns();
	vm_ret = vcpu_wait_ready(&vm->vcpu[0], &vm_err); /* also when our own half failed */
	if (ret == 0 && vm_ret < 0) {
		*err = vm_err;
		ret = vm_ret;
	}
	for (unsigned i = 1; ret == 0 && i < vm->nr_vcpus; i++)
		ret = vcpu_start(&vm->vcpu[i], NULL, NULL, err);
	return ret;
}

/* A kernel whose memory we do not know learns of the thaw by the interrupt of its VM generation id. */
static int tell_generation(struct vm *vm, struct err *err)
{
	uint8_t id[16];

	if (getrandom(id, sizeof(id), 0) != sizeof(id) ||
	    gmem_write(&vm->mem, gpa(vm_vmgenid(vm)), id, sizeof(id)) < 0)
		return err_set(err, -EIO, "VM generation id could not be written");
	ioapic_edge(&vm->ioapic, LAYOUT_PIN_VMGENID);
	return 0;
}

/* A stream whose first request could not travel in the mailbox is a vsock connection from the start. */
static int connect_first(struct vm *vm, struct err *err)
{
	struct first *first = &vm->first;
	int ret;

	if (first->fd < 0 || vm->bell.s.phase == DOORBELL_FIRST)
		return 0;
	ret = first->len ? vsock_connect_with(vm->vsock, first->fd, vm->bell.s.port, first->buf,
	                                      first->len, err)
	                 : vsock_connect(vm->vsock, first->fd, vm->bell.s.port, VSOCK_ON_FIRST_BYTE,
	                                 err);
	if (ret == 0)
		first->fd = -1;
	return ret;
}

int vm_thaw(struct vm *vm, const struct vm_thaw_config *config, struct err *err)
{
	struct thaw *thaw = calloc(1, sizeof(*thaw));
	struct snapshot snap;
	bool known;
	int ret;

	first_open(&vm->first, config->first_fd);
	if (!thaw)
		return err_set(err, -ENOMEM, "thaw: out of memory");
	thaw->vm = vm;
	thaw->config = config;
	thaw->wake_json = config->wake ? config->wake : "{}";
	sem_init(&thaw->has_slots, 0, 0);
	sem_init(&thaw->has_pages, 0, 0);
	vm->hold = config->hold || config->record;
	ret = snapshot_open(&snap, config->dir, err);
	if (ret < 0) {
		free(thaw);
		return ret;
	}
	vm->timing.opened = clock_mono_ns();
	ret = prepare(thaw, &snap, err);
	if (ret == 0)
		ret = build(thaw, &snap, err);
	known = thaw->known;
	snapshot_close(&snap);
	free(thaw);
	if (ret < 0)
		return err_wrap(err, "thaw %s", config->dir);
	vm_interrupts_on(vm);
	ret = known ? 0 : tell_generation(vm, err);
	if (ret == 0)
		ret = connect_first(vm, err);
	return ret;
}
