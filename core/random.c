/* SPDX-License-Identifier: Apache-2.0 */
#include "core/random.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>

int random_fill(void *out, size_t n, struct err *err)
{
	uint8_t *p = out;
	size_t got = 0;

	while (got < n) {
		ssize_t more = getrandom(p + got, n - got, 0);

		if (more > 0) {
			got += (size_t)more;
		} else if (more == 0 || errno != EINTR) {
			int code = more == 0 ? -EIO : -errno;

			memset(out, 0, n);
			return err_set(err, code, "getrandom: %s", strerror(-code));
		}
	}
	return 0;
}
