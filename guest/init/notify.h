/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"

/*
 * The operation "watch" (docs/protocol.md section 4): what changes in a folder, by inotify, with all
 * folders below it where asked for. Uploads are told as if they were written in place. At most
 * NOTIFY_FOLDERS_MAX folders; events that wait are the kernel's (fs.inotify.max_queued_events):
 * what is too much ends the operation with an error. The loop's thread.
 */
#define NOTIFY_FOLDERS_MAX 4096

void notify_start(struct stream *s, const json_t *request);
