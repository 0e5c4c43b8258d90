/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/vm.h"

#include "core/log.h"
#include "core/own.h"
#include "core/random.h"
#include "devices/vmmio.h"
#include "vmm/clock.h"
#include "vmm/seccomp.h"
#include "vmm/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define LOOP_DEPTH    64
#define TRACE_WAIT_NS 100000000u

/* What every kernel is told; a host whose KVM interprets guest kernels needs more (docs/guest-kernel.md). */
#define CMDLINE_ALL                                                                              \
	"console=uart8250,mmio,0xd0000000 8250.nr_uarts=1 clocksource=kvm-clock tsc=nowatchdog " \
	"reboot=k panic=-1"
/*
 * Software KVM runs user code natively and the kernel in an emulator that has no XSAVE: user code
 * finds AVX in CPUID, but the upper halves of its registers are not kept over a context switch.
 * Linux hands these variables to init, which hands them to every process.
 */
#define ENVIRONMENT_PVM                                                                            \
	" GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL," \
	"-AVX512BW,-FMA,-FMA4 OPENBLAS_CORETYPE=Nehalem "                                          \
	"OPENSSL_ia32cap=~0x1000100000000000:~0x10020 GNUTLS_CPUID_OVERRIDE=0x1 "                  \
	"NPY_DISABLE_CPU_FEATURES=AVX,F16C,FMA3,AVX2"
/* numpy warns of names that the CPU does not have. */
#define ENVIRONMENT_AVX512 ",AVX512F,AVX512CD,AVX512_SKX"
#define CMDLINE_PVM                                                                     \
	" noxsave clearcpuid=popcnt,cx16,smap,fsgsbase,rdpid,erms,fsrm no_timer_check " \
	"lpj=1000000 nokaslr rodata=off tick_stretch=5" ENVIRONMENT_PVM

static void send_msi(void *ctx, uint64_t address, uint32_t data)
{
	struct vm *vm = ctx;
	bool ready;

	pthread_mutex_lock(&vm->msi_lock);
	ready = vm->msi_ready;
	if (!ready && vm->nr_msis < VM_EARLY_MSIS)
		vm->msi[vm->nr_msis++] =
			(struct kvm_msi){ .address_lo = (uint32_t)address, .data = data };
	pthread_mutex_unlock(&vm->msi_lock);
	if (ready) {
		kvm_send_msi(&vm->kvm, address, data);
		idle_interrupted(vm);
	}
}

void vm_interrupts_on(struct vm *vm)
{
	pthread_mutex_lock(&vm->msi_lock);
	vm->msi_ready = true;
	for (unsigned i = 0; i < vm->nr_msis; i++)
		kvm_send_msi(&vm->kvm, vm->msi[i].address_lo, vm->msi[i].data);
	pthread_mutex_unlock(&vm->msi_lock);
}

static void raise_pin(void *ctx, unsigned pin)
{
	struct vm *vm = ctx;

	ioapic_edge(&vm->ioapic, pin);
}

/* The device at `addr`: its slot, or NULL; *off is the offset in it. */
static struct vdev *virtio_at(struct vm *vm, uint64_t addr, uint32_t n, uint32_t *off)
{
	uint64_t rel = addr - LAYOUT_VIRTIO;

	if (addr < LAYOUT_VIRTIO || rel >= LAYOUT_VIRTIO_SLOTS * LAYOUT_VIRTIO_STEP)
		return NULL;
	*off = (uint32_t)(rel % LAYOUT_VIRTIO_STEP);
	return *off + n <= VMMIO_LEN ? vm->slot[rel / LAYOUT_VIRTIO_STEP] : NULL;
}

static bool in_range(uint64_t addr, uint32_t n, uint64_t base, uint64_t len)
{
	return addr >= base && addr - base < len && n <= len - (addr - base);
}

