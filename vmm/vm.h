/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine: owns memory, vCPUs and devices, and knows where each of them is. Boots from a kernel
 * (vm_boot) or from a snapshot (vm_thaw, thaw.c); is frozen into one by vm_snapshot (freeze.c). All
 * functions are for the loop's thread.
 */
#ifndef VMM_VM_H
#define VMM_VM_H

#include "core/err.h"
#include "core/gmem.h"
#include "core/loop.h"
#include "devices/blk.h"
#include "devices/doorbell.h"
#include "devices/ioapic.h"
#include "devices/serial.h"
#include "devices/vsock.h"
#include "vmm/ahead.h"
#include "vmm/files.h"
#include "vmm/first.h"
#include "vmm/guestsym.h"
#include "vmm/idle.h"
#include "vmm/kvm.h"
#include "vmm/layout.h"
#include "vmm/limits.h"
#include "vmm/pagein.h"
#include "vmm/snapshot.h"
#include "vmm/vcpu.h"

#include <jansson.h>

#define VM_MAX_DISKS  SNAPSHOT_MAX_DISKS
#define VM_EARLY_MSIS 32

enum vm_event {
	VM_PARKED,     /* an interpreter stands at the freeze point */
	VM_STANDS_BY,  /* vm_warm_up() has come to its end */
	VM_FIRST_DONE, /* the first request is answered */
	VM_ENDED,      /* the guest has ended: see end, end_detail */
};

struct vm_disk {
	int fd; /* taken over */
	bool overlay;
	struct snapshot_disk info;
};

struct vm_boot_config {
	const char *kernel, *cmdline;
	int kernel_fd; /* of boot_open(), borrowed */
	uint64_t kernel_size;
	struct guestsym_state gsym; /* zero: not known */
	uint64_t memory_size;       /* bytes */
	unsigned nr_vcpus, nr_disks;
	struct vm_disk disk[VM_MAX_DISKS];
	struct vm_files *files;    /* borrowed; what is needed is taken */
	int serial_out, serial_in; /* taken over; -1: none */
	bool serial_hold;          /* the guest waits for a slow console */
};

/* CLOCK_MONOTONIC at the end of each part of a thaw, ns. */
struct vm_timing {
	uint64_t received, opened, memory, vm, state, devices, populated, run;
};

/* How far a machine has come. */
enum vm_stage {
	VM_EMPTY,
	VM_SHELL,
	VM_WARMING, /* answers the null request */
	VM_STANDBY,
	VM_LIVE, /* somebody's */
};

struct thaw_source;

struct vm {
	enum vm_stage stage;
	struct loop loop;
	struct gmem mem;
	struct kvm_vm kvm;
	unsigned nr_vcpus;
	struct vcpu_host vcpu_host;
	struct vcpu vcpu[SNAPSHOT_MAX_VCPUS];

	struct ioapic ioapic;
	struct serial *serial;
	struct doorbell bell;
	struct vsock *vsock;
	unsigned nr_disks;
	struct blk *disk[VM_MAX_DISKS];
	struct snapshot_disk disk_info[VM_MAX_DISKS];
	struct limits
		limits; /* of devices when they are opened; limits_apply() for those that are */
	struct vdev *slot[LAYOUT_VIRTIO_SLOTS]; /* NULL: empty */
	int serial_out, serial_in;              /* owned */

	/* Interrupts raised before the VM exists in KVM. Under msi_lock. */
	pthread_mutex_t msi_lock;
	bool msi_ready;
	unsigned nr_msis;
	struct kvm_msi msi[VM_EARLY_MSIS];

	struct guestsym_state gsym;
	uint8_t snapshot_id[SNAPSHOT_ID_LEN]; /* that it was thawed from */
	struct first first;
	bool first_runs; /* the request that came with the thaw is in the mailbox, or was */
	struct idle idle;
	struct thaw_source *source; /* borrowed; NULL: it was booted */
	struct pagein pagein;       /* its runs are the source's */
	struct ahead ahead;
	struct pagein_watch watch; /* zeroed: the thaw was not for a recording */
	int pagemap_fd;            /* owned: for its sake; -1: none */
	struct vm_timing timing;

	/* Tells the control side; loop's thread. */
	void (*on_event)(void *ctx, enum vm_event event);
	void *event_ctx;
	struct loop_event parked_event, first_event, ended_event;
	struct loop_op trace_op;
	struct loop_op moment_op; /* freeze.c */
	enum vcpu_end end;        /* written once, before ended_event is posted */
	char end_detail[1024];
	bool confined; /* the loop's system call filter is on */
	bool running;
	bool hold;                      /* of its vm_thaw_config */
	int vm_stats_fd, vcpu_stats_fd; /* owned; -1 until they are asked for */
};

void vm_init(struct vm *vm, void (*on_event)(void *ctx, enum vm_event event), void *ctx);
/* Ends the vCPUs and frees all; removes the vsock socket. Safe after init. */
void vm_close(struct vm *vm);

/* Builds a machine and starts its kernel. On error nothing runs; vm_close() what there is. */
NODISCARD int vm_boot(struct vm *vm, struct vm_boot_config *config, struct err *err);

/* Parks the vCPUs. Devices go on with what they have. */
void vm_pause(struct vm *vm);
/* The devices look at all their queues, then the vCPUs run. */
void vm_resume(struct vm *vm);
/* Freezes into the parts of `out` (freeze.c). The machine is paused and stays so. */
NODISCARD int vm_snapshot(struct vm *vm, const struct snapshot_out *out, struct err *err);
/* Writes what was used since the thaw as a working set, as pagein_record(). Pauses. */
NODISCARD int vm_record(struct vm *vm, int before_fd, int fd, struct err *err);
/* Connects `fd` to a guest port (taken over on success). */
NODISCARD int vm_connect(struct vm *vm, int fd, uint32_t port, struct err *err);
/* What the kernel and the devices have counted: a new object. */
json_t *vm_stats(struct vm *vm);

/*
 * Puts the loop's system call filter on, with what the machine needs on top (enum seccomp_who). Once, before
 * anything of the guest runs and when all is open.
 */
NODISCARD int vm_confine(struct vm *vm, unsigned extras, struct err *err);

/* For boot and thaw. */
NODISCARD int vm_open_devices(struct vm *vm, struct vsock_unix *un, bool serial_hold,
                              struct err *err);
/* The descriptors are taken over in any case. `overlay_fd` -1: no overlay. */
NODISCARD int vm_open_disk(struct vm *vm, unsigned n, int fd, const struct snapshot_disk *info,
                           int overlay_fd, struct err *err);
/* The VM exists: interrupts go to it from now on, those raised so far first. */
void vm_interrupts_on(struct vm *vm);
uint64_t vm_vmgenid(const struct vm *vm); /* guest-physical address of its page */
/* The stream of the mailbox goes on as a connection by vsock, beginning with what has been read of it. */
NODISCARD int vm_connect_first(struct vm *vm, struct err *err);
/* The warmed-up guest has parked again: it will stand still for as long as nobody takes it (thaw.c). */
NODISCARD int vm_rest(struct vm *vm, struct err *err);

#endif
