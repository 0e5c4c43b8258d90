/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual CPU: one thread that runs the guest, or stands parked outside KVM_RUN with its last exit
 * completed, which is the only time when its registers mean anything. Nothing here waits for a
 * device: accesses are answered by the vcpu_host.
 */
#ifndef VMM_VCPU_H
#define VMM_VCPU_H

#include "core/err.h"
#include "vmm/kvm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Why a guest ended, for people and scripts ("shutdown", "kvm-error", ...). */
enum vcpu_end {
	VCPU_END_SHUTDOWN, /* the guest powered itself off */
	VCPU_END_REBOOT,   /* by the keyboard controller, which Linux tries first; also a panic */
	VCPU_END_TRIPLE_FAULT, /* KVM_EXIT_SHUTDOWN */
	VCPU_END_KVM_ERROR,    /* KVM could not go on */
};
const char *vcpu_end_name(enum vcpu_end end);

/* Called on the vCPU's thread. */
struct vcpu_host {
	void (*mmio_read)(void *ctx, uint64_t addr, void *data, uint32_t n);
	void (*mmio_write)(void *ctx, uint64_t addr, const void *data, uint32_t n);
	void (*ended)(void *ctx, enum vcpu_end end, const char *detail);
	void *ctx;
};

enum vcpu_want { VCPU_PAUSE, VCPU_RUN, VCPU_QUIT };

/* How often the guest has left KVM_RUN, by reason. */
struct vcpu_exits {
	_Atomic uint64_t mmio, io, interrupted, other;
};

struct vcpu {
	int fd;              /* owned; const after open */
	struct kvm_run *run; /* owned mapping; const after open */
	size_t run_len;
	unsigned id;
	const struct vcpu_host *host;
	pthread_t thread;
	cpu_set_t cpus; /* on which the thread may run; const after start */
	bool confined;  /* its system call filter is on; the thread's own */
	bool started;
	struct vcpu_exits exits;
	_Atomic int want;  /* enum vcpu_want; written under lock */
	_Atomic bool dead; /* the guest has ended */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool parked;                            /* lock */
	int (*job)(void *ctx, struct err *err); /* lock: NULL when it is done */
	void *job_ctx;                          /* lock */
	int job_ret;                            /* lock */
	struct err job_err;                     /* lock */
	uint64_t
		run_ns; /* lock: CLOCK_MONOTONIC just before the first KVM_RUN since vcpu_forget_run() */
	uint64_t told_ns; /* lock: CLOCK_MONOTONIC at vcpu_run() */
	uint64_t lag_ns;  /* lock: from there until the thread ran, the last time */
};

/* Makes the object; no KVM object yet. */
void vcpu_init(struct vcpu *vcpu, unsigned id, const struct vcpu_host *host);
/* KVM_CREATE_VCPU and its shared page. Once, by the thread that will use it or before that starts. */
NODISCARD int vcpu_open(struct vcpu *vcpu, const struct kvm_vm *vm, struct err *err);
/* Starts the thread, which stands parked until vcpu_run(). -errno when there can be no thread. */
NODISCARD int vcpu_start(struct vcpu *vcpu, struct err *err);
/*
 * Has the parked thread call job(ctx, err), and returns at once; `ctx` must live until vcpu_wait_job(),
 * which returns the result. One job at a time. Any thread but the vCPU's.
 */
void vcpu_call(struct vcpu *vcpu, int (*job)(void *ctx, struct err *err), void *ctx);
NODISCARD int vcpu_wait_job(struct vcpu *vcpu, struct err *err);

/*
 * Puts the system call filter on the thread, for one that `waits` with room for the rest of a thaw (seccomp.h).
 * Once, on the vCPU's thread; without it the thread does so itself, just before the guest runs.
 */
NODISCARD int vcpu_confine(struct vcpu *vcpu, bool waits, struct err *err);

/* Lets the guest run. Any thread but the vCPU's. */
void vcpu_run(struct vcpu *vcpu);
/* Waits until the thread has left its parking place for the first time: vcpu->run_ns. */
uint64_t vcpu_wait_running(struct vcpu *vcpu);
/* How long the thread had to wait for a processor when it was last let run, ns. Any thread. */
uint64_t vcpu_lag_ns(struct vcpu *vcpu);
/* The next run counts as the first. The vCPU is parked. */
void vcpu_forget_run(struct vcpu *vcpu);
/* Parks the vCPU and waits for it. Any thread but the vCPU's. */
void vcpu_pause(struct vcpu *vcpu);
/* Parks at the end of the exit that is being handled. The vCPU's thread. */
void vcpu_park_here(struct vcpu *vcpu);
/* True when a wait on the vCPU's thread must end because the monitor does. */
bool vcpu_quitting(const struct vcpu *vcpu);

/* Ends the thread and frees all. Safe after init; idempotent. */
void vcpu_close(struct vcpu *vcpu);

#endif