static void mmio_read(void *ctx, uint64_t addr, void *data, uint32_t n)
{
	struct vm *vm = ctx;
	struct vdev *dev;
	uint32_t off, word;

	memset(data, 0, n);
	dev = virtio_at(vm, addr, n, &off);
	if (dev) {
		vmmio_read(dev, off, data, n);
	} else if (in_range(addr, n, LAYOUT_SERIAL, SERIAL_LEN)) {
		*(uint8_t *)data = serial_read(vm->serial, (uint32_t)(addr - LAYOUT_SERIAL));
	} else if (n == 4 && in_range(addr, n, LAYOUT_DOORBELL, DOORBELL_LEN)) {
		word = doorbell_read(&vm->bell, (uint32_t)(addr - LAYOUT_DOORBELL));
		memcpy(data, &word, sizeof(word));
	} else if (n == 4 && in_range(addr, n, LAYOUT_IOAPIC, IOAPIC_LEN)) {
		word = ioapic_read(&vm->ioapic, (uint32_t)(addr - LAYOUT_IOAPIC));
		memcpy(data, &word, sizeof(word));
	} else {
		memset(data, 0xff, n);
		log_guest("read of %u bytes at 0x%llx, where nothing is", n,
		          (unsigned long long)addr);
	}
}

static void mmio_write(void *ctx, uint64_t addr, const void *data, uint32_t n)
{
	struct vm *vm = ctx;
	struct vdev *dev;
	uint32_t off, word = 0;

	dev = virtio_at(vm, addr, n, &off);
	memcpy(&word, data, n < sizeof(word) ? n : sizeof(word));
	if (dev)
		vmmio_write(dev, off, data, n);
	else if (in_range(addr, n, LAYOUT_SERIAL, SERIAL_LEN))
		serial_write(vm->serial, (uint32_t)(addr - LAYOUT_SERIAL), (uint8_t)word);
	else if (n == 4 && in_range(addr, n, LAYOUT_DOORBELL, DOORBELL_LEN))
		doorbell_write(&vm->bell, (uint32_t)(addr - LAYOUT_DOORBELL), word);
	else if (n == 4 && in_range(addr, n, LAYOUT_IOAPIC, IOAPIC_LEN))
		ioapic_write(&vm->ioapic, (uint32_t)(addr - LAYOUT_IOAPIC), word);
	else
		log_guest("write of %u bytes at 0x%llx, where nothing is", n,
		          (unsigned long long)addr);
}

static void guest_ended(void *ctx, enum vcpu_end end, const char *detail)
{
	struct vm *vm = ctx;

	pthread_mutex_lock(&vm->msi_lock);
	if (!vm->end_detail[0]) {
		vm->end = end;
		(void)snprintf(vm->end_detail, sizeof(vm->end_detail), "%s", detail);
	}
	pthread_mutex_unlock(&vm->msi_lock);
	loop_post(&vm->loop, &vm->ended_event);
}

static void bell_parked(void *ctx)
{
	struct vm *vm = ctx;

	trace_counters(TRACE_AT_PARK, &vm->vcpu[0]);
	vcpu_park_here(&vm->vcpu[0]);
	loop_post(&vm->loop, &vm->parked_event);
}

static uint32_t bell_next(void *ctx)
{
	return idle_next(ctx);
}

static bool quitting(void *ctx)
{
	return vcpu_quitting(ctx);
}

static void bell_output(void *ctx, const struct iovec *iov, unsigned nr, bool done)
{
	struct vm *vm = ctx;

	trace_begin("output written");
	first_output(&vm->first, iov, nr, quitting, &vm->vcpu[0]);
	trace_end("output written", nr);
	if (!done || !vm->first_runs)
		return;
	trace_point("DONE", 0);
	trace_counters(TRACE_AT_DONE, &vm->vcpu[0]);
	vm->first_runs = false;
	if (!vm->idle.able)
		vm->bell.s.phase = DOORBELL_VSOCK;
	if (vm->hold)
		vcpu_park_here(&vm->vcpu[0]);
	loop_post(&vm->loop, &vm->first_event);
}

