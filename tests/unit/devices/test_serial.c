/* SPDX-License-Identifier: Apache-2.0 */
/* The UART as Linux's 8250 driver uses it (drivers/tty/serial/8250/8250_port.c), with real pipes. */
#include "devices/serial.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { DATA, IER, IIR, LCR, MCR, LSR, MSR, SCR };

#define LSR_DR   0x01
#define LSR_OE   0x02
#define LSR_IDLE 0x60 /* THRE and TEMT */

static struct loop loop;
static struct serial *uart;
static int out[2] = { -1, -1 }, in[2] = { -1, -1 };
static unsigned irqs;

static void on_irq(void *ctx, unsigned pin)
{
	cr_assert_eq(ctx, &loop);
	cr_assert_eq(pin, 4);
	irqs++;
}

static struct serial *open_uart(bool hold_tx)
{
	struct serial_host host = { .loop = &loop,
		                    .irq = on_irq,
		                    .irq_ctx = &loop,
		                    .pin = 4,
		                    .out_fd = out[1],
		                    .in_fd = in[0],
		                    .hold_tx = hold_tx };
	struct serial *u;

	cr_assert_eq(serial_open(&u, &host, NULL), 0);
	return u;
}

static void start(bool hold_tx)
{
	signal(SIGPIPE, SIG_IGN);
	cr_assert_eq(loop_open(&loop, 8, NULL), 0);
	cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
	cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
	uart = open_uart(hold_tx);
	serial_start(uart);
	irqs = 0;
}

static void stop(void)
{
	serial_close(uart);
	uart = NULL;
	loop_close(&loop);
}

TestSuite(serial, .fini = stop, .timeout = 20);

static uint8_t rd(uint32_t off)
{
	return serial_read(uart, off);
}

static void wr(uint32_t off, unsigned value)
{
	serial_write(uart, off, (uint8_t)value);
}

static void put(const char *s)
{
	while (*s)
		wr(DATA, (uint8_t)*s++);
}

static bool always(void *ctx)
{
	return (*(int *)ctx)-- == 0;
}

static void on_nothing(struct loop_event *event)
{
	(void)event;
}

/* Two turns of the loop: what was posted runs, and what it started completes. */
static void turn(void)
{
	for (int i = 0; i < 3; i++) {
		struct loop_event event = { .fire = on_nothing };
		int turns = 1;

		loop_post(&loop, &event);
		cr_assert_eq(loop_run_until(&loop, always, &turns), 0);
		loop_unpost(&loop, &event);
	}
}

/* Serves until `n` bytes have come out. */
static void expect_out(const char *want, size_t n)
{
	static char got[2 * SERIAL_TX_BUF];
	size_t len = 0;

	cr_assert_leq(n, sizeof(got));
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	while (len < n) {
		ssize_t r = read(out[0], got + len, n - len);

		if (r > 0)
			len += (size_t)r;
		else
			turn();
	}
	cr_assert_eq(memcmp(got, want, n), 0);
	cr_assert_eq(read(out[0], got, 1), -1, "more has come out than was put in");
}

/* ---- what the driver's probe looks for ---- */

Test(serial, autoconfig_finds_a_16550a)
{
	start(false);
	/* autoconfig(): interrupt enable register */
	wr(IER, 0);
	cr_assert_eq(rd(IER) & 0x0f, 0);
	wr(IER, 0x0f);
	cr_assert_eq(rd(IER), 0x0f);
	wr(IER, 0);
	/* the loopback test */
	wr(MCR, 0x10 | 0x08 | 0x02);
	cr_assert_eq(rd(MSR) & 0xf0, 0x80 | 0x10);
	wr(MCR, 0x10 | 0x04 | 0x01);
	cr_assert_eq(rd(MSR) & 0xf0, 0x40 | 0x20);
	wr(MCR, 0);
	cr_assert_eq(rd(MSR) & 0xf0, 0xb0, "clear to send, ready, carrier");
	/* the FIFO's kind */
	wr(LCR, 0xbf);
	wr(IIR, 0);
	wr(LCR, 0);
	wr(IIR, 0x01);
	cr_assert_eq(rd(IIR) & 0xc0, 0xc0);
	/* autoconfig_16550a(): none of the variants */
	wr(LCR, 0x80);
	cr_assert_neq(rd(IIR), 0, "not a 16C650");
	wr(LCR, 0xbf);
	cr_assert_neq(rd(IIR), 0, "no EFR");
	wr(LCR, 0);
	wr(IIR, 0x01);
	wr(IIR, 0x21);
	cr_assert_eq(rd(IIR) >> 5, 6);
	wr(LCR, 0x80);
	wr(IIR, 0x21);
	cr_assert_eq(rd(IIR) >> 5, 6, "not a 16750");
	wr(LCR, 0);
	wr(IER, 0x40);
	cr_assert_eq(rd(IER), 0, "not an XScale");
	wr(SCR, 0xa5);
	cr_assert_eq(rd(SCR), 0xa5);
	wr(IIR, 0);
	cr_assert_eq(rd(IIR), 0x01, "FIFOs off, nothing pending");
}

