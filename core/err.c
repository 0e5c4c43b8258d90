/* SPDX-License-Identifier: Apache-2.0 */
#include "core/err.h"

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
