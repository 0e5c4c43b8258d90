/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/vcpu.h"

#include "core/log.h"
#include "core/own.h"
#include "vmm/clock.h"
#include "vmm/cpu.h"
#include "vmm/seccomp.h"
#include "vmm/trace.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

/* The 8042 keyboard controller's command port: pulsing its reset line is how Linux reboots first. */
#define PORT_8042   0x64
#define PULSE_RESET 0xfe

const char *vcpu_end_name(enum vcpu_end end)
{
	static const char *const name[] = {
		[VCPU_END_SHUTDOWN] = "shutdown",
		[VCPU_END_REBOOT] = "reboot",
		[VCPU_END_TRIPLE_FAULT] = "triple-fault",
		[VCPU_END_KVM_ERROR] = "kvm-error",
	};

	return name[end];
}

void vcpu_init(struct vcpu *vcpu, unsigned id, const struct vcpu_host *host)
{
	*vcpu = (struct vcpu){ .fd = -1, .id = id, .host = host };
	atomic_init(&vcpu->want, VCPU_PAUSE);
	pthread_mutex_init(&vcpu->lock, NULL);
	pthread_cond_init(&vcpu->cond, NULL);
}

int vcpu_open(struct vcpu *vcpu, const struct kvm_vm *vm, struct err *err)
{
	int size = KVM_DO(vm->sys_fd, KVM_GET_VCPU_MMAP_SIZE, 0, err);
	void *run;

	if (size < 0)
		return size;
	vcpu->fd = KVM_DO(vm->fd, KVM_CREATE_VCPU, vcpu->id, err);
	if (vcpu->fd < 0)
		return vcpu->fd;
	trace_begin("shared page mapped");
	run = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
	trace_end("shared page mapped", (uint64_t)size);
	if (run == MAP_FAILED)
		return err_set(err, -errno, "vCPU %u: mmap of its shared page: %s", vcpu->id,
		               strerror(errno));
	vcpu->run = run;
	vcpu->run_len = (size_t)size;
	return 0;
}

static void on_kick(int sig)
{
	(void)sig; /* its only work is to interrupt KVM_RUN */
}

static int kick_signal(void)
{
	return SIGRTMIN;
}

/* KVM reads it whenever KVM_RUN is entered; other threads set it to make that return. */
static void set_immediate_exit(struct vcpu *vcpu, uint8_t value)
{
	__atomic_store_n(&vcpu->run->immediate_exit, value, __ATOMIC_RELAXED);
}

static void end(struct vcpu *vcpu, enum vcpu_end why, const char *detail)
{
	atomic_store(&vcpu->dead, true);
	vcpu->host->ended(vcpu->host->ctx, why, detail);
}

static void end_with_registers(struct vcpu *vcpu, enum vcpu_end why, const char *what)
{
	char regs[768], text[1024];

	cpu_describe(vcpu->fd, vcpu->run, regs, sizeof(regs));
	(void)snprintf(text, sizeof(text), "vCPU %u: %s; %s", vcpu->id, what, regs);
	end(vcpu, why, text);
}

/* There are no I/O ports in this machine: reads float high, but for a keyboard controller that is ready. */
static void on_io(struct vcpu *vcpu)
{
	struct kvm_run *run = vcpu->run;
	uint8_t *data = (uint8_t *)run + run->io.data_offset;

	if (run->io.direction == KVM_EXIT_IO_IN)
		memset(data, run->io.port == PORT_8042 ? 0 : 0xff,
		       (size_t)run->io.size * run->io.count);
	else if (run->io.port == PORT_8042 && run->io.size == 1 && data[0] == PULSE_RESET)
		end(vcpu, VCPU_END_REBOOT, "the guest asked for a reset (reboot, or a panic)");
}

static void on_mmio(struct vcpu *vcpu)
{
	const struct vcpu_host *host = vcpu->host;
	struct kvm_run *run = vcpu->run;

	if (run->mmio.is_write)
		host->mmio_write(host->ctx, run->mmio.phys_addr, run->mmio.data, run->mmio.len);
	else
		host->mmio_read(host->ctx, run->mmio.phys_addr, run->mmio.data, run->mmio.len);
}

