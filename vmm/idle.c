/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/idle.h"

#include "core/log.h"
#include "vmm/clock.h"
#include "vmm/thaw.h"
#include "vmm/vm.h"

#include <errno.h>
#include <poll.h>

#define NS_PER_SEC 1000000000ull
#define NS_PER_MS  1000000ull
/*
 * What has no timer that we can see (the kernel's coarse ones: write-back, retransmissions) waits that long at
 * first, then four times as long each time. A look costs some 20,000 instructions of the guest's kernel.
 */
#define PATIENCE_MIN_NS NS_PER_SEC
#define PATIENCE_MAX_NS (64 * NS_PER_SEC)
#define PATIENCE_STEP   4u
/* A timer that is due is on its way as an interrupt. */
#define DUE_NS 200000u
/* More a guest's own timers are not to be late for the sake of a cell. */
#define LAG_MAX_MS 1000u
/* A guest that stood still for longer would take it for a hang of its own. */
#define UNNOTICED_NS NS_PER_SEC

static struct vm *vm_of(struct idle *idle)
{
	return container_of(idle, struct vm, idle);
}

static struct vcpu *the_vcpu(struct vm *vm)
{
	return &vm->vcpu[0];
}

/* ---- away from NEXT ---- */

void idle_leave(struct vm *vm)
{
	struct err ignored;

	atomic_store(&vm->idle.at_next, false);
	if (!atomic_exchange(&vm->idle.on, false))
		return;
	vm->idle.seen = atomic_load(&vm->idle.interrupts);
	if (clock_mono_ns() - vm->idle.since_ns > UNNOTICED_NS)
		(void)KVM_DO(the_vcpu(vm)->fd, KVM_KVMCLOCK_CTRL, 0, &ignored);
}

/* The interpreter's read gives `value`; it stands one instruction after it. */
static void go_on(struct vm *vm, uint32_t value)
{
	struct vcpu *vcpu = the_vcpu(vm);
	struct kvm_regs regs;
	struct err err;
	int ret = 0;

	if (value != DOORBELL_LOOK) {
		ret = KVM_DO(vcpu->fd, KVM_GET_REGS, &regs, &err);
		regs.rax = value;
		if (ret >= 0)
			ret = KVM_DO(vcpu->fd, KVM_SET_REGS, &regs, &err);
	}
	if (ret < 0)
		log_warn("an idle guest: %s", err.msg);
	idle_leave(vm);
	vcpu_run(vcpu);
}

/*
 * A cell is not to begin with the ticks that the guest has missed, nor with those that it will miss before the vCPU
 * gets a processor: on software KVM a tick can use up all that it gets then, and the cell would wait for the next.
 */
static void put_off_tick(struct vm *vm)
{
	uint64_t lag_ms = vcpu_lag_ns(the_vcpu(vm)) * 2 / NS_PER_MS;
	unsigned ahead_ms = CPU_AHEAD_MS + (unsigned)(lag_ms < LAG_MAX_MS ? lag_ms : LAG_MAX_MS);
	struct err err;

	if (atomic_load(&vm->idle.on) &&
	    cpu_put_off_tick(the_vcpu(vm)->fd, vm->source->machine.cpu[0].tsc_khz, ahead_ms, &err) <
	            0)
		log_warn("an idle guest: %s", err.msg);
}

/* From here on the stream goes by vsock. */
static void serve(struct vm *vm)
{
	struct err err = { 0 };

	(void)loop_reap(&vm->loop, &vm->idle.request_op);
	atomic_store(&vm->idle.serve, true);
	vm->bell.s.phase = DOORBELL_VSOCK;
	if (vm->first.fd >= 0 && vm_connect_first(vm, &err) < 0)
		log_warn("first stream: %s", err.msg);
	go_on(vm, DOORBELL_SERVED);
}

/* ---- at NEXT ---- */

static uint64_t next_timer_ns(struct vm *vm)
{
	struct kvm_clock_data clock = { 0 };
	struct err err;

	if (KVM_DO(vm->kvm.fd, KVM_GET_CLOCK, &clock, &err) < 0)
		return UINT64_MAX;
	return guestsym_next_timer(&vm->mem, &vm->gsym, clock.clock);
}

static void await_request(struct vm *vm)
{
	if (vm->first.fd >= 0 && !vm->idle.request_op.busy)
		loop_poll(&vm->loop, &vm->idle.request_op, vm->first.fd, POLLIN);
}

/* Waits for a request, or for the time when the guest has something to do by itself. */
static void stand(struct vm *vm)
{
	struct idle *idle = &vm->idle;
	uint64_t timer = next_timer_ns(vm);

	atomic_store(&idle->on, true);
	idle->since_ns = clock_mono_ns();
	if (timer < DUE_NS)
		timer = DUE_NS;
	if (timer > idle->patience_ns) {
		timer = idle->patience_ns;
		if (idle->patience_ns < PATIENCE_MAX_NS)
			idle->patience_ns *= PATIENCE_STEP;
	}
	(void)loop_reap(&vm->loop, &idle->timer_op);
	loop_timer(&vm->loop, &idle->timer_op, timer);
	await_request(vm);
}

