/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole vsock device: a hostile driver on one side, programs of the host on Unix sockets on the other, which
 * connect, listen, speak, read slowly and go away. What the device holds of the guest's is bounded, nothing
 * is sent over the credit that the guest gave, and the descriptors are all closed in the end.
 */
#include "devices/vsock.h"

#include "devices/vsock_conn.h"
#include "tests/fuzz/driver.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CID       3u
#define PROGRAMS  6
#define PORTS     3u /* that a program listens on: <path>_1, _2; 0 is nobody's */
#define RX_BUF    (2 * DR_DATA)
#define RX_LEN    0x400u
#define TX_BUF    DR_DATA
#define EVENT_BUF 0x3000u

enum { RX, TX, EVENT };

static struct driver drv;
static struct vsock *dev;
static int program[PROGRAMS], listener[PORTS];
static uint16_t rx_seen;
static uint32_t last_host_port,
	last_guest_port; /* of a packet that came: an answer can name them */

static struct sockaddr_un address(const char *suffix)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/v%s", fz_dir(), suffix);
	return a;
}

static int new_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	FZ_CHECK(fd >= 0);
	return fd;
}

static void listen_at(unsigned port)
{
	char suffix[16];
	struct sockaddr_un a;

	(void)snprintf(suffix, sizeof(suffix), "_%u", port);
	a = address(suffix);
	listener[port] = new_socket();
	(void)unlink(a.sun_path);
	FZ_CHECK(bind(listener[port], (struct sockaddr *)&a, sizeof(a)) == 0 &&
	         listen(listener[port], 4) == 0);
}

static void hang_up(unsigned i)
{
	if (program[i] >= 0)
		(void)close(program[i]);
	program[i] = -1;
}

static struct vsock *open_device(bool with_path)
{
	struct vdev_host host = dr_host(&drv);
	struct sockaddr_un a = address("");
	struct vsock_config config = { .path = with_path ? a.sun_path : NULL, .guest_cid = CID };
	struct vsock *v = NULL;
	struct err err;

	FZ_CHECK(vsock_open(&v, &config, &host, 0, &err) == 0);
	return v;
}

/* ---- the guest ---- */

/* A receive, or event, buffer; the driver's own slot for it. */
static void add_buffer(unsigned q)
{
	uint16_t slot = drv.added[q] % DR_SIZE;

	if (q == RX)
		dr_desc(&drv, RX * DR_QUEUE, slot, RX_BUF + slot * RX_LEN, RX_LEN, 2, 0);
	else
		dr_desc(&drv, EVENT * DR_QUEUE, slot, EVENT_BUF + slot * 8u, 8, 2, 0);
	dr_publish(&drv, q, slot);
	dr_write(&drv, 0x50, q);
}

static uint32_t any_port(struct fz_in *in, uint32_t last)
{
	uint8_t kind = fz_u8(in);

	return kind < 0x80 ? last : kind < 0xe0 ? kind % 4u : fz_u32(in);
}

/* A packet whose fields mostly make sense. */
static void send_packet(struct fz_in *in)
{
	uint8_t kind = fz_u8(in);
	uint16_t slot = drv.added[TX] % (DR_SIZE / 2);
	uint64_t at = TX_BUF + slot * 0x400u;
	struct vsock_hdr hdr = {
		.src_cid = CID,
		.dst_cid = VSOCK_HOST_CID,
		.src_port = any_port(in, last_guest_port),
		.dst_port = any_port(in, last_host_port),
		.len = kind & 0x80 ? fz_u16(in) : 0,
		.type = VSOCK_TYPE_STREAM,
		.op = (uint16_t)(kind & 0x0f),
		.flags = fz_u8(in),
		.buf_alloc = kind & 0x40 ? fz_u32(in) : 65536,
		.fwd_cnt = kind & 0x40 ? fz_u32(in) : 0,
	};

	if (kind & 0x20)
		fz_bytes(in, (uint8_t *)&hdr + fz_u8(in) % sizeof(hdr), 1);
	last_guest_port = hdr.src_port;
	if (gmem_write(&drv.mem, gpa(at), &hdr, sizeof(hdr)) < 0)
		abort();
	dr_desc(&drv, TX * DR_QUEUE, 2u * slot, at, sizeof(hdr), kind & 0x10 ? 0 : 1, 2 * slot + 1);
	/* Payload: anything of the low memory, as long as the header says, or less. */
	if (hdr.len > 1 && (hdr.flags & 0x80))
		hdr.len -= 1 + hdr.flags % hdr.len % (hdr.len - 1);
	dr_desc(&drv, TX * DR_QUEUE, 2u * slot + 1, 0, hdr.len ? hdr.len : 1, 0, 0);
	dr_publish(&drv, TX, 2 * slot);
	dr_write(&drv, 0x50, TX);
}

/* What has come: ports for the next answers, and the device's own packets are well formed. */
static void look_at_packets(void)
{
	uint16_t used;

	if (gmem_read(&drv.mem, gpa(RX * DR_QUEUE + DR_USED + 2), &used, 2) < 0)
		abort();
	for (int i = 0; rx_seen != used && i < 64; i++, rx_seen++) {
		uint64_t elem = RX * DR_QUEUE + DR_USED + 4 + 8ull * (rx_seen % DR_SIZE);
		struct vsock_hdr hdr;
		uint32_t id;

		if (gmem_read(&drv.mem, gpa(elem), &id, 4) < 0)
			abort();
		if (id >= DR_SIZE ||
		    gmem_read(&drv.mem, gpa(RX_BUF + (uint64_t)id * RX_LEN), &hdr, sizeof(hdr)) < 0)
			continue;
		last_host_port = hdr.src_port;
		last_guest_port = hdr.dst_port;
	}
}

