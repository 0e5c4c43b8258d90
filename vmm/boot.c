/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/boot.h"

#include "core/own.h"
#include "vmm/boot_bzimage.h"
#include "vmm/boot_elf.h"
#include "vmm/boot_setup.h"
#include "vmm/layout.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static int check_plan(const struct boot_plan *plan, struct err *err)
{
	size_t len = strlen(plan->cmdline);

	if (len >= LAYOUT_CMDLINE_MAX) {
		(void)err_set(err, -EINVAL, "kernel command line of %zu bytes; it may have %u", len,
		              LAYOUT_CMDLINE_MAX - 1);
		return err_remedy(err, "shorten the kernel command line");
	}
	if (plan->nr_vcpus == 0)
		return err_set(err, -EINVAL, "a machine without a vCPU");
	if (plan->nr_disks >= LAYOUT_VIRTIO_SLOTS) {
		(void)err_set(err, -EINVAL, "%u disks; the machine has room for %u", plan->nr_disks,
		              LAYOUT_VIRTIO_SLOTS - 1);
		return err_remedy(err, "give fewer disks");
	}
	if (plan->vmgenid % GMEM_PAGE || (plan->vmgenid && plan->vmgenid < LAYOUT_HIGH_START))
		return err_set(err, -EINVAL, "generation id page at %#llx",
		               (unsigned long long)plan->vmgenid);
	return 0;
}

/* O_NONBLOCK: a FIFO in the kernel's place must not hang the monitor. */
static int open_kernel(const char *path, uint64_t *size, struct err *err)
{
	own_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(err, -errno, "open: %s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(err, -ENOEXEC, "not a regular file");
	*size = (uint64_t)st.st_size;
	return fd_take(&fd);
}

/* The ELF kernel in `path`, whatever it is wrapped in: a descriptor that the caller owns. */
static int open_elf(const char *path, uint64_t max, uint64_t *size, struct err *err)
{
	own_fd int fd = open_kernel(path, size, err);
	char magic[SELFMAG];

	if (fd < 0)
		return fd;
	if (boot_pread(fd, magic, sizeof(magic), 0) == 0 && memcmp(magic, ELFMAG, SELFMAG) == 0)
		return fd_take(&fd);
	if (boot_bzimage_probe(fd, *size))
		return boot_bzimage_unpack(fd, *size, max, size, err);
	return err_set(err, -ENOEXEC, "neither an ELF file nor a bzImage");
}

/*
 * Linux offers both entries and gets the 64-bit one, where it finds our device tree. Of others
 * e_entry may mean anything when there is a PVH note: it is used only when there is none.
 */
static int choose_entry(const struct boot_elf *elf, struct boot_regs *regs, struct err *err)
{
	if (boot_elf_is_code(elf, elf->entry) && (elf->is_linux || !elf->pvh_entry)) {
		*regs = (struct boot_regs){ .entry = BOOT_LINUX64, .rip = elf->entry };
		return 0;
	}
	if (elf->pvh_entry && boot_elf_is_code(elf, elf->pvh_entry)) {
		*regs = (struct boot_regs){ .entry = BOOT_PVH, .rip = elf->pvh_entry };
		return 0;
	}
	return err_set(err, -ENOEXEC, "no usable entry: e_entry %#llx, PVH %#llx are not its code",
	               (unsigned long long)elf->entry, (unsigned long long)elf->pvh_entry);
}

static int load(const struct gmem *mem, const struct boot_plan *plan, struct boot_regs *regs,
                struct err *err)
{
	struct boot_elf elf;
	int fd = plan->kernel_fd;
	int ret = boot_elf_read(fd, plan->kernel_size, &elf, err);

	if (ret == 0)
		ret = choose_entry(&elf, regs, err);
	if (ret == 0)
		ret = boot_elf_fit(&elf, mem, plan->vmgenid, err);
	if (ret == 0)
		ret = boot_elf_load(&elf, fd, mem, err);
	return ret < 0 ? ret : boot_setup(mem, plan, elf.end, regs, err);
}

static int bad_kernel(const char *path, struct err *err)
{
	(void)err_wrap(err, "kernel %s", path);
	return err_remedy(err, "give the vmlinux (ELF) or bzImage of an x86-64 Linux kernel");
}

int boot_open(const char *path, uint64_t max, uint64_t *size, struct err *err)
{
	int fd = open_elf(path, max, size, err);

	return fd < 0 ? bad_kernel(path, err) : fd;
}

int boot_load(const struct gmem *mem, const struct boot_plan *plan, struct boot_regs *regs,
              struct err *err)
{
	int ret = check_plan(plan, err);

	if (ret < 0)
		return ret;
	ret = load(mem, plan, regs, err);
	return ret < 0 ? bad_kernel(plan->kernel, err) : ret;
}