static void on_internal_error(struct vcpu *vcpu)
{
	static const char *const name[] = {
		[KVM_INTERNAL_ERROR_EMULATION] = "instruction not emulated",
		[KVM_INTERNAL_ERROR_SIMUL_EX] = "simultaneous exceptions",
		[KVM_INTERNAL_ERROR_DELIVERY_EV] = "event delivery failed"
	};
	uint32_t sub = vcpu->run->internal.suberror;
	char text[96];

	(void)snprintf(text, sizeof(text), "KVM internal error %u (%s)", sub,
	               sub < ARRAY_LEN(name) && name[sub] ? name[sub] : "unknown");
	end_with_registers(vcpu, VCPU_END_KVM_ERROR, text);
}

static void on_exit_reason(struct vcpu *vcpu)
{
	char text[96];

	switch (vcpu->run->exit_reason) {
	case KVM_EXIT_MMIO:
		atomic_fetch_add_explicit(&vcpu->exits.mmio, 1, memory_order_relaxed);
		trace_begin("exit: mmio");
		on_mmio(vcpu);
		trace_end("exit: mmio", vcpu->run->mmio.phys_addr);
		return;
	case KVM_EXIT_IO:
		atomic_fetch_add_explicit(&vcpu->exits.io, 1, memory_order_relaxed);
		trace_point("exit: io", vcpu->run->io.port);
		on_io(vcpu);
		return;
	case KVM_EXIT_INTR:
		atomic_fetch_add_explicit(&vcpu->exits.interrupted, 1, memory_order_relaxed);
		trace_point("exit: interrupted", 0);
		return;
	case KVM_EXIT_SHUTDOWN:
		end_with_registers(vcpu, VCPU_END_TRIPLE_FAULT, "triple fault");
		return;
	case KVM_EXIT_INTERNAL_ERROR:
		on_internal_error(vcpu);
		return;
	case KVM_EXIT_FAIL_ENTRY:
		(void)snprintf(text, sizeof(text), "VM entry failed, hardware reason 0x%llx",
		               vcpu->run->fail_entry.hardware_entry_failure_reason);
		end_with_registers(vcpu, VCPU_END_KVM_ERROR, text);
		return;
	default:
		atomic_fetch_add_explicit(&vcpu->exits.other, 1, memory_order_relaxed);
		trace_point("exit: other", vcpu->run->exit_reason);
		(void)snprintf(text, sizeof(text), "unexpected exit %u", vcpu->run->exit_reason);
		end_with_registers(vcpu, VCPU_END_KVM_ERROR, text);
	}
}

static bool may_run(const struct vcpu *vcpu)
{
	return atomic_load(&vcpu->want) == VCPU_RUN && !atomic_load(&vcpu->dead);
}

/* After an MMIO or PIO exit the registers are right only when KVM has been entered once more. */
static void complete_exit(struct vcpu *vcpu)
{
	set_immediate_exit(vcpu, 1);
	if (ioctl(vcpu->fd, KVM_RUN, 0) == 0)
		log_warn("vCPU %u: exit %u while completing one", vcpu->id, vcpu->run->exit_reason);
}

static void run_guest(struct vcpu *vcpu)
{
	while (may_run(vcpu)) {
		int ret;

		trace_begin("KVM_RUN");
		ret = ioctl(vcpu->fd, KVM_RUN, 0);
		trace_end("KVM_RUN", vcpu->run->exit_reason);
		if (ret == 0) {
			on_exit_reason(vcpu);
		} else if (errno == EINTR || errno == EAGAIN) {
			atomic_fetch_add_explicit(&vcpu->exits.interrupted, 1,
			                          memory_order_relaxed);
			trace_point("exit: interrupted", 0);
		} else {
			char text[96];

			(void)snprintf(text, sizeof(text), "KVM_RUN: %s", strerror(errno));
			end_with_registers(vcpu, VCPU_END_KVM_ERROR, text);
		}
	}
	if (!atomic_load(&vcpu->dead))
		complete_exit(vcpu);
}

/* Under the lock, which is let go meanwhile. */
static void do_job(struct vcpu *vcpu)
{
	struct err err = { 0 };
	int ret;

	vcpu->parked = false;
	pthread_mutex_unlock(&vcpu->lock);
	ret = vcpu->job(vcpu->job_ctx, &err);
	pthread_mutex_lock(&vcpu->lock);
	vcpu->job = NULL;
	vcpu->job_ret = ret;
	vcpu->job_err = err;
	vcpu->parked = true;
	trace_point("signal: the vCPU's thread", 0);
	pthread_cond_broadcast(&vcpu->cond);
}