/* True: a request is in the mailbox, or its stream is the device's; the guest goes on. */
static bool take_request(struct vm *vm)
{
	struct iovec request;
	int ret = first_next(&vm->first);

	if (ret == -EPIPE) {
		(void)loop_reap(&vm->loop, &vm->idle.request_op);
		first_close(&vm->first);
	}
	if (ret == 0 || ret == -EPIPE)
		return false;
	request = first_request(&vm->first);
	if (ret > 0)
		ret = doorbell_put(&vm->bell, 0, request.iov_base, request.iov_len);
	if (ret < 0) {
		serve(vm); /* the stream begins with it */
		return true;
	}
	first_give(&vm->first);
	vm->idle.patience_ns = PATIENCE_MIN_NS;
	vm->bell.s.phase = DOORBELL_FIRST;
	put_off_tick(vm);
	go_on(vm, (uint32_t)request.iov_len);
	return true;
}

static void on_request(struct loop_op *op, int res)
{
	struct vm *vm = vm_of(container_of(op, struct idle, request_op));

	if (res != -ECANCELED && atomic_load(&vm->idle.on) && !take_request(vm))
		await_request(vm);
}

static void on_stands(struct loop_event *event)
{
	struct idle *idle = container_of(event, struct idle, stands);
	struct vm *vm = vm_of(idle);
	uint32_t interrupts = atomic_load(&idle->interrupts);

	if (!atomic_load(&idle->at_next))
		return; /* it was paused, and will read it again */
	vcpu_pause(the_vcpu(vm));
	if (atomic_load(&idle->serve)) {
		serve(vm);
	} else if (take_request(vm)) {
		return;
	} else if (interrupts != idle->seen) {
		idle->seen = interrupts;
		idle->patience_ns = PATIENCE_MIN_NS;
		go_on(vm, DOORBELL_LOOK);
	} else if (guestsym_nr_running(&vm->mem, &vm->gsym) > 1) {
		go_on(vm, DOORBELL_YIELD);
	} else {
		stand(vm);
	}
}

static void on_look(struct loop_event *event)
{
	struct vm *vm = vm_of(container_of(event, struct idle, look));

	if (!atomic_load(&vm->idle.on))
		return;
	vm->idle.patience_ns = PATIENCE_MIN_NS;
	if (atomic_load(&vm->idle.serve))
		serve(vm);
	else
		go_on(vm, DOORBELL_LOOK);
}

static void on_timer(struct loop_op *op, int res)
{
	struct vm *vm = vm_of(container_of(op, struct idle, timer_op));

	if (res != -ECANCELED && atomic_load(&vm->idle.on))
		go_on(vm, DOORBELL_LOOK);
}

/* ---- what others say ---- */

uint32_t idle_next(struct vm *vm)
{
	atomic_store(&vm->idle.at_next, true);
	vcpu_park_here(the_vcpu(vm));
	loop_post(&vm->loop, &vm->idle.stands);
	return DOORBELL_LOOK;
}

void idle_interrupted(struct vm *vm)
{
	if (!vm->idle.able)
		return;
	atomic_fetch_add(&vm->idle.interrupts, 1);
	if (atomic_load(&vm->idle.on))
		loop_post(&vm->loop, &vm->idle.look);
}

void idle_port_asked(struct vm *vm, uint32_t port)
{
	if (!vm->idle.able || port != vm->bell.s.port)
		return;
	atomic_store(&vm->idle.serve, true);
	loop_post(&vm->loop, &vm->idle.look);
}

bool idle_adopt(struct vm *vm, int fd, uint32_t port)
{
	struct idle *idle = &vm->idle;

	if (!idle->able || port != vm->bell.s.port || atomic_load(&idle->serve))
		return false;
	/* One whose peer has gone makes room. */
	if (vm->first.fd >= 0 && (!atomic_load(&idle->on) || take_request(vm) || vm->first.fd >= 0))
		return false;
	first_open(&vm->first, fd);
	if (atomic_load(&idle->on) && !take_request(vm))
		await_request(vm);
	return true;
}

/* ---- its life ---- */

void idle_init(struct vm *vm)
{
	vm->idle.patience_ns = PATIENCE_MIN_NS;
	vm->idle.timer_op.done = on_timer;
	vm->idle.request_op.done = on_request;
	vm->idle.stands.fire = on_stands;
	vm->idle.look.fire = on_look;
}

void idle_set_up(struct vm *vm)
{
	vm->idle.able = vm->nr_vcpus == 1 && guestsym_can_idle(&vm->gsym);
	if (!vm->idle.able && vm->bell.s.phase == DOORBELL_DONE)
		vm->bell.s.phase = DOORBELL_VSOCK;
}
