/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between two requests to its default context a guest stands still: the interpreter reads NEXT
 * (docs/protocol.md section 5), and the vCPU stays parked in that exit for as long as nothing in the guest wants
 * the processor. It goes on for a request (which is in the mailbox then), for an interrupt, when a timer of
 * the guest is due, and now and then for what the guest's kernel does in its own time. So a sandbox that waits uses
 * no CPU, and a later cell costs what the first cell of a standby does.
 *
 * That needs to know the guest's kernel (guestsym_can_idle()) and is for one vCPU; otherwise the interpreter is told
 * at its first NEXT to serve its stream by vsock. So it is, for good, when somebody asks for its port by vsock,
 * or when a request does not fit the mailbox.
 *
 * All for the loop's thread, where nothing else is said.
 */
#ifndef VMM_IDLE_H
#define VMM_IDLE_H

#include "core/loop.h"

#include <stdatomic.h>

struct vm;

struct idle {
	bool able;                   /* const while the guest runs */
	_Atomic bool at_next;        /* the vCPU has read NEXT and not run since */
	_Atomic bool on;             /* it stays there */
	_Atomic bool serve;          /* by vsock from the next NEXT on */
	_Atomic uint32_t interrupts; /* sent to the guest so far */
	uint32_t seen;               /* of these: before the vCPU last went on */
	uint64_t patience_ns;        /* until the guest may look around without a reason */
	uint64_t since_ns;           /* CLOCK_MONOTONIC, when it came to stay */
	struct loop_op timer_op, request_op;
	struct loop_event stands, look;
};

/* Nothing is there yet. */
void idle_init(struct vm *vm);
/* The machine is known: whether it can idle. Its doorbell's phase follows. No vCPU runs. */
void idle_set_up(struct vm *vm);

/* The interpreter reads NEXT: what it gets unless something changes. vCPU's thread. */
uint32_t idle_next(struct vm *vm);
/* An interrupt has been sent to the guest. Any thread. */
void idle_interrupted(struct vm *vm);
/* Somebody asks for a guest port by vsock. Any thread. */
void idle_port_asked(struct vm *vm, uint32_t port);

/* The vCPU has been paused, or will be let run: it does not count as standing at NEXT any more. */
void idle_leave(struct vm *vm);
/*
 * Gives `fd` to the interpreter as its stream, where `port` is its own, it can have one by the mailbox, and has
 * none: true, and the descriptor is taken over.
 */
bool idle_adopt(struct vm *vm, int fd, uint32_t port);

#endif
