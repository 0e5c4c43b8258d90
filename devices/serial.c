/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/serial.h"

#include "core/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REG_DATA 0u /* RBR, THR; with DLAB the divisor's low byte */
#define REG_IER  1u /* with DLAB the divisor's high byte */
#define REG_IIR  2u /* written: FCR */
#define REG_LCR  3u
#define REG_MCR  4u
#define REG_LSR  5u
#define REG_MSR  6u
#define REG_SCR  7u

#define IER_RDI  0x01u
#define IER_THRI 0x02u
#define IER_RLSI 0x04u
#define IER_ALL  0x0fu

#define IIR_NONE  0x01u
#define IIR_THRI  0x02u
#define IIR_RDI   0x04u
#define IIR_RLSI  0x06u
#define IIR_FIFOS 0xc0u

#define FCR_ENABLE   0x01u
#define FCR_CLEAR_RX 0x02u
#define FCR_KEPT     0xc9u /* enable, DMA mode, trigger level; the others clear themselves */

#define LCR_DLAB 0x80u

#define MCR_DTR  0x01u
#define MCR_RTS  0x02u
#define MCR_OUT1 0x04u
#define MCR_OUT2 0x08u
#define MCR_LOOP 0x10u
#define MCR_ALL  0x1fu

#define LSR_DR   0x01u
#define LSR_OE   0x02u
#define LSR_THRE 0x20u
#define LSR_TEMT 0x40u

#define MSR_CTS 0x10u
#define MSR_DSR 0x20u
#define MSR_RI  0x40u
#define MSR_DCD 0x80u

#define TX_BURST 16 /* what a driver writes after it has seen THRE: a 16550A's FIFO */

struct serial {
	struct serial_host host; /* const after open */
	pthread_mutex_t lock;
	/* lock */
	struct serial_state s;
	bool line; /* level of the interrupt output; only a rise is an edge */
	uint8_t tx[SERIAL_TX_BUF];
	size_t tx_head, tx_len;
	bool tx_broken; /* the sink has failed: discard */
	uint64_t dropped;
	bool rx_waits; /* nobody polls in_fd: the FIFO is full, or the guest tests in loopback */
	bool rx_ended;
	/* loop's thread */
	struct loop_event tx_event, rx_event;
	struct loop_op tx_op, rx_op;
	struct iovec tx_iov;
	bool tx_writes; /* tx_op is a write, and not the poll that waits for room */
};

static int serial_state_check(void *state, uint16_t from, struct err *err)
{
	const struct serial_state *s = state;

	(void)from; /* one version so far */
	if (s->rx_head >= SERIAL_RX_FIFO || s->rx_len > SERIAL_RX_FIFO)
		return err_set(err, -EBADMSG, "rx_head %u or rx_len %u out of range", s->rx_head,
		               s->rx_len);
	if ((s->ier & ~IER_ALL) || (s->mcr & ~MCR_ALL) || (s->fcr & ~FCR_KEPT) ||
	    s->thre_pending > 1 || (s->lsr_errors & ~LSR_OE))
		return err_set(err, -EBADMSG, "registers out of range");
	return 0;
}
STATE_DESC(serial_state, SERIAL_STATE, "UART", 1, serial_state_check)

/* ---- registers; lock held ---- */

/* The pending interrupt of the highest priority (16550A data sheet, table 5). */
static uint8_t pending_irq(const struct serial *u)
{
	if ((u->s.ier & IER_RLSI) && u->s.lsr_errors)
		return IIR_RLSI;
	if ((u->s.ier & IER_RDI) && u->s.rx_len)
		return IIR_RDI;
	if ((u->s.ier & IER_THRI) && u->s.thre_pending)
		return IIR_THRI;
	return IIR_NONE;
}

static void update_line(struct serial *u)
{
	bool level = pending_irq(u) != IIR_NONE;

	if (level && !u->line)
		u->host.irq(u->host.irq_ctx, u->host.pin);
	u->line = level;
}

/* Back-pressure: the holding register is not empty while a burst would not fit. */
static bool tx_is_held(const struct serial *u)
{
	return u->host.hold_tx && SERIAL_TX_BUF - u->tx_len < TX_BURST;
}

