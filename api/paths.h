/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things are: the monitor, the user's templates, and what a template is made of. A source tree
 * (build/<variant>/thawbox) and an installed program ($PREFIX/bin/thawbox) are both recognised.
 * All functions write a path into the caller's buffer and return 0 or -errno. Any thread.
 */
#ifndef API_PATHS_H
#define API_PATHS_H

#include "core/err.h"

#include <stdbool.h>

#define PATHS_MAX 4096

/* snprintf into a path buffer; -ENAMETOOLONG. */
NODISCARD int paths_format(char out[PATHS_MAX], struct err *err, const char *fmt, ...)
	PRINTF_LIKE(3, 4);

/* The folder of the running program. */
NODISCARD int paths_exe_dir(char out[PATHS_MAX], struct err *err);

/* thawbox-vmm: $THAWBOX_VMM, beside this program, $PREFIX/libexec/thawbox, PATH. */
NODISCARD int paths_vmm(char out[PATHS_MAX], struct err *err);

/* The root of all state: $THAWBOX_HOME, /var/lib/thawbox for root, $XDG_DATA_HOME/thawbox. */
NODISCARD int paths_home(char out[PATHS_MAX], struct err *err);

/*
 * A file of the built guest: `part` is "kernel" or "rootfs". Looked for in $THAWBOX_ASSETS (when set,
 * there only) and the source tree's out/, both as <part>/current/<file>, and in
 * $PREFIX/share/thawbox/<part>/<file>. -ENOENT with the places and how to build it.
 */
NODISCARD int paths_asset(const char *part, const char *file, char out[PATHS_MAX], struct err *err);

/* A file or folder of the source tree ("guest/templates/x"), or its copy in $PREFIX/share/thawbox. */
NODISCARD int paths_source(const char *rel, char out[PATHS_MAX], struct err *err);

/* Makes the directory and its parents, mode 0755. */
NODISCARD int paths_make_dirs(const char *dir, struct err *err);

/* Removes a tree; missing is fine. Does not follow links. -errno of the first failure. */
NODISCARD int paths_remove_tree(const char *dir);

#endif
