/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>

/* What only PID 1 of the guest does to its machine. All from the one thread, before or at the end
 * of the loop. */

/*
 * Mounts what a user expects, with a writable overlay of the disk /dev/vdb (or of memory, where
 * there is no such disk) as the new root. Returns 0 or -errno after saying on the console what
 * failed.
 */
int system_mount(void);

/* Host name, loopback interface, limits of this process; failures are said and lived with. */
void system_set_up(void);

/* The value of `name`= in the kernel's command line in `out`, or "" if it is not there. */
void system_cmdline(const char *name, char *out, size_t size);

/* Ends every process, writes what is cached, and powers the machine off. Does not return. */
_Noreturn void system_power_off(void);
