/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/listing.h"

#include <criterion/criterion.h>

static void expect(const char *text, const char *want)
{
	json_t *filter = listing_parse_filter(text),
	       *wanted = want ? json_loads(want, 0, NULL) : NULL;

	cr_expect(want ? json_equal(filter, wanted) : !filter, "%s", text);
	json_decref(filter);
	json_decref(wanted);
}

/* What the SDKs send is encoded three times; HTTP's own decoding has been done. */
Test(listing, filter)
{
	expect("", "{}");
	expect("a%3Db", "{\"a\":\"b\"}");
	expect("k%2520k=v%2526v", "{\"k k\":\"v&v\"}");
	expect("a=1&b=%2541", "{\"a\":\"1\",\"b\":\"A\"}");
	expect("a=1=2", "{\"a\":\"1=2\"}");
	expect("a", NULL);
	expect("a=%25ff", NULL); /* no UTF-8 */
}
