/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of a thaw goes: stamps of its steps up to the first result or the machine's end, kept in memory
 * and written afterwards as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open (docs/thaw.md). Steps of a
 * thread nest. Names are string literals; two kinds say how threads depend on each other: a step "wait: X" ends
 * because of another thread's point "signal: X".
 * Off, which is the default, each call is one branch. The trace is one of a process, since a process has one machine:
 * no caller should have to carry it along.
 */
#ifndef VMM_TRACE_H
#define VMM_TRACE_H

#include "core/compiler.h"
#include "core/err.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct vcpu;

#define TRACE_MAX 8192u /* events; what comes after is counted, not kept */

enum trace_thread { TRACE_ZYGOTE, TRACE_LOOP, TRACE_VCPU }; /* vCPU n is TRACE_VCPU + n */
enum trace_kind { TRACE_NOTHING, TRACE_BEGIN, TRACE_END, TRACE_POINT };

/*
 * When a vCPU's counters are taken; the later of two readings at one moment counts. At the second a thaw is being
 * waited for: KVM's are not opened there, and are zero when they were not before.
 */
enum trace_moment { TRACE_AT_PARK, TRACE_AT_RUN, TRACE_AT_DONE, TRACE_NR_MOMENTS };

extern atomic_bool trace_is_on; /* read it by trace_on() */

static inline bool trace_on(void)
{
	return __builtin_expect(atomic_load_explicit(&trace_is_on, memory_order_relaxed), 0);
}

/*
 * On, for `file`, whose folder must be writable. `each_process`: this is a zygote, and its children's files
 * get their pid behind the name. Before there are threads.
 */
NODISCARD int trace_open(const char *file, bool each_process, struct err *err);
/* Forgets the events so far: the next request of a zygote. */
void trace_restart(void);
/* Which thread this is, from now on. */
void trace_thread(unsigned thread);

/* For the functions below; `ns` is CLOCK_MONOTONIC. Any thread; keeps errno. */
void trace_add(enum trace_kind kind, const char *name, uint64_t ns, uint64_t count);
uint64_t trace_now(void);
void trace_read_counters(enum trace_moment moment, struct vcpu *vcpu);

static inline void trace_begin(const char *name)
{
	if (trace_on())
		trace_add(TRACE_BEGIN, name, trace_now(), 0);
}

/* `count` is what the step was about: bytes, pages, an exit's reason; 0: nothing to say. */
static inline void trace_end(const char *name, uint64_t count)
{
	if (trace_on())
		trace_add(TRACE_END, name, trace_now(), count);
}

static inline void trace_point(const char *name, uint64_t count)
{
	if (trace_on())
		trace_add(TRACE_POINT, name, trace_now(), count);
}

/* On the vCPU's thread, out of KVM_RUN. */
static inline void trace_counters(enum trace_moment moment, struct vcpu *vcpu)
{
	if (trace_on())
		trace_read_counters(moment, vcpu);
}

/* Off: nothing is added any more. What there is can be written later. */
void trace_stop(void);
/* True when a trace has been opened and not yet written. */
bool trace_is_due(void);
/*
 * Off, and writes the file; nothing when no trace is due. `other` (taken over, NULL: nothing) goes into
 * "otherData" beside what the trace itself has counted. Takes milliseconds. Loop's thread.
 */
void trace_write(json_t *other);

#endif
