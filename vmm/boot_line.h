/* SPDX-License-Identifier: Apache-2.0 */
/* The control line `boot` (docs/protocol.md section 1): what it asks for, and the files that it names, opened. */
#ifndef VMM_BOOT_LINE_H
#define VMM_BOOT_LINE_H

#include "vmm/vm.h"

/*
 * Fills `config` from the line; strings in it stay the line's. `serial_fd` is what came with the line (-1: nothing),
 * taken when it is wanted. boot_line_close() in any case. Blocking; before the monitor enters its jail.
 */
NODISCARD int boot_line_open(const json_t *line, int *serial_fd, struct vm_boot_config *config,
                             struct vm_files *files, struct err *err);
/* Closes what no machine has taken. */
void boot_line_close(struct vm_boot_config *config);

#endif
