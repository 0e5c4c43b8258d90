/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /dev/kvm: system and VM level ioctls (Documentation/virt/kvm/api.rst). Every failure names its
 * ioctl. Order matters: memory slots go in before anything is on a KVM I/O bus, or the slot waits
 * for an SRCU grace period (7 ms against 0.2).
 */
#ifndef VMM_KVM_H
#define VMM_KVM_H

#include "core/err.h"
#include "core/gmem.h"

#include <jansson.h>
#include <linux/kvm.h>
#include <stdbool.h>

/* What interprets the guest's kernel: it decides command line and CPUID. */
enum kvm_kind {
	KVM_KIND_HARDWARE,
	KVM_KIND_PVM, /* kvm_pvm: ring 0 of the guest is emulated */
};

struct kvm_vm {
	int sys_fd; /* /dev/kvm, owned */
	int fd;     /* the VM, owned */
};

#define KVM_VM_NONE                    \
	{                              \
		.sys_fd = -1, .fd = -1 \
	}

/* One ioctl: its non-negative result, or the error with the ioctl's name. Restarts on EINTR. */
int kvm_ioctl(int fd, unsigned long request, const char *name, unsigned long arg, struct err *err);
#define KVM_DO(fd, request, arg, err) kvm_ioctl(fd, request, #request, (unsigned long)(arg), err)

/* Opens /dev/kvm: the descriptor, or an error that says what to do about it. */
NODISCARD int kvm_open(struct err *err);
enum kvm_kind kvm_kind(void);

/* Checks API version and the capabilities that we cannot do without. */
NODISCARD int kvm_check(int sys_fd, struct err *err);
/* The same as a JSON array of {"name","ok","detail"} for `thawbox doctor`. The caller's reference. */
json_t *kvm_report(void);

/* Both of these: *sys_fd is the caller's in any case. */
NODISCARD int kvm_open_checked(int *sys_fd, struct err *err);

/* A VM with nothing in it. `vm` is KVM_VM_NONE, or has a sys_fd that has been checked. Takes the mmap lock. */
NODISCARD int kvm_vm_create(struct kvm_vm *vm, struct err *err);
/* Gives it `mem` as its slots and a split irqchip of 24 pins, in the order that is fast. After an error it is closed. */
NODISCARD int kvm_vm_set_up(struct kvm_vm *vm, const struct gmem *mem, struct err *err);
/* Safe on KVM_VM_NONE; idempotent. */
void kvm_vm_close(struct kvm_vm *vm);

/* Sends one message-signalled interrupt. Any thread. */
void kvm_send_msi(const struct kvm_vm *vm, uint64_t address, uint32_t data);

/*
 * KVM_GET_STATS_FD of a VM or vCPU: a descriptor, or -1 where the kernel has none. For a vCPU it waits
 * until that is out of KVM_RUN; reading what it returns does not.
 */
int kvm_stats_open(int fd);
/* All values at once, for a moment that must not be long: how many bytes of `raw` are filled, 0 for -1. */
size_t kvm_stats_read(int stats_fd, void *raw, size_t room);
/* What was read then as an object {name: value}; NULL for -1. */
json_t *kvm_stats_named(int stats_fd, const void *raw, size_t len);
/* Both: all counters as they are now. */
json_t *kvm_stats(int stats_fd);

#endif
