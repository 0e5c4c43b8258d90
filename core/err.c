/* SPDX-License-Identifier: Apache-2.0 */
#include "core/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return code;
	e->code = code;
	e->remedy[0] = '\0';
	va_start(ap, fmt);
	(void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap); /* a cut message still tells */
	va_end(ap);
	return code;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
	char cause[sizeof(e->msg)];
	size_t at;
	va_list ap;

	if (!e)
		return -1;
	memcpy(cause, e->msg, sizeof(cause));
	va_start(ap, fmt);
	(void)vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	at = strlen(e->msg);
	for (const char *p = ": "; *p && at < sizeof(e->msg) - 1; p++)
		e->msg[at++] = *p;
	for (const char *p = cause; *p && at < sizeof(e->msg) - 1; p++)
		e->msg[at++] = *p;
	e->msg[at] = '\0';
	return e->code;
}

int err_remedy(struct err *e, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return -1;
	if (e->remedy[0] == '\0') {
		va_start(ap, fmt);
		(void)vsnprintf(e->remedy, sizeof(e->remedy), fmt, ap);
		va_end(ap);
	}
	return e->code;
}

void err_hint(struct err *e)
{
	static const struct {
		int code;
		const char *remedy;
	} hints[] = {
		{ ENOSPC, "free some disk space, or choose a folder on another file system" },
		{ EDQUOT, "free some disk space, or raise the quota" },
		{ EFBIG, "raise the limit on the size of files (ulimit -f)" },
		{ EROFS, "choose a folder that can be written" },
		{ EIO, "the storage, or the kernel, has failed: see dmesg; try another disk" },
		{ ENOMEM, "free some memory, or raise the limit (ulimit -v, the cgroup's memory)" },
		{ EMFILE, "raise the limit on open files (ulimit -n)" },
		{ ENFILE, "raise the sysctl fs.file-max" },
		{ EAGAIN,
		  "raise the limit on processes (ulimit -u, the cgroup's pids), or try again" },
		{ EACCES, "give this user access, or choose another path" },
		{ EPERM, "give this user access, or choose another path" },
		{ ENOENT, "check the path" },
		{ EEXIST, "choose another name, or ask to replace it" },
	};

	for (size_t i = 0; e && i < sizeof(hints) / sizeof(hints[0]); i++)
		if (e->code == -hints[i].code)
			(void)err_remedy(e, "%s", hints[i].remedy);
}
