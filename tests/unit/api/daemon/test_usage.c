/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/usage.h"

#include "tests/unit/api/daemon/same_json.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 2000u

Test(usage, of_a_process)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct usage_mark from = usage_mark(getpid()), to;
	char *p = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	               0);
	json_t *usage;

	cr_assert_neq(p, MAP_FAILED);
	for (size_t i = 0; i < PAGES; i++)
		p[i * page] = 1;
	while (usage_cpu_ns(getpid()) < from.cpu_ns + 3000000)
		;
	to = usage_mark(getpid());
	usage = usage_between(&from, &to, 7, NULL);
	cr_expect_geq(json_real_value(json_object_get(usage, "cpu_ms")), 3.0);
	cr_expect_geq(json_real_value(json_object_get(usage, "wall_ms")), 3.0 * 0.9);
	/* The kernel counts for each processor and adds up later: some are missing. */
	cr_expect_geq(json_integer_value(json_object_get(usage, "pages_dirtied")), PAGES * 3 / 4);
	cr_expect_eq(json_integer_value(json_object_get(usage, "output_bytes")), 7);
	cr_expect_eq(json_object_size(usage), 4);
	cr_expect_geq(usage_pages(getpid()).resident, usage_pages(getpid()).own);
	json_decref(usage);
	munmap(p, PAGES * page);
}

Test(usage, of_no_process)
{
	struct usage_mark mark = usage_mark(0);

	cr_expect_eq(mark.cpu_ns, 0);
	cr_expect_eq(mark.own_pages, 0);
}

/* What a guest says is taken for what it is: numbers that are not negative, under names that are known. */
Test(usage, of_a_guest)
{
	struct usage_mark from = { 2000000, 5, 9 }, to = { 1000000, 4, 8 };
	json_t *guest = json_loads("{\"peak_kib\":5,\"cpu_user_ms\":1.5,\"cpu_system_ms\":-1,"
	                           "\"read_bytes\":\"x\",\"wall_ms\":77,\"more\":1}",
	                           0, NULL);

	expect_json(guest, usage_between(&from, &to, 0, guest),
	            "{\"wall_ms\":0.0,\"cpu_ms\":0.0,\"pages_dirtied\":0,"
	            "\"output_bytes\":0,\"peak_kib\":5,\"cpu_user_ms\":1.5}");
}
