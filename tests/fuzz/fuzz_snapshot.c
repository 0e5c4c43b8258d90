/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forged snapshot: the input is the file `state`, with its checksums, magic and CPU made right, beside parts that
 * fit. It opens with an error that has words, or the machine that comes of it has its mailbox in memory and devices
 * that go on without harm. (What KVM makes of forged CPU registers is KVM's business.)
 */
#include "tests/fuzz/machine.h"
#include "vmm/machine_state.h"
#include "vmm/snapshot.h"

#define HEADER      16u
#define FINGERPRINT (8u + HEADER + SNAPSHOT_ID_LEN + 8 + 8 + 4 + 4)

static const uint8_t id[SNAPSHOT_ID_LEN] = { 0xf0, 0x22 };
static struct machine machine; /* large */

static void put_part(int dir, const char *name, uint64_t size)
{
	int fd = openat(dir, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct err err;

	FZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0 &&
	         snapshot_seal(fd, size, id, &err) == 0);
	(void)close(fd);
}

/* The parts that are always there: memory of 1 MiB, two disks, an image. */
static int parts(void)
{
	static const uint8_t image[MC_DISK];
	static int dir = -1;

	if (dir >= 0)
		return dir;
	FZ_CHECK((dir = open(fz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
	put_part(dir, "memory", 1u << 20);
	put_part(dir, "disk1", MC_DISK);
	fz_put(dir, "image", image, sizeof(image));
	return dir;
}

static void forge(uint8_t *state, size_t n)
{
	if (n >= 8)
		memcpy(state, SNAPSHOT_MAGIC, 8);
	if (n >= FINGERPRINT + CPU_FINGERPRINT_MAX) {
		memcpy(state + 8 + HEADER, id, sizeof(id));
		cpu_fingerprint((char *)state + FINGERPRINT);
	}
	if (n > 8)
		fz_mend(state + 8, n - 8);
}

static void run_machine(struct snapshot *snap)
{
	struct err err = { 0 };

	if (machine_state_get(&snap->state, snap->head.nr_vcpus, &machine, &err) < 0) {
		FZ_CHECK(err.code < 0 && err.msg[0]);
		return;
	}
	mc_open();
	if (machine_state_check_bell(&machine.bell, &mc_vm.mem, &err) == 0 &&
	    machine_state_get_devices(&mc_vm, &snap->state, &err) == 0) {
		mc_vm.bell.s = machine.bell;
		(void)!doorbell_put(&mc_vm.bell, 0, id, sizeof(id)); /* no mailbox: no room */
		mc_settle();
		mc_resume();
		for (int i = 0; i < 4; i++)
			mc_turn();
	} else {
		FZ_CHECK(err.code < 0 && err.msg[0]);
	}
	mc_settle();
	mc_close();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct snapshot snap;
	struct err err = { 0 };
	uint8_t *state = malloc(n + 1);
	int dir = parts();

	mc_init();
	FZ_CHECK(state);
	memcpy(state, data, n);
	forge(state, n);
	fz_put(dir, "state", state, n);
	free(state);
	if (snapshot_open(&snap, fz_dir(), &err) < 0) {
		FZ_CHECK(err.code < 0 && err.msg[0] && err.remedy[0] && snap.memory_fd < 0);
		return 0;
	}
	run_machine(&snap);
	snapshot_close(&snap);
	return 0;
}
