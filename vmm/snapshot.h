/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot's directory (docs/snapshot.md): `state`, `memory`, `disk`, `workset`, `manifest`. The
 * same 16-byte id is in each part, so that parts of two snapshots are never mixed. The directory itself is
 * the work of whoever asks for it (api/freeze.h).
 */
#ifndef VMM_SNAPSHOT_H
#define VMM_SNAPSHOT_H

#include "core/err.h"
#include "core/gmem.h"
#include "core/state.h"
#include "vmm/cpu.h"
#include "vmm/layout.h"

#define SNAPSHOT_MAGIC     "THAWBOX1"
#define SNAPSHOT_ID_LEN    16
#define SNAPSHOT_MAX_DISKS (LAYOUT_VIRTIO_SLOTS - 1)
#define SNAPSHOT_PATH_MAX  256
#define SNAPSHOT_MAX_VCPUS 8

#define SNAPSHOT_HEAD(F, A)                                          \
	A(1, uint8_t, id, SNAPSHOT_ID_LEN)                           \
	F(1, uint64_t, memory_size) /* bytes of guest RAM */         \
	F(1, uint64_t, created_ns)  /* CLOCK_REALTIME of the host */ \
	F(1, uint32_t, nr_vcpus)                                     \
	F(1, uint32_t, nr_disks)                                     \
	A(1, uint8_t, fingerprint, CPU_FINGERPRINT_MAX)
STATE_STRUCT(snapshot_head, SNAPSHOT_HEAD);

/* A disk of the machine. A read-only one is shared and stays where it is; a writable one is in the snapshot. */
#define SNAPSHOT_DISK(F, A)                                                                       \
	F(1, uint8_t, readonly)                                                                   \
	F(1, uint64_t, size)                   /* bytes */                                        \
	F(1, uint32_t, probe)                  /* CRC of the first 64 KiB of a read-only image */ \
	A(1, uint8_t, path, SNAPSHOT_PATH_MAX) /* of a read-only image, NUL terminated */
STATE_STRUCT(snapshot_disk, SNAPSHOT_DISK);

/* A snapshot open for a thaw: everything checked that can be without reading the memory. */
struct snapshot {
	int dir_fd, memory_fd;
	int disk_fd[SNAPSHOT_MAX_DISKS];
	struct snapshot_head head;
	struct snapshot_disk disk[SNAPSHOT_MAX_DISKS];
	struct state_buf state; /* stands after the disks' sections */
};

/*
 * Opens and checks: magic, versions, checksums, CPU, sizes, that memory and disks are of this very
 * snapshot. The error says which part and what to do. Nothing is changed. Blocking.
 */
NODISCARD int snapshot_open(struct snapshot *snap, const char *dir, struct err *err);
/* Closes what is still open (descriptors that were taken are -1). Idempotent after open. */
void snapshot_close(struct snapshot *snap);

/* Opens a part for reading: a file of that folder itself, never what a symbolic link names. -ELOOP; -errno. */
NODISCARD int snapshot_open_part(int dir_fd, const char *name);

/* Begins a state buffer: magic, head, disks. */
void snapshot_put_head(struct state_buf *buf, const struct snapshot_head *head,
                       const struct snapshot_disk *disk);
/* Fills size and probe from an open read-only image. */
NODISCARD int snapshot_probe(int fd, struct snapshot_disk *disk, struct err *err);

#define SNAPSHOT_PARTS_MAX (SNAPSHOT_MAX_DISKS + 3u) /* `state`, `memory`, `manifest` */

/*
 * A snapshot being written: empty files, open for reading and writing, that whoever asked for it has made and
 * will give their place. The monitor has no file system. All is borrowed.
 */
struct snapshot_out {
	unsigned nr;
	const char *name[SNAPSHOT_PARTS_MAX];
	int fd[SNAPSHOT_PARTS_MAX];
};
/* The part's descriptor, or -EINVAL: it did not come. */
NODISCARD int snapshot_part(const struct snapshot_out *out, const char *name, struct err *err);
/* Writes a small part whole, and syncs it. */
NODISCARD int snapshot_put(const struct snapshot_out *out, const char *name, const void *data,
                           size_t n, struct err *err);
/* Guest memory, sparse: zero pages are holes; the id follows in a last page. */
NODISCARD int snapshot_put_memory(const struct snapshot_out *out, const struct gmem *mem,
                                  const uint8_t id[SNAPSHOT_ID_LEN], struct err *err);
/* Ends a disk part: appends the page with the id, and syncs. */
NODISCARD int snapshot_seal(int fd, uint64_t size, const uint8_t id[SNAPSHOT_ID_LEN],
                            struct err *err);

/* Name of disk n's part: "disk", "disk1", ... */
void snapshot_disk_name(unsigned n, char out[16]);

#endif
