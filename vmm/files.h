/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a machine needs of the host's files, opened while they can be: before the monitor enters its jail, from the
 * line that asks for the machine. Loop's thread.
 */
#ifndef VMM_FILES_H
#define VMM_FILES_H

#include "core/err.h"
#include "devices/vsock_unix.h"
#include "vmm/layout.h"

#include <stdbool.h>

#define FILES_OVERLAY_DIR "/var/tmp" /* where none is named */

struct vm_files {
	int overlay_fd[LAYOUT_VIRTIO_SLOTS]; /* owned, by disk: an unnamed file, empty; -1: none */
	int pagemap_fd;                      /* owned: /proc/self/pagemap, to record; -1: not */
	struct vsock_unix vsock;             /* owned: listens; fd -1: not */
	int vsock_window; /* by which the machine still reaches it (jail_window()); -1: no vsock */
	uint64_t largest; /* bytes of the largest file that will be written */
};

/* Nothing open. */
void files_init(struct vm_files *files);
/* Closes what nobody took. Idempotent. */
void files_close(struct vm_files *files);

/* The file of `size` bytes may have to be written. */
void files_may_write(struct vm_files *files, uint64_t size);

/*
 * The private overlay of disk `n`, in `dir`, or in the directory `dir_fd` when that is not -1 (a zygote's, opened
 * before it entered its jail).
 */
NODISCARD int files_overlay(struct vm_files *files, unsigned n, const char *dir, int dir_fd,
                            struct err *err);
/* Listens at `path`. */
NODISCARD int files_vsock(struct vm_files *files, const char *path, struct err *err);
/* The monitor has entered its jail: names are others. */
NODISCARD int files_entered(struct vm_files *files, struct err *err);
NODISCARD int files_pagemap(struct vm_files *files, struct err *err);

#endif
