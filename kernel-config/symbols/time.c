// SPDX-License-Identifier: GPL-2.0
/* The wall clock: every place where the kernel keeps CLOCK_REALTIME or its distance to others. */
#include "../kernel/time/timekeeping.c"

#include <vdso/datapage.h>
#include <vdso/vsyscall.h>

#include "emit.h"

#define HRTIMER_OFFSET(base) hrtimer_bases.clock_base[base].offset
#define VDSO_BASETIME(clock) _vdso_data[CS_HRES_COARSE].basetime[clock]

void thawbox_symbols_time(void);
void thawbox_symbols_time(void)
{
	EMIT("tk.seq", tk_core.seq.seqcount.sequence);
	EMIT("tk", tk_core.timekeeper);
	EMIT("tk_shadow", shadow_timekeeper);
	EMIT("tk.xtime_sec", tk_core.timekeeper.xtime_sec);
	EMIT("tk.wall_to_monotonic.sec", tk_core.timekeeper.wall_to_monotonic.tv_sec);
	EMIT("tk.wall_to_monotonic.nsec", tk_core.timekeeper.wall_to_monotonic.tv_nsec);
	EMIT("tk.offs_real", tk_core.timekeeper.offs_real);
	EMIT("tk.offs_tai", tk_core.timekeeper.offs_tai);
	EMIT("tk.tai_offset", tk_core.timekeeper.tai_offset);
	EMIT("tk.clock_was_set_seq", tk_core.timekeeper.clock_was_set_seq);
	EMIT("tk.mono.mult", tk_core.timekeeper.tkr_mono.mult);
	EMIT("tk.mono.shift", tk_core.timekeeper.tkr_mono.shift);
	EMIT("tk.mono.cycle_last", tk_core.timekeeper.tkr_mono.cycle_last);
	EMIT("tk.mono.xtime_nsec", tk_core.timekeeper.tkr_mono.xtime_nsec);
	EMIT("tk.mono.base", tk_core.timekeeper.tkr_mono.base);
	EMIT("tk.mono.base_real", tk_core.timekeeper.tkr_mono.base_real);

	EMIT("tk_fast.0.base_real", tk_fast_mono.base[0].base_real);
	EMIT("tk_fast.1.base_real", tk_fast_mono.base[1].base_real);

	EMIT("vdso.seq", _vdso_data[CS_HRES_COARSE].seq);
	EMIT("vdso.raw_seq", _vdso_data[CS_RAW].seq);
	EMIT("vdso.realtime.sec", VDSO_BASETIME(CLOCK_REALTIME).sec);
	EMIT("vdso.realtime.nsec", VDSO_BASETIME(CLOCK_REALTIME).nsec);
	EMIT("vdso.realtime_coarse.sec", VDSO_BASETIME(CLOCK_REALTIME_COARSE).sec);
	EMIT("vdso.realtime_coarse.nsec", VDSO_BASETIME(CLOCK_REALTIME_COARSE).nsec);
	EMIT("vdso.tai.sec", VDSO_BASETIME(CLOCK_TAI).sec);
	EMIT("vdso.tai.nsec", VDSO_BASETIME(CLOCK_TAI).nsec);

	EMIT("hrtimer.realtime", HRTIMER_OFFSET(HRTIMER_BASE_REALTIME));
	EMIT("hrtimer.realtime_soft", HRTIMER_OFFSET(HRTIMER_BASE_REALTIME_SOFT));
	EMIT("hrtimer.tai", HRTIMER_OFFSET(HRTIMER_BASE_TAI));
	EMIT("hrtimer.tai_soft", HRTIMER_OFFSET(HRTIMER_BASE_TAI_SOFT));
}
