/* SPDX-License-Identifier: Apache-2.0 */
/* virtio over MMIO, version 2: the register file (virtio 1.2 section 4.2.2). Takes the device's lock. */
#ifndef DEVICES_VMMIO_H
#define DEVICES_VMMIO_H

#include "devices/vdev.h"

#define VMMIO_LEN 0x200u /* bytes of register space */

/* One guest access of n bytes at `off`. Registers are 32 bits wide; other widths are for the
 * configuration space (from 0x100 on) only and read 0 or do nothing elsewhere. vCPU thread. */
void vmmio_read(struct vdev *dev, uint32_t off, void *dst, uint32_t n);
void vmmio_write(struct vdev *dev, uint32_t off, const void *src, uint32_t n);

#endif