static void rx_push(struct serial *u, uint8_t byte)
{
	if (u->s.rx_len == SERIAL_RX_FIFO) {
		u->s.lsr_errors |= LSR_OE;
		return;
	}
	u->s.rx[(u->s.rx_head + u->s.rx_len++) % SERIAL_RX_FIFO] = byte;
}

static uint8_t rx_pop(struct serial *u)
{
	uint8_t byte;

	if (!u->s.rx_len)
		return 0;
	byte = u->s.rx[u->s.rx_head];
	u->s.rx_head = (u->s.rx_head + 1) % SERIAL_RX_FIFO;
	u->s.rx_len--;
	return byte;
}

/* Bytes that in_fd may bring. A UART in loopback is cut off from its line. */
static size_t rx_room(const struct serial *u)
{
	return u->s.mcr & MCR_LOOP ? 0 : SERIAL_RX_FIFO - u->s.rx_len;
}

static void rx_go_on(struct serial *u)
{
	if (u->rx_waits && rx_room(u) >= SERIAL_RX_FIFO / 2)
		loop_post(u->host.loop, &u->rx_event);
}

static void tx_push(struct serial *u, uint8_t byte)
{
	if (u->host.out_fd < 0 || u->tx_broken)
		return;
	if (u->tx_len == SERIAL_TX_BUF) {
		u->dropped++;
		return;
	}
	u->tx[(u->tx_head + u->tx_len++) % SERIAL_TX_BUF] = byte;
	loop_post(u->host.loop, &u->tx_event);
}

static void write_data(struct serial *u, uint8_t value)
{
	if (u->s.mcr & MCR_LOOP)
		rx_push(u, value);
	else
		tx_push(u, value);
	/* The byte leaves at once: the register is empty again, which is an interrupt of its own. */
	u->s.thre_pending = !tx_is_held(u);
}

static void write_ier(struct serial *u, uint8_t value)
{
	/* Enabling it while the register is empty raises it; Linux tests for that (UART_BUG_THRE). */
	if ((value & ~u->s.ier & IER_THRI) && !tx_is_held(u))
		u->s.thre_pending = 1;
	u->s.ier = value & IER_ALL;
}

static void write_fcr(struct serial *u, uint8_t value)
{
	/* Toggling the enable bit empties the FIFOs as well. What was sent has left: TX has nothing. */
	if ((value & FCR_CLEAR_RX) || ((value ^ u->s.fcr) & FCR_ENABLE))
		u->s.rx_head = u->s.rx_len = 0;
	u->s.fcr = value & FCR_KEPT;
}

static uint8_t read_iir(struct serial *u)
{
	uint8_t id = pending_irq(u);

	if (id == IIR_THRI) /* reading it as the source acknowledges it */
		u->s.thre_pending = 0;
	return id | (u->s.fcr & FCR_ENABLE ? IIR_FIFOS : 0);
}

static uint8_t read_lsr(struct serial *u)
{
	uint8_t lsr = u->s.lsr_errors | (u->s.rx_len ? LSR_DR : 0);

	u->s.lsr_errors = 0;
	return lsr | (tx_is_held(u) ? 0 : LSR_THRE | LSR_TEMT);
}

/* Connected and ready; in loopback the outputs come back, which Linux's autoconf looks for. */
static uint8_t read_msr(const struct serial *u)
{
	uint8_t mcr = u->s.mcr;

	if (!(mcr & MCR_LOOP))
		return MSR_CTS | MSR_DSR | MSR_DCD;
	return (uint8_t)((mcr & MCR_RTS ? MSR_CTS : 0) | (mcr & MCR_DTR ? MSR_DSR : 0) |
	                 (mcr & MCR_OUT1 ? MSR_RI : 0) | (mcr & MCR_OUT2 ? MSR_DCD : 0));
}