Test(serial, divisor_latch)
{
	start(false);
	wr(LCR, 0x83);
	cr_assert_eq(rd(DATA), 1, "a divisor of 0 would be divided by");
	cr_assert_eq(rd(IER), 0);
	wr(DATA, 12);
	wr(IER, 3);
	cr_assert_eq(rd(DATA), 12);
	cr_assert_eq(rd(IER), 3);
	wr(LCR, 0x03);
	cr_assert_eq(rd(LCR), 3);
	cr_assert_eq(rd(IER), 0, "the latch is not the enable register");
	cr_assert_eq(rd(DATA), 0, "and its bytes were not sent");
	turn();
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	cr_assert_eq(read(out[0], (char[1]){ 0 }, 1), -1);
}

/* serial8250_do_startup(): two tests that end in a slow work-around when they fail. */
Test(serial, startup_needs_no_workaround)
{
	uint8_t first;

	start(false);
	wr(IER, 0x02);
	first = rd(IIR);
	wr(IER, 0);
	wr(IER, 0x02);
	cr_assert_eq(first & 0x01, 0, "THRE was raised");
	cr_assert_eq(rd(IIR) & 0x01, 0, "and raised again: not UART_BUG_THRE");
	wr(IER, 0);
	wr(IER, 0x02);
	cr_assert_eq(rd(LSR) & 0x40, 0x40);
	cr_assert_eq(rd(IIR) & 0x01, 0, "not UART_BUG_TXEN");
	wr(IER, 0);
	cr_assert_eq(rd(IIR) & 0x01, 1);
}

/* ---- interrupts ---- */

Test(serial, transmit_interrupt)
{
	start(false);
	cr_assert_eq(irqs, 0);
	wr(IER, 0x02);
	cr_assert_eq(irqs, 1, "enabled while empty");
	cr_assert_eq(rd(IIR) & 0x0f, 0x02);
	cr_assert_eq(rd(IIR) & 0x0f, 0x01, "reading it acknowledges it");
	wr(DATA, 'a');
	cr_assert_eq(irqs, 2, "empty again");
	wr(DATA, 'b');
	cr_assert_eq(irqs, 2, "the line is up already");
	wr(IER, 0);
	wr(DATA, 'c');
	cr_assert_eq(irqs, 2);
	cr_assert_eq(rd(LSR), LSR_IDLE);
	expect_out("abc", 3);
}

static void receive(const char *s)
{
	cr_assert_eq(write(in[1], s, strlen(s)), (ssize_t)strlen(s));
	turn();
}

Test(serial, receive_interrupt)
{
	start(false);
	wr(IER, 0x01);
	receive("xy");
	cr_assert_eq(irqs, 1);
	cr_assert_eq(rd(IIR) & 0x0f, 0x04);
	cr_assert_eq(rd(LSR), LSR_IDLE | LSR_DR);
	cr_assert_eq(rd(DATA), 'x');
	cr_assert_eq(rd(IIR) & 0x0f, 0x04);
	cr_assert_eq(rd(DATA), 'y');
	cr_assert_eq(rd(IIR) & 0x0f, 0x01);
	cr_assert_eq(rd(LSR), LSR_IDLE);
	cr_assert_eq(rd(DATA), 0);
	receive("z");
	cr_assert_eq(irqs, 2);
	wr(IIR, 0x03); /* clears it */
	cr_assert_eq(rd(LSR), LSR_IDLE);
}

