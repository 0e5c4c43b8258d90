/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/trace.h"

#include "core/log.h"
#include "core/own.h"
#include "vmm/clock.h"
#include "vmm/jail.h"
#include "vmm/kvm.h"
#include "vmm/vcpu.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define RAW_MAX   4096u /* bytes of a vCPU's counters in KVM */
#define NS_PER_US 1e3
#define FILE_MAX  (PATH_MAX + 32) /* with a pid and ".tmp" behind it */

struct trace_event {
	const char *name;
	uint64_t ns, count;
	uint32_t minor, major; /* page faults of the thread so far */
	uint8_t thread;
	_Atomic uint8_t kind; /* written last: TRACE_NOTHING is not there yet */
};

struct counters {
	bool taken;
	uint64_t mmio, io, interrupted, other;
	struct rusage usage; /* of the process */
	size_t raw_len;
	uint8_t raw[RAW_MAX];
};

atomic_bool trace_is_on;

/* All zero, and in no memory, until the trace is on. */
static struct {
	struct trace_event event[TRACE_MAX];
	atomic_uint next;
	char file[PATH_MAX];
	int window; /* jail_window() */
	bool each_process, due;
	struct counters at[TRACE_NR_MOMENTS];
} trace;

static int stats_fd = -1; /* of vCPU 0's counters in KVM; apart from the zeros */
static _Thread_local uint8_t this_thread = TRACE_LOOP;

/* The folder that the file will be in. */
static void folder_of(const char *file, char folder[PATH_MAX])
{
	char *slash;

	(void)snprintf(folder, PATH_MAX, "%s", file);
	slash = strrchr(folder, '/');
	if (!slash)
		(void)snprintf(folder, PATH_MAX, ".");
	else
		slash[slash == folder] = '\0';
}

int trace_open(const char *file, bool each_process, struct err *err)
{
	char folder[PATH_MAX];
	struct stat st;
	int ret = 0;

	if (strlen(file) >= sizeof(trace.file))
		return err_set(err, -ENAMETOOLONG, "trace: the path has over %zu bytes",
		               sizeof(trace.file) - 1);
	folder_of(file, folder);
	if (access(folder, W_OK) < 0)
		ret = -errno;
	else if (stat(file, &st) == 0 && S_ISDIR(st.st_mode))
		ret = -EISDIR;
	if (ret < 0) {
		err_set(err, ret, "trace %s: %s", file, strerror(-ret));
		return err_remedy(err, "name a file in a folder of yours");
	}
	trace.window = jail_window(file, err);
	if (trace.window < 0)
		return err_wrap(err, "trace");
	memcpy(trace.file, file, strlen(file) + 1);
	trace.each_process = each_process;
	trace.due = true;
	this_thread = each_process ? TRACE_ZYGOTE : TRACE_LOOP;
	atomic_store(&trace_is_on, true);
	return 0;
}

void trace_restart(void)
{
	unsigned used = atomic_exchange(&trace.next, 0);

	for (unsigned i = 0; i < used && i < TRACE_MAX; i++)
		atomic_store(&trace.event[i].kind, TRACE_NOTHING);
}

void trace_thread(unsigned thread)
{
	this_thread = (uint8_t)thread;
}

uint64_t trace_now(void)
{
	return clock_mono_ns();
}

void trace_add(enum trace_kind kind, const char *name, uint64_t ns, uint64_t count)
{
	unsigned i = atomic_load(&trace.next);
	struct rusage usage = { 0 };
	struct trace_event *e;

	/* Without an end a chatty guest could make the index wrap. */
	if (i > UINT_MAX / 2)
		return;
	i = atomic_fetch_add(&trace.next, 1);
	if (i >= TRACE_MAX)
		return;
	e = &trace.event[i];
	(void)getrusage(RUSAGE_THREAD, &usage); /* cannot fail; and zero would do */
	e->name = name;
	e->ns = ns;
	e->count = count;
	e->minor = (uint32_t)usage.ru_minflt;
	e->major = (uint32_t)usage.ru_majflt;
	e->thread = this_thread;
	atomic_store(&e->kind, kind);
}

/* What the trace itself costs in one piece is a step too. */
void trace_read_counters(enum trace_moment moment, struct vcpu *vcpu)
{
	static const char own_step[] = "trace: counters read";
	struct counters *at = &trace.at[moment];

	if (vcpu->id != 0)
		return;
	trace_begin(own_step);
	if (stats_fd < 0 && moment != TRACE_AT_RUN)
		stats_fd = kvm_stats_open(vcpu->fd);
	*at = (struct counters){ .taken = true,
		                 .mmio = vcpu->exits.mmio,
		                 .io = vcpu->exits.io,
		                 .interrupted = vcpu->exits.interrupted,
		                 .other = vcpu->exits.other };
	at->raw_len = kvm_stats_read(stats_fd, at->raw, sizeof(at->raw));
	(void)getrusage(RUSAGE_SELF, &at->usage); /* as above */
	trace_end(own_step, at->raw_len);
}

/* --- the file ------------------------------------------------------------------------------------- */

static json_t *counters_json(const struct counters *at)
{
	json_t *vcpu = kvm_stats_named(stats_fd, at->raw, at->raw_len);

	return json_pack("{s:o*, s:{s:I, s:I, s:I, s:I}, s:{s:I, s:I}}", "vcpu", vcpu, "exits",
	                 "mmio", (json_int_t)at->mmio, "io", (json_int_t)at->io, "interrupted",
	                 (json_int_t)at->interrupted, "other", (json_int_t)at->other, "faults",
	                 "minor", (json_int_t)at->usage.ru_minflt, "major",
	                 (json_int_t)at->usage.ru_majflt);
}

