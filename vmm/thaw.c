/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thawing a machine. Two threads share the work: the vCPU's makes the VM and loads its state, the
 * loop's brings the working set in and opens the devices; then the guest runs. What could be done at
 * the bake has been: nothing is parsed but fixed sections, nothing is hashed but those.
 */
#include "vmm/thaw.h"

#include "core/log.h"
#include "core/own.h"
#include "core/random.h"
#include "vmm/clock.h"
#include "vmm/guestpages.h"
#include "vmm/seccomp.h"
#include "vmm/trace.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#define WAKE_MAGIC 0x454b4157u /* "WAKE", docs/protocol.md section 5 */
#define NS_PER_MS  1000000ull
/* A null request needs no timer, and a tick would cost a standby a hundred pages of the guest's kernel. */
#define QUIET_MS 10000u

struct wake_head {
	uint32_t magic, env_len;
	uint8_t entropy[64];
	uint64_t realtime_ns;
} __attribute__((packed));

/* One thaw under way. */
struct thaw {
	struct vm *vm;
	struct thaw_source *src;
	const struct vm_thaw_config *config; /* NULL: for nobody yet */
	struct vm_files *files;
	bool record;
	unsigned ahead_ms; /* of the guest's next tick, at least */
	struct guestsym_wake wake;
	bool wakes;          /* an interpreter waits for the mailbox */
	uint8_t entropy[64]; /* for the interpreter's own generators */
	bool known;          /* the kernel: its memory can be written */
	sem_t has_vm;        /* posted when KVM has a VM, or will not have one */
	sem_t has_pages;     /* posted when the working set has been asked for, or could not be */
};

/* --- a snapshot made ready ----------------------------------------------------------------------- */

/* A parked interpreter reads a mailbox of one form. */
static int check_form(const struct doorbell_state *bell, struct err *err)
{
	if (bell->phase != DOORBELL_PARKED || bell->form == DOORBELL_FORM)
		return 0;
	err_set(err, -ENOTSUP,
	        "its interpreter wants a mailbox of form %u, this build fills form %u", bell->form,
	        DOORBELL_FORM);
	return err_remedy(err, "build the template again: thawbox template build NAME");
}

/* What is replaced in a kernel that we know it changes with interrupts off: no freeze ends there (freeze.c). */
static int check_interrupts(const struct machine *machine, unsigned nr_vcpus, struct err *err)
{
	for (unsigned i = 0; guestsym_is_known(&machine->gsym) && i < nr_vcpus; i++) {
		if (!cpu_state_is_masked(&machine->cpu[i]))
			continue;
		err_set(err, -ENOTSUP,
		        "vCPU %u was frozen with interrupts off: the kernel's random state cannot "
		        "be "
		        "replaced",
		        i);
		return err_remedy(err, "freeze the sandbox again, with this build");
	}
	return 0;
}

static int read_source(struct thaw_source *src, const char *dir, struct err *err)
{
	int ret;

	trace_begin("state read");
	ret = snapshot_open(&src->snap, dir, err);
	trace_end("state read", src->snap.state.len);
	if (ret < 0)
		return ret;
	ret = machine_state_get(&src->snap.state, src->snap.head.nr_vcpus, &src->machine, err);
	if (ret == 0)
		ret = check_form(&src->machine.bell, err);
	if (ret == 0)
		ret = check_interrupts(&src->machine, src->snap.head.nr_vcpus, err);
	if (ret < 0)
		return err_wrap(err, "state");
	trace_begin("working set read");
	ret = pagein_open(&src->pagein, src->snap.dir_fd, src->snap.head.id, err);
	trace_end("working set read", src->pagein.nr_runs);
	own_close_fd(&src->snap.dir_fd); /* a way to all of the host's folders */
	src->snap.dir_fd = -1;
	return ret;
}

