/* SPDX-License-Identifier: Apache-2.0 */
/*
 * API keys of the daemon. The file holds no key, but the SHA-256 of each (a key is 160 random bits: nothing is
 * gained by a slow hash), with a name and limits: a JSON object {"keys":[{"name","hash","created",
 * "max_sandboxes","rate"}]}, mode 0600, replaced in one step. One thread.
 */
#ifndef API_KEYS_H
#define API_KEYS_H

#include "api/paths.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define KEY_MAX      48 /* "e2b_" and 40 hex digits */
#define KEY_NAME_MAX 64
#define KEY_HASH_LEN 32

struct key {
	char name[KEY_NAME_MAX];
	uint8_t hash[KEY_HASH_LEN];
	int64_t created;        /* seconds since 1970 */
	uint64_t max_sandboxes; /* 0: no limit of its own */
	double rate;            /* sandboxes a second that it may create; 0: no limit */
	/* of the daemon that serves it */
	unsigned live;
	double allowance; /* creates that it may do now */
	uint64_t seen_ns;
};

struct keys {
	struct key **at;
	unsigned nr;
};

/* <home>/keys.json */
NODISCARD int keys_path(char out[PATHS_MAX], struct err *err);
/* Reads the file; a missing one has none. On error *keys is empty. */
NODISCARD int keys_load(struct keys *keys, const char *path, struct err *err);
NODISCARD int keys_save(const struct keys *keys, const char *path, struct err *err);
void keys_free(struct keys *keys);

/* Letters, digits, "._-", at most 63 characters. */
bool keys_name_ok(const char *name);
/* Makes one, whose text is told only here. -EEXIST: there is one of that name. The other members of `like` are copied. */
NODISCARD int keys_add(struct keys *keys, const struct key *like, char text[KEY_MAX],
                       struct err *err);
/* -ENOENT. */
NODISCARD int keys_remove(struct keys *keys, const char *name, struct err *err);

/*
 * The key whose text this is, or NULL. Takes the same time for each text of one length: it compares hashes, all
 * of them, and each wholly.
 */
struct key *keys_find(const struct keys *keys, const char *text);

/* Takes one creation from the key's allowance. False: it must wait; *wait_s (rounded up) says how long. */
bool keys_take(struct key *key, uint64_t now_ns, unsigned *wait_s);

#endif
