/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a snapshot to a sandbox, in one go or with a halt on the way (docs/thaw.md):
 *
 *	vm_thaw()                        fresh: nothing was made before
 *	vm_make_shell(), vm_thaw()       shell: VM, memory slot, vCPU and devices exist, no state of a guest
 *	vm_warm_up() ... vm_thaw()       standby: the guest has run a null request, and stands still since
 *
 * Who the sandbox is, its random state and its clock come with vm_thaw(), never before. One process thaws one
 * machine. All functions are for the loop's thread.
 */
#ifndef VMM_THAW_H
#define VMM_THAW_H

#include "vmm/machine_state.h"
#include "vmm/pagein.h"
#include "vmm/snapshot.h"
#include "vmm/vm.h"

#include <limits.h>

/*
 * A snapshot that has been opened, checked and parsed. A process that forks makes its children's thaws
 * shorter by that; a thaw uses its source up.
 */
struct thaw_source {
	struct snapshot snap; /* `state` stands before the devices' sections */
	struct machine machine;
	struct pagein pagein;
	int overlay_fd; /* of a zygote: the directory for private disks, opened ahead; -1: none */
	char overlay_dir[PATH_MAX];
	int kvm_fd; /* /dev/kvm, checked; owned until a VM takes it */
	char dir[PATH_MAX];
};
/* *src is NULL after an error. Blocking. */
NODISCARD int thaw_source_open(struct thaw_source **src, const char *dir, struct err *err);
/* After the machine that was thawed from it has been closed. NULL is allowed. */
void thaw_source_close(struct thaw_source *src);

struct vm_thaw_config {
	struct vm_files *
		files; /* borrowed; what is needed is taken. Of a shell or standby: `vsock` alone */
	const char *hostname; /* NULL: the template's */
	const char *env;      /* the interpreter's, NUL-terminated "NAME=VALUE" one after another */
	uint32_t env_len;     /* bytes, with the last NUL */
	uint64_t age_ns;      /* tests: as if the snapshot were that much older; not of a standby */
	bool reseed;          /* false, tests only: the random state stays the template's */
	bool hold;   /* the guest stands still when its first cell is done, until vm_resume() */
	bool record; /* what the guest uses is watched, for vm_record(); implies `hold`; fresh only */
	int first_fd; /* the first stream, taken over in any case; -1: none */
};

/* On error nothing runs; vm_close() what there is. */
NODISCARD int vm_make_shell(struct vm *vm, struct thaw_source *src, struct vm_files *files,
                            struct err *err);
/* How a standby is made. */
struct vm_warm_config {
	struct vm_files *files; /* as in struct vm_thaw_config */
	bool all; /* the null request is the template's whole warm-up: pages of real cells, too, become its own */
	bool record; /* what the guest uses is watched, for vm_record() */
};
/* Returns while the guest still runs: VM_STANDS_BY, or VM_ENDED, is told when it is done. */
NODISCARD int vm_warm_up(struct vm *vm, struct thaw_source *src,
                         const struct vm_warm_config *config, struct err *err);
/* The machine stands ready: vm_resume() lets it run. */
NODISCARD int vm_thaw(struct vm *vm, struct thaw_source *src, const struct vm_thaw_config *config,
                      struct err *err);

#endif