int thaw_source_open(struct thaw_source **out, const char *dir, struct err *err)
{
	struct thaw_source *src = calloc(1, sizeof(*src));
	int ret;

	*out = NULL;
	if (!src)
		return err_set(err, -ENOMEM, "thaw: out of memory");
	src->kvm_fd = src->overlay_fd = -1;
	if (strlen(dir) >= sizeof(src->dir)) {
		free(src);
		return err_set(err, -ENAMETOOLONG, "snapshot: the path has over %zu bytes",
		               sizeof(src->dir) - 1);
	}
	(void)snprintf(src->dir, sizeof(src->dir), "%s", dir);
	trace_begin("snapshot opened");
	ret = read_source(src, dir, err);
	trace_end("snapshot opened", 0);
	if (ret < 0) {
		thaw_source_close(src);
		return err_wrap(err, "thaw %s", dir);
	}
	*out = src;
	return 0;
}

void thaw_source_close(struct thaw_source *src)
{
	if (!src)
		return;
	pagein_close(&src->pagein);
	snapshot_close(&src->snap);
	own_close_fd(&src->kvm_fd);
	own_close_fd(&src->overlay_fd);
	free(src);
}

/* The saved TSC as it would be had the host run on for `age_ns` since. */
static void make_older(struct machine *machine, unsigned nr, uint64_t age_ns)
{
	for (unsigned i = 0; age_ns && i < nr; i++) {
		struct cpu_state *cpu = &machine->cpu[i];
		uint64_t ticks = age_ns / NS_PER_MS * cpu->tsc_khz;

		cpu->tsc -= ticks;
		cpu->msrs[0].data -= ticks;
		if (cpu->deadline)
			cpu->deadline -= ticks;
	}
}

/* --- what the sandbox gets at the last moment ----------------------------------------------------- */

/* A sandbox frozen while its kernel was changing the clock keeps the old time. */
static int replace_kernel_state(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret = guestsym_apply(&vm->mem, &vm->gsym, &thaw->wake, err);

	if (ret == -EPROTO && vm->bell.s.phase >= DOORBELL_DONE) {
		thaw->wake.parts &= ~(unsigned)GUESTSYM_CLOCK;
		ret = guestsym_apply(&vm->mem, &vm->gsym, &thaw->wake, err);
	}
	return ret;
}

static struct wake_head wake_head(const struct thaw *thaw)
{
	struct wake_head head = { .magic = WAKE_MAGIC, .env_len = thaw->config->env_len };

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
	struct iovec request = first_request(&vm->first);
	int ret = doorbell_put(&vm->bell, 0, &head, sizeof(head));

	if (ret == 0)
		ret = doorbell_put(&vm->bell, sizeof(head), thaw->config->env, head.env_len);
	if (ret == 0 && vm->first.given)
		ret = doorbell_put(&vm->bell, sizeof(head) + head.env_len, request.iov_base,
		                   request.iov_len);
	return ret < 0 ? err_set(err, ret, "mailbox: %s", strerror(-ret)) : 0;
}

/*
 * What the interpreter's read shall answer: it stands one instruction after `mov (%reg),%eax`, with the
 * marker in EAX. The mailbox is filled later (put_mailbox): its pages may have to be read first.
 */
static int answer_park(struct thaw *thaw, struct err *err)
{
	struct kvm_regs *regs = &thaw->src->machine.cpu[0].regs;
	struct vm *vm = thaw->vm;
	size_t room = doorbell_request_room(&vm->bell);
	size_t used = sizeof(struct wake_head) + thaw->config->env_len;
	size_t len = first_request(&vm->first).iov_len;

	if (vm->bell.s.phase != DOORBELL_PARKED)
		return 0;
	if ((uint32_t)regs->rax != DOORBELL_AGAIN)
		return err_set(err, -EBADMSG,
		               "state: no interpreter at the freeze point (rax %#llx)", regs->rax);
	if (used > room)
		return err_set(
			err, -EMSGSIZE, "environment and names of %zu bytes: at most %zu fit",
			(size_t)thaw->config->env_len,
			room > sizeof(struct wake_head) ? room - sizeof(struct wake_head) : 0);
	vm->first_runs = len && len <= room - used;
	if (vm->first_runs)
		first_give(&vm->first);
	regs->rax = vm->first_runs ? len : 0;
	vm->bell.s.phase = vm->first_runs ? DOORBELL_FIRST : DOORBELL_DONE;
	thaw->wakes = true;
	return 0;
}

