/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The working set of the first request (a snapshot's `workset` part), in runs of pages. At a thaw those
 * that the request wrote are made private in bulk before the guest runs, and with them those that it only
 * read but has mapped for writing: KVM maps neighbours ahead of a fault only where the host may write.
 * All others are left to the page cache; if the files are not in it, reading begins for all at once.
 */
#ifndef VMM_PAGEIN_H
#define VMM_PAGEIN_H

#include "core/err.h"
#include "core/gmem.h"
#include "vmm/snapshot.h"

#include <stdatomic.h>

enum pagein_class {
	PAGEIN_READ,
	PAGEIN_WRITTEN,
	PAGEIN_NEAR,  /* read, or not used at all, among pages that are: private like these */
	PAGEIN_LARGE, /* 2 MiB that the guest maps as one and only reads: so should the host */
	PAGEIN_LATER, /* written, but not by the plainest first cell: brought in when a cell needs many */
};

struct pagein_watch {
	uint64_t
		cr3; /* the guest's page tables; 0: nothing is watched, and only written pages are known */
	int pagemap_fd; /* borrowed: /proc/self/pagemap of this process */
	bool empty;     /* the file was not in the page cache: what is there now has been used */
};

/*
 * Before a thaw whose working set will be recorded: forgets what the guest's user space has used, and takes the
 * memory file `fd` out of the page cache as far as it can. `mem` is untouched yet. 0 or -errno.
 */
NODISCARD int pagein_watch(struct pagein_watch *watch, const struct gmem *mem, int fd,
                           uint64_t cr3);

/*
 * Writes the pages used since the thaw as a working set into the empty file `fd`; with `before_fd` (-1: none), what
 * is in that one, and those pages that were written and are not in it. `mem` is a private mapping of the
 * snapshot's memory. The vCPU is parked. Blocking, cold path.
 */
NODISCARD int pagein_record(const struct gmem *mem, const struct pagein_watch *watch, int before_fd,
                            int fd, const uint8_t id[SNAPSHOT_ID_LEN], struct err *err);

struct pagein_run {
	uint64_t gpa; /* bytes */
	uint32_t nr_pages;
	uint32_t class; /* enum pagein_class */
};

struct pagein {
	struct pagein_run *runs; /* owned */
	uint32_t nr_runs;
	uint32_t written, near, read, large, later; /* pages in the working set */
	atomic_uint next;                           /* run to take */
	uint32_t next_later, later_done; /* of PAGEIN_LATER: run to take; pages brought in */
	atomic_uint populated;           /* pages */
	bool sparing;                    /* only what was written comes in */
	bool cold;                       /* the files were not in the page cache */
};

/*
 * Reads the working set of the snapshot `id`. A snapshot without one is slower, not wrong (0, no runs); a damaged
 * one is an error.
 */
NODISCARD int pagein_read(struct pagein *set, int fd, const uint8_t id[SNAPSHOT_ID_LEN],
                          struct err *err);
/* The same of the one in the snapshot's directory. */
NODISCARD int pagein_open(struct pagein *set, int dir_fd, const uint8_t id[SNAPSHOT_ID_LEN],
                          struct err *err);

/*
 * Begins to read what is not in the page cache into `mem`, a private mapping of the snapshot's memory file `fd`.
 * -EBADMSG when the set does not lie in it.
 */
NODISCARD int pagein_begin(struct pagein *set, const struct gmem *mem, int fd, struct err *err);

/* Makes pages present and private until none is left to take. Any number of threads at once. */
NODISCARD int pagein_populate(struct pagein *set, const struct gmem *mem, struct err *err);

/* About `max` pages of PAGEIN_LATER. False: there are no more, or one could not be had. One thread. */
bool pagein_later(struct pagein *set, const struct gmem *mem, unsigned max);

/* Frees the runs; the counts stay. Safe on a zeroed object. */
void pagein_close(struct pagein *set);

#endif
