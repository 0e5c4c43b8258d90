/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates on disk: <home>/templates/<name>/<id>/ is a snapshot, `current` a link to the one in use.
 * A new one is switched in by renaming the link, so that there is always a usable one. Whoever uses
 * a snapshot holds a shared flock on its folder; old ones go when nobody does. A variant with
 * another amount of memory has the name NAME@MB. Any thread.
 *
 * Beside the monitor's parts a template's folder holds `template.json` (what it was made from) and
 * `checksums` (XXH3-128 of each part, in the format of `xxh128sum -c`).
 */
#ifndef API_TEMPLATE_H
#define API_TEMPLATE_H

#include "api/paths.h"
#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define TEMPLATE_DEFAULT  "code-interpreter"
#define TEMPLATE_NAME_MAX 64
#define TEMPLATE_ID_MAX   64
/*
 * All sandboxes of a template have the same addresses in their guest (KASLR, ASLR) and the same canaries: what one
 * gives away is good for the others until the template is baked again.
 */
#define TEMPLATE_MAX_AGE_S (UINT64_C(7) * 24 * 3600)

struct template
{
	char name[TEMPLATE_NAME_MAX];
	char id[TEMPLATE_ID_MAX];
	char dir[PATHS_MAX]; /* the snapshot's folder */
	char home[PATHS_MAX];
	int lock_fd; /* owned: the folder, locked shared */
};

/* Letters, digits, "._-@", at most 63 characters, a letter or digit first. */
bool template_name_ok(const char *name);

/* <home>/templates/<name> */
NODISCARD int template_path(const char *name, char out[PATHS_MAX], struct err *err);

/*
 * Finds the template in use and keeps it from being removed until template_close(). `memory_mb` 0:
 * as baked; else the variant of that size. -ENOENT with the command that bakes it.
 */
NODISCARD int template_open(struct template *t, const char *name, uint64_t memory_mb,
                            struct err *err);
void template_close(struct template *t);

/* The id of the snapshot in use, without a lock on it. -ENOENT: there is none. */
NODISCARD int template_current(const char *name, char id[TEMPLATE_ID_MAX]);

/*
 * Snapshot `id` of a template, which need not be in use any more, by a lock on it that somebody has left (-1: nobody has);
 * `lock_fd` is template_close()'s on success.
 */
NODISCARD int template_adopt(struct template *t, const char *name, const char *id, int lock_fd,
                             struct err *err);

/* Its template.json: a new reference, or NULL. */
json_t *template_info(const struct template *t);

/* Seconds since it was baked, by its template.json; -1 when that is not known, or lies ahead of `now`. Pure. */
int64_t template_age_s(const json_t *info, time_t now);
/* Of that age or more, or of no age that is known. Pure. */
bool template_is_old(const json_t *info, time_t now, uint64_t max_age_s);

/* Names of all templates, sorted: an array of strings, a new reference. */
NODISCARD int template_names(json_t **names, struct err *err);

/* Bytes on disk of a folder's files (holes not counted). */
uint64_t template_disk_bytes(const char *dir);

/* XXH3-128 of a file as 32 hex digits; holes are hashed as the zeros that they are. */
NODISCARD int template_hash_file(const char *path, char hex[33], struct err *err);

/* Writes `checksums` for the parts in `dir`. */
NODISCARD int template_write_checksums(const char *dir, struct err *err);

/* Compares the parts with `checksums`. -EBADMSG names the part that differs. *nr: parts compared. */
NODISCARD int template_verify(const char *dir, unsigned *nr, struct err *err);

/* Switches `current` of the template to `id`, a folder that is there. */
NODISCARD int template_publish(const char *path, const char *id, struct err *err);

/* Removes snapshots that are neither in use nor current, and what dead builds left. */
void template_sweep(const char *path);

/* Removes a template, wholly; -EBUSY while a sandbox uses it. */
NODISCARD int template_remove(const char *name, struct err *err);

#endif
