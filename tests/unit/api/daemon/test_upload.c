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

Test(upload, metadata)
{
	json_t *all = json_object();
	char key[300], value[4200];

	memset(key, 'k', sizeof(key));
	memset(value, 'v', sizeof(value));
	cr_expect(upload_add_metadata(all, "Author", "A b~"));
	cr_expect_str_eq(json_string_value(json_object_get(all, "author")), "A b~");
	key[246] = '\0';
	cr_expect(upload_add_metadata(all, key, ""));
	key[246] = 'k';
	key[247] = '\0';
	cr_expect(!upload_add_metadata(all, key, "x"));
	cr_expect(!upload_add_metadata(all, "", "x"));
	cr_expect(!upload_add_metadata(all, "a", "\xc3\xa9"));
	cr_expect(!upload_add_metadata(all, "a", "b\x7f"));
	value[4096 - 10 - 246 - 1] = '\0'; /* all that is left of the room, and the key */
	cr_expect(upload_add_metadata(all, "b", value));
	cr_expect(!upload_add_metadata(all, "c", ""));
	json_decref(all);
}