/* Under the lock, which is let go meanwhile. */
static void await_work(struct vcpu *vcpu)
{
	trace_begin("wait: work");
	pthread_cond_wait(&vcpu->cond, &vcpu->lock);
	trace_end("wait: work", 0);
}

static bool may_leave(const struct vcpu *vcpu)
{
	int want = atomic_load(&vcpu->want);

	return want == VCPU_QUIT || (want == VCPU_RUN && !atomic_load(&vcpu->dead));
}

/* Parked until there is something to run. False: quit. */
static bool stand_by(struct vcpu *vcpu)
{
	uint64_t now_ns;
	bool run;

	pthread_mutex_lock(&vcpu->lock);
	vcpu->parked = true;
	pthread_cond_broadcast(&vcpu->cond);
	while (vcpu->job || !may_leave(vcpu)) {
		if (vcpu->job)
			do_job(vcpu);
		else
			await_work(vcpu);
	}
	run = atomic_load(&vcpu->want) == VCPU_RUN;
	if (run) {
		vcpu->parked = false;
		set_immediate_exit(vcpu, 0);
		now_ns = clock_mono_ns();
		vcpu->lag_ns = now_ns - vcpu->told_ns;
		if (!vcpu->run_ns)
			vcpu->run_ns = now_ns;
		trace_begin("loop told");
		pthread_cond_broadcast(&vcpu->cond);
	}
	pthread_mutex_unlock(&vcpu->lock);
	if (run)
		trace_end("loop told", 0);
	return run;
}

int vcpu_confine(struct vcpu *vcpu, bool waits, struct err *err)
{
	unsigned who = SECCOMP_VCPU | (waits ? SECCOMP_VCPU_WAITS : 0u) |
	               (trace_on() ? SECCOMP_VCPU_TRACE : 0u);
	int ret;

	trace_begin("system call filter");
	ret = seccomp_enter(who, err);
	trace_end("system call filter", who);
	vcpu->confined = ret == 0;
	return ret < 0 ? err_wrap(err, "vCPU %u", vcpu->id) : 0;
}

/* Nothing runs in a thread that could do anything. */
static void confine_at_last(struct vcpu *vcpu)
{
	struct err err;

	if (!vcpu->confined && vcpu_confine(vcpu, false, &err) < 0)
		end(vcpu, VCPU_END_KVM_ERROR, err.msg);
}

static void *vcpu_main(void *arg)
{
	struct vcpu *vcpu = arg;
	bool run;

	trace_thread(TRACE_VCPU + vcpu->id);
	trace_point("thread runs", 0);
	run = stand_by(vcpu);
	/* From here on where the scheduler wants it. */
	(void)sched_setaffinity(0, sizeof(vcpu->cpus), &vcpu->cpus);
	if (run)
		confine_at_last(vcpu);
	for (; run; run = stand_by(vcpu)) {
		trace_counters(TRACE_AT_RUN, vcpu);
		run_guest(vcpu);
	}
	return NULL;
}

/*
 * The starter has work of its own while the thread makes the machine: on the same CPU the two would take turns
 * of milliseconds.
 */
static void start_elsewhere(struct vcpu *vcpu, pthread_attr_t *attr)
{
	int here = sched_getcpu();
	cpu_set_t others;

	if (sched_getaffinity(0, sizeof(vcpu->cpus), &vcpu->cpus) < 0)
		memset(&vcpu->cpus, 0xff, sizeof(vcpu->cpus));
	others = vcpu->cpus;
	if (here >= 0)
		CPU_CLR((size_t)here, &others);
	if (CPU_COUNT(&others))
		(void)pthread_attr_setaffinity_np(attr, sizeof(others),
		                                  &others); /* then: anywhere */
}

int vcpu_start(struct vcpu *vcpu, struct err *err)
{
	struct sigaction action = { .sa_handler = on_kick };
	pthread_attr_t attr;
	int ret;

	sigaction(kick_signal(), &action, NULL);
	pthread_attr_init(&attr);
	start_elsewhere(vcpu, &attr);
	ret = pthread_create(&vcpu->thread, &attr, vcpu_main, vcpu);
	pthread_attr_destroy(&attr);
	if (ret) {
		err_set(err, -ret, "vCPU %u: no thread: %s", vcpu->id, strerror(ret));
		return err_remedy(
			err, "raise the limit of processes (ulimit -u) or the cgroup's pids.max");
	}
	vcpu->started = true;
	return 0;
}