Test(serial, receive_comes_before_transmit)
{
	start(false);
	wr(IER, 0x07);
	receive("x");
	cr_assert_eq(rd(IIR) & 0x0f, 0x04);
	cr_assert_eq(rd(DATA), 'x');
	cr_assert_eq(rd(IIR) & 0x0f, 0x02);
}

Test(serial, loopback)
{
	start(false);
	wr(MCR, 0x10);
	wr(IER, 0x04);
	receive("lost on the line");
	for (int i = 0; i < SERIAL_RX_FIFO + 1; i++)
		wr(DATA, (uint8_t)i);
	cr_assert_eq(irqs, 1);
	cr_assert_eq(rd(IIR) & 0x0f, 0x06, "overrun");
	cr_assert_eq(rd(LSR), LSR_IDLE | LSR_DR | LSR_OE);
	cr_assert_eq(rd(LSR), LSR_IDLE | LSR_DR, "reading it clears it");
	for (int i = 0; i < SERIAL_RX_FIFO; i++)
		cr_assert_eq(rd(DATA), i);
	cr_assert_eq(rd(LSR), LSR_IDLE);
	/* Back on the line what waited there comes in. */
	wr(MCR, 0);
	turn();
	cr_assert_eq(rd(DATA), 'l');
	turn();
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	cr_assert_eq(read(out[0], (char[1]){ 0 }, 1), -1, "nothing of it went out");
}

Test(serial, outside)
{
	start(false);
	wr(8, 1);
	wr(0xffffffff, 1);
	wr(LSR, 0);
	wr(MSR, 0xff);
	cr_assert_eq(rd(8), 0);
	cr_assert_eq(rd(0xffffffff), 0);
	cr_assert_eq(rd(LSR), LSR_IDLE);
}

/* ---- the sink ---- */

/* Fills the sink up; the bytes that are in it. */
static size_t sink_fill(void)
{
	static char junk[4096];
	int flags = fcntl(out[1], F_GETFL);
	size_t n = 0;
	ssize_t put;

	(void)fcntl(out[1], F_SETPIPE_SZ, 4096); /* a terminal has no such size */
	fcntl(out[1], F_SETFL, flags | O_NONBLOCK);
	while ((put = write(out[1], junk, sizeof(junk))) > 0)
		n += (size_t)put;
	fcntl(out[1], F_SETFL, flags);
	return n;
}

static void sink_drain(size_t n)
{
	static char junk[1 << 16];

	while (n) {
		ssize_t got = read(out[0], junk, n < sizeof(junk) ? n : sizeof(junk));

		cr_assert_gt(got, 0);
		n -= (size_t)got;
	}
}

static char pattern(size_t i)
{
	return (char)('a' + i % 23);
}

/* Back-pressure: LSR tells the guest to wait, nothing is lost, and an interrupt tells it to go on. */
static void hold(void)
{
	static char want[SERIAL_TX_BUF * 3];
	size_t junk = sink_fill(), sent = 0;

	for (size_t i = 0; i < sizeof(want); i++)
		want[i] = pattern(i);
	wr(IER, 0x02);
	while (rd(LSR) & 0x20) {
		for (int i = 0; i < 16; i++)
			wr(DATA, want[sent++]);
		turn();
		cr_assert_leq(sent, sizeof(want));
	}
	cr_assert_gt(sent, SERIAL_TX_BUF - 32);
	cr_assert_eq(rd(LSR), 0);
	(void)rd(IIR);
	cr_assert_eq(rd(IIR) & 0x0f, 0x01);
	irqs = 0;
	turn();
	cr_assert_eq(irqs, 0);
	sink_drain(junk);
	while (!irqs)
		turn();
	cr_assert_eq(rd(IIR) & 0x0f, 0x02);
	cr_assert_eq(rd(LSR) & 0x20, 0x20);
	expect_out(want, sent);
	cr_assert_eq(serial_dropped(uart), 0);
}

Test(serial, hold_blocking_pipe)
{
	start(true);
	hold();
}