static void bell_power(void *ctx)
{
	struct vm *vm = ctx;

	atomic_store(&vm->vcpu[0].dead, true);
	guest_ended(vm, VCPU_END_SHUTDOWN, "the guest powered itself off");
}

static void on_parked(struct loop_event *event)
{
	struct vm *vm = container_of(event, struct vm, parked_event);
	struct err err;

	if (vm->stage != VM_WARMING) {
		vm->on_event(vm->event_ctx, VM_PARKED);
	} else if (vm_rest(vm, &err) == 0) {
		vm->stage = VM_STANDBY;
		vm->on_event(vm->event_ctx, VM_STANDS_BY);
	} else {
		guest_ended(vm, VCPU_END_KVM_ERROR, err.msg);
	}
}

int vm_connect_first(struct vm *vm, struct err *err)
{
	const struct iovec rest = first_rest(&vm->first);
	struct first *first = &vm->first;
	int ret = rest.iov_len ? vsock_connect_with(vm->vsock, first->fd, vm->bell.s.port,
	                                            rest.iov_base, rest.iov_len, err)
	                       : vsock_connect(vm->vsock, first->fd, vm->bell.s.port,
	                                       VSOCK_ON_FIRST_BYTE, err);

	if (ret == 0)
		first->fd = -1;
	return ret;
}

static json_t *memory_json(const struct vm *vm)
{
	const struct pagein *set = &vm->pagein;

	return json_pack("{s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "size",
	                 (json_int_t)vm->mem.size, "workset_written", set->written, "workset_near",
	                 set->near, "workset_read", set->read, "workset_large", set->large,
	                 "workset_later", set->later, "populated", (int)set->populated, "later",
	                 set->later_done, "cold", set->cold);
}

/* Once, with what the trace itself does not know. */
static void write_trace(const struct vm *vm)
{
	if (trace_is_due())
		trace_write(json_pack("{s:o}", "memory", memory_json(vm)));
}

static void on_trace_timer(struct loop_op *op, int res)
{
	(void)res;
	write_trace(container_of(op, struct vm, trace_op));
}

/* The trace is complete. Writing it takes a CPU that whoever waits for the result may want just now. */
static void end_trace(struct vm *vm)
{
	if (!trace_on())
		return;
	trace_stop();
	vm->trace_op.done = on_trace_timer;
	loop_timer(&vm->loop, &vm->trace_op, TRACE_WAIT_NS);
}

static void on_first_done(struct loop_event *event)
{
	struct vm *vm = container_of(event, struct vm, first_event);
	struct err err = { 0 };

	if (!vm->idle.able && vm->first.fd >= 0 && !vm->first.broken &&
	    vm_connect_first(vm, &err) < 0)
		log_warn("first stream: %s", err.msg);
	ahead_stop(&vm->ahead);
	if (vm->hold)
		vm->running = false; /* the vCPU has parked itself */
	end_trace(vm);
	vm->on_event(vm->event_ctx, VM_FIRST_DONE);
}

static void on_ended(struct loop_event *event)
{
	struct vm *vm = container_of(event, struct vm, ended_event);

	vm->on_event(vm->event_ctx, VM_ENDED);
}

void vm_init(struct vm *vm, void (*on_event)(void *ctx, enum vm_event event), void *ctx)
{
	*vm = (struct vm){ .kvm = KVM_VM_NONE,
		           .serial_out = -1,
		           .serial_in = -1,
		           .first.fd = -1,
		           .vm_stats_fd = -1,
		           .vcpu_stats_fd = -1,
		           .pagemap_fd = -1,
		           .on_event = on_event,
		           .event_ctx = ctx };
	pthread_mutex_init(&vm->msi_lock, NULL);
	vm->parked_event.fire = on_parked;
	vm->first_event.fire = on_first_done;
	vm->ended_event.fire = on_ended;
	vm->vcpu_host = (struct vcpu_host){
		.mmio_read = mmio_read, .mmio_write = mmio_write, .ended = guest_ended, .ctx = vm
	};
	idle_init(vm);
	ioapic_init(&vm->ioapic, send_msi, vm);
	vm->bell = (struct doorbell){ .mem = &vm->mem,
		                      .parked = bell_parked,
		                      .next = bell_next,
		                      .output = bell_output,
		                      .power = bell_power,
		                      .ctx = vm };
}

