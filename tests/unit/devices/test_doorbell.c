/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/doorbell.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define MIB  (1ull << 20)
#define NR   8u        /* mailbox pages */
#define HOLE (2 * MIB) /* guest memory: 2 MiB, a hole, 2 MiB more from 4 GiB on */
#define HIGH (4096 * MIB)

static struct gmem mem;
static struct doorbell bell;
static struct {
	unsigned nr_parked, nr_next, nr_output, nr_done, nr_power;
	size_t len;
	uint8_t bytes[DOORBELL_MAX_PAGES * GMEM_PAGE];
} seen;

static void on_parked(void *ctx)
{
	(void)ctx;
	seen.nr_parked++;
}

static uint32_t on_next(void *ctx)
{
	(void)ctx;
	seen.nr_next++;
	return DOORBELL_LOOK;
}

static void on_output(void *ctx, const struct iovec *iov, unsigned nr, bool done)
{
	(void)ctx;
	seen.nr_output++;
	seen.nr_done += done;
	seen.len = 0;
	for (unsigned i = 0; i < nr; i++) {
		memcpy(seen.bytes + seen.len, iov[i].iov_base, iov[i].iov_len);
		seen.len += iov[i].iov_len;
	}
}

static void on_power(void *ctx)
{
	(void)ctx;
	seen.nr_power++;
}

static void setup(void)
{
	memset(&seen, 0, sizeof(seen));
	cr_assert_eq(gmem_open(&mem, 4 * MIB, HOLE, HIGH, -1), 0);
	bell = (struct doorbell){ .mem = &mem,
		                  .parked = on_parked,
		                  .next = on_next,
		                  .output = on_output,
		                  .power = on_power };
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(doorbell, .init = setup, .fini = teardown);

static void add_page(uint64_t addr)
{
	doorbell_write(&bell, 0x04, (uint32_t)addr);
	doorbell_write(&bell, 0x08, (uint32_t)(addr >> 32));
}

/* Pages out of order and on both sides of the hole, as an interpreter's are. */
static uint64_t page(unsigned i)
{
	return i % 2 ? HIGH + 0x5000 - i * 0x1000 + 0x8000 : 0x10000 + i * 0x3000;
}

static void park(void)
{
	for (unsigned i = 0; i < NR; i++)
		add_page(page(i));
	doorbell_write(&bell, 0x0c, 2000);
	cr_assert_eq(doorbell_read(&bell, 0x10), DOORBELL_AGAIN);
}

Test(doorbell, bake)
{
	cr_assert_eq(doorbell_read(&bell, 0x00), DOORBELL_MAGIC);
	cr_assert_eq(doorbell_request_room(&bell), 0);
	park();
	cr_assert_eq(bell.s.nr_pages, NR);
	cr_assert_eq(bell.s.page[3], page(3));
	cr_assert_eq(bell.s.port, 2000);
	cr_assert_eq(bell.s.phase, DOORBELL_PARKED);
	cr_assert_eq(seen.nr_parked, 1);
	cr_assert_eq(doorbell_request_room(&bell), NR / 2 * GMEM_PAGE);
	/* A bake that goes on after its snapshot parks again. */
	cr_assert_eq(doorbell_read(&bell, 0x10), DOORBELL_AGAIN);
	cr_assert_eq(seen.nr_parked, 2);
	/* Frozen: the mailbox and the port are what they are. */
	add_page(0x80000);
	doorbell_write(&bell, 0x0c, 1);
	doorbell_write(&bell, 0x14, 1);
	doorbell_write(&bell, 0x18, 1);
	cr_assert_eq(bell.s.nr_pages, NR);
	cr_assert_eq(bell.s.port, 2000);
	cr_assert_eq(seen.nr_output, 0);
}

Test(doorbell, bad_pages)
{
	add_page(0x10001); /* not aligned */
	add_page(0x10800);
	add_page(HOLE);           /* no memory there */
	add_page(HIGH + 2 * MIB); /* behind the end */
	add_page(UINT64_MAX - 0xfff);
	add_page(0xd000f000); /* the doorbell itself */
	cr_assert_eq(bell.s.nr_pages, 0);
	add_page(0x10000);
	add_page(0x10000); /* twice */
	cr_assert_eq(bell.s.nr_pages, 1);
	cr_assert_eq(doorbell_request_room(&bell), 0, "half of one page is none");
	for (unsigned i = 0; i < 2 * DOORBELL_MAX_PAGES; i++)
		add_page(0x20000 + i * 0x1000);
	cr_assert_eq(bell.s.nr_pages, DOORBELL_MAX_PAGES);
}

Test(doorbell, request)
{
	static uint8_t want[NR / 2 * GMEM_PAGE], got[GMEM_PAGE];

	park();
	for (size_t i = 0; i < sizeof(want); i++)
		want[i] = (uint8_t)(i * 7 + i / 256);
	cr_assert_eq(doorbell_put(&bell, 0, want, 100), 0);
	cr_assert_eq(doorbell_put(&bell, 100, want + 100, sizeof(want) - 100), 0);
	for (unsigned i = 0; i < NR / 2; i++) {
		cr_assert_eq(gmem_read(&mem, gpa(page(i)), got, GMEM_PAGE), 0);
		cr_assert_eq(memcmp(got, want + i * GMEM_PAGE, GMEM_PAGE), 0);
	}
	cr_assert_eq(doorbell_put(&bell, 0, want, sizeof(want) + 1), -EMSGSIZE);
	cr_assert_eq(doorbell_put(&bell, sizeof(want), want, 1), -EMSGSIZE);
	cr_assert_eq(doorbell_put(&bell, SIZE_MAX, want, 2), -EMSGSIZE);
	cr_assert_eq(doorbell_put(&bell, sizeof(want), want, 0), 0);
}

Test(doorbell, response)
{
	static uint8_t want[NR / 2 * GMEM_PAGE];

	park();
	for (size_t i = 0; i < sizeof(want); i++)
		want[i] = (uint8_t)(i * 5 + i / 256);
	for (unsigned i = 0; i < NR / 2; i++)
		cr_assert_eq(
			gmem_write(&mem, gpa(page(NR / 2 + i)), want + i * GMEM_PAGE, GMEM_PAGE),
			0);
	bell.s.phase = DOORBELL_FIRST;
	cr_assert_eq(doorbell_read(&bell, 0x10), DOORBELL_SERVED);
	doorbell_write(&bell, 0x14, 0);
	cr_assert_eq(seen.nr_output, 0);
	doorbell_write(&bell, 0x14, GMEM_PAGE + 5);
	cr_assert_eq(seen.len, GMEM_PAGE + 5);
	cr_assert_eq(memcmp(seen.bytes, want, seen.len), 0);
	doorbell_write(&bell, 0x14, 0xffffffff); /* cut to what there is */
	cr_assert_eq(seen.len, sizeof(want));
	cr_assert_eq(memcmp(seen.bytes, want, seen.len), 0);
	cr_assert_eq(seen.nr_done, 0);
	doorbell_write(&bell, 0x18, 3);
	cr_assert_eq(seen.len, 3);
	cr_assert_eq(seen.nr_done, 1);
	cr_assert_eq(bell.s.phase, DOORBELL_DONE);
}

Test(doorbell, done_without_bytes_or_mailbox)
{
	bell.s.phase = DOORBELL_FIRST;
	doorbell_write(&bell, 0x14, 100);
	cr_assert_eq(seen.nr_output, 0);
	doorbell_write(&bell, 0x18, 100);
	cr_assert_eq(seen.nr_done, 1);
	cr_assert_eq(seen.len, 0);
}

/* NEXT means something between two requests only. */
Test(doorbell, next)
{
	static const enum doorbell_phase others[] = { DOORBELL_BAKE, DOORBELL_PARKED,
		                                      DOORBELL_FIRST, DOORBELL_VSOCK };

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		bell.s.phase = others[i];
		cr_assert_eq(doorbell_read(&bell, 0x1c), DOORBELL_SERVED);
	}
	cr_assert_eq(seen.nr_next, 0);
	bell.s.phase = DOORBELL_DONE;
	cr_assert_eq(doorbell_read(&bell, 0x1c), DOORBELL_LOOK);
	cr_assert_eq(seen.nr_next, 1);
}

