/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/files.h"

#include "core/own.h"
#include "vmm/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

void files_init(struct vm_files *files)
{
	*files = (struct vm_files){ .pagemap_fd = -1, .vsock = { .fd = -1 }, .vsock_window = -1 };
	for (unsigned i = 0; i < ARRAY_LEN(files->overlay_fd); i++)
		files->overlay_fd[i] = -1;
}

void files_close(struct vm_files *files)
{
	for (unsigned i = 0; i < ARRAY_LEN(files->overlay_fd); i++)
		own_close_fd(&files->overlay_fd[i]);
	own_close_fd(&files->pagemap_fd);
	vsock_unix_close(&files->vsock);
	files_init(files);
}

void files_may_write(struct vm_files *files, uint64_t size)
{
	if (size > files->largest)
		files->largest = size;
}

int files_overlay(struct vm_files *files, unsigned n, const char *dir, int dir_fd, struct err *err)
{
	int fd = dir_fd >= 0 ? openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
	                     : open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	files->overlay_fd[n] = fd;
	if (fd >= 0)
		return 0;
	err_set(err, -errno, "disk overlay in %s: %s", dir, strerror(errno));
	return err_remedy(
		err, "name a folder on a file system that has unnamed files (ext4, xfs, btrfs, "
		     "tmpfs) with TMPDIR");
}

int files_vsock(struct vm_files *files, const char *path, struct err *err)
{
	files->vsock_window = jail_window(path, err);
	return files->vsock_window < 0 ? files->vsock_window
	                               : vsock_unix_listen(&files->vsock, path, err);
}

int files_entered(struct vm_files *files, struct err *err)
{
	char now[JAIL_PATH_MAX];

	if (files->vsock.fd < 0)
		return 0;
	jail_path(files->vsock_window, files->vsock.path, now);
	return vsock_unix_rename(&files->vsock, now, err);
}

int files_pagemap(struct vm_files *files, struct err *err)
{
	files->pagemap_fd = jail_open_proc("pagemap");
	if (files->pagemap_fd < 0)
		return err_set(err, files->pagemap_fd, "/proc/self/pagemap: %s",
		               strerror(-files->pagemap_fd));
	jail_keep_user(
		"the working set is recorded: its owner alone may see what the page cache has");
	return 0;
}
