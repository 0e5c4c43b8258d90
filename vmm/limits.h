/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limits of a machine's devices: the control line's `limits` (docs/protocol.md section 1), and the counts. */
#ifndef VMM_LIMITS_H
#define VMM_LIMITS_H

#include "core/err.h"
#include "devices/throttle.h"

#include <jansson.h>

struct vm;

/* Of each disk; of each direction of vsock. Zeroed: none. */
struct limits {
	struct limit disk_bytes, disk_ops, vsock_bytes;
};

/* `json` NULL: *limits stays as it is. -EINVAL with the member's name. */
NODISCARD int limits_parse(struct limits *limits, const json_t *json, struct err *err);
/* vm->limits for the devices that there are. Loop's thread. */
void limits_apply(struct vm *vm);
/* What each disk has done; how often and how long a device was held back. New references. */
json_t *limits_disks_json(struct vm *vm);
json_t *limits_throttle_json(const struct throttle_stats *stats);

#endif
