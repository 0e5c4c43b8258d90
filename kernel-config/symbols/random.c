// SPDX-License-Identifier: GPL-2.0
/* The kernel's random state. The objects are static: include the file that defines them. */
#include "../drivers/char/random.c"

#include "emit.h"

void thawbox_symbols_random(void);
void thawbox_symbols_random(void)
{
	EMIT("crng.key", base_crng.key);
	EMIT("crng.generation", base_crng.generation);
	EMIT("pool.hash", input_pool.hash.h);
	EMIT("vdso.rng_generation", _vdso_rng_data.generation);
	EMIT("boot_id", sysctl_bootid);
	EMIT("uts.nodename", init_uts_ns.name.nodename);
}
