/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/kvm.h"

#include "core/log.h"
#include "core/own.h"
#include "devices/ioapic.h"
#include "vmm/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Intel needs three pages for real-mode tricks; any hole does (api.rst, KVM_SET_TSS_ADDR). */
#define TSS_ADDR      0xfffbd000ul
#define IDENTITY_ADDR 0xfffbc000ull

#define STATS_MAX 1024u /* counters of a VM or vCPU, histograms' buckets among them */

static const struct {
	long cap;
	const char *name;
	const char *why;
} wanted[] = {
	{ KVM_CAP_USER_MEMORY, "USER_MEMORY", "guest memory" },
	{ KVM_CAP_SPLIT_IRQCHIP, "SPLIT_IRQCHIP", "interrupts without PIC and PIT" },
	{ KVM_CAP_SIGNAL_MSI, "SIGNAL_MSI", "device interrupts" },
	{ KVM_CAP_IMMEDIATE_EXIT, "IMMEDIATE_EXIT", "pausing a vCPU at a clean point" },
	{ KVM_CAP_TSC_DEADLINE_TIMER, "TSC_DEADLINE_TIMER", "the guest's only timer" },
	{ KVM_CAP_ADJUST_CLOCK, "ADJUST_CLOCK", "kvm-clock that rests with a snapshot" },
	{ KVM_CAP_XSAVE, "XSAVE", "vCPU state" },
	{ KVM_CAP_XCRS, "XCRS", "vCPU state" },
	{ KVM_CAP_DEBUGREGS, "DEBUGREGS", "vCPU state" },
	{ KVM_CAP_VCPU_EVENTS, "VCPU_EVENTS", "vCPU state" },
	{ KVM_CAP_MP_STATE, "MP_STATE", "vCPU state" },
	{ KVM_CAP_EXT_CPUID, "EXT_CPUID", "the guest's view of the CPU" },
};

int kvm_ioctl(int fd, unsigned long request, const char *name, unsigned long arg, struct err *err)
{
	int ret;

	trace_begin(name);
	do {
		ret = ioctl(fd, request, arg);
	} while (ret < 0 && errno == EINTR);
	trace_end(name, 0);
	if (ret < 0)
		return err_set(err, -errno, "%s: %s", name, strerror(errno));
	return ret;
}

int kvm_open(struct err *err)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		return fd;
	err_set(err, -errno, "/dev/kvm: %s", strerror(errno));
	if (errno == ENOENT)
		err_remedy(err,
		           "load the KVM module (modprobe kvm_intel or kvm_amd), or enable nested "
		           "virtualization for this machine");
	else if (errno == EACCES || errno == EPERM)
		err_remedy(err,
		           "run as root, or give your user access: usermod -aG kvm $USER (where "
		           "the device belongs to group kvm), then log in again");
	return err->code;
}

enum kvm_kind kvm_kind(void)
{
	static int is_pvm = -1; /* asked once: a monitor in its jail could not */

	if (is_pvm < 0)
		is_pvm = access("/sys/module/kvm_pvm", F_OK) == 0;
	return is_pvm ? KVM_KIND_PVM : KVM_KIND_HARDWARE;
}

int kvm_check(int sys_fd, struct err *err)
{
	int version = KVM_DO(sys_fd, KVM_GET_API_VERSION, 0, err);

	if (version < 0)
		return version;
	if (version != KVM_API_VERSION)
		return err_set(err, -ENOTSUP, "KVM API version %d, want %d", version,
		               KVM_API_VERSION);
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
		if (KVM_DO(sys_fd, KVM_CHECK_EXTENSION, wanted[i].cap, err) > 0)
			continue;
		err_set(err, -ENOTSUP, "this KVM lacks KVM_CAP_%s (%s)", wanted[i].name,
		        wanted[i].why);
		return err_remedy(err, "use a host kernel of 5.10 or newer");
	}
	return 0;
}

int kvm_open_checked(int *sys_fd, struct err *err)
{
	int ret = *sys_fd = kvm_open(err);

	return ret < 0 ? ret : kvm_check(*sys_fd, err);
}

static void report_add(json_t *list, const char *name, bool ok, const char *detail)
{
	json_array_append_new(
		list, json_pack("{s:s, s:b, s:s}", "name", name, "ok", ok, "detail", detail));
}

json_t *kvm_report(void)
{
	json_t *list = json_array();
	struct err err = { 0 };
	own_fd int fd = kvm_open(&err);

	if (fd < 0) {
		report_add(list, "/dev/kvm", false, err.msg);
		return list;
	}
	report_add(list, "/dev/kvm", true, "open for reading and writing");
	report_add(list, "kind", true,
	           kvm_kind() == KVM_KIND_PVM ? "software (kvm_pvm): guest kernels run interpreted"
	                                      : "hardware");
	for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
		report_add(list, wanted[i].name,
		           KVM_DO(fd, KVM_CHECK_EXTENSION, wanted[i].cap, &err) > 0, wanted[i].why);
	return list;
}

