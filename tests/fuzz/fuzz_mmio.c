/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses by a vCPU, in sequence, through the monitor's own dispatch: all devices, the doorbell, the I/O APIC, the
 * serial port and where nothing is. The input is a list of accesses, stores to memory and turns of the loop. After
 * it the machine is at rest, and its state can be saved and loaded by another.
 */
#include "tests/fuzz/machine.h"
#include "vmm/machine_state.h"

static const uint64_t base[] = {
	LAYOUT_VIRTIO,
	LAYOUT_VIRTIO + LAYOUT_VIRTIO_STEP,
	LAYOUT_VIRTIO + 2 * LAYOUT_VIRTIO_STEP,
	LAYOUT_SERIAL,
	LAYOUT_DOORBELL,
	LAYOUT_IOAPIC,
	LAYOUT_VIRTIO + 3 * LAYOUT_VIRTIO_STEP, /* an empty slot */
	0xfffffffffffffffcull,
};

static uint64_t any_address(struct fz_in *in)
{
	static const uint16_t reg[] = { 0x14, 0x20, 0x24, 0x30, 0x38, 0x44, 0x50, 0x64,
		                        0x70, 0x80, 0x90, 0xa0, 0x08, 0x10, 0x18, 0x0c };
	uint8_t kind = fz_u8(in), device = fz_u8(in);

	if (kind < 0xa0)
		return base[device % ARRAY_LEN(base)] + reg[kind % ARRAY_LEN(reg)];
	if (kind < 0xe0)
		return base[device % ARRAY_LEN(base)] + fz_u16(in) % 0x1008;
	return fz_u64(in);
}

static void access_once(struct fz_in *in)
{
	uint8_t how = fz_u8(in);
	uint32_t n = how & 4 ? 1u << (how & 3) : 4; /* KVM splits what is wider than 8 */
	uint64_t addr = any_address(in);
	uint8_t data[8];

	if (how & 0x80) {
		memset(data, 0xa5, sizeof(data));
		mc_vm.vcpu_host.mmio_read(&mc_vm, addr, data, n);
		for (uint32_t i = n; i < sizeof(data); i++)
			FZ_CHECK(data[i] == 0xa5);
		return;
	}
	memset(data, 0, sizeof(data));
	if (how & 0x40)
		fz_bytes(in, data, n);
	else
		data[0] = fz_u8(in);
	mc_vm.vcpu_host.mmio_write(&mc_vm, addr, data, n);
}

static void start_device(struct fz_in *in)
{
	struct driver d = { .mem = mc_vm.mem };
	unsigned slot = fz_u8(in) % 3;

	dr_start(&d, mc_vm.slot[slot], fz_u8(in));
}

/* The peer of the first stream: the monitor waits for a reader, so there must be one. */
static void read_peer(void)
{
	char buf[65536];

	while (recv(mc_peer, buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
}

static void one_op(struct fz_in *in)
{
	uint8_t op = fz_u8(in);
	struct driver d = { .mem = mc_vm.mem, .dev = mc_vm.slot[op / 8 % 3] };

	switch (op % 8) {
	default:
		access_once(in);
		break;
	case 3:
		dr_any_store(&d, in);
		break;
	case 4:
		dr_any_desc(&d, in, fz_u8(in) % d.dev->ops->nr_queues);
		break;
	case 5:
		start_device(in);
		break;
	case 6:
		mc_turn();
		break;
	case 7: /* as a thaw does: the mailbox has a request, and the guest may answer */
		mc_vm.bell.s.phase = fz_u8(in) % 4;
		read_peer();
		break;
	}
}

static void check_state(void)
{
	struct state_buf buf = { 0 };
	struct err err = { 0 };
	struct ioapic_state apic = mc_vm.ioapic.s;
	struct doorbell_state bell;

	state_put(&buf, doorbell_state_desc(), 0, &mc_vm.bell.s);
	state_put(&buf, ioapic_state_desc(), 0, &mc_vm.ioapic.s);
	serial_save(mc_vm.serial, &buf);
	for (unsigned i = 0; i < LAYOUT_VIRTIO_SLOTS; i++)
		if (mc_vm.slot[i])
			vdev_save(mc_vm.slot[i], &buf);
	mc_close();
	mc_open();
	FZ_CHECK(state_get(&buf, doorbell_state_desc(), 0, &bell, &err) == 0 &&
	         machine_state_check_bell(&bell, &mc_vm.mem, &err) == 0);
	FZ_CHECK(machine_state_get_devices(&mc_vm, &buf, &err) == 0);
	FZ_CHECK(memcmp(&apic, &mc_vm.ioapic.s, sizeof(apic)) == 0);
	state_buf_free(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	bool restores = fz_u8(&in) & 1;

	mc_open();
	for (int ops = 0; in.n && ops < 256; ops++) {
		one_op(&in);
		read_peer();
	}
	mc_settle();
	FZ_CHECK(mc_vm.bell.s.phase <= DOORBELL_DONE);
	FZ_CHECK(mc_vm.bell.s.nr_pages <= DOORBELL_MAX_PAGES && mc_vm.nr_msis <= VM_EARLY_MSIS);
	if (restores)
		check_state();
	mc_settle();
	mc_resume();
	mc_turn();
	mc_settle();
	mc_close();
	return 0;
}