void vm_close(struct vm *vm)
{
	for (unsigned i = 0; i < vm->nr_vcpus; i++)
		vcpu_close(&vm->vcpu[i]);
	ahead_stop(&vm->ahead);
	write_trace(vm);
	loop_close(&vm->loop);
	vsock_close(vm->vsock);
	for (unsigned i = 0; i < vm->nr_disks; i++)
		blk_close(vm->disk[i]);
	serial_close(vm->serial);
	first_close(&vm->first);
	own_close_fd(&vm->vm_stats_fd);
	own_close_fd(&vm->vcpu_stats_fd);
	own_close_fd(&vm->pagemap_fd);
	kvm_vm_close(&vm->kvm);
	gmem_close(&vm->mem);
	own_close_fd(&vm->serial_out);
	if (vm->serial_in != vm->serial_out)
		own_close_fd(&vm->serial_in);
}

uint64_t vm_vmgenid(const struct vm *vm)
{
	return vm->mem.region[0].len - GMEM_PAGE;
}

static struct vdev_host device_host(struct vm *vm, unsigned slot)
{
	return (struct vdev_host){ .loop = &vm->loop,
		                   .mem = &vm->mem,
		                   .irq = raise_pin,
		                   .irq_ctx = vm,
		                   .pin = LAYOUT_PIN_VIRTIO + slot };
}

static void port_asked(void *ctx, uint32_t port)
{
	idle_port_asked(ctx, port);
}

int vm_open_devices(struct vm *vm, struct vsock_unix *un, bool serial_hold, struct err *err)
{
	struct serial_host console = { .loop = &vm->loop,
		                       .irq = raise_pin,
		                       .irq_ctx = vm,
		                       .pin = LAYOUT_PIN_SERIAL,
		                       .out_fd = vm->serial_out,
		                       .in_fd = vm->serial_in,
		                       .hold_tx = serial_hold };
	struct vsock_config config = { .guest_cid = VSOCK_GUEST_CID,
		                       .asked = port_asked,
		                       .asked_ctx = vm };
	struct vdev_host host = device_host(vm, 0);
	int ret;

	trace_begin("loop opened");
	ret = loop_open(&vm->loop, LOOP_DEPTH, err);
	trace_end("loop opened", 0);
	if (ret == 0)
		ret = serial_open(&vm->serial, &console, err);
	if (ret == 0)
		ret = vsock_open(&vm->vsock, &config, &host, 0, err);
	if (ret == 0)
		ret = vsock_listen(vm->vsock, un, err);
	if (ret == 0)
		vm->slot[0] = vsock_vdev(vm->vsock);
	limits_apply(vm);
	return ret;
}

int vm_open_disk(struct vm *vm, unsigned n, int fd, const struct snapshot_disk *info,
                 int overlay_fd, struct err *err)
{
	struct vdev_host host = device_host(vm, n + 1);
	struct blk_config config = { .base_fd = fd,
		                     .overlay_fd = overlay_fd,
		                     .readonly = info->readonly,
		                     .size = info->size };
	int ret;

	(void)snprintf(config.serial, sizeof(config.serial), "thawbox-disk%u", n);
	ret = blk_open(&vm->disk[n], &config, &host, n + 1, err);
	if (ret < 0) {
		own_close_fd(&config.base_fd);
		own_close_fd(&config.overlay_fd);
		return ret;
	}
	vm->disk_info[n] = *info;
	vm->slot[n + 1] = blk_vdev(vm->disk[n]);
	vm->nr_disks = n + 1;
	blk_limit(vm->disk[n], &vm->limits.disk_bytes, &vm->limits.disk_ops, clock_mono_ns);
	return 0;
}

