/* SPDX-License-Identifier: Apache-2.0 */
#include "api/template.h"

#include "core/own.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <xxhash.h>

#define CHECKSUMS   "checksums"
#define HASH_BUFFER (1u << 20)

bool template_name_ok(const char *name)
{
	size_t n = strlen(name);

	if (!n || n >= TEMPLATE_NAME_MAX || !isalnum((unsigned char)*name))
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && !strchr("._-@", *name))
			return false;
	return true;
}

int template_path(const char *name, char out[PATHS_MAX], struct err *err)
{
	char home[PATHS_MAX];
	int rc;

	if (!template_name_ok(name)) {
		(void)err_set(err, -EINVAL, "'%s' is not a template's name", name);
		return err_remedy(err, "`thawbox template list` shows the names");
	}
	rc = paths_home(home, err);
	return rc ? rc : paths_format(out, err, "%s/templates/%s", home, name);
}

/* Name of the snapshot in use, from the link. */
static int read_current(const char *path, char id[TEMPLATE_ID_MAX])
{
	char link[PATHS_MAX];
	ssize_t n;

	if (snprintf(link, sizeof(link), "%s/current", path) >= (int)sizeof(link))
		return -ENAMETOOLONG;
	n = readlink(link, id, TEMPLATE_ID_MAX - 1);
	if (n < 0)
		return -errno;
	id[n] = '\0';
	return strchr(id, '/') || id[0] == '.' ? -EBADMSG : 0;
}

/* A shared lock on the folder that is current, also when a build switches it meanwhile. */
static int lock_current(struct template *t, const char *path, struct err *err)
{
	for (int tries = 0; tries < 10; tries++) {
		struct stat now, held;
		int rc = read_current(path, t->id);

		rc = rc ? rc : paths_format(t->dir, err, "%s/%s", path, t->id);
		if (rc)
			return rc;
		t->lock_fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (t->lock_fd < 0 && errno != ENOENT)
			return -errno;
		if (t->lock_fd >= 0 && !flock(t->lock_fd, LOCK_SH) && !fstat(t->lock_fd, &held) &&
		    !stat(t->dir, &now) && now.st_ino == held.st_ino)
			return 0;
		template_close(t);
	}
	return -ENOENT;
}

static int missing(const char *name, uint64_t memory_mb, int code, struct err *err)
{
	if (code != -ENOENT) {
		(void)err_set(err, code, "template %s: %s", name, strerror(-code));
		return err_remedy(err, "bake it again: thawbox template build --force %s", name);
	}
	if (memory_mb) {
		(void)err_set(err, code, "template %s has no variant of %llu MB", name,
		              (unsigned long long)memory_mb);
		return err_remedy(err, "bake one: thawbox template build %s --memory %llu", name,
		                  (unsigned long long)memory_mb);
	}
	(void)err_set(err, code, "there is no template %s", name);
	return err_remedy(err, "bake it once: thawbox template build %s", name);
}

static int open_named(struct template *t, const char *name, struct err *err)
{
	char path[PATHS_MAX];
	int rc;

	*t = (struct template){ .lock_fd = -1 };
	rc = paths_home(t->home, err);
	rc = rc ? rc : template_path(name, path, err);
	if (rc)
		return rc;
	(void)snprintf(t->name, sizeof(t->name), "%s", name);
	rc = lock_current(t, path, err);
	return rc ? missing(name, 0, rc, err) : 0;
}

int template_open(struct template *t, const char *name, uint64_t memory_mb, struct err *err)
{
	char variant[TEMPLATE_NAME_MAX + 24];
	json_t *info;
	json_int_t has;
	int rc = open_named(t, name, err);

	if (rc || !memory_mb)
		return rc;
	info = template_info(t);
	has = json_integer_value(json_object_get(info, "memory_mb"));
	json_decref(info);
	if (has > 0 && (uint64_t)has == memory_mb)
		return 0;
	template_close(t);
	(void)snprintf(variant, sizeof(variant), "%s@%llu", name, (unsigned long long)memory_mb);
	return template_name_ok(variant) && !open_named(t, variant, err)
	               ? 0
	               : missing(name, memory_mb, -ENOENT, err);
}

int template_current(const char *name, char id[TEMPLATE_ID_MAX])
{
	char path[PATHS_MAX];
	struct err ignored;
	int rc = template_path(name, path, &ignored);

	return rc ? rc : read_current(path, id);
}

int template_adopt(struct template *t, const char *name, const char *id, int lock_fd,
                   struct err *err)
{
	char path[PATHS_MAX];
	int rc;

	*t = (struct template){ .lock_fd = -1 };
	if (!*id || *id == '.' || strchr(id, '/') ||
	    (size_t)snprintf(t->id, sizeof(t->id), "%s", id) >= sizeof(t->id))
		return err_set(err, -EINVAL, "'%s' is not the id of a snapshot", id);
	rc = paths_home(t->home, err);
	rc = rc ? rc : template_path(name, path, err);
	rc = rc ? rc : paths_format(t->dir, err, "%s/%s", path, id);
	if (rc)
		return rc;
	(void)snprintf(t->name, sizeof(t->name), "%s", name);
	t->lock_fd = lock_fd;
	return 0;
}