Test(serial, hold_nonblocking_pipe)
{
	start(true);
	cr_assert_eq(fcntl(out[1], F_SETFL, O_NONBLOCK), 0);
	hold();
}

/* Older kernels answer EAGAIN for it, newer ones wait: the guest sees no difference. */
Test(serial, hold_nonblocking_terminal)
{
	struct termios raw;

	start(true);
	serial_close(uart);
	cr_assert_eq(openpty(&out[0], &out[1], NULL, NULL, NULL), 0);
	cr_assert_eq(tcgetattr(out[1], &raw), 0);
	cfmakeraw(&raw);
	cr_assert_eq(tcsetattr(out[1], TCSANOW, &raw), 0);
	cr_assert_eq(fcntl(out[1], F_SETFL, O_RDWR | O_NONBLOCK), 0);
	uart = open_uart(true);
	serial_start(uart);
	hold();
}

Test(serial, a_slow_console_loses_bytes)
{
	size_t junk;

	start(false);
	junk = sink_fill();
	for (size_t i = 0; i < SERIAL_TX_BUF + 100; i++) {
		cr_assert_eq(rd(LSR), LSR_IDLE, "it never makes the guest wait");
		wr(DATA, 'x');
		if (i % 100 == 0)
			turn();
	}
	cr_assert_eq(serial_dropped(uart), 100);
	sink_drain(junk);
}

Test(serial, long_output_in_order)
{
	static char want[SERIAL_TX_BUF * 2];

	start(false);
	for (size_t i = 0; i < sizeof(want); i++) {
		want[i] = pattern(i);
		wr(DATA, want[i]);
		if (i % 1000 == 999)
			turn();
	}
	expect_out(want, sizeof(want));
}

Test(serial, a_broken_sink_is_given_up)
{
	start(true);
	close(out[0]);
	put("nobody listens");
	turn();
	turn();
	for (int i = 0; i < 2 * SERIAL_TX_BUF; i++)
		wr(DATA, 'x');
	cr_assert_eq(rd(LSR), LSR_IDLE, "and does not hold the guest up");
	cr_assert_eq(serial_dropped(uart), strlen("nobody listens"));
}

Test(serial, no_sink_no_source)
{
	struct serial_host host = { .loop = &loop,
		                    .irq = on_irq,
		                    .irq_ctx = &loop,
		                    .pin = 4,
		                    .out_fd = -1,
		                    .in_fd = -1,
		                    .hold_tx = true };

	cr_assert_eq(loop_open(&loop, 8, NULL), 0);
	cr_assert_eq(serial_open(&uart, &host, NULL), 0);
	serial_start(uart);
	for (int i = 0; i < 2 * SERIAL_TX_BUF; i++)
		wr(DATA, 'x');
	turn();
	cr_assert_eq(rd(LSR), LSR_IDLE);
}

/* The last words of a kernel are written when the machine is closed. */
Test(serial, close_flushes)
{
	char got[64] = { 0 };

	start(false);
	put("first ");
	turn();
	put("panic: last words");
	stop();
	cr_assert_eq(read(out[0], got, sizeof(got)), 23);
	cr_assert_str_eq(got, "first panic: last words");
}

/* The same when the loop is closed first: what was in flight is neither lost nor written twice. */
static void close_loop_first(bool full)
{
	static char want[3000], got[3001];
	struct loop_event event = { .fire = on_nothing };
	int turns = 1;
	size_t junk;

	start(false);
	junk = full ? sink_fill() : 0;
	for (size_t i = 0; i < sizeof(want); i++) {
		want[i] = pattern(i);
		wr(DATA, want[i]);
		if (i == 1000)
			turn();
	}
	/* One turn only: a write is begun, and its end is not looked at. */
	loop_post(&loop, &event);
	cr_assert_eq(loop_run_until(&loop, always, &turns), 0);
	cr_assert_eq(loop.nr_busy, 2 + 1, "the wake-up, the input's poll and the write");
	loop_close(&loop);
	sink_drain(junk);
	stop();
	cr_assert_eq(read(out[0], got, sizeof(got)), sizeof(want));
	cr_assert_eq(memcmp(got, want, sizeof(want)), 0);
}