static int boot_kernel(struct vm *vm, const struct vm_boot_config *config, struct boot_regs *regs,
                       struct err *err)
{
	own_free char *cmdline = NULL;
	bool pvm = kvm_kind() == KVM_KIND_PVM;
	struct boot_plan plan = { .kernel = config->kernel,
		                  .kernel_fd = config->kernel_fd,
		                  .kernel_size = config->kernel_size,
		                  .nr_vcpus = config->nr_vcpus,
		                  .nr_disks = config->nr_disks,
		                  .vmgenid = vm_vmgenid(vm) };
	int ret;

	if (asprintf(&cmdline, "%s%s%s %s", CMDLINE_ALL, pvm ? CMDLINE_PVM : "",
	             pvm && __builtin_cpu_supports("avx512f") ? ENVIRONMENT_AVX512 : "",
	             config->cmdline ? config->cmdline : "") < 0)
		return err_set(err, -ENOMEM, "command line: out of memory");
	plan.cmdline = cmdline;
	ret = random_fill(plan.rng_seed, sizeof(plan.rng_seed), err);
	return ret < 0 ? ret : boot_load(&vm->mem, &plan, regs, err);
}

static int boot_vcpus(struct vm *vm, const struct boot_regs *regs, struct err *err)
{
	int ret = kvm_vm_create(&vm->kvm, err);

	if (ret == 0)
		ret = kvm_vm_set_up(&vm->kvm, &vm->mem, err);
	for (unsigned i = 0; ret == 0 && i < vm->nr_vcpus; i++) {
		ret = vcpu_open(&vm->vcpu[i], &vm->kvm, err);
		if (ret == 0)
			ret = cpu_boot(&vm->kvm, vm->vcpu[i].fd, i, regs, err);
		if (ret == 0)
			ret = vcpu_start(&vm->vcpu[i], err);
	}
	return ret;
}

int vm_boot(struct vm *vm, struct vm_boot_config *config, struct err *err)
{
	struct boot_regs regs;
	int ret;

	vm->serial_out = config->serial_out;
	vm->serial_in = config->serial_in;
	if (config->nr_vcpus < 1 || config->nr_vcpus > SNAPSHOT_MAX_VCPUS)
		return err_set(err, -EINVAL, "%u vCPUs: want 1 to %u", config->nr_vcpus,
		               SNAPSHOT_MAX_VCPUS);
	ret = gmem_open(&vm->mem, config->memory_size, LAYOUT_HOLE_START, LAYOUT_HOLE_END, -1);
	if (ret < 0)
		return err_set(err, ret, "guest memory of %llu bytes: %s",
		               (unsigned long long)config->memory_size, strerror(-ret));
	vm->gsym = config->gsym;
	ret = boot_kernel(vm, config, &regs, err);
	if (ret == 0)
		ret = vm_open_devices(vm, &config->files->vsock, config->serial_hold, err);
	for (unsigned i = 0; ret == 0 && i < config->nr_disks; i++)
		ret = vm_open_disk(vm, i, fd_take(&config->disk[i].fd), &config->disk[i].info,
		                   fd_take(&config->files->overlay_fd[i]), err);
	for (unsigned i = 0; i < config->nr_vcpus; i++)
		vcpu_init(&vm->vcpu[i], i, &vm->vcpu_host);
	vm->nr_vcpus = config->nr_vcpus;
	if (ret == 0)
		ret = boot_vcpus(vm, &regs, err);
	if (ret == 0)
		ret = vm_confine(vm, config->files->vsock_window >= 0 ? SECCOMP_LOOP_UNIX : 0u,
		                 err);
	if (ret < 0)
		return ret;
	vm->stage = VM_LIVE;
	vm_interrupts_on(vm);
	vm_resume(vm);
	return 0;
}