static int prepare_wake(struct thaw *thaw, struct err *err)
{
	const struct vm_thaw_config *config = thaw->config;
	struct guestsym_wake *wake = &thaw->wake;
	uint8_t random[sizeof(wake->crng_key) + sizeof(wake->pool_entropy) + sizeof(wake->boot_id) +
	               sizeof(thaw->entropy)];
	const uint8_t *p = random;
	int ret = random_fill(random, sizeof(random), err);

	if (ret < 0)
		return err_wrap(err, "nothing to reseed it with");
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
	thaw->known = guestsym_is_known(&thaw->vm->gsym);
	return 0;
}

/* The kernel's random state, name and clock; then the guest knows that it was stopped. */
static int wake_kernel(struct thaw *thaw, struct err *err)
{
	const struct vm *vm = thaw->vm;
	int ret;

	thaw->wake.kvmclock_ns = thaw->src->machine.kvmclock_ns;
	thaw->wake.realtime_ns = clock_real_ns();
	trace_begin("guest kernel's state replaced");
	ret = thaw->config && thaw->known ? replace_kernel_state(thaw, err) : 0;
	trace_end("guest kernel's state replaced", 0);
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++) {
		struct err ignored;

		/* A guest without kvm-clock has nobody to tell that it was stopped: EINVAL. */
		(void)KVM_DO(vm->vcpu[i].fd, KVM_KVMCLOCK_CTRL, 0, &ignored);
	}
	return ret;
}

static int set_kvmclock(struct thaw *thaw, struct err *err)
{
	struct kvm_clock_data clock = { .clock = thaw->src->machine.kvmclock_ns };

	return KVM_DO(thaw->vm->kvm.fd, KVM_SET_CLOCK, &clock, err);
}

/* --- from nothing, or from a shell ----------------------------------------------------------------- */

static void wait_for(sem_t *sem)
{
	while (sem_wait(sem) < 0)
		; /* a signal */
}

/* On the vCPU's thread. */
static int make_vm(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret;

	vm->kvm.sys_fd = fd_take(&thaw->src->kvm_fd);
	trace_begin("VM made");
	ret = kvm_vm_create(&vm->kvm, err);
	trace_point("signal: VM", 0);
	sem_post(&thaw->has_vm);
	if (ret == 0)
		ret = kvm_vm_set_up(&vm->kvm, &vm->mem, err);
	trace_end("VM made", 0);
	trace_begin("vCPU made");
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		ret = vcpu_open(&vm->vcpu[i], &vm->kvm, err);
	trace_end("vCPU made", 0);
	vm->timing.vm = clock_mono_ns();
	return ret;
}

static int populate(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret;

	trace_begin("working set populated");
	ret = pagein_populate(&vm->pagein, &vm->mem, err);
	trace_end("working set populated", 0);
	return ret;
}

/*
 * On the vCPU's thread: everything of KVM, in the order of docs/snapshot.md, then a share of the pages. The
 * filter comes before that: what it costs one thread is work that the other takes.
 */
static int load_vm(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret = 0;

	/* From here on guest memory is touched: asked for as a whole, no page brings neighbours along. */
	trace_begin("wait: pages asked for");
	wait_for(&thaw->has_pages);
	trace_end("wait: pages asked for", 0);
	trace_begin("CPU state loaded");
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		ret = cpu_load(vm->vcpu[i].fd, &thaw->src->machine.cpu[i], thaw->ahead_ms, err);
	trace_end("CPU state loaded", 0);
	if (ret == 0)
		ret = set_kvmclock(thaw, err);
	if (ret == 0)
		ret = wake_kernel(thaw, err);
	vm->timing.state = clock_mono_ns();
	if (ret == 0 && !vm->vcpu[0].confined)
		ret = vcpu_confine(&vm->vcpu[0], false, err);
	return ret < 0 ? ret : populate(thaw, err);
}

static int shell_job(void *ctx, struct err *err)
{
	struct thaw *thaw = ctx;
	int ret = make_vm(thaw, err);

	return ret < 0 ? ret : vcpu_confine(&thaw->vm->vcpu[0], true, err);
}

static int load_job(void *ctx, struct err *err)
{
	return load_vm(ctx, err);
}

