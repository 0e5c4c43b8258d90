/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/usage.h"

#include "api/sandbox.h"

#include <stdio.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)

uint64_t usage_cpu_ns(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (pid <= 0 || clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		return 0;
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

struct usage_pages usage_pages(pid_t pid)
{
	unsigned long long resident, shared;
	struct usage_pages pages = { 0 };
	char path[64];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	f = fopen(path, "re");
	if (!f)
		return pages;
	if (fscanf(f, "%*u %llu %llu", &resident, &shared) == 2)
		pages = (struct usage_pages){ .resident = resident,
			                      .own = resident > shared ? resident - shared : 0 };
	fclose(f);
	return pages;
}

struct usage_mark usage_mark(pid_t pid)
{
	return (struct usage_mark){ .wall_ns = clock_ns(),
		                    .cpu_ns = usage_cpu_ns(pid),
		                    .own_pages = usage_pages(pid).own };
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
	return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

json_t *usage_between(const struct usage_mark *from, const struct usage_mark *to,
                      uint64_t output_bytes, const json_t *guest)
{
	static const char *const known[] = { "cpu_user_ms", "cpu_system_ms", "peak_kib",
		                             "read_bytes", "write_bytes" };
	uint64_t dirtied = to->own_pages > from->own_pages ? to->own_pages - from->own_pages : 0;
	json_t *usage =
		json_pack("{s:f, s:f, s:I, s:I}", "wall_ms", ms_between(from->wall_ns, to->wall_ns),
	                  "cpu_ms", ms_between(from->cpu_ns, to->cpu_ns), "pages_dirtied",
	                  (json_int_t)dirtied, "output_bytes", (json_int_t)output_bytes);

	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		json_t *value = json_object_get(guest, known[i]);

		if (json_is_number(value) && json_number_value(value) >= 0)
			json_object_set(usage, known[i], value);
	}
	return usage;
}
