/* SPDX-License-Identifier: Apache-2.0 */
/* The guest-physical memory map and interrupt pins. The one place for these numbers. */
#ifndef VMM_LAYOUT_H
#define VMM_LAYOUT_H

/* RAM from 0 to HOLE_START, the rest from HOLE_END on. All devices live in the hole. */
#define LAYOUT_HOLE_START 0xd0000000ull
#define LAYOUT_HOLE_END   0x100000000ull

/* Boot-time structures in low memory; the kernel is done with them when it runs init. */
#define LAYOUT_GDT            0x00000500ull
#define LAYOUT_PVH_INFO       0x00006000ull /* start info, then the memory map table: one page */
#define LAYOUT_ZERO_PAGE      0x00007000ull
#define LAYOUT_PAGE_TABLE     0x00009000ull /* PML4, PDPT, then a PD for each GiB up to the hole */
#define LAYOUT_PAGE_TABLE_PDS 4u
#define LAYOUT_CMDLINE        0x00020000ull
#define LAYOUT_CMDLINE_MAX    2048u /* with its NUL; x86 Linux cuts what is longer, silently */
#define LAYOUT_SETUP_DATA     0x00030000ull /* random seed, then the device tree */
#define LAYOUT_SETUP_DATA_MAX 0x00010000u
#define LAYOUT_LOW_END        0x000a0000ull
#define LAYOUT_HIGH_START     0x00100000ull

#define LAYOUT_SERIAL       0xd0000000ull
#define LAYOUT_VIRTIO       0xd0001000ull /* slot n at + n * LAYOUT_VIRTIO_STEP */
#define LAYOUT_VIRTIO_STEP  0x1000ull
#define LAYOUT_VIRTIO_SLOTS 8u /* slot 0 is vsock, the others are disks */
#define LAYOUT_DOORBELL     0xd000f000ull
#define LAYOUT_IOAPIC       0xfec00000ull

#define LAYOUT_PIN_SERIAL  4u
#define LAYOUT_PIN_VIRTIO  5u /* slot n at + n */
#define LAYOUT_PIN_VMGENID 16u

_Static_assert(LAYOUT_VIRTIO + LAYOUT_VIRTIO_SLOTS * LAYOUT_VIRTIO_STEP <= LAYOUT_DOORBELL,
               "virtio slots overlap");
_Static_assert(LAYOUT_PAGE_TABLE + (2 + LAYOUT_PAGE_TABLE_PDS) * 0x1000 <= LAYOUT_CMDLINE,
               "page tables in the way");
_Static_assert(LAYOUT_HOLE_START <= LAYOUT_PAGE_TABLE_PDS * (1ull << 30),
               "RAM below the hole not mapped");
_Static_assert(LAYOUT_CMDLINE + LAYOUT_CMDLINE_MAX <= LAYOUT_SETUP_DATA, "command line in the way");
_Static_assert(LAYOUT_SETUP_DATA + LAYOUT_SETUP_DATA_MAX <= LAYOUT_LOW_END,
               "setup data in the way");
_Static_assert(LAYOUT_PIN_VIRTIO + LAYOUT_VIRTIO_SLOTS <= LAYOUT_PIN_VMGENID, "pins overlap");

#endif