static uint8_t read_reg(struct serial *u, uint32_t off)
{
	bool dlab = u->s.lcr & LCR_DLAB;

	switch (off) {
	case REG_DATA:
		return dlab ? u->s.dll : rx_pop(u);
	case REG_IER:
		return dlab ? u->s.dlh : u->s.ier;
	case REG_IIR:
		return read_iir(u);
	case REG_LCR:
		return u->s.lcr;
	case REG_MCR:
		return u->s.mcr;
	case REG_LSR:
		return read_lsr(u);
	case REG_MSR:
		return read_msr(u);
	case REG_SCR:
		return u->s.scr;
	default:
		return 0;
	}
}

static void write_reg(struct serial *u, uint32_t off, uint8_t value)
{
	bool dlab = u->s.lcr & LCR_DLAB;

	switch (off) {
	case REG_DATA:
		if (dlab)
			u->s.dll = value;
		else
			write_data(u, value);
		break;
	case REG_IER:
		if (dlab)
			u->s.dlh = value;
		else
			write_ier(u, value);
		break;
	case REG_IIR:
		write_fcr(u, value);
		break;
	case REG_LCR:
		u->s.lcr = value;
		break;
	case REG_MCR:
		u->s.mcr = value & MCR_ALL;
		break;
	case REG_SCR:
		u->s.scr = value;
		break;
	default:
		break;
	}
}

uint8_t serial_read(struct serial *u, uint32_t off)
{
	uint8_t value;

	pthread_mutex_lock(&u->lock);
	value = read_reg(u, off);
	rx_go_on(u);
	update_line(u);
	pthread_mutex_unlock(&u->lock);
	return value;
}

void serial_write(struct serial *u, uint32_t off, uint8_t value)
{
	pthread_mutex_lock(&u->lock);
	write_reg(u, off, value);
	rx_go_on(u);
	update_line(u);
	pthread_mutex_unlock(&u->lock);
}

/* ---- the sink; loop's thread ---- */

static void tx_consume(struct serial *u, size_t n)
{
	bool held = tx_is_held(u);

	u->tx_head = (u->tx_head + n) % SERIAL_TX_BUF;
	u->tx_len -= n;
	if (held && !tx_is_held(u)) {
		u->s.thre_pending = 1;
		update_line(u);
	}
}

static void tx_fail(struct serial *u, int error)
{
	log_warn("serial: output: %s: the console goes nowhere from here", strerror(-error));
	u->tx_broken = true;
	u->dropped += u->tx_len;
	tx_consume(u, u->tx_len);
}

/* What can be written in one piece: up to the end of the ring. Lock held. */
static struct iovec tx_piece(struct serial *u)
{
	size_t n = SERIAL_TX_BUF - u->tx_head;

	return (struct iovec){ .iov_base = u->tx + u->tx_head,
		               .iov_len = n < u->tx_len ? n : u->tx_len };
}

static void tx_go_on(struct serial *u)
{
	if (u->tx_op.busy || !u->tx_len)
		return;
	u->tx_writes = true;
	u->tx_iov = tx_piece(u);
	loop_writev(u->host.loop, &u->tx_op, u->host.out_fd, &u->tx_iov, 1, LOOP_STREAM);
}

static void on_tx_event(struct loop_event *event)
{
	struct serial *u = container_of(event, struct serial, tx_event);

	pthread_mutex_lock(&u->lock);
	tx_go_on(u);
	pthread_mutex_unlock(&u->lock);
}

/* A write has ended, or the poll that waited for room. Lock held. */
static void tx_ended(struct serial *u, int res)
{
	bool wrote = u->tx_writes;

	u->tx_writes = false;
	if (wrote && res == -EAGAIN) {
		loop_poll(u->host.loop, &u->tx_op, u->host.out_fd, POLLOUT);
		return;
	}
	if (res < 0 && res != -EINTR)
		tx_fail(u, res);
	else if (res > 0 && wrote)
		tx_consume(u, (size_t)res);
	tx_go_on(u);
}

static void on_tx_done(struct loop_op *op, int res)
{
	struct serial *u = container_of(op, struct serial, tx_op);

	pthread_mutex_lock(&u->lock);
	tx_ended(u, res);
	pthread_mutex_unlock(&u->lock);
}