int vm_confine(struct vm *vm, unsigned extras, struct err *err)
{
	int ret;

	extras |= trace_is_due() ? SECCOMP_LOOP_TRACE : 0u;
	trace_begin("system call filter");
	ret = seccomp_enter(SECCOMP_LOOP | extras, err);
	trace_end("system call filter", extras);
	vm->confined = ret == 0;
	return ret;
}

void vm_pause(struct vm *vm)
{
	for (unsigned i = 0; i < vm->nr_vcpus; i++)
		vcpu_pause(&vm->vcpu[i]);
	idle_leave(vm);
	vm->running = false;
}

void vm_resume(struct vm *vm)
{
	if (vm->running)
		return;
	BUG_ON(!vm->confined);
	serial_start(vm->serial);
	for (unsigned i = 0; i < LAYOUT_VIRTIO_SLOTS; i++)
		if (vm->slot[i])
			vdev_resume(vm->slot[i]);
	idle_leave(vm);
	for (unsigned i = 0; i < vm->nr_vcpus; i++)
		vcpu_run(&vm->vcpu[i]);
	vm->running = true;
}

int vm_connect(struct vm *vm, int fd, uint32_t port, struct err *err)
{
	return idle_adopt(vm, fd, port) ? 0 : vsock_connect(vm->vsock, fd, port, VSOCK_NOW, err);
}

static json_t *exits_json(const struct vcpu *vcpu)
{
	return json_pack("{s:I, s:I, s:I, s:I}", "mmio", (json_int_t)vcpu->exits.mmio, "io",
	                 (json_int_t)vcpu->exits.io, "interrupted",
	                 (json_int_t)vcpu->exits.interrupted, "other",
	                 (json_int_t)vcpu->exits.other);
}

int vm_record(struct vm *vm, int before_fd, int fd, struct err *err)
{
	if (vm->pagemap_fd < 0)
		return err_set(err, -EINVAL, "workset: this machine was not thawed with `record`");
	vm_pause(vm);
	vm->watch.pagemap_fd = vm->pagemap_fd;
	return pagein_record(&vm->mem, &vm->watch, before_fd, fd, vm->snapshot_id, err);
}

/* A vCPU that sleeps in KVM_RUN holds its lock: it must come out once, and never again for this. */
static void open_stats(struct vm *vm)
{
	if (vm->vm_stats_fd >= 0)
		return;
	vm->vm_stats_fd = kvm_stats_open(vm->kvm.fd);
	vcpu_pause(&vm->vcpu[0]);
	vm->vcpu_stats_fd = kvm_stats_open(vm->vcpu[0].fd);
	idle_leave(vm);
	if (vm->running)
		vcpu_run(&vm->vcpu[0]);
}

json_t *vm_stats(struct vm *vm)
{
	struct vsock_stats v;
	json_t *all = json_object();

	open_stats(vm);
	vsock_stats(vm->vsock, &v);
	json_object_set_new(all, "vm", kvm_stats(vm->vm_stats_fd));
	json_object_set_new(all, "vcpu", kvm_stats(vm->vcpu_stats_fd));
	json_object_set_new(all, "exits", exits_json(&vm->vcpu[0]));
	json_object_set_new(all, "loop", json_string(loop_engine_name(&vm->loop)));
	json_object_set_new(all, "memory", memory_json(vm));
	json_object_set_new(all, "disks", limits_disks_json(vm));
	json_object_set_new(all, "vsock",
	                    json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o}", "opened",
	                              (json_int_t)v.opened, "closed", (json_int_t)v.closed,
	                              "refused", (json_int_t)v.refused, "bytes_to_guest",
	                              (json_int_t)v.bytes_to_guest, "bytes_to_host",
	                              (json_int_t)v.bytes_to_host, "live", (int)v.live,
	                              "throttle_to_guest", limits_throttle_json(&v.to_guest),
	                              "throttle_to_host", limits_throttle_json(&v.to_host)));
	return all;
}