static int add_slots(const struct kvm_vm *vm, const struct gmem *mem, struct err *err)
{
	for (unsigned i = 0; i < mem->nr_regions; i++) {
		struct kvm_userspace_memory_region slot = {
			.slot = i,
			.guest_phys_addr = mem->region[i].gpa,
			.memory_size = mem->region[i].len,
			.userspace_addr = (uintptr_t)mem->region[i].hva,
		};
		int ret = KVM_DO(vm->fd, KVM_SET_USER_MEMORY_REGION, &slot, err);

		if (ret < 0)
			return ret;
	}
	return 0;
}

int kvm_vm_create(struct kvm_vm *vm, struct err *err)
{
	int ret;

	trace_begin("KVM opened");
	ret = vm->sys_fd < 0 ? kvm_open_checked(&vm->sys_fd, err) : 0;
	trace_end("KVM opened", 0);
	if (ret >= 0)
		vm->fd = ret = KVM_DO(vm->sys_fd, KVM_CREATE_VM, 0, err);
	if (ret < 0)
		kvm_vm_close(vm);
	return ret < 0 ? ret : 0;
}

int kvm_vm_set_up(struct kvm_vm *vm, const struct gmem *mem, struct err *err)
{
	struct kvm_enable_cap split = { .cap = KVM_CAP_SPLIT_IRQCHIP, .args = { IOAPIC_PINS } };
	uint64_t identity = IDENTITY_ADDR;
	int ret = KVM_DO(vm->fd, KVM_SET_TSS_ADDR, TSS_ADDR, err);

	if (ret >= 0)
		ret = KVM_DO(vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &identity, err);
	if (ret >= 0)
		ret = add_slots(vm, mem, err);
	if (ret >= 0)
		ret = KVM_DO(vm->fd, KVM_ENABLE_CAP, &split, err);
	if (ret < 0)
		kvm_vm_close(vm);
	return ret < 0 ? ret : 0;
}

void kvm_vm_close(struct kvm_vm *vm)
{
	own_close_fd(&vm->fd);
	own_close_fd(&vm->sys_fd);
	*vm = (struct kvm_vm)KVM_VM_NONE;
}

void kvm_send_msi(const struct kvm_vm *vm, uint64_t address, uint32_t data)
{
	struct kvm_msi msi = {
		.address_lo = (uint32_t)address,
		.address_hi = (uint32_t)(address >> 32),
		.data = data,
	};

	if (ioctl(vm->fd, KVM_SIGNAL_MSI, &msi) < 0)
		log_guest("KVM_SIGNAL_MSI: %s", strerror(errno));
}

static bool read_at(int fd, void *buf, size_t n, uint64_t off)
{
	return pread(fd, buf, n, (off_t)off) == (ssize_t)n;
}

int kvm_stats_open(int fd)
{
	return ioctl(fd, KVM_GET_STATS_FD, NULL);
}

size_t kvm_stats_read(int stats_fd, void *raw, size_t room)
{
	struct kvm_stats_header head;
	ssize_t n;

	if (stats_fd < 0 || !read_at(stats_fd, &head, sizeof(head), 0))
		return 0;
	n = pread(stats_fd, raw, room, head.data_offset);
	return n < 0 ? 0 : (size_t)n;
}

json_t *kvm_stats_named(int stats_fd, const void *raw, size_t len)
{
	struct kvm_stats_header head;
	own_free char *desc = NULL;
	size_t each;
	json_t *all;

	if (stats_fd < 0 || !read_at(stats_fd, &head, sizeof(head), 0))
		return NULL;
	each = sizeof(struct kvm_stats_desc) + head.name_size;
	desc = calloc(1, each + 1);
	all = json_object();
	for (uint32_t i = 0; desc && i < head.num_desc; i++) {
		struct kvm_stats_desc *d = (void *)desc;
		uint64_t value;

		if (!read_at(stats_fd, desc, each, head.desc_offset + (uint64_t)i * each) ||
		    d->size != 1 || d->offset + sizeof(value) > len)
			continue;
		memcpy(&value, (const uint8_t *)raw + d->offset, sizeof(value));
		json_object_set_new(all, d->name, json_integer((json_int_t)value));
	}
	return all;
}

json_t *kvm_stats(int stats_fd)
{
	uint64_t raw[STATS_MAX];
	size_t len = kvm_stats_read(stats_fd, raw, sizeof(raw));

	return kvm_stats_named(stats_fd, raw, len);
}
