/* SPDX-License-Identifier: Apache-2.0 */
#include "core/state.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OLD_STATE(F, A)      \
	F(1, uint8_t, ier)   \
	F(1, uint64_t, addr) \
	A(1, uint16_t, ring, 3)
STATE_STRUCT(old_state, OLD_STATE);

/* What a later build makes of it: two more fields, and a rule. */
#define NEW_STATE(F, A)       \
	OLD_STATE(F, A)       \
	F(2, uint32_t, extra) \
	A(3, uint8_t, more, 2)
STATE_STRUCT(new_state, NEW_STATE);

const struct state_desc *old_state_desc(void);
const struct state_desc *new_state_desc(void);
const struct state_desc *late_state_desc(void);

static int check_from;

static int new_state_check(void *state, uint16_t from, struct err *err)
{
	struct new_state *s = state;

	check_from = from;
	if (s->ier > 15)
		return err_set(err, -EBADMSG, "ier %u", s->ier);
	if (from < 3)
		s->more[1] = 77;
	return 0;
}
STATE_DESC(old_state, OLD_STATE, "TEST", 1, NULL)
STATE_DESC(new_state, NEW_STATE, "TEST", 1, new_state_check)

#define LATE_STATE(F, A) NEW_STATE(F, A)
STATE_STRUCT(late_state, LATE_STATE);
STATE_DESC(late_state, LATE_STATE, "TEST", 2, NULL)

static struct state_buf buf;
static struct err err;

static void teardown(void)
{
	state_buf_free(&buf);
}

TestSuite(state, .fini = teardown);

static const struct old_state old = { .ier = 5, .addr = 0x1122334455667788, .ring = { 1, 2, 3 } };

Test(state, layout_on_disk)
{
	static const uint8_t body[] = { 5,    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22,
		                        0x11, 1,    0,    2,    0,    3,    0 };

	state_put(&buf, old_state_desc(), 7, &old);
	cr_assert_eq(buf.err, 0);
	cr_assert_eq(buf.len, 16 + sizeof(body), "no padding");
	cr_assert_eq(memcmp(buf.p, "TEST\7\0\1\0\17\0\0\0", 12), 0);
	cr_assert_eq(memcmp(buf.p + 16, body, sizeof(body)), 0);
}

Test(state, versions_come_from_the_fields)
{
	cr_assert_eq(old_state_desc()->version, 1);
	cr_assert_eq(new_state_desc()->version, 3);
}

Test(state, round_trip_in_order)
{
	struct new_state in = { .ier = 9, .ring = { 7, 8, 9 }, .extra = 4, .more = { 1, 2 } };
	struct new_state got = { 0 };
	struct old_state got_old = { 0 };
	uint8_t raw[5] = "kvm!", got_raw[5];
	size_t n;

	state_put(&buf, old_state_desc(), 0, &old);
	state_put_raw(&buf, "REGS", 1, raw, sizeof(raw));
	state_put(&buf, new_state_desc(), 2, &in);
	state_put_raw(&buf, "MSRS", 0, raw, 3);
	cr_assert_eq(state_get(&buf, old_state_desc(), 0, &got_old, &err), 0);
	cr_assert_eq(got_old.addr, old.addr);
	cr_assert_eq(memcmp(got_old.ring, old.ring, sizeof(old.ring)), 0);
	cr_assert_eq(state_get_raw(&buf, "REGS", 1, got_raw, sizeof(got_raw), &err), 0);
	cr_assert_str_eq((char *)got_raw, "kvm!");
	cr_assert_eq(state_get(&buf, new_state_desc(), 2, &got, &err), 0);
	cr_assert_eq(memcmp(&got, &in, sizeof(in)), 0);
	cr_assert_eq(check_from, 3);
	cr_assert_eq(state_get_var(&buf, "MSRS", 0, got_raw, 1, 5, &n, &err), 0);
	cr_assert_eq(n, 3);
	cr_assert_eq(buf.pos, buf.len);
	cr_assert_eq(state_get(&buf, new_state_desc(), 2, &got, &err), -EBADMSG, "the end");
}

Test(state, older_files_are_upgraded)
{
	struct new_state got = { .extra = 42, .more = { 6, 6 } };

	state_put(&buf, old_state_desc(), 0, &old);
	cr_assert_eq(state_get(&buf, new_state_desc(), 0, &got, &err), 0, "%s", err.msg);
	cr_assert_eq(got.addr, old.addr);
	cr_assert_eq(got.ring[2], 3);
	cr_assert_eq(got.extra, 42, "what the file lacks keeps its reset value");
	cr_assert_eq(got.more[0], 6);
	cr_assert_eq(got.more[1], 77, "or what check() makes of it");
	cr_assert_eq(check_from, 1);
}

