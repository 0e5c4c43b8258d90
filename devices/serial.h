/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subset of a 16550A UART that Linux drives (registers at offsets 0 to 7, one byte each), with
 * FIFOs and interrupts. Output goes to a sink that never blocks the vCPU: when it cannot take more,
 * bytes are dropped and counted (a console) or the transmitter stays busy (back-pressure).
 */
#ifndef DEVICES_SERIAL_H
#define DEVICES_SERIAL_H

#include "core/loop.h"
#include "core/state.h"

#include <pthread.h>

#define SERIAL_LEN     8u
#define SERIAL_RX_FIFO 64
#define SERIAL_TX_BUF  4096

#define SERIAL_STATE(F, A)                                                                       \
	F(1, uint8_t, ier)                                                                       \
	F(1, uint8_t, lcr)                                                                       \
	F(1, uint8_t, mcr)                                                                       \
	F(1, uint8_t, scr)                                                                       \
	F(1, uint8_t, fcr)                                                                       \
	F(1, uint8_t, dll) /* reset to 1: a divisor of 0 makes the guest's probe divide by it */ \
	F(1, uint8_t, dlh)                                                                       \
	F(1, uint8_t, thre_pending)                                                              \
	F(1, uint8_t, lsr_errors)                                                                \
	F(1, uint32_t, rx_head)                                                                  \
	F(1, uint32_t, rx_len)                                                                   \
	A(1, uint8_t, rx, SERIAL_RX_FIFO)
STATE_STRUCT(serial_state, SERIAL_STATE);
const struct state_desc *serial_state_desc(void);

struct serial_host {
	struct loop *loop;
	void (*irq)(void *ctx, unsigned pin); /* raises an edge; called with the lock held */
	void *irq_ctx;
	unsigned pin;
	int out_fd;   /* borrowed; -1: output is discarded */
	int in_fd;    /* borrowed; -1: no input. Read only when poll(2) says so */
	bool hold_tx; /* a full sink makes the guest wait instead of losing bytes */
};

struct serial;
/* Allocates; nothing runs before serial_start(). -ENOMEM. Any thread. */
NODISCARD int serial_open(struct serial **serial, const struct serial_host *host, struct err *err);
/*
 * Writes what is buffered as far as the sink takes it at once, and frees. Loop's thread, vCPUs
 * stopped, before or after loop_close(). NULL is allowed.
 */
void serial_close(struct serial *serial);

/* One guest access; takes its own lock; never blocks. vCPU thread. */
uint8_t serial_read(struct serial *serial, uint32_t off);
void serial_write(struct serial *serial, uint32_t off, uint8_t value);
/* Starts reading in_fd and raises what a restored state owes. Loop's thread. */
void serial_start(struct serial *serial);
/* Bytes of output that nobody took. Any thread. */
uint64_t serial_dropped(struct serial *serial);

/* The registers and received bytes. Bytes sent but not yet written belong to the machine that runs. */
void serial_save(struct serial *serial, struct state_buf *buf);
NODISCARD int serial_load(struct serial *serial, struct state_buf *buf, struct err *err);

#endif
