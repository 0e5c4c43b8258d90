/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before each file by `make lint`. The analyzer sees one file at a time and cannot know that the error
 * setters return what they were given, or at least something negative: it would follow paths that do not exist.
 */
#include "core/err.h"

#define err_set(err, code, ...)                             \
	({                                                  \
		const int code_ = (code);                   \
                                                            \
		(void)(err_set)((err), code_, __VA_ARGS__); \
		code_ < 0 ? code_ : -1;                     \
	})
#define err_wrap(...)   ((void)(err_wrap)(__VA_ARGS__), -1)
#define err_remedy(...) ((void)(err_remedy)(__VA_ARGS__), -1)
