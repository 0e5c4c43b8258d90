/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/daemon.h"

#include <criterion/criterion.h>
#include <string.h>

/* Every counter goes on in the next daemon: a struct of nothing else. */
Test(stats, all_counters_are_kept)
{
	struct counters from, to = { 0 };
	uint64_t *words = (uint64_t *)&from;
	size_t nr = sizeof(from) / sizeof(*words);
	json_t *saved;

	for (size_t i = 0; i < nr; i++)
		words[i] = i + 1;
	saved = stats_save(&from);
	stats_restore(&to, saved);
	cr_expect(!memcmp(&from, &to, sizeof(from)), "a counter is not saved");
	stats_restore(&to, saved);
	cr_expect_eq(to.created, 2 * from.created, "what was counted by then is kept");
	json_decref(saved);
}

Test(stats, of_a_text_that_is_none)
{
	json_t *saved = json_pack("{s:s, s:i, s:[i, s]}", "created", "7", "cells", -5,
	                          "thaw_bucket", 3, "x");
	struct counters c = { .created = 1 };

	stats_restore(&c, NULL);
	stats_restore(&c, saved);
	cr_expect(c.created == 1 && !c.cells && c.thaw_bucket[0] == 3 && !c.thaw_bucket[1]);
	json_decref(saved);
}

Test(stats, thaws_by_their_time)
{
	struct counters c = { 0 };

	stats_thaw(&c, 500);
	stats_thaw(&c, 501);
	stats_thaw(&c, UINT32_MAX);
	cr_expect(c.thaw_bucket[0] == 1 && c.thaw_bucket[1] == 1 && c.thaw_bucket[14] == 1);
	cr_expect(c.thaws == 3 && c.thaw_sum_us == 1001 + (uint64_t)UINT32_MAX);
}
