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
	va_list ap;
	int n;

	if (!e)
		return -1;
	memcpy(cause, e->msg, sizeof(cause));
	va_start(ap, fmt);
	n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof(e->msg))
		(void)snprintf(e->msg + n, sizeof(e->msg) - (size_t)n, ": %s", cause);
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