/* A last panic message must come out: writes what the sink takes without blocking. */
static void tx_flush(struct serial *u)
{
	struct pollfd p = { .fd = u->host.out_fd, .events = POLLOUT };

	while (u->tx_len && poll(&p, 1, 0) > 0) {
		struct iovec iov = tx_piece(u);
		ssize_t n = write(u->host.out_fd, iov.iov_base, iov.iov_len);

		if (n <= 0)
			break;
		tx_consume(u, (size_t)n);
	}
}

/* ---- input; loop's thread ---- */

/* Lock held. */
static void rx_poll(struct serial *u)
{
	u->rx_waits = rx_room(u) == 0;
	if (!u->rx_waits && !u->rx_ended && u->host.in_fd >= 0 && !u->rx_op.busy)
		loop_poll(u->host.loop, &u->rx_op, u->host.in_fd, POLLIN);
}

static void on_rx_event(struct loop_event *event)
{
	struct serial *u = container_of(event, struct serial, rx_event);

	pthread_mutex_lock(&u->lock);
	rx_poll(u);
	pthread_mutex_unlock(&u->lock);
}

static void on_rx_ready(struct loop_op *op, int res)
{
	struct serial *u = container_of(op, struct serial, rx_op);
	uint8_t byte[SERIAL_RX_FIFO];
	ssize_t n = res;

	pthread_mutex_lock(&u->lock);
	if (res > 0 && rx_room(u)) {
		n = read(u->host.in_fd, byte, rx_room(u));
		u->rx_ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
		for (ssize_t i = 0; i < n; i++)
			rx_push(u, byte[i]);
		update_line(u);
	} else if (res < 0) {
		u->rx_ended = true;
	}
	rx_poll(u);
	pthread_mutex_unlock(&u->lock);
}

/* ---- life ---- */

int serial_open(struct serial **serial, const struct serial_host *host, struct err *err)
{
	struct serial *u = calloc(1, sizeof(*u));

	if (!u)
		return err_set(err, -ENOMEM, "serial: out of memory");
	u->host = *host;
	u->s.dll = 1;
	pthread_mutex_init(&u->lock, NULL);
	u->tx_event.fire = on_tx_event;
	u->rx_event.fire = on_rx_event;
	u->tx_op.done = on_tx_done;
	u->rx_op.done = on_rx_ready;
	*serial = u;
	return 0;
}

void serial_close(struct serial *u)
{
	int res;

	if (!u)
		return;
	u->host.hold_tx = false; /* no interrupt any more: the machine is going away */
	if (u->host.loop->open) {
		loop_unpost(u->host.loop, &u->tx_event);
		loop_unpost(u->host.loop, &u->rx_event);
		(void)loop_reap(u->host.loop, &u->rx_op); /* nothing is read before it completes */
		res = loop_reap(u->host.loop, &u->tx_op);
	} else {
		res = u->tx_op.res;
	}
	if (u->tx_writes && res > 0)
		tx_consume(u, (size_t)res);
	tx_flush(u);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

void serial_start(struct serial *u)
{
	pthread_mutex_lock(&u->lock);
	update_line(u);
	rx_poll(u);
	pthread_mutex_unlock(&u->lock);
}

uint64_t serial_dropped(struct serial *u)
{
	uint64_t n;

	pthread_mutex_lock(&u->lock);
	n = u->dropped;
	pthread_mutex_unlock(&u->lock);
	return n;
}

void serial_save(struct serial *u, struct state_buf *buf)
{
	struct serial_state s;

	pthread_mutex_lock(&u->lock);
	s = u->s;
	/* The buffer stays here, so the restored transmitter is empty: that must be said again. */
	if (tx_is_held(u))
		s.thre_pending = 1;
	pthread_mutex_unlock(&u->lock);
	state_put(buf, serial_state_desc(), 0, &s);
}

int serial_load(struct serial *u, struct state_buf *buf, struct err *err)
{
	int ret;

	pthread_mutex_lock(&u->lock);
	ret = state_get(buf, serial_state_desc(), 0, &u->s, err);
	u->line = false; /* the edge may be lost with the old machine: serial_start() raises it */
	pthread_mutex_unlock(&u->lock);
	return ret;
}
