/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/meter.h"

#include "api/daemon/usage.h"
#include "api/sandbox.h"

#include <unistd.h>

#define GIB_NS (1073741824.0 * 1e9)

static uint64_t own_bytes(pid_t pid)
{
	return usage_pages(pid).own * (uint64_t)sysconf(_SC_PAGESIZE);
}

void meter_add(struct meter *m, uint64_t now_ns, uint64_t bytes)
{
	double mean = ((double)m->last_bytes + (double)bytes) / 2;

	if (now_ns > m->last_ns)
		m->gib_s += mean * (double)(now_ns - m->last_ns) / GIB_NS;
	m->last_ns = now_ns;
	m->last_bytes = bytes;
}

json_t *meter_save(const struct meter *m)
{
	return json_pack("{s:I, s:I, s:I, s:f}", "cpu_base_ns", (json_int_t)m->cpu_base_ns,
	                 "last_ns", (json_int_t)m->last_ns, "last_bytes", (json_int_t)m->last_bytes,
	                 "gib_s", m->gib_s);
}

static uint64_t member(const json_t *saved, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(saved, name));
}

void meter_restore(struct meter *m, const json_t *saved)
{
	*m = (struct meter){ .cpu_base_ns = member(saved, "cpu_base_ns"),
		             .last_ns = member(saved, "last_ns"),
		             .last_bytes = member(saved, "last_bytes"),
		             .gib_s = json_number_value(json_object_get(saved, "gib_s")) };
}

void meter_look(struct meter *m, pid_t pid)
{
	meter_add(m, clock_ns(), own_bytes(pid));
}

void meter_start(struct meter *m, pid_t pid)
{
	*m = (struct meter){ .cpu_base_ns = usage_cpu_ns(pid),
		             .last_ns = clock_ns(),
		             .last_bytes = own_bytes(pid) };
}

double meter_cpu_s(const struct meter *m, pid_t pid)
{
	uint64_t now = usage_cpu_ns(pid);

	return now > m->cpu_base_ns ? (double)(now - m->cpu_base_ns) / 1e9 : 0;
}