static int fresh_job(void *ctx, struct err *err)
{
	int ret = make_vm(ctx, err);

	return ret < 0 ? ret : load_vm(ctx, err);
}

/* Memory and the vCPU's thread, on which `job` makes the VM meanwhile. */
static int begin_vm(struct thaw *thaw, int (*job)(void *ctx, struct err *err), struct err *err)
{
	const struct thaw_source *src = thaw->src;
	const struct snapshot_head *head = &src->snap.head;
	struct vm *vm = thaw->vm;
	int ret;

	trace_begin("memory mapped");
	ret = gmem_open(&vm->mem, head->memory_size, LAYOUT_HOLE_START, LAYOUT_HOLE_END,
	                src->snap.memory_fd);
	trace_end("memory mapped", head->memory_size);
	if (ret < 0)
		return err_set(err, ret, "mapping %llu bytes of memory: %s",
		               (unsigned long long)head->memory_size, strerror(-ret));
	vm->timing.memory = clock_mono_ns();
	ret = machine_state_check_bell(&vm->bell.s, &vm->mem, err);
	if (ret < 0)
		return err_wrap(err, "state");
	trace_begin("vCPU's thread started");
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		ret = vcpu_start(&vm->vcpu[i], err);
	trace_end("vCPU's thread started", 0);
	if (ret == 0)
		vcpu_call(&vm->vcpu[0], job, thaw);
	return ret;
}

static int open_devices(struct thaw *thaw, struct err *err)
{
	struct snapshot *snap = &thaw->src->snap;
	struct vm *vm = thaw->vm;
	int ret;

	trace_begin("devices opened");
	ret = vm_open_devices(vm, &thaw->files->vsock, false, err);
	trace_begin("disks opened");
	for (unsigned i = 0; ret == 0 && i < snap->head.nr_disks; i++)
		ret = vm_open_disk(vm, i, fd_take(&snap->disk_fd[i]), &snap->disk[i],
		                   fd_take(&thaw->files->overlay_fd[i]), err);
	trace_end("disks opened", snap->head.nr_disks);
	trace_end("devices opened", 0);
	return ret;
}

/* A thaw that is recorded begins without a working set: what is populated would count as written. */
static int begin_pages(struct thaw *thaw, struct err *err)
{
	const struct kvm_sregs *sregs = &thaw->src->machine.cpu[0].sregs;
	struct vm *vm = thaw->vm;
	int ret;

	if (!thaw->record) {
		vm->pagein = thaw->src->pagein;
		/* One that stands by holds its memory for long, and has the time to meet its pages. */
		vm->pagein.sparing = !thaw->config;
		return pagein_begin(&vm->pagein, &vm->mem, thaw->src->snap.memory_fd, err);
	}
	vm->pagemap_fd = fd_take(&thaw->files->pagemap_fd);
	if (!guestpages_can_walk(sregs))
		return 0;
	ret = pagein_watch(&vm->watch, &vm->mem, thaw->src->snap.memory_fd, sregs->cr3);
	return ret < 0 ? err_set(err, ret, "the guest's page tables: %s", strerror(-ret)) : 0;
}

/* All is open. A shell has done so before. */
static int confine(struct thaw *thaw, struct err *err)
{
	unsigned extras = (thaw->config ? 0 : SECCOMP_LOOP_WAITS) |
	                  (thaw->files->vsock_window >= 0 ? SECCOMP_LOOP_UNIX : 0u);

	return thaw->vm->confined ? 0 : vm_confine(thaw->vm, extras, err);
}