Test(serial, close_after_the_loop)
{
	close_loop_first(false);
}

Test(serial, close_after_the_loop_with_a_write_in_flight)
{
	close_loop_first(true);
}

/* ---- input ---- */

Test(serial, input_flow_control)
{
	char want[1000];
	size_t got = 0;
	unsigned left;

	start(false);
	for (size_t i = 0; i < sizeof(want); i++)
		want[i] = pattern(i);
	cr_assert_eq(write(in[1], want, sizeof(want)), (ssize_t)sizeof(want));
	for (int i = 0; i < 10; i++)
		turn();
	cr_assert_eq(rd(LSR) & LSR_OE, 0, "a full FIFO is not overrun");
	cr_assert_eq(loop.nr_busy, 1, "and nobody polls meanwhile");
	while (got < sizeof(want)) {
		while (rd(LSR) & LSR_DR) {
			cr_assert_lt(got, sizeof(want));
			cr_assert_eq(rd(DATA), want[got]);
			got++;
			if (got % 37 == 0)
				break;
		}
		turn();
	}
	/* The end of the input is not an event that repeats for ever. */
	close(in[1]);
	turn();
	left = loop.nr_busy;
	turn();
	cr_assert_eq(loop.nr_busy, left);
	cr_assert_eq(rd(LSR) & LSR_DR, 0);
}

/* ---- freeze and thaw ---- */

Test(serial, snapshot_in_the_middle_of_output)
{
	struct state_buf buf = { 0 };
	struct serial *old;
	struct err err = { 0 };
	size_t sent = 0;

	start(true);
	sink_fill();
	wr(IER, 0x03);
	while (rd(LSR) & 0x20) {
		wr(DATA, pattern(sent++));
		turn();
	}
	(void)rd(IIR); /* acknowledged: the driver waits for the next one */
	receive("in");
	serial_save(uart, &buf);
	cr_assert_eq(buf.err, 0);
	/* A new machine: the transmitter is empty, and the driver is told so. */
	old = uart;
	close(out[0]);
	cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
	uart = open_uart(true);
	cr_assert_eq(serial_load(uart, &buf, &err), 0, "%s", err.msg);
	irqs = 0;
	serial_start(uart);
	cr_assert_eq(irqs, 1);
	cr_assert_eq(rd(IIR) & 0x0f, 0x04);
	cr_assert_eq(rd(DATA), 'i');
	cr_assert_eq(rd(DATA), 'n');
	cr_assert_eq(rd(IIR) & 0x0f, 0x02);
	cr_assert_eq(rd(LSR), LSR_IDLE);
	put("alive");
	expect_out("alive", 5);
	/* Into a machine that has run: what is owed is raised again all the same. */
	buf.pos = 0;
	cr_assert_eq(serial_load(uart, &buf, &err), 0);
	irqs = 0;
	serial_start(uart);
	cr_assert_eq(irqs, 1);
	serial_close(old);
	state_buf_free(&buf);
}

static int load_forged(const struct serial_state *s, struct err *err)
{
	struct state_buf buf = { 0 };
	int ret;

	state_put(&buf, serial_state_desc(), 0, s);
	ret = serial_load(uart, &buf, err);
	state_buf_free(&buf);
	return ret;
}

Test(serial, forged_state)
{
	struct serial_state s = { .dll = 1, .scr = 7 };
	struct err err = { 0 };

	start(false);
	cr_assert_eq(load_forged(&s, &err), 0);
	cr_assert_eq(rd(SCR), 7);
	s.scr = 8;
	s.rx_head = SERIAL_RX_FIFO;
	cr_assert_eq(load_forged(&s, &err), -EBADMSG);
	s.rx_head = 0;
	s.rx_len = SERIAL_RX_FIFO + 1;
	cr_assert_eq(load_forged(&s, &err), -EBADMSG);
	s.rx_len = 0;
	s.ier = 0x10;
	cr_assert_eq(load_forged(&s, &err), -EBADMSG);
	cr_assert_neq(err.msg[0], '\0');
	cr_assert_eq(rd(SCR), 7, "what was there stays");
}

Test(serial, close_of_nothing)
{
	serial_close(NULL);
}
