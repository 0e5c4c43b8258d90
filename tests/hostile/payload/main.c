/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the scenario in the command line ("hostile=NAME seed=N"), runs it, and powers the machine off. */
#include "payload.h"

void payload_main(const uint8_t *zero_page);

static uint64_t pml4[512], pdpt[512], pd[5][512] __attribute__((aligned(4096)));

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{ "late_changes", late_changes },
	{ "queue_sel", queue_sel },
	{ "loops", loops },
	{ "lengths", lengths },
	{ "index_jumps", index_jumps },
	{ "indirect", indirect },
	{ "features", features },
	{ "status_games", status_games },
	{ "config_space", config_space },
	{ "break_storm", break_storm },
	{ "sectors", sectors },
	{ "vsock_bounds", vsock_bounds },
	{ "credit_lies", credit_lies },
	{ "storm", storm },
	{ "doorbell", doorbell },
	{ "park", park },
	{ "serial_flood", serial_flood },
	{ "ioapic", ioapic },
	{ "ioapic_nmi", ioapic_nmi },
	{ "ioapic_init", ioapic_init },
	{ "unmapped", unmapped },
	{ "ports", ports },
	{ "triple_fault", triple_fault },
	{ "halt", halt },
	{ "endless", endless },
	{ "random", random_all },
	{ "echo", echo },
};

/* The first 5 GiB as they are, by pages of 2 MiB: devices too, which the loader has not mapped. */
static void map_all(void)
{
	pml4[0] = (uintptr_t)pdpt | 3;
	for (unsigned g = 0; g < 5; g++) {
		pdpt[g] = (uintptr_t)pd[g] | 3;
		for (uint64_t i = 0; i < 512; i++)
			pd[g][i] = ((uint64_t)g << 30 | i << 21) | 0x83;
	}
	__asm__ volatile("mov %0, %%cr3" ::"r"((uint64_t)(uintptr_t)pml4) : "memory");
}

/* What follows `key` in the command line, or NULL. */
static const char *find(const char *line, const char *key)
{
	for (; *line; line++) {
		unsigned i = 0;

		while (key[i] && line[i] == key[i])
			i++;
		if (!key[i])
			return line + i;
	}
	return 0;
}

static bool is_word(const char *at, const char *word)
{
	while (*word && *at == *word) {
		at++;
		word++;
	}
	return !*word && (*at == ' ' || *at == '\0');
}

void payload_main(const uint8_t *zero_page)
{
	const char *line = (const char *)(uintptr_t) * (const uint32_t *)(zero_page + 0x228);
	const char *name = find(line, "hostile="), *number = find(line, "seed=");

	map_all();
	for (seed = 0; number && *number >= '0' && *number <= '9'; number++)
		seed = seed * 10 + (uint64_t)(*number - '0');
	seed = seed ? seed : 1;
	say("begin\n");
	for (unsigned i = 0; name && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		if (is_word(name, scenarios[i].name))
			scenarios[i].run();
	say("end\n");
	wr32(DOORBELL + 0x20, 1);
}
