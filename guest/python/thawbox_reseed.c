/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An add-on of Node.js that has nothing but its start: OpenSSL's generators, which Node.js has seeded before the
 * freeze, take entropy from the guest's kernel again, those of all threads (RAND_poll(3); EVP_RAND(7): a child is
 * reseeded after its parent).
 */
#include <openssl/rand.h>
#include <stdlib.h>

void *napi_register_module_v1(void *env, void *exports);

/* What Node-API calls when it loads an add-on; its types are in a package that nothing else needs. */
void *napi_register_module_v1(void *env, void *exports)
{
	(void)env;
	if (RAND_poll() != 1)
		abort(); /* no interpreter rather than one that draws what all others draw */
	return exports;
}