void vcpu_call(struct vcpu *vcpu, int (*job)(void *ctx, struct err *err), void *ctx)
{
	pthread_mutex_lock(&vcpu->lock);
	vcpu->job = job;
	vcpu->job_ctx = ctx;
	trace_point("signal: work", 0);
	pthread_cond_broadcast(&vcpu->cond);
	pthread_mutex_unlock(&vcpu->lock);
}

int vcpu_wait_job(struct vcpu *vcpu, struct err *err)
{
	int ret;

	trace_begin("wait: the vCPU's thread");
	pthread_mutex_lock(&vcpu->lock);
	while (vcpu->job)
		pthread_cond_wait(&vcpu->cond, &vcpu->lock);
	trace_end("wait: the vCPU's thread", 0);
	ret = vcpu->job_ret;
	if (ret < 0)
		*err = vcpu->job_err;
	pthread_mutex_unlock(&vcpu->lock);
	return ret;
}

void vcpu_run(struct vcpu *vcpu)
{
	pthread_mutex_lock(&vcpu->lock);
	vcpu->told_ns = clock_mono_ns();
	atomic_store(&vcpu->want, VCPU_RUN);
	trace_point("signal: work", 0);
	pthread_cond_broadcast(&vcpu->cond);
	pthread_mutex_unlock(&vcpu->lock);
}

uint64_t vcpu_lag_ns(struct vcpu *vcpu)
{
	uint64_t ns;

	pthread_mutex_lock(&vcpu->lock);
	ns = vcpu->lag_ns;
	pthread_mutex_unlock(&vcpu->lock);
	return ns;
}

uint64_t vcpu_wait_running(struct vcpu *vcpu)
{
	uint64_t ns;

	trace_begin("wait: the guest runs");
	pthread_mutex_lock(&vcpu->lock);
	while (!vcpu->run_ns)
		pthread_cond_wait(&vcpu->cond, &vcpu->lock);
	trace_end("wait: the guest runs", 0);
	ns = vcpu->run_ns;
	pthread_mutex_unlock(&vcpu->lock);
	return ns;
}

void vcpu_forget_run(struct vcpu *vcpu)
{
	pthread_mutex_lock(&vcpu->lock);
	vcpu->run_ns = 0;
	pthread_mutex_unlock(&vcpu->lock);
}

static void kick(struct vcpu *vcpu, enum vcpu_want want)
{
	atomic_store(&vcpu->want, want);
	if (vcpu->run)
		set_immediate_exit(vcpu, 1);
	pthread_kill(vcpu->thread, kick_signal());
	pthread_cond_broadcast(&vcpu->cond);
}

void vcpu_pause(struct vcpu *vcpu)
{
	pthread_mutex_lock(&vcpu->lock);
	if (!vcpu->parked)
		kick(vcpu, VCPU_PAUSE);
	else
		atomic_store(&vcpu->want, VCPU_PAUSE);
	while (!vcpu->parked)
		pthread_cond_wait(&vcpu->cond, &vcpu->lock);
	pthread_mutex_unlock(&vcpu->lock);
}

void vcpu_park_here(struct vcpu *vcpu)
{
	pthread_mutex_lock(&vcpu->lock);
	if (atomic_load(&vcpu->want) == VCPU_RUN)
		atomic_store(&vcpu->want, VCPU_PAUSE);
	pthread_mutex_unlock(&vcpu->lock);
}

bool vcpu_quitting(const struct vcpu *vcpu)
{
	return atomic_load(&vcpu->want) == VCPU_QUIT;
}

void vcpu_close(struct vcpu *vcpu)
{
	if (vcpu->started) {
		pthread_mutex_lock(&vcpu->lock);
		kick(vcpu, VCPU_QUIT);
		pthread_mutex_unlock(&vcpu->lock);
		pthread_join(vcpu->thread, NULL);
		vcpu->started = false;
	}
	if (vcpu->run)
		munmap(vcpu->run, vcpu->run_len);
	vcpu->run = NULL;
	own_close_fd(&vcpu->fd);
	vcpu->fd = -1;
}