static json_t *other_data(json_t *other, uint64_t start_ns)
{
	static const char *const names[] = {
		[TRACE_AT_PARK] = "at_park", [TRACE_AT_RUN] = "at_run", [TRACE_AT_DONE] = "at_done"
	};
	unsigned nr = atomic_load(&trace.next);

	other = other ? other : json_object();
	json_object_set_new(other, "clock", json_string("CLOCK_MONOTONIC"));
	json_object_set_new(other, "start_ns", json_integer((json_int_t)start_ns));
	json_object_set_new(other, "lost",
	                    json_integer(nr > TRACE_MAX ? (json_int_t)(nr - TRACE_MAX) : 0));
	for (unsigned i = 0; i < TRACE_NR_MOMENTS; i++)
		if (trace.at[i].taken)
			json_object_set_new(other, names[i], counters_json(&trace.at[i]));
	return other;
}

/* The step that event `i` ends; NULL: it began before the trace did. */
static const struct trace_event *beginning_of(unsigned i)
{
	const struct trace_event *end = &trace.event[i];

	while (i-- > 0) {
		const struct trace_event *e = &trace.event[i];

		if (atomic_load(&e->kind) == TRACE_BEGIN && e->thread == end->thread &&
		    strcmp(e->name, end->name) == 0)
			return e;
	}
	return NULL;
}

/* A forked process counts from zero. */
static uint32_t since(uint32_t before, uint32_t now)
{
	return now >= before ? now - before : now;
}

static json_t *args_json(unsigned i)
{
	const struct trace_event *e = &trace.event[i], *begin = NULL;

	if (atomic_load(&e->kind) == TRACE_END)
		begin = beginning_of(i);
	if (!begin)
		return json_pack("{s:I}", "count", (json_int_t)e->count);
	return json_pack("{s:I, s:I, s:I}", "count", (json_int_t)e->count, "minor_faults",
	                 (json_int_t)since(begin->minor, e->minor), "major_faults",
	                 (json_int_t)since(begin->major, e->major));
}

static json_t *event_json(unsigned i, enum trace_kind kind, uint64_t start_ns)
{
	static const char *const phase[] = {
		[TRACE_BEGIN] = "B", [TRACE_END] = "E", [TRACE_POINT] = "i"
	};
	const struct trace_event *e = &trace.event[i];
	double us = ((double)e->ns - (double)start_ns) / NS_PER_US;
	json_t *event =
		json_pack("{s:s, s:s, s:s, s:f, s:i, s:i}", "name", e->name, "cat",
	                  strncmp(e->name, "wait: ", 6) == 0 ? "wait" : "work", "ph", phase[kind],
	                  "ts", us, "pid", (int)jail_pid(), "tid", (int)e->thread);

	if (kind != TRACE_BEGIN)
		json_object_set_new(event, "args", args_json(i));
	if (kind == TRACE_POINT) /* a mark on its thread alone */
		json_object_set_new(event, "s", json_string("t"));
	return event;
}

static void add_thread(json_t *events, unsigned thread)
{
	char name[32];

	if (thread == TRACE_ZYGOTE)
		(void)snprintf(name, sizeof(name), "zygote");
	else if (thread == TRACE_LOOP)
		(void)snprintf(name, sizeof(name), "loop");
	else
		(void)snprintf(name, sizeof(name), "vCPU %u", thread - TRACE_VCPU);
	json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name",
	                                        "thread_name", "ph", "M", "pid", (int)jail_pid(),
	                                        "tid", (int)thread, "args", "name", name));
}

static json_t *events_json(uint64_t start_ns)
{
	unsigned nr = atomic_load(&trace.next);
	json_t *events = json_array();
	bool seen[UINT8_MAX + 1] = { false };

	for (unsigned i = 0; i < nr && i < TRACE_MAX; i++) {
		const struct trace_event *e = &trace.event[i];
		enum trace_kind kind = atomic_load(&e->kind);

		if (kind == TRACE_NOTHING)
			continue;
		if (!seen[e->thread])
			add_thread(events, e->thread);
		seen[e->thread] = true;
		json_array_append_new(events, event_json(i, kind, start_ns));
	}
	return events;
}

/* Whole or not at all: who waits for the file may read it once it is there. */
static int write_file(const json_t *all, const char *file)
{
	char tmp[FILE_MAX];
	own_fd int fd = -1;

	(void)snprintf(tmp, sizeof(tmp), "%s.tmp", file);
	(void)unlink(tmp); /* of one that was killed; and never what a link of somebody names */
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || json_dumpfd(all, fd, JSON_COMPACT | JSON_REAL_PRECISION(15)) < 0)
		return errno ? -errno : -EIO;
	return rename(tmp, file) < 0 ? -errno : 0;
}

void trace_stop(void)
{
	atomic_store(&trace_is_on, false);
}

bool trace_is_due(void)
{
	return trace.due;
}

void trace_write(json_t *other)
{
	uint64_t start_ns = atomic_load(&trace.next) ? trace.event[0].ns : 0;
	char now[JAIL_PATH_MAX], file[FILE_MAX - sizeof(".tmp")];
	json_t *all;
	int ret;

	trace_stop();
	if (!trace.due) {
		json_decref(other);
		return;
	}
	trace.due = false;
	jail_path(trace.window, trace.file, now);
	(void)snprintf(file, sizeof(file), "%s", now);
	if (trace.each_process)
		(void)snprintf(file, sizeof(file), "%s.%d", now, (int)jail_pid());
	all = json_pack("{s:s, s:o, s:o}", "displayTimeUnit", "ms", "traceEvents",
	                events_json(start_ns), "otherData", other_data(other, start_ns));
	ret = write_file(all, file);
	if (ret < 0)
		log_err("trace %s: %s", file, strerror(-ret));
	json_decref(all);
}
