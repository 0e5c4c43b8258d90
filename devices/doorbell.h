/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell page and the mailbox (docs/protocol.md section 5): the freeze point, and the way in
 * and out of the first cell. The guest side is untrusted user code.
 */
#ifndef DEVICES_DOORBELL_H
#define DEVICES_DOORBELL_H

#include "core/gmem.h"
#include "core/state.h"

#define DOORBELL_LEN       0x1000u
#define DOORBELL_MAGIC     0x31584254u
#define DOORBELL_MAX_PAGES 64u
#define DOORBELL_FORM      3u    /* docs/protocol.md section 5; 1 had the wake in JSON, 2 no NEXT */
#define DOORBELL_PARK      0x10u /* the freeze point's register */
#define DOORBELL_AGAIN     0xffffffffu
#define DOORBELL_SERVED    0xfffffffeu
#define DOORBELL_WARM      0xfffffffdu /* a null request too, with the template's warm-up */
#define DOORBELL_LOOK      0xfffffffcu /* from NEXT: to be read again, there may be other work */
#define DOORBELL_YIELD     0xfffffffbu /* the same, and there is */

enum doorbell_phase {
	DOORBELL_BAKE,   /* registers are being set */
	DOORBELL_PARKED, /* the interpreter stands at the freeze point */
	DOORBELL_FIRST,  /* a request is being answered */
	DOORBELL_DONE,   /* between requests */
	DOORBELL_VSOCK,  /* vsock from here on */
};

#define DOORBELL_STATE(F, A)                                          \
	F(1, uint32_t, phase)                                         \
	F(1, uint32_t, port)                                          \
	F(1, uint32_t, page_lo)                                       \
	F(1, uint32_t, nr_pages)                                      \
	A(1, uint64_t, page, DOORBELL_MAX_PAGES) /* guest-physical */ \
	F(2, uint32_t, form) /* of the request area, as the parked interpreter expects it */
STATE_STRUCT(doorbell_state, DOORBELL_STATE);
const struct state_desc *doorbell_state_desc(void);

struct doorbell {
	struct doorbell_state s; /* vCPU thread; others while it is paused */
	const struct gmem *mem;
	/* The interpreter stands at the freeze point; phase is PARKED. Again at each later read. vCPU thread. */
	void (*parked)(void *ctx);
	/* NEXT is read between requests: its value, which may be replaced while the vCPU is parked. vCPU thread. */
	uint32_t (*next)(void *ctx);
	/* Bytes of the first stream, valid during the call; `done` with the last. vCPU thread; may wait. */
	void (*output)(void *ctx, const struct iovec *iov, unsigned nr, bool done);
	/* The guest asks to be powered off. */
	void (*power)(void *ctx);
	void *ctx;
};

/*
 * One guest access of 32 bits (the caller answers others with 0 and nothing). What the phase does not
 * allow does nothing: pages and port before the freeze, OUT and DONE in FIRST, POWER always. vCPU thread.
 */
uint32_t doorbell_read(struct doorbell *bell, uint32_t off);
void doorbell_write(struct doorbell *bell, uint32_t off, uint32_t value);

/* Bytes that a request area holds. 0 when the guest has registered no mailbox. */
size_t doorbell_request_room(const struct doorbell *bell);
/*
 * Copies `n` bytes to the request area at `off`. -EMSGSIZE when they do not fit, -EFAULT when a
 * restored page is not in this machine's memory. Paused vCPU.
 */
NODISCARD int doorbell_put(struct doorbell *bell, size_t off, const void *bytes, size_t n);

#endif
