/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serial port: any access, a sink that takes much, little or nothing, a line that says something. What the
 * guest wrote comes out in order, or is counted as dropped; a restored port is as it was.
 */
#include "devices/serial.h"

#include "tests/fuzz/driver.h"

#include <sys/socket.h>

static struct driver drv;
static struct serial *uart;
static int far_end; /* of the line; -1: none */
static uint64_t sent, came;
static bool lossy; /* the sink was full, and nobody waited */

static void take(size_t max)
{
	uint8_t buf[8192];
	ssize_t n = recv(far_end, buf, max < sizeof(buf) ? max : sizeof(buf), MSG_DONTWAIT);

	for (ssize_t i = 0; i < n; i++, came++)
		FZ_CHECK(lossy || buf[i] == (uint8_t)(came * 31 + 7));
}

static void write_burst(unsigned n, bool loopback)
{
	while (n--) {
		serial_write(uart, 0, (uint8_t)(sent * 31 + 7));
		sent += !loopback;
	}
	lossy = lossy || serial_dropped(uart);
}

static void say(struct fz_in *in)
{
	struct fz_in text = fz_part(in, fz_u8(in));

	if (far_end >= 0 && text.n)
		(void)!send(far_end, text.p, text.n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void check_restore(const struct serial_host *host)
{
	struct state_buf first = { 0 }, again = { 0 };
	struct serial *other = NULL;
	struct err err;

	serial_save(uart, &first);
	FZ_CHECK(serial_open(&other, host, &err) == 0 && serial_load(other, &first, &err) == 0);
	serial_save(other, &again);
	FZ_CHECK(first.len == again.len && memcmp(first.p, again.p, first.len) == 0);
	serial_close(other);
	state_buf_free(&first);
	state_buf_free(&again);
}

static void one_op(struct fz_in *in, uint8_t op)
{
	uint8_t value = fz_u8(in);

	switch (op % 8) {
	case 0:
		(void)serial_read(uart, value & 0x80 ? value : value % 9u);
		break;
	case 1: /* not the data register: its bytes are counted */
		serial_write(uart, 1 + value % 9u, fz_u8(in));
		break;
	case 2:
		serial_write(uart, 3, 0x03);
		serial_write(uart, 4, value & 0x10);
		write_burst(value, value & 0x10);
		break;
	case 3:
		for (int i = 0; i < 20; i++)
			dr_turn(&drv);
		break;
	case 4:
		if (far_end >= 0)
			take(value * 32u);
		break;
	case 5:
		say(in);
		break;
	case 6:
		dr_turn(&drv);
		break;
	default:
		serial_start(uart);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	uint8_t flags = fz_u8(&in);
	struct vdev_host base = dr_host(&drv);
	struct serial_host host = { .loop = base.loop,
		                    .irq = base.irq,
		                    .irq_ctx = base.irq_ctx,
		                    .pin = base.pin,
		                    .out_fd = -1,
		                    .in_fd = -1,
		                    .hold_tx = flags & 1 };
	int pair[2] = { -1, -1 }, small = 1;
	struct err err;

	sent = came = 0;
	lossy = false;
	far_end = -1;
	if (flags & 2) {
		FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) ==
		         0);
		(void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
		host.out_fd = host.in_fd = pair[0];
		far_end = pair[1];
	}
	FZ_CHECK(serial_open(&uart, &host, &err) == 0);
	serial_start(uart);
	for (int ops = 0; in.n > 1 && ops < 512; ops++) {
		one_op(&in, fz_u8(&in));
		if ((flags & 4) && far_end >= 0 &&
		    ops == 20) { /* whoever read the console is gone */
			(void)close(far_end);
			far_end = -1;
		}
	}
	host.out_fd = host.in_fd = -1;
	check_restore(&host);
	serial_close(uart);
	if (far_end >= 0) {
		for (int i = 0; i < 64; i++)
			take(SIZE_MAX);
		(void)close(far_end);
	}
	FZ_CHECK(came <= sent);
	if (pair[0] >= 0)
		(void)close(pair[0]);
	return 0;
}
