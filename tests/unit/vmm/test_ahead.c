/* SPDX-License-Identifier: Apache-2.0 */
/* Pages come in while somebody else meets new ones, and only then. */
#include "vmm/ahead.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGES 4096u
#define RUNS  64u

static struct loop loop;
static struct gmem mem;
static struct pagein set;
static struct ahead ahead;

static void setup(void)
{
	struct err err = { 0 };

	cr_assert_eq(loop_open(&loop, 64, &err), 0, "%s", err.msg);
	cr_assert_eq(gmem_open(&mem, PAGES * GMEM_PAGE, 0xd0000000, 0x100000000, -1), 0);
	set.runs = calloc(RUNS, sizeof(*set.runs));
	set.nr_runs = RUNS;
	for (unsigned i = 0; i < RUNS; i++) {
		set.runs[i] = (struct pagein_run){ .gpa = (uint64_t)i * 32 * GMEM_PAGE,
			                           .nr_pages = 8,
			                           .class = PAGEIN_LATER };
		set.later += 8;
	}
}

static void teardown(void)
{
	ahead_stop(&ahead);
	loop_close(&loop);
	gmem_close(&mem);
	pagein_close(&set);
}

TestSuite(ahead, .init = setup, .fini = teardown, .timeout = 60);

static _Atomic bool enough;

/* A guest in unknown territory. */
static void *meet_pages(void *unused)
{
	const size_t len = 8u << 20;

	while (!atomic_load(&enough)) {
		char *p =
			mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		cr_assert_neq(p, MAP_FAILED);
		for (size_t i = 0; i < len && !atomic_load(&enough); i += GMEM_PAGE)
			p[i] = 1;
		munmap(p, len);
	}
	return unused;
}

static bool all_in(void *unused)
{
	(void)unused;
	return set.later_done == set.later;
}

static bool given_up(void *unused)
{
	(void)unused;
	return !ahead.timer.busy && !ahead.turn.pending;
}

Test(ahead, brings_all_in_while_pages_are_met)
{
	pthread_t thread;

	cr_assert_eq(pthread_create(&thread, NULL, meet_pages, NULL), 0);
	ahead_start(&ahead, &loop, &set, &mem);
	cr_assert_eq(loop_run_until(&loop, all_in, NULL), 0);
	atomic_store(&enough, true);
	pthread_join(thread, NULL);
}

Test(ahead, gives_up_when_nothing_happens)
{
	ahead_start(&ahead, &loop, &set, &mem);
	cr_assert_eq(loop_run_until(&loop, given_up, NULL), 0);
	cr_assert_eq(set.later_done, 0u);
}

Test(ahead, stops_at_once_and_for_good)
{
	ahead_start(&ahead, &loop, &set, &mem);
	ahead_stop(&ahead);
	ahead_stop(&ahead);
	cr_assert_eq(loop_run_until(&loop, given_up, NULL), 0);
	cr_assert_eq(set.later_done, 0u);
}

Test(ahead, nothing_to_do_without_such_pages)
{
	set.later = 0;
	ahead_start(&ahead, &loop, &set, &mem);
	cr_assert_not(ahead.on);
}