void template_close(struct template *t)
{
	own_close_fd(&t->lock_fd);
	t->lock_fd = -1;
}

json_t *template_info(const struct template *t)
{
	char path[PATHS_MAX];

	return paths_format(path, NULL, "%s/template.json", t->dir) ? NULL
	                                                            : json_load_file(path, 0, NULL);
}

int64_t template_age_s(const json_t *info, time_t now)
{
	const json_t *built = json_object_get(info, "built");
	json_int_t at = json_integer_value(built);

	return json_is_integer(built) && at > 0 && at <= now ? now - at : -1;
}

bool template_is_old(const json_t *info, time_t now, uint64_t max_age_s)
{
	int64_t age = template_age_s(info, now);

	return age < 0 || (uint64_t)age >= max_age_s;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Calls `visit` for each entry of a folder, sorted by name, until it returns non-zero. */
static int each_entry(const char *dir, int (*visit)(const char *dir, const char *name, void *ctx),
                      void *ctx)
{
	DIR *d = opendir(dir);
	char *names[512];
	unsigned nr = 0;
	struct dirent *e;
	int rc = 0;

	if (!d)
		return -errno;
	while (nr < ARRAY_LEN(names) && (e = readdir(d)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
		    (names[nr] = strdup(e->d_name)))
			nr++;
	closedir(d);
	qsort(names, nr, sizeof(*names), by_name);
	for (unsigned i = 0; i < nr; i++) {
		rc = rc ? rc : visit(dir, names[i], ctx);
		free(names[i]);
	}
	return rc;
}

static int add_name(const char *dir, const char *name, void *ctx)
{
	char path[PATHS_MAX], id[TEMPLATE_ID_MAX];

	if (!paths_format(path, NULL, "%s/%s", dir, name) && !read_current(path, id))
		json_array_append_new(ctx, json_string(name));
	return 0;
}

int template_names(json_t **names, struct err *err)
{
	char home[PATHS_MAX], path[PATHS_MAX];
	int rc = paths_home(home, err);

	rc = rc ? rc : paths_format(path, err, "%s/templates", home);
	if (rc)
		return rc;
	*names = json_array();
	rc = each_entry(path, add_name, *names);
	return rc == -ENOENT ? 0 : rc ? err_set(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

static int add_blocks(const char *dir, const char *name, void *ctx)
{
	char path[PATHS_MAX];
	struct stat st;

	if (!paths_format(path, NULL, "%s/%s", dir, name) && !lstat(path, &st))
		*(uint64_t *)ctx += (uint64_t)st.st_blocks * 512u;
	return 0;
}

uint64_t template_disk_bytes(const char *dir)
{
	uint64_t bytes = 0;

	(void)each_entry(dir, add_blocks, &bytes); /* what cannot be read counts nothing */
	return bytes;
}

/* Feeds `len` bytes from `at`: zeros without reading them when `buf` is all that is known. */
static int hash_range(XXH3_state_t *state, int fd, off_t at, off_t end, uint8_t *buf, bool hole)
{
	while (at < end) {
		size_t want = end - at < (off_t)HASH_BUFFER ? (size_t)(end - at) : HASH_BUFFER;
		ssize_t n = hole ? (ssize_t)want : pread(fd, buf, want, at);

		if (n < 0)
			return -errno;
		if (!n)
			return -EIO;
		XXH3_128bits_update(state, buf, (size_t)n);
		at += n;
	}
	return 0;
}

static int hash_fd(int fd, XXH3_state_t *state)
{
	own_free uint8_t *buf = malloc(HASH_BUFFER), *zeros = calloc(1, HASH_BUFFER);
	off_t at = 0, size;
	struct stat st;
	int rc = 0;

	if (!buf || !zeros)
		return -ENOMEM;
	if (fstat(fd, &st))
		return -errno;
	size = st.st_size;
	while (!rc && at < size) {
		off_t data = lseek(fd, at, SEEK_DATA), hole;

		if (data < 0 && errno != ENXIO)
			data = at; /* no holes known to this file system */
		else if (data < 0)
			data = size;
		rc = hash_range(state, fd, at, data, zeros, true);
		hole = data < size ? lseek(fd, data, SEEK_HOLE) : size;
		if (hole < 0)
			hole = size;
		rc = rc ? rc : hash_range(state, fd, data, hole, buf, false);
		at = hole;
	}
	return rc;
}

int template_hash_file(const char *path, char hex[33], struct err *err)
{
	own_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t sum;
	int rc = fd < 0 ? -errno : state ? 0 : -ENOMEM;

	if (!rc) {
		XXH3_128bits_reset(state);
		rc = hash_fd(fd, state);
		XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
		for (size_t i = 0; i < sizeof(sum.digest); i++)
			(void)snprintf(hex + 2 * i, 3, "%02x", sum.digest[i]);
	}
	XXH3_freeState(state);
	return rc ? err_set(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

struct sums {
	FILE *to;
	struct err *err;
};

static int write_sum(const char *dir, const char *name, void *ctx)
{
	struct sums *sums = ctx;
	char path[PATHS_MAX], hex[33];
	int rc;

	if (!strcmp(name, CHECKSUMS))
		return 0;
	rc = paths_format(path, sums->err, "%s/%s", dir, name);
	rc = rc ? rc : template_hash_file(path, hex, sums->err);
	if (!rc)
		fprintf(sums->to, "%s  %s\n", hex, name);
	return rc;
}

int template_write_checksums(const char *dir, struct err *err)
{
	char path[PATHS_MAX];
	struct sums sums = { .err = err };
	int rc = paths_format(path, err, "%s/" CHECKSUMS, dir);

	if (rc)
		return rc;
	sums.to = fopen(path, "we");
	if (!sums.to)
		return err_set(err, -errno, "%s: %s", path, strerror(errno));
	rc = each_entry(dir, write_sum, &sums);
	if (fflush(sums.to) || fsync(fileno(sums.to)))
		rc = rc ? rc : err_set(err, -errno, "%s: %s", path, strerror(errno));
	fclose(sums.to);
	return rc;
}

int template_verify(const char *dir, unsigned *nr, struct err *err)
{
	char path[PATHS_MAX], line[512];
	FILE *from;
	int rc = paths_format(path, err, "%s/" CHECKSUMS, dir);

	*nr = 0;
	if (rc)
		return rc;
	from = fopen(path, "re");
	if (!from) {
		(void)err_set(err, -errno, "%s: %s", path, strerror(errno));
		return err_remedy(err, "only a template that a build has finished can be verified");
	}
	while (!rc && fgets(line, sizeof(line), from)) {
		char want[33], name[256], hex[33];

		if (sscanf(line, "%32[0-9a-f]  %255[^/\n]", want, name) != 2 ||
		    !strcmp(name, "..")) {
			rc = err_set(err, -EBADMSG, "%s: a line that is not a checksum", path);
			break;
		}
		rc = paths_format(path, err, "%s/%s", dir, name);
		rc = rc ? rc : template_hash_file(path, hex, err);
		if (!rc && strcmp(want, hex) != 0)
			rc = err_set(err, -EBADMSG, "%s is damaged: its checksum is %s, not %s",
			             path, hex, want);
		(*nr)++;
	}
	fclose(from);
	if (!rc && !*nr)
		rc = err_set(err, -EBADMSG, "%s is empty", path);
	return rc ? err_remedy(err, "bake it again: thawbox template build --force"), rc : 0;
}

int template_publish(const char *path, const char *id, struct err *err)
{
	char tmp[PATHS_MAX], link[PATHS_MAX];
	own_fd int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = dir < 0 ? err_set(err, -errno, "%s: %s", path, strerror(errno)) : 0;

	rc = rc ? rc : paths_format(tmp, err, "%s/.current.new", path);
	rc = rc ? rc : paths_format(link, err, "%s/current", path);
	if (rc)
		return rc;
	if ((unlink(tmp) && errno != ENOENT) || symlink(id, tmp) || rename(tmp, link))
		return err_set(err, -errno, "%s: %s", link, strerror(errno));
	if (fsync(dir)) /* told as a failure, so that nobody sweeps the old one away */
		return err_set(err, -errno,
		               "%s is the new one, but may not outlive a crash of the host: %s",
		               link, strerror(errno));
	return 0;
}

/* Removes a folder that nobody holds a lock on. -EBUSY otherwise. */
static int remove_unused(const char *path)
{
	own_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (flock(fd, LOCK_EX | LOCK_NB))
		return -EBUSY;
	return paths_remove_tree(path);
}

static int sweep_one(const char *dir, const char *name, void *ctx)
{
	char path[PATHS_MAX];
	struct stat st;

	if (strcmp(name, ctx) != 0 && !paths_format(path, NULL, "%s/%s", dir, name) &&
	    !lstat(path, &st) && S_ISDIR(st.st_mode))
		(void)remove_unused(path); /* what is in use goes with a later build */
	return 0;
}

void template_sweep(const char *path)
{
	char id[TEMPLATE_ID_MAX];

	if (read_current(path, id))
		id[0] = '\0';
	(void)each_entry(path, sweep_one, id); /* nothing depends on it */
}

int template_remove(const char *name, struct err *err)
{
	struct template t;
	char path[PATHS_MAX];
	int rc = template_open(&t, name, 0, err);

	if (rc)
		return rc;
	template_close(&t);
	rc = template_path(name, path, err);
	if (rc)
		return rc;
	rc = remove_unused(t.dir);
	if (rc == -EBUSY) {
		(void)err_set(err, rc, "template %s is in use", name);
		return err_remedy(err, "end its sandboxes first");
	}
	rc = rc ? rc : paths_remove_tree(path);
	return rc ? err_set(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}
