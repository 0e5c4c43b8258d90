/* SPDX-License-Identifier: Apache-2.0 */
#include "api/keys.h"

#include "core/own.h"
#include "core/random.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SECRET_LEN 20
#define BURST      4 /* creates at once beyond the rate */

int keys_path(char out[PATHS_MAX], struct err *err)
{
	char home[PATHS_MAX];
	int rc = paths_home(home, err);

	return rc ? rc : paths_format(out, err, "%s/keys.json", home);
}

bool keys_name_ok(const char *name)
{
	size_t n = 0;

	for (; name[n]; n++)
		if (!isalnum((unsigned char)name[n]) && !strchr("._-", name[n]))
			return false;
	return n && n < KEY_NAME_MAX;
}

static void hash(const char *text, uint8_t out[KEY_HASH_LEN])
{
	struct sha256_ctx ctx;

	sha256_init(&ctx);
	sha256_update(&ctx, strlen(text), (const uint8_t *)text);
	sha256_digest(&ctx, KEY_HASH_LEN, out);
}

static void to_hex(const uint8_t *data, size_t len, char *out)
{
	for (size_t i = 0; i < len; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", data[i]);
}

static bool from_hex(const char *text, uint8_t *out, size_t len)
{
	if (!text || strlen(text) != 2 * len)
		return false;
	for (size_t i = 0; i < len; i++) {
		unsigned value;
		int n = 0;

		if (!isxdigit((unsigned char)text[2 * i]) ||
		    sscanf(text + 2 * i, "%2x%n", &value, &n) != 1 || n != 2)
			return false;
		out[i] = (uint8_t)value;
	}
	return true;
}

static struct key *append(struct keys *keys, const struct key *like)
{
	struct key **at = realloc(keys->at, (keys->nr + 1) * sizeof(void *));
	struct key *key = calloc(1, sizeof(*key));

	if (at)
		keys->at = at;
	if (!at || !key) {
		free(key);
		return NULL;
	}
	*key = *like;
	key->allowance = BURST;
	keys->at[keys->nr++] = key;
	return key;
}

static bool parse_key(const json_t *json, struct key *key)
{
	const char *name = json_string_value(json_object_get(json, "name"));
	json_int_t max = json_integer_value(json_object_get(json, "max_sandboxes"));

	*key = (struct key){ .created = json_integer_value(json_object_get(json, "created")),
		             .max_sandboxes = max > 0 ? (uint64_t)max : 0,
		             .rate = json_number_value(json_object_get(json, "rate")) };
	if (!name || !keys_name_ok(name) || key->rate < 0)
		return false;
	(void)snprintf(key->name, sizeof(key->name), "%s", name);
	return from_hex(json_string_value(json_object_get(json, "hash")), key->hash, KEY_HASH_LEN);
}

int keys_load(struct keys *keys, const char *path, struct err *err)
{
	json_error_t why;
	json_t *root, *item;
	struct key key;
	size_t i;
	int rc = 0;

	*keys = (struct keys){ 0 };
	if (access(path, F_OK) && errno == ENOENT)
		return 0;
	root = json_load_file(path, 0, &why);
	if (!json_is_array(json_object_get(root, "keys"))) {
		rc = err_set(err, -EINVAL, "%s: %s", path,
		             root ? "there is no list of keys in it" : why.text);
		(void)err_remedy(err, "remove it and make keys with `thawbox key create`");
	}
	json_array_foreach(json_object_get(root, "keys"), i, item)
	{
		if (rc)
			break;
		if (!parse_key(item, &key))
			rc = err_set(err, -EINVAL, "%s: key %zu has no good name, hash or rate",
			             path, i + 1);
		else if (!append(keys, &key))
			rc = err_set(err, -ENOMEM, "%s: no memory", path);
	}
	json_decref(root);
	if (rc)
		keys_free(keys);
	return rc;
}

static json_t *key_json(const struct key *key)
{
	char hex[2 * KEY_HASH_LEN + 1];

	to_hex(key->hash, KEY_HASH_LEN, hex);
	return json_pack("{s:s, s:s, s:I, s:I, s:f}", "name", key->name, "hash", hex, "created",
	                 (json_int_t)key->created, "max_sandboxes", (json_int_t)key->max_sandboxes,
	                 "rate", key->rate);
}

static int write_file(const char *path, const char *text, struct err *err)
{
	char tmp[PATHS_MAX];
	int rc = paths_format(tmp, err, "%s.XXXXXX", path);
	own_fd int fd = rc ? -1 : mkostemp(tmp, O_CLOEXEC); /* mode 0600 */
	size_t len = strlen(text);

	if (rc)
		return rc;
	if (fd < 0)
		return err_set(err, -errno, "make a file beside %s: %s", path, strerror(errno));
	if (write(fd, text, len) != (ssize_t)len || fsync(fd) || rename(tmp, path)) {
		rc = err_set(err, -errno, "write %s: %s", path, strerror(errno));
		(void)unlink(tmp);
	}
	return rc;
}

int keys_save(const struct keys *keys, const char *path, struct err *err)
{
	json_t *root = json_pack("{s:[]}", "keys"), *list = json_object_get(root, "keys");
	own_free char *text = NULL;

	for (unsigned i = 0; i < keys->nr; i++)
		json_array_append_new(list, key_json(keys->at[i]));
	text = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	return text ? write_file(path, text, err) : err_set(err, -ENOMEM, "%s: no memory", path);
}

void keys_free(struct keys *keys)
{
	for (unsigned i = 0; i < keys->nr; i++)
		free(keys->at[i]);
	free(keys->at);
	*keys = (struct keys){ 0 };
}

static unsigned index_of(const struct keys *keys, const char *name)
{
	unsigned i = 0;

	while (i < keys->nr && strcmp(keys->at[i]->name, name) != 0)
		i++;
	return i;
}

int keys_add(struct keys *keys, const struct key *like, char text[KEY_MAX], struct err *err)
{
	uint8_t secret[SECRET_LEN];
	struct key key = *like;
	int rc;

	if (!keys_name_ok(key.name))
		return err_set(err, -EINVAL, "'%s': a key's name is made of letters, digits, . _ -",
		               key.name);
	if (index_of(keys, key.name) < keys->nr)
		return err_set(err, -EEXIST, "there is a key '%s' already", key.name);
	rc = random_fill(secret, sizeof(secret), err);
	if (rc)
		return rc;
	(void)snprintf(text, KEY_MAX, "e2b_");
	to_hex(secret, sizeof(secret), text + 4);
	hash(text, key.hash);
	key.created = time(NULL);
	return append(keys, &key) ? 0 : err_set(err, -ENOMEM, "no memory");
}

int keys_remove(struct keys *keys, const char *name, struct err *err)
{
	unsigned i = index_of(keys, name);

	if (i == keys->nr)
		return err_set(err, -ENOENT, "there is no key '%s'", name);
	free(keys->at[i]);
	memmove(keys->at + i, keys->at + i + 1, (keys->nr - i - 1) * sizeof(void *));
	keys->nr--;
	return 0;
}

struct key *keys_find(const struct keys *keys, const char *text)
{
	uint8_t digest[KEY_HASH_LEN];
	struct key *found = NULL;

	hash(text, digest);
	for (unsigned i = 0; i < keys->nr; i++)
		if (memeql_sec(keys->at[i]->hash, digest, KEY_HASH_LEN))
			found = keys->at[i];
	return found;
}

bool keys_take(struct key *key, uint64_t now_ns, unsigned *wait_s)
{
	double most = key->rate + BURST;

	*wait_s = 0;
	if (key->rate <= 0)
		return true;
	if (key->seen_ns)
		key->allowance += key->rate * (double)(now_ns - key->seen_ns) / 1e9;
	key->allowance = key->allowance < most ? key->allowance : most;
	key->seen_ns = now_ns;
	if (key->allowance < 1) {
		*wait_s = (unsigned)((1 - key->allowance) / key->rate) + 1;
		return false;
	}
	key->allowance -= 1;
	return true;
}
