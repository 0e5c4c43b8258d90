/* SPDX-License-Identifier: Apache-2.0 */
/* The whole agent over a socket: the test itself is test_agent.py, which is also run by hand. */
#include <criterion/criterion.h>
#include <stdlib.h>

Test(agent, serves_a_client)
{
	cr_assert_eq(system("/usr/bin/python3 tests/unit/guest/test_agent.py >&2"), 0,
	             "see the output above; run it from the top of the source tree");
}
