/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A byte queue that grows. All zero when empty; owns its memory; one thread. */
struct buf {
	uint8_t *data;
	size_t head; /* where the oldest byte is */
	size_t len;  /* bytes held */
	size_t cap;
};

/* Appends `n` bytes. Returns 0 or -ENOMEM, with nothing appended. */
int buf_put(struct buf *b, const void *bytes, size_t n);

/* Drops the `n` oldest bytes (at most `len`); gives large memory back when it gets empty. */
void buf_drop(struct buf *b, size_t n);

/* Frees everything; the buffer may be used again. */
void buf_free(struct buf *b);