/* The loop's half of the work; the vCPU's thread is at its own. */
static int fill_vm(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	struct err vm_err = { 0 };
	int ret, vm_ret;

	trace_begin("working set begun");
	ret = begin_pages(thaw, err);
	trace_end("working set begun", vm->pagein.cold);
	trace_point("signal: pages asked for", 0);
	sem_post(&thaw->has_pages);
	trace_begin("mailbox written");
	if (ret == 0 && thaw->wakes)
		ret = put_mailbox(thaw, err);
	trace_end("mailbox written", vm->first.given ? vm->first.frame : 0);
	if (ret == 0 && !vm->loop.open)
		ret = open_devices(thaw, err);
	trace_begin("devices' state loaded");
	if (ret == 0)
		ret = machine_state_get_devices(vm, &thaw->src->snap.state, err);
	trace_end("devices' state loaded", 0);
	if (ret == 0)
		ret = confine(thaw, err);
	vm->timing.devices = clock_mono_ns();
	/*
	 * KVM_CREATE_VM takes the lock of the address space, which page faults hold: one after the other is
	 * faster than both at once.
	 */
	trace_begin("wait: VM");
	wait_for(&thaw->has_vm);
	trace_end("wait: VM", 0);
	if (ret == 0)
		ret = populate(thaw, err);
	vm->timing.populated = clock_mono_ns();
	vm_ret = vcpu_wait_job(&vm->vcpu[0], &vm_err); /* also when our own half failed */
	if (ret == 0 && vm_ret < 0) {
		*err = vm_err;
		ret = vm_ret;
	}
	return ret;
}

static int build(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret = 0;

	if (vm->stage == VM_EMPTY)
		ret = begin_vm(thaw, fresh_job, err);
	else
		vcpu_call(&vm->vcpu[0], load_job, thaw);
	return ret < 0 ? ret : fill_vm(thaw, err);
}

/* --- from a standby -------------------------------------------------------------------------------- */

int vm_rest(struct vm *vm, struct err *err)
{
	struct machine *machine = &vm->source->machine;
	struct kvm_clock_data clock = { 0 };
	int ret;

	vm_pause(vm);
	ret = KVM_DO(vm->kvm.fd, KVM_GET_CLOCK, &clock, err);
	machine->kvmclock_ns = clock.clock;
	for (unsigned i = 0; ret >= 0 && i < vm->nr_vcpus; i++)
		ret = cpu_rest(vm->vcpu[i].fd, &machine->cpu[i], err);
	return ret < 0 ? ret : 0;
}

static int take(struct thaw *thaw, struct err *err)
{
	struct vm *vm = thaw->vm;
	int ret;

	trace_begin("mailbox written");
	ret = thaw->wakes ? put_mailbox(thaw, err) : 0;
	trace_end("mailbox written", vm->first.given ? vm->first.frame : 0);
	trace_begin("CPU state loaded");
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++)
		ret = cpu_wake(vm->vcpu[i].fd, &thaw->src->machine.cpu[i], err);
	trace_end("CPU state loaded", 0);
	if (ret == 0)
		ret = set_kvmclock(thaw, err);
	return ret < 0 ? ret : wake_kernel(thaw, err);
}

/* --- the three ways -------------------------------------------------------------------------------- */

/* A kernel whose memory we do not know learns of the thaw by the interrupt of its VM generation id. */
static int tell_generation(struct vm *vm, struct err *err)
{
	uint8_t id[16];
	int ret = random_fill(id, sizeof(id), err);

	if (ret < 0)
		return err_wrap(err, "VM generation id");
	if (gmem_write(&vm->mem, gpa(vm_vmgenid(vm)), id, sizeof(id)) < 0)
		return err_set(err, -EIO, "VM generation id could not be written");
	ioapic_edge(&vm->ioapic, LAYOUT_PIN_VMGENID);
	return 0;
}

/* What the machine is; nothing of it exists yet. */
static void adopt(struct vm *vm, struct thaw_source *src)
{
	vm->source = src;
	vm->gsym = src->machine.gsym;
	vm->bell.s = src->machine.bell;
	memcpy(vm->snapshot_id, src->snap.head.id, sizeof(vm->snapshot_id));
	vm->nr_vcpus = src->snap.head.nr_vcpus;
	for (unsigned i = 0; i < vm->nr_vcpus; i++)
		vcpu_init(&vm->vcpu[i], i, &vm->vcpu_host);
}

static void init(struct thaw *thaw, struct vm *vm, struct thaw_source *src, struct vm_files *files)
{
	*thaw = (struct thaw){ .vm = vm, .src = src, .files = files, .ahead_ms = CPU_AHEAD_MS };
	sem_init(&thaw->has_vm, 0, vm->stage != VM_EMPTY);
	sem_init(&thaw->has_pages, 0, 0);
	if (vm->stage == VM_EMPTY)
		adopt(vm, src);
}