/* ---- the host ---- */

static void host_acts(struct fz_in *in)
{
	uint8_t kind = fz_u8(in);
	unsigned i = kind % PROGRAMS;
	struct sockaddr_un a = address("");
	struct fz_in text;
	char buf[4096];
	int pair[2];

	switch (kind / PROGRAMS % 7) {
	case 0: /* a program that wants a port */
		hang_up(i);
		program[i] = new_socket();
		if (connect(program[i], (struct sockaddr *)&a, sizeof(a)) < 0)
			hang_up(i);
		break;
	case 1: /* what it says first */
		if (program[i] >= 0)
			(void)!send(program[i], "CONNECT 2000\n", 13, MSG_NOSIGNAL);
		break;
	case 2:
		text = fz_part(in, fz_u8(in));
		if (program[i] >= 0 && text.n)
			(void)!send(program[i], text.p, text.n, MSG_NOSIGNAL);
		break;
	case 3:
		if (program[i] >= 0)
			(void)!recv(program[i], buf, fz_u16(in) % sizeof(buf), MSG_DONTWAIT);
		break;
	case 4:
		hang_up(i);
		break;
	case 5: /* takes a guest's connection */
		hang_up(i);
		program[i] =
			accept4(listener[1 + kind % 2u], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		break;
	default: /* the monitor's own connect command */
		hang_up(i);
		FZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ==
		         0);
		program[i] = pair[0];
		if (vsock_connect_with(dev, pair[1], fz_u8(in) % 4u, "first", kind & 1 ? 5 : 0,
		                       NULL) < 0)
			(void)close(pair[1]);
		break;
	}
}

static void shut_some(struct fz_in *in)
{
	uint8_t kind = fz_u8(in);

	if (program[kind % PROGRAMS] >= 0)
		(void)shutdown(program[kind % PROGRAMS], kind & 0x80 ? SHUT_RD : SHUT_WR);
}

static void one_op(struct fz_in *in)
{
	uint8_t op = fz_u8(in);

	switch (op % 8) {
	case 0:
	case 1:
		send_packet(in);
		break;
	case 2:
		host_acts(in);
		break;
	case 3:
		add_buffer(RX);
		look_at_packets();
		break;
	case 4:
		dr_turn(&drv);
		look_at_packets();
		break;
	case 5:
		add_buffer(EVENT);
		break;
	case 6:
		shut_some(in);
		break;
	default:
		dr_do(&drv, in, op / 8 % DR_NR_OPS);
		break;
	}
}

static unsigned open_files(void)
{
	int fd = dup(STDERR_FILENO); /* the lowest free number */

	(void)close(fd);
	return (unsigned)fd;
}

/* A thawed guest's device: what the old one had is announced as lost. */
static void check_thaw(void)
{
	struct vsock *other;
	struct state_buf buf = { 0 };
	struct err err;

	dr_settle(&drv);
	dr_check(&drv);
	vdev_save(vsock_vdev(dev), &buf);
	vsock_close(dev);
	for (unsigned i = 0; i < PROGRAMS; i++)
		hang_up(i);
	{
		struct vdev_host host = { &drv.loop, &drv.mem, dr_irq, &drv, 5 };
		struct vsock_config config = { .guest_cid = CID };

		FZ_CHECK(vsock_open(&other, &config, &host, 0, &err) == 0);
	}
	FZ_CHECK(vdev_load(vsock_vdev(other), &buf, &err) == 0);
	drv.dev = vsock_vdev(other);
	vdev_resume(drv.dev);
	for (int i = 0; i < 4; i++) {
		add_buffer(EVENT);
		add_buffer(RX);
		dr_turn(&drv);
	}
	vsock_close(other);
	state_buf_free(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };
	uint8_t flags = fz_u8(&in), start = fz_u8(&in);
	struct vsock_stats stats;
	unsigned files;

	if (!listener[1])
		for (unsigned port = 1; port < PORTS; port++)
			listen_at(port);
	for (unsigned i = 0; i < PROGRAMS; i++)
		program[i] = -1;
	rx_seen = 0;
	last_host_port = last_guest_port = 1;
	(void)dr_host(&drv); /* opens what stays open */
	files = open_files();
	dev = open_device(!(flags & 1));
	dr_start(&drv, vsock_vdev(dev), start & 7);
	for (unsigned i = 0; i < DR_SIZE - 1 && !(flags & 2); i++)
		add_buffer(RX);
	for (int ops = 0; in.n && ops < 256; ops++)
		one_op(&in);
	dr_turn(&drv);
	vsock_stats(dev, &stats);
	FZ_CHECK(stats.live <= 1024 && stats.closed <= stats.opened);
	check_thaw();
	while ((program[0] = accept4(listener[1], NULL, NULL, SOCK_CLOEXEC)) >= 0)
		hang_up(0);
	while ((program[0] = accept4(listener[2], NULL, NULL, SOCK_CLOEXEC)) >= 0)
		hang_up(0);
	FZ_CHECK(open_files() == files);
	return 0;
}