static void expect_refused(const struct state_desc *desc, uint16_t instance, int code)
{
	struct new_state got, before;

	memset(&got, 0x5a, sizeof(got));
	before = got;
	buf.pos = 0;
	memset(&err, 0, sizeof(err));
	cr_assert_eq(state_get(&buf, desc, instance, &got, &err), code, "%s", err.msg);
	cr_assert_neq(err.msg[0], '\0');
	cr_assert_eq(memcmp(&got, &before, sizeof(got)), 0, "nothing half-loaded");
}

Test(state, foreign_versions_are_refused)
{
	struct new_state in = { 0 };

	state_put(&buf, new_state_desc(), 0, &in);
	expect_refused(old_state_desc(), 0, -EPROTONOSUPPORT); /* newer than we know */
	buf.len = 0;
	state_put(&buf, old_state_desc(), 0, &old);
	expect_refused(late_state_desc(), 0, -EPROTONOSUPPORT); /* older than we read */
	cr_assert(strstr(err.msg, "version 1, this build reads 2 to 3"), "%s", err.msg);
}

Test(state, forged_values_are_refused)
{
	struct new_state in = { .ier = 16 };

	state_put(&buf, new_state_desc(), 0, &in);
	expect_refused(new_state_desc(), 0, -EBADMSG);
	cr_assert_str_eq(err.msg, "section TEST: ier 16");
}

Test(state, wrong_sections_are_refused)
{
	uint8_t raw[16];
	size_t n;

	state_put(&buf, old_state_desc(), 3, &old);
	expect_refused(old_state_desc(), 4, -EBADMSG);
	buf.pos = 0;
	cr_assert_eq(state_get_raw(&buf, "TEST", 3, raw, 15, &err), -EBADMSG, "not a raw one");
	buf.len = buf.pos = 0;
	state_put_raw(&buf, "TEST", 3, raw, 15);
	expect_refused(old_state_desc(), 3, -EPROTONOSUPPORT);
	buf.pos = 0;
	cr_assert_eq(state_get_raw(&buf, "TEST", 3, raw, 14, &err), -EBADMSG);
	buf.pos = 0;
	cr_assert_eq(state_get_var(&buf, "TEST", 3, raw, 1, 14, &n, &err), -EBADMSG);
	buf.pos = 0;
	cr_assert_eq(state_get_var(&buf, "TEST", 3, raw, 16, 16, &n, &err), -EBADMSG);
	buf.pos = 0;
	cr_assert_eq(state_get_raw(&buf, "ELSE", 3, raw, 15, &err), -EBADMSG);
}

/* Cut anywhere, or with any one bit turned: an error each time, and no byte read outside. */
Test(state, damage)
{
	struct state_buf cut = { 0 };
	size_t whole;

	state_put(&buf, old_state_desc(), 0, &old);
	whole = buf.len;
	for (size_t n = 0; n < whole; n++) {
		struct old_state got = { 0 };

		cut.p = malloc(n + 1); /* its own block: a read behind it is seen */
		memcpy(cut.p, buf.p, n);
		cut.len = n;
		cut.pos = 0;
		cr_assert_eq(state_get(&cut, old_state_desc(), 0, &got, &err), -EBADMSG);
		free(cut.p);
	}
	for (size_t bit = 0; bit < whole * 8; bit++) {
		buf.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
		expect_refused(old_state_desc(), 0, -EBADMSG);
		buf.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

Test(state, growth)
{
	static uint8_t block[3000];
	size_t n;

	for (unsigned i = 0; i < 200; i++) {
		memset(block, (int)i, sizeof(block));
		state_put_raw(&buf, "BLOK", (uint16_t)i, block, i * 15);
	}
	cr_assert_eq(buf.err, 0);
	for (unsigned i = 0; i < 200; i++) {
		cr_assert_eq(
			state_get_var(&buf, "BLOK", (uint16_t)i, block, 0, sizeof(block), &n, &err),
			0);
		cr_assert_eq(n, i * 15);
		if (n)
			cr_assert_eq(block[n - 1], i);
	}
}

/* A first error stays, and nothing is written after it. */
Test(state, errors_are_sticky)
{
	buf.err = -ENOMEM;
	state_put(&buf, old_state_desc(), 0, &old);
	state_put_raw(&buf, "REGS", 0, &old, 1);
	cr_assert_eq(buf.err, -ENOMEM);
	cr_assert_eq(buf.len, 0);
}

/* The check value of CRC-32C (RFC 3720 appendix B.4 has the others). */
Test(state, crc)
{
	uint8_t zeroes[32] = { 0 }, ones[32];

	memset(ones, 0xff, sizeof(ones));
	cr_assert_eq(state_crc("123456789", 9), 0xe3069283);
	cr_assert_eq(state_crc(zeroes, 32), 0x8a9136aa);
	cr_assert_eq(state_crc(ones, 32), 0x62a8ab43);
	cr_assert_eq(state_crc("", 0), 0);
}