/* After the first request the page is in the hands of user code. */
Test(doorbell, nothing_after_done)
{
	park();
	bell.s.phase = DOORBELL_DONE;
	for (uint32_t off = 0; off < DOORBELL_LEN; off += 4) {
		uint32_t value = doorbell_read(&bell, off);

		cr_assert_eq(value, off == 0      ? DOORBELL_MAGIC
		                    : off == 0x10 ? DOORBELL_SERVED
		                    : off == 0x1c ? DOORBELL_LOOK
		                                  : 0);
		doorbell_write(&bell, off, 0x1000);
	}
	cr_assert_eq(seen.nr_output + seen.nr_power, 0);
	cr_assert_eq(seen.nr_parked, 1);
	cr_assert_eq(bell.s.nr_pages, NR);
	cr_assert_eq(bell.s.port, 2000);
	cr_assert_eq(bell.s.phase, DOORBELL_DONE);
	doorbell_write(&bell, 0x20, 1);
	cr_assert_eq(seen.nr_power, 1, "the guest may always power off");
}

static int reload(const struct doorbell_state *s, struct err *err)
{
	struct state_buf buf = { 0 };
	int ret;

	state_put(&buf, doorbell_state_desc(), 0, s);
	ret = state_get(&buf, doorbell_state_desc(), 0, &bell.s, err);
	state_buf_free(&buf);
	return ret;
}

Test(doorbell, state)
{
	struct doorbell_state s, bad;
	struct err err = { 0 };

	park();
	s = bell.s;
	memset(&bell.s, 0, sizeof(bell.s));
	cr_assert_eq(reload(&s, &err), 0);
	cr_assert_eq(memcmp(&bell.s, &s, sizeof(s)), 0);
	bad = s;
	bad.nr_pages = DOORBELL_MAX_PAGES + 1;
	cr_assert_eq(reload(&bad, &err), -EBADMSG);
	bad = s;
	bad.phase = DOORBELL_VSOCK + 1;
	cr_assert_eq(reload(&bad, &err), -EBADMSG);
	bad = s;
	bad.page[1] |= 8;
	cr_assert_eq(reload(&bad, &err), -EBADMSG);
	cr_assert(strstr(err.msg, "page 1"), "%s", err.msg);
	/* Frozen by a build that knew no NEXT: its interpreter waits for a stream. */
	bad = s;
	bad.phase = DOORBELL_DONE;
	bad.form = 2;
	cr_assert_eq(reload(&bad, &err), 0);
	cr_assert_eq(bell.s.phase, DOORBELL_VSOCK);
}

/* A forged file may name pages that are not this machine's: no byte goes there. */
Test(doorbell, forged_pages)
{
	park();
	bell.s.page[1] = HOLE;
	bell.s.page[NR / 2 + 1] = HOLE;
	cr_assert_eq(doorbell_put(&bell, 0, seen.bytes, 2 * GMEM_PAGE), -EFAULT);
	bell.s.phase = DOORBELL_FIRST;
	doorbell_write(&bell, 0x18, 3 * GMEM_PAGE);
	cr_assert_eq(seen.len, GMEM_PAGE);
	cr_assert_eq(seen.nr_done, 1);
}
