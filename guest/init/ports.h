/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "stream.h"

/*
 * The operation "connect" (docs/protocol.md section 4): the stream becomes the bytes of a TCP
 * connection to a server that listens in the guest, both ways, each with its own end. What the server
 * does not take is not read from the host, and the other way round. The loop's thread.
 */
void ports_connect(struct stream *s, const json_t *request);
