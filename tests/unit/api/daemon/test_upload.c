/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/upload.h"

#include <criterion/criterion.h>

Test(upload, names)
{
	char name[] = "b/c %22q%22%41%0a%2", plain[] = "x";

	upload_decode_name(name);
	cr_expect_str_eq(name, "b/c \"q\"%41\n%2");
	upload_decode_name(plain);
	cr_expect_str_eq(plain, "x");
}