int vm_make_shell(struct vm *vm, struct thaw_source *src, struct vm_files *files, struct err *err)
{
	struct err vm_err = { 0 };
	struct thaw thaw;
	int ret, vm_ret;

	init(&thaw, vm, src, files);
	ret = begin_vm(&thaw, shell_job, err);
	if (ret < 0)
		return ret;
	ret = open_devices(&thaw, err);
	if (ret == 0)
		ret = confine(&thaw, err);
	vm_ret = vcpu_wait_job(&vm->vcpu[0], &vm_err);
	if (ret == 0 && vm_ret < 0) {
		*err = vm_err;
		ret = vm_ret;
	}
	vm->stage = VM_SHELL;
	return ret < 0 ? err_wrap(err, "shell of %s", src->dir) : 0;
}

int vm_warm_up(struct vm *vm, struct thaw_source *src, const struct vm_warm_config *config,
               struct err *err)
{
	struct thaw thaw;
	int ret = 0;

	init(&thaw, vm, src, config->files);
	thaw.record = config->record;
	if (!config->all)
		thaw.ahead_ms = QUIET_MS;
	if (src->machine.bell.phase != DOORBELL_PARKED ||
	    (uint32_t)src->machine.cpu[0].regs.rax != DOORBELL_AGAIN)
		ret = err_set(err, -ENOTSUP, "no interpreter stands at the freeze point");
	if (config->all)
		src->machine.cpu[0].regs.rax = DOORBELL_WARM;
	if (ret == 0)
		ret = build(&thaw, err);
	if (ret < 0)
		return err_wrap(err, "standby of %s", src->dir);
	vm->stage = VM_WARMING;
	vm_interrupts_on(vm);
	vm_resume(vm);
	return 0;
}

/* Everything but letting it run. */
static int thaw_all(struct thaw *thaw, struct err *err)
{
	const struct vm_thaw_config *config = thaw->config;
	struct vm *vm = thaw->vm;
	int ret;

	trace_begin("wake prepared");
	ret = prepare_wake(thaw, err);
	if (ret == 0 && config->record && vm->stage != VM_EMPTY)
		ret = err_set(err, -EINVAL, "record: only of a machine that is thawed afresh");
	make_older(&thaw->src->machine, thaw->src->snap.head.nr_vcpus, config->age_ns);
	if (ret == 0)
		ret = answer_park(thaw, err);
	idle_set_up(vm);
	trace_end("wake prepared", 0);
	if (ret == 0)
		ret = vm->stage == VM_STANDBY ? take(thaw, err) : build(thaw, err);
	if (ret == 0)
		ret = vsock_listen(vm->vsock, &config->files->vsock, err);
	return ret;
}

int vm_thaw(struct vm *vm, struct thaw_source *src, const struct vm_thaw_config *config,
            struct err *err)
{
	struct thaw thaw;
	int ret;

	trace_begin("first request read");
	first_open(&vm->first, config->first_fd);
	trace_end("first request read", vm->first.len);
	vm->hold = config->hold || config->record;
	init(&thaw, vm, src, config->files);
	thaw.config = config;
	thaw.record = config->record;
	ret = thaw_all(&thaw, err);
	if (ret < 0)
		return err_wrap(err, "thaw %s", src->dir);
	trace_begin("interrupts on");
	if (vm->stage == VM_STANDBY)
		vcpu_forget_run(&vm->vcpu[0]);
	else
		vm_interrupts_on(vm);
	vm->stage = VM_LIVE;
	if (vm->bell.s.phase == DOORBELL_FIRST)
		ahead_start(&vm->ahead, &vm->loop, &vm->pagein, &vm->mem);
	ret = thaw.known ? 0 : tell_generation(vm, err);
	/* A first request that could not travel in the mailbox: when the interpreter asks for the next, or by vsock. */
	if (ret == 0 && vm->first.fd >= 0 && vm->bell.s.phase == DOORBELL_VSOCK)
		ret = vm_connect_first(vm, err);
	trace_end("interrupts on", 0);
	return ret;
}
