/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/boot_line.h"

#include "core/own.h"
#include "vmm/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define MIB (1ull << 20)

static const char *string_of(const json_t *line, const char *key)
{
	return json_string_value(json_object_get(line, key));
}

static int open_disk(const json_t *each, struct vm_disk *disk, struct err *err)
{
	const char *path = string_of(each, "path");
	own_free char *full = path ? realpath(path, NULL) : NULL;
	bool write;

	disk->info.readonly = json_is_true(json_object_get(each, "readonly"));
	disk->overlay = json_is_true(json_object_get(each, "overlay"));
	write = !disk->info.readonly && !disk->overlay;
	if (!path)
		return err_set(err, -EINVAL, "disks: each needs a path");
	disk->fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (disk->fd < 0 || !full)
		return err_set(err, -errno, "disk %s: %s", path, strerror(errno));
	if (strlen(full) >= sizeof(disk->info.path))
		return err_set(err, -ENAMETOOLONG, "disk %s: the path has over %zu bytes", full,
		               sizeof(disk->info.path) - 1);
	memcpy(disk->info.path, full, strlen(full));
	return snapshot_probe(disk->fd, &disk->info, err);
}

static int open_disks(const json_t *line, struct vm_boot_config *config, struct vm_files *files,
                      struct err *err)
{
	const json_t *disks = json_object_get(line, "disks");
	const char *dir = string_of(line, "overlay_dir");
	size_t i;
	json_t *each;
	int ret = 0;

	if (json_array_size(disks) > VM_MAX_DISKS)
		return err_set(err, -E2BIG, "disks: at most %u", (unsigned)VM_MAX_DISKS);
	json_array_foreach(disks, i, each)
	{
		struct vm_disk *disk = &config->disk[config->nr_disks++];

		if (ret == 0)
			ret = open_disk(each, disk, err);
		if (ret == 0 && disk->overlay)
			ret = files_overlay(files, (unsigned)i, dir ? dir : FILES_OVERLAY_DIR, -1,
			                    err);
		files_may_write(files, disk->info.size + GMEM_PAGE);
	}
	return ret;
}

static int parse_serial(const json_t *line, int *serial_fd, struct vm_boot_config *config,
                        struct err *err)
{
	const char *kind = string_of(line, "serial");

	if (!kind || strcmp(kind, "none") == 0)
		return 0;
	if (strcmp(kind, "log") == 0) {
		config->serial_out = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
		return 0;
	}
	if (strcmp(kind, "fd") != 0)
		return err_set(err, -EINVAL,
		               "serial: want \"log\", \"none\" or \"fd\", not \"%.32s\"", kind);
	if (*serial_fd < 0)
		return err_set(err, -EINVAL, "serial \"fd\": no descriptor came with the line");
	config->serial_out = config->serial_in = fd_take(serial_fd);
	config->serial_hold = true;
	return 0;
}

static int open_kernel(const json_t *line, struct vm_boot_config *config, struct err *err)
{
	const char *symbols = string_of(line, "symbols");
	int ret;

	config->kernel = string_of(line, "kernel");
	if (!config->kernel)
		return err_set(err, -EINVAL, "boot: kernel is missing");
	config->kernel_fd = ret =
		boot_open(config->kernel, config->memory_size, &config->kernel_size, err);
	if (ret >= 0 && symbols)
		ret = guestsym_load(symbols, &config->gsym, err);
	return ret < 0 ? ret : 0;
}

int boot_line_open(const json_t *line, int *serial_fd, struct vm_boot_config *config,
                   struct vm_files *files, struct err *err)
{
	json_int_t memory_mb = json_integer_value(json_object_get(line, "memory_mb"));
	json_int_t vcpus = json_integer_value(json_object_get(line, "vcpus"));
	const char *vsock = string_of(line, "vsock");
	int ret;

	*config = (struct vm_boot_config){ .cmdline = string_of(line, "cmdline"),
		                           .kernel_fd = -1,
		                           .serial_out = -1,
		                           .serial_in = -1,
		                           .memory_size =
		                                   (memory_mb ? (uint64_t)memory_mb : 512) * MIB,
		                           .nr_vcpus = vcpus ? (unsigned)vcpus : 1,
		                           .files = files };
	for (unsigned i = 0; i < VM_MAX_DISKS; i++)
		config->disk[i].fd = -1;
	if (memory_mb < 0 || memory_mb > (1 << 20))
		return err_set(err, -EINVAL, "boot: memory_mb %lld is not possible",
		               (long long)memory_mb);
	files_may_write(files, config->memory_size + GMEM_PAGE);
	ret = open_kernel(line, config, err);
	if (ret == 0)
		ret = open_disks(line, config, files, err);
	if (ret == 0)
		ret = parse_serial(line, serial_fd, config, err);
	if (ret == 0 && vsock)
		ret = files_vsock(files, vsock, err);
	return ret;
}

void boot_line_close(struct vm_boot_config *config)
{
	own_close_fd(&config->kernel_fd);
	for (unsigned i = 0; i < VM_MAX_DISKS; i++)
		own_close_fd(&config->disk[i].fd);
}
