/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host writes into the memory of a guest kernel that it knows, before a thawed clone's first
 * instruction: random state, boot id, host name, wall clock. The kernel's build says where each
 * field lies (`symbols`, docs/guest-kernel.md, which also derives the clock's formulas). Addresses
 * are checked against guest memory, values read there are untrusted. Pure functions; any thread,
 * while no vCPU runs.
 */
#ifndef VMM_GUESTSYM_H
#define VMM_GUESTSYM_H

#include "core/err.h"
#include "core/gmem.h"
#include "core/state.h"

#include <stdbool.h>
#include <stdint.h>

/* Guest-physical address of each field; all 0 when the kernel is not known. */
#define GUESTSYM_STATE(F, A)                                      \
	F(1, uint64_t, crng_key)                                  \
	F(1, uint64_t, crng_generation)                           \
	F(1, uint64_t, vdso_rng_generation)                       \
	F(1, uint64_t, pool_hash)                                 \
	F(1, uint64_t, boot_id)                                   \
	F(1, uint64_t, nodename)                                  \
	F(1, uint64_t, tk)                                        \
	F(1, uint64_t, tk_shadow)                                 \
	F(1, uint64_t, tk_seq)                                    \
	F(1, uint64_t, tk_xtime_sec)                              \
	F(1, uint64_t, tk_wtm_sec)                                \
	F(1, uint64_t, tk_wtm_nsec)                               \
	F(1, uint64_t, tk_offs_real)                              \
	F(1, uint64_t, tk_offs_tai)                               \
	F(1, uint64_t, tk_tai_offset)                             \
	F(1, uint64_t, tk_clock_was_set_seq)                      \
	F(1, uint64_t, tk_mono_mult)                              \
	F(1, uint64_t, tk_mono_shift)                             \
	F(1, uint64_t, tk_mono_cycle_last)                        \
	F(1, uint64_t, tk_mono_xtime_nsec)                        \
	F(1, uint64_t, tk_mono_base)                              \
	F(1, uint64_t, tk_mono_base_real)                         \
	F(1, uint64_t, tk_fast0_base_real)                        \
	F(1, uint64_t, tk_fast1_base_real)                        \
	F(1, uint64_t, vdso_seq)                                  \
	F(1, uint64_t, vdso_raw_seq)                              \
	F(1, uint64_t, vdso_realtime_sec)                         \
	F(1, uint64_t, vdso_realtime_nsec)                        \
	F(1, uint64_t, vdso_coarse_sec)                           \
	F(1, uint64_t, vdso_coarse_nsec)                          \
	F(1, uint64_t, vdso_tai_sec)                              \
	F(1, uint64_t, vdso_tai_nsec)                             \
	F(1, uint64_t, hrtimer_realtime)                          \
	F(1, uint64_t, hrtimer_realtime_soft)                     \
	F(1, uint64_t, hrtimer_tai)                               \
	F(1, uint64_t, hrtimer_tai_soft)                          \
	F(1, uint32_t, tk_len) /* bytes of tk and of tk_shadow */ \
	F(2, uint64_t, rq_nr_running)                             \
	F(2, uint64_t, hrtimer_first)                             \
	F(2, uint64_t, hrtimer_first_1)                           \
	F(2, uint64_t, hrtimer_offset)
STATE_STRUCT(guestsym_state, GUESTSYM_STATE);
const struct state_desc *guestsym_state_desc(void); /* section GSYM */

/* What to replace: any set of these. */
enum guestsym_part {
	GUESTSYM_RANDOM = 1,
	GUESTSYM_BOOT_ID = 2,
	GUESTSYM_HOSTNAME = 4,
	GUESTSYM_CLOCK = 8,
	GUESTSYM_ALL = 15,
};

struct guestsym_wake {
	unsigned parts;
	uint8_t crng_key[32];     /* fresh random bytes, */
	uint8_t pool_entropy[32]; /* as all three: */
	uint8_t boot_id[16];      /* version and variant bits are put in by guestsym_apply() */
	const char *hostname;     /* 1 to 64 printable ASCII bytes; borrowed */
	uint64_t realtime_ns;     /* what the guest's CLOCK_REALTIME is to be now, since 1970 */
	uint64_t kvmclock_ns;     /* what the guest's clock source reads now (KVM_SET_CLOCK) */
};

/* True when there are addresses to write to. */
static inline bool guestsym_is_known(const struct guestsym_state *state)
{
	return state->crng_key != 0;
}

/*
 * Reads a `symbols` file: 0, -EINVAL (not such a file, or a field is missing or of another size; `err`
 * names line and field) or -errno. On error `state` is zero. Blocking.
 */
NODISCARD int guestsym_load(const char *path, struct guestsym_state *state, struct err *err);

/*
 * Asks guest memory whether the addresses can be right: counters even, copies equal, name printable,
 * clock within a day of the host's. For the bake, when the kernel runs user space. 0, -EFAULT
 * (outside RAM), -EPROTO (implausible: symbols of another kernel).
 */
NODISCARD int guestsym_check(const struct gmem *mem, const struct guestsym_state *state,
                             struct err *err);

/*
 * Replaces wake->parts. Nothing to do when the kernel is not known. Each vCPU must be stopped with
 * RFLAGS.IF set (always so in ring 3): the kernel changes these fields with interrupts off. 0,
 * -EFAULT, -EINVAL (host name), -ERANGE (a wall clock before the guest's boot), or -EPROTO (the clock
 * is being changed, or forged); on error nothing is written.
 */
NODISCARD int guestsym_apply(const struct gmem *mem, const struct guestsym_state *state,
                             const struct guestsym_wake *wake, struct err *err);

/* True when the calls below know the kernel. */
bool guestsym_can_idle(const struct guestsym_state *state);
/* How many tasks of the guest want the processor, the one that has it among them. 0 when it cannot be told. */
uint32_t guestsym_nr_running(const struct gmem *mem, const struct guestsym_state *state);
/*
 * Nanoseconds until the next high resolution timer is due that is not the kernel's own (the tick, the scheduler's):
 * 0 when it is; UINT64_MAX when there is none, or it cannot be told. `kvmclock_ns` as above.
 */
uint64_t guestsym_next_timer(const struct gmem *mem, const struct guestsym_state *state,
                             uint64_t kvmclock_ns);

#endif
