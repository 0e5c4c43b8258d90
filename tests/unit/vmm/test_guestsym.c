/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/guestsym.h"

#include "core/own.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BASE   0xffffffff80000000ull
#define SIZE   (2u << 20)
#define TK     0x110000u
#define SHADOW 0x111000u
#define TK_LEN 0x120u
#define NS     1000000000ll
#define SHIFT  23u
#define MULT   (1u << SHIFT)
#define CYCLES 123456789012ull /* at the last tick */

/* A kernel that keeps its fields where these lines say. */
static const char *const lines[] = {
	"virtual_base ffffffff80000000 0",
	"crng.key ffffffff80101000 20",
	"crng.generation ffffffff80101020 8",
	"vdso.rng_generation ffffffff80102000 8",
	"pool.hash ffffffff80101040 20",
	"boot_id ffffffff80101080 10",
	"uts.nodename ffffffff801010c1 41",
	"tk ffffffff80110000 120",
	"tk_shadow ffffffff80111000 120",
	"tk.seq ffffffff8010fff0 4",
	"tk.xtime_sec ffffffff80110070 8",
	"tk.wall_to_monotonic.sec ffffffff80110080 8",
	"tk.wall_to_monotonic.nsec ffffffff80110088 8",
	"tk.offs_real ffffffff80110090 8",
	"tk.offs_tai ffffffff801100a0 8",
	"tk.tai_offset ffffffff801100a8 4",
	"tk.clock_was_set_seq ffffffff801100ac 4",
	"tk.mono.mult ffffffff80110018 4",
	"tk.mono.shift ffffffff8011001c 4",
	"tk.mono.cycle_last ffffffff80110010 8",
	"tk.mono.xtime_nsec ffffffff80110020 8",
	"tk.mono.base ffffffff80110028 8",
	"tk.mono.base_real ffffffff80110030 8",
	"tk_fast.0.base_real ffffffff80112000 8",
	"tk_fast.1.base_real ffffffff80112040 8",
	"vdso.seq ffffffff80120000 4",
	"vdso.raw_seq ffffffff80120100 4",
	"vdso.realtime.sec ffffffff80120020 8",
	"vdso.realtime.nsec ffffffff80120028 8",
	"vdso.realtime_coarse.sec ffffffff80120030 8",
	"vdso.realtime_coarse.nsec ffffffff80120038 8",
	"vdso.tai.sec ffffffff80120040 8",
	"vdso.tai.nsec ffffffff80120048 8",
	"hrtimer.realtime ffffffff80130000 8",
	"hrtimer.realtime_soft ffffffff80130008 8",
	"hrtimer.tai ffffffff80130010 8",
	"hrtimer.tai_soft ffffffff80130018 8",
	"rq.nr_running ffffffff80150000 4",
	"hrtimer.first.0 ffffffff80151000 8",
	"hrtimer.first.1 ffffffff80151040 8",
	"hrtimer.offset.0 ffffffff80151010 8",
	"something.newer ffffffff80140000 8",
};

static struct gmem mem;
static struct guestsym_state sym;
static struct err err;
static uint8_t before[SIZE], after[SIZE];

/* Loads the lines, with line `nr` (if not negative) replaced by `with`, or left out when NULL. */
static int load_with(int nr, const char *with, struct guestsym_state *state)
{
	char text[8192] = "", path[64];
	own_fd int fd = memfd_create("symbols", MFD_CLOEXEC);
	size_t n = 0;

	for (int i = 0; i < (int)ARRAY_LEN(lines); i++) {
		const char *line = i == nr ? with : lines[i];

		if (line)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s\n", line);
	}
	cr_assert_eq(write(fd, text, n), (ssize_t)n);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	err = (struct err){ 0 };
	return guestsym_load(path, state, &err);
}

static int line_of(const char *name)
{
	for (int i = 0; i < (int)ARRAY_LEN(lines); i++)
		if (strncmp(lines[i], name, strlen(name)) == 0 && lines[i][strlen(name)] == ' ')
			return i;
	cr_assert_fail("no line %s", name);
	return -1;
}

static void poke(uint64_t at, uint64_t value, size_t n)
{
	cr_assert_eq(gmem_write(&mem, gpa(at), &value, n), 0);
}

static uint64_t peek(uint64_t at, size_t n)
{
	uint64_t v = 0;

	cr_assert_eq(gmem_read(&mem, gpa(at), &v, n), 0);
	return v;
}

static void mirror_tk(void)
{
	uint8_t tk[TK_LEN];

	cr_assert_eq(gmem_read(&mem, gpa(TK), tk, sizeof(tk)), 0);
	cr_assert_eq(gmem_write(&mem, gpa(SHADOW), tk, sizeof(tk)), 0);
}

/* The fields of a running kernel whose last tick was at `real` ns, `mono` ns after its boot. */
static void set_clock(int64_t real, int64_t mono)
{
	int64_t offs = real - mono, wtm_sec = -(offs / NS) - (offs % NS != 0),
		wtm_nsec = offs % NS ? NS - offs % NS : 0;
	uint64_t sec = (uint64_t)(real / NS), nsec = (uint64_t)(real % NS) << SHIFT;

	poke(sym.tk_mono_mult, MULT, 4);
	poke(sym.tk_mono_shift, SHIFT, 4);
	poke(sym.tk_mono_cycle_last, CYCLES, 8);
	poke(sym.tk_xtime_sec, sec, 8);
	poke(sym.tk_mono_xtime_nsec, nsec, 8);
	poke(sym.tk_wtm_sec, (uint64_t)wtm_sec, 8);
	poke(sym.tk_wtm_nsec, (uint64_t)wtm_nsec, 8);
	poke(sym.tk_offs_real, (uint64_t)offs, 8);
	poke(sym.tk_offs_tai, (uint64_t)(offs + 37 * NS), 8);
	poke(sym.tk_tai_offset, 37, 4);
	poke(sym.tk_mono_base, (uint64_t)(((int64_t)sec + wtm_sec) * NS + wtm_nsec), 8);
	poke(sym.tk_mono_base_real, (uint64_t)(((int64_t)sec + wtm_sec) * NS + wtm_nsec + offs), 8);
	poke(sym.tk_fast0_base_real, 1000 * NS, 8);
	poke(sym.tk_fast1_base_real, 1001 * NS, 8);
	poke(sym.tk_clock_was_set_seq, 7, 4);
	poke(sym.tk_seq, 40, 4);
	poke(sym.vdso_seq, 60, 4);
	poke(sym.vdso_raw_seq, 60, 4);
	poke(sym.vdso_realtime_sec, sec, 8);
	poke(sym.vdso_realtime_nsec, nsec, 8);
	mirror_tk();
}

static void setup(void)
{
	cr_assert_eq(gmem_open(&mem, SIZE, 0xd0000000, 0x100000000, -1), 0);
	cr_assert_eq(load_with(-1, NULL, &sym), 0, "%s", err.msg);
	for (unsigned i = 0; i < 32; i++) {
		poke(sym.crng_key + i, 0x11 + i, 1);
		poke(sym.pool_hash + i, 0x80 + i, 1);
	}
	poke(sym.crng_generation, 5, 8);
	poke(sym.vdso_rng_generation, 6, 8);
	cr_assert_eq(gmem_write(&mem, gpa(sym.nodename), "template", 9), 0);
	set_clock((int64_t)time(NULL) * NS + 999999999, 100 * NS + 5);
	cr_assert_eq(gmem_read(&mem, gpa(0), before, SIZE), 0);
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(guestsym, .init = setup, .fini = teardown);

static struct guestsym_wake a_wake(unsigned parts)
{
	struct guestsym_wake w = { .parts = parts,
		                   .hostname = "box-1",
		                   .realtime_ns = 2000000000ull * (uint64_t)NS + 123456789,
		                   .kvmclock_ns = CYCLES + 5000000 };

	memset(w.crng_key, 0xa5, sizeof(w.crng_key));
	memset(w.pool_entropy, 0x3c, sizeof(w.pool_entropy));
	memset(w.boot_id, 0xff, sizeof(w.boot_id));
	return w;
}

static void apply(const struct guestsym_wake *w)
{
	int ret = guestsym_apply(&mem, &sym, w, &err);

	cr_assert_eq(ret, 0, "%d %s", ret, err.msg);
	cr_assert_eq(gmem_read(&mem, gpa(0), after, SIZE), 0);
}

/* How many bytes differ from `before`, and none outside [at, at + n). */
static unsigned changed_within(uint64_t at, size_t n)
{
	unsigned count = 0;

	for (size_t i = 0; i < SIZE; i++)
		if (before[i] != after[i]) {
			cr_assert(i >= at && i < at + n, "byte %#zx changed", i);
			count++;
		}
	return count;
}

Test(guestsym, loads_addresses)
{
	cr_assert_eq(sym.crng_key, 0x101000u);
	cr_assert_eq(sym.hrtimer_tai_soft, 0x130018u);
	cr_assert_eq(sym.tk_len, TK_LEN);
	cr_assert(guestsym_is_known(&sym));
}

static void load_refused(int nr, const char *with, const char *word)
{
	struct guestsym_state s = sym, zero = { 0 };

	cr_assert_eq(load_with(nr, with, &s), -EINVAL, "%s", with ? with : "left out");
	cr_assert_not_null(strstr(err.msg, word), "\"%s\" does not speak of %s", err.msg, word);
	cr_assert_not_null(strstr(err.remedy, "symbols"));
	cr_assert_eq(memcmp(&s, &zero, sizeof(s)), 0, "left half loaded");
}

Test(guestsym, refuses_bad_files)
{
	int key = line_of("crng.key");

	load_refused(key, NULL, "no line for crng.key");
	load_refused(key, "crng.key ffffffff80101000 21", "33 bytes");
	load_refused(key, "crng.key ffffffff80101000", "line 2");
	load_refused(key, "crng.key ffffffff80101000 20 1", "line 2");
	load_refused(key, "crng.key 0xff80101000 20", "line 2");
	load_refused(key, "crng.key -1 20", "line 2");
	load_refused(key, "crng.key 11111111111111111 20", "line 2");
	load_refused(key, "crng.key 1000 20", "base");
	load_refused(key, "crng.key ffffffff80000000 20", "base");
	load_refused(key, "boot_id ffffffff80101090 10", "twice");
	load_refused(line_of("tk_shadow"), "tk_shadow ffffffff80111000 128", "differ in size");
	load_refused(line_of("tk"), "tk ffffffff80110000 401", "1025 bytes");
	load_refused(line_of("tk"), "tk ffffffff80110000 0", "0 bytes");
	load_refused(0, NULL, "virtual_base");
	for (int i = 1; i < line_of("rq.nr_running"); i++)
		if (i != line_of("vdso.rng_generation"))
			load_refused(i, NULL, "no line for");
}

Test(guestsym, the_vdso_generation_is_optional)
{
	struct guestsym_state s;

	cr_assert_eq(load_with(line_of("vdso.rng_generation"), NULL, &s), 0, "%s", err.msg);
	cr_assert_eq(s.vdso_rng_generation, 0u);
	cr_assert_eq(guestsym_load("/nonexistent", &s, &err), -ENOENT);
	cr_assert_eq(guestsym_load("/", &s, &err), -EINVAL);
}

Test(guestsym, state_is_saved_and_forged_state_refused)
{
	struct guestsym_state got = { 0 }, zero = { 0 }, bad = sym;
	struct state_buf buf = { 0 };

	bad.tk_offs_real = 0;
	state_put(&buf, guestsym_state_desc(), 0, &sym);
	state_put(&buf, guestsym_state_desc(), 0, &zero);
	state_put(&buf, guestsym_state_desc(), 0, &bad);
	bad = sym;
	bad.tk_len = 1 << 20;
	state_put(&buf, guestsym_state_desc(), 0, &bad);
	cr_assert_eq(buf.err, 0);
	cr_assert_eq(state_get(&buf, guestsym_state_desc(), 0, &got, &err), 0, "%s", err.msg);
	cr_assert_eq(memcmp(&got, &sym, sizeof(sym)), 0);
	cr_assert_eq(state_get(&buf, guestsym_state_desc(), 0, &got, &err), 0, "%s", err.msg);
	cr_assert_not(guestsym_is_known(&got));
	cr_assert_eq(state_get(&buf, guestsym_state_desc(), 0, &got, &err), -EBADMSG);
	cr_assert_eq(state_get(&buf, guestsym_state_desc(), 0, &got, &err), -EBADMSG);
	state_buf_free(&buf);
}

Test(guestsym, self_test_accepts_a_running_kernel)
{
	cr_assert_eq(guestsym_check(&mem, &sym, &err), 0, "%s", err.msg);
}

static void check_refused(uint64_t at, uint64_t value, size_t n, const char *word)
{
	cr_assert_eq(gmem_write(&mem, gpa(0), before, SIZE), 0);
	poke(at, value, n);
	cr_assert_eq(guestsym_check(&mem, &sym, &err), -EPROTO, "%s", word);
	cr_assert_not_null(strstr(err.msg, word), "\"%s\" does not speak of %s", err.msg, word);
}

Test(guestsym, self_test_refuses_implausible_memory)
{
	check_refused(sym.crng_generation, 0, 8, "generation");
	check_refused(sym.crng_generation, 1ull << 40, 8, "generation");
	check_refused(sym.vdso_rng_generation, 5, 8, "vDSO");
	check_refused(sym.nodename, 0x07, 1, "host name");
	check_refused(sym.tk_seq, 41, 4, "being changed");
	check_refused(sym.vdso_seq, 61, 4, "being changed");
	check_refused(TK + 0x100, 1, 8, "being changed");
	check_refused(sym.vdso_realtime_sec, 1, 8, "copies");
	cr_assert_eq(gmem_write(&mem, gpa(0), before, SIZE), 0);
	set_clock((int64_t)(time(NULL) - 2 * 86400) * NS, NS);
	cr_assert_eq(guestsym_check(&mem, &sym, &err), -EPROTO);
	cr_assert_not_null(strstr(err.msg, "from the host's"));
}

Test(guestsym, addresses_outside_memory_are_refused)
{
	struct guestsym_wake w = a_wake(GUESTSYM_ALL);

	sym.hrtimer_tai = SIZE - 4;
	cr_assert_eq(guestsym_check(&mem, &sym, &err), -EFAULT);
	cr_assert_eq(guestsym_apply(&mem, &sym, &w, &err), -EFAULT);
	cr_assert_eq(gmem_read(&mem, gpa(0), after, SIZE), 0);
	cr_assert_eq(changed_within(0, 0), 0u);
}

Test(guestsym, nothing_asked_or_known_changes_nothing)
{
	struct guestsym_wake w = a_wake(0);
	const struct guestsym_state unknown = { 0 };

	apply(&w);
	cr_assert_eq(changed_within(0, 0), 0u);
	w.parts = GUESTSYM_ALL;
	cr_assert_eq(guestsym_apply(&mem, &unknown, &w, &err), 0);
	cr_assert_eq(gmem_read(&mem, gpa(0), after, SIZE), 0);
	cr_assert_eq(changed_within(0, 0), 0u);
}

Test(guestsym, replaces_random_state)
{
	struct guestsym_wake w = a_wake(GUESTSYM_RANDOM);

	apply(&w);
	cr_assert_eq(memcmp(after + sym.crng_key, w.crng_key, 32), 0);
	cr_assert_eq(peek(sym.crng_generation, 8), 6u);
	cr_assert_eq(peek(sym.vdso_rng_generation, 8), 7u);
	for (unsigned i = 0; i < 32; i++)
		cr_assert_eq(after[sym.pool_hash + i], (0x80 + i) ^ 0x3c);
	cr_assert_eq(changed_within(0x101000, 0x1008), 32u + 1 + 1 + 32);
}

/* ULONG_MAX is the kernel's "never seeded", 0 the vDSO's. */
Test(guestsym, generation_is_never_the_invalid_one)
{
	struct guestsym_wake w = a_wake(GUESTSYM_RANDOM);

	poke(sym.crng_generation, UINT64_MAX - 1, 8);
	apply(&w);
	cr_assert_eq(peek(sym.crng_generation, 8), 0u);
	cr_assert_eq(peek(sym.vdso_rng_generation, 8), 1u);
}

Test(guestsym, replaces_boot_id_by_a_version_4_uuid)
{
	struct guestsym_wake w = a_wake(GUESTSYM_BOOT_ID);

	apply(&w);
	cr_assert_eq(after[sym.boot_id + 5], 0xff);
	cr_assert_eq(after[sym.boot_id + 6], 0x4f);
	cr_assert_eq(after[sym.boot_id + 8], 0xbf);
	cr_assert_eq(changed_within(sym.boot_id, 16), 16u);
}

Test(guestsym, replaces_host_name_wholly)
{
	struct guestsym_wake w = a_wake(GUESTSYM_HOSTNAME);
	char longest[65];

	apply(&w);
	cr_assert_eq(memcmp(after + sym.nodename, "box-1\0\0\0\0", 9), 0, "a rest of the old name");
	(void)changed_within(sym.nodename, 65);
	memset(longest, 'n', 64);
	longest[64] = '\0';
	w.hostname = longest;
	apply(&w);
	cr_assert_eq(memcmp(after + sym.nodename, longest, 65), 0);
}

Test(guestsym, refuses_bad_host_names_before_anything_changes)
{
	char too_long[66];
	const char *bad[] = { "", NULL, "a b", "caf\xc3\xa9", "a\n", too_long };

	memset(too_long, 'n', 65);
	too_long[65] = '\0';
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		struct guestsym_wake w = a_wake(GUESTSYM_ALL);

		w.hostname = bad[i];
		cr_assert_eq(guestsym_apply(&mem, &sym, &w, &err), -EINVAL, "name %u", i);
		cr_assert_eq(gmem_read(&mem, gpa(0), after, SIZE), 0);
		cr_assert_eq(changed_within(0, 0), 0u);
	}
}

/* What the vDSO computes from a pair of base time and clock source. */
static int64_t read_clock(uint64_t sec, uint64_t nsec, uint64_t cycles)
{
	return (int64_t)sec * NS + (int64_t)(((cycles - CYCLES) * MULT + nsec) >> SHIFT);
}

static int64_t monotonic(uint64_t cycles)
{
	return (int64_t)peek(sym.tk_mono_base, 8) +
	       read_clock(0, peek(sym.tk_mono_xtime_nsec, 8), cycles);
}

static void is_consistent(const struct guestsym_wake *w, int64_t mono, int64_t fast_moved)
{
	uint64_t now = w->kvmclock_ns, sec = peek(sym.tk_xtime_sec, 8),
		 nsec = peek(sym.tk_mono_xtime_nsec, 8);
	int64_t offs = (int64_t)peek(sym.tk_offs_real, 8), want = (int64_t)w->realtime_ns,
		wtm_nsec = (int64_t)peek(sym.tk_wtm_nsec, 8);

	cr_assert_eq(read_clock(sec, nsec, now), want);
	cr_assert_lt(nsec, (uint64_t)NS << SHIFT);
	cr_assert_eq(monotonic(now), mono, "the monotonic clock moved");
	cr_assert_eq(want - mono, offs);
	cr_assert_eq((int64_t)peek(sym.tk_wtm_sec, 8) * NS + wtm_nsec, -offs);
	cr_assert(wtm_nsec >= 0 && wtm_nsec < NS);
	cr_assert_eq((int64_t)peek(sym.tk_mono_base_real, 8) + read_clock(0, nsec, now), want);
	cr_assert_eq((int64_t)peek(sym.tk_offs_tai, 8), offs + 37 * NS);
	cr_assert_eq(memcmp(after + TK, after + SHADOW, TK_LEN), 0);
	cr_assert_eq((int64_t)peek(sym.tk_fast0_base_real, 8), 1000 * NS + fast_moved);
	cr_assert_eq((int64_t)peek(sym.tk_fast1_base_real, 8), 1001 * NS + fast_moved);
	cr_assert_eq(
		read_clock(peek(sym.vdso_realtime_sec, 8), peek(sym.vdso_realtime_nsec, 8), now),
		want);
	cr_assert_eq(read_clock(peek(sym.vdso_tai_sec, 8), peek(sym.vdso_tai_nsec, 8), now),
	             want + 37 * NS);
	cr_assert_eq(peek(sym.vdso_coarse_sec, 8), sec);
	cr_assert_eq(peek(sym.vdso_coarse_nsec, 8), nsec >> SHIFT);
	cr_assert_eq((int64_t)peek(sym.hrtimer_realtime, 8), offs);
	cr_assert_eq((int64_t)peek(sym.hrtimer_realtime_soft, 8), offs);
	cr_assert_eq((int64_t)peek(sym.hrtimer_tai, 8), offs + 37 * NS);
	cr_assert_eq((int64_t)peek(sym.hrtimer_tai_soft, 8), offs + 37 * NS);
}

static void moves(int64_t real, int64_t mono, uint64_t wanted, uint64_t cycles)
{
	struct guestsym_wake w = a_wake(GUESTSYM_CLOCK);
	int64_t mono_now, was = real - mono;

	set_clock(real, mono);
	w.realtime_ns = wanted;
	w.kvmclock_ns = CYCLES + cycles;
	mono_now = monotonic(w.kvmclock_ns);
	apply(&w);
	is_consistent(&w, mono_now, (int64_t)wanted - mono_now - was);
	cr_assert_eq(peek(sym.tk_clock_was_set_seq, 4), 8u);
	cr_assert_eq(peek(sym.tk_seq, 4), 42u);
	cr_assert_eq(peek(sym.vdso_seq, 4), 62u);
	cr_assert_eq(peek(sym.vdso_raw_seq, 4), 62u);
}

Test(guestsym, moves_the_wall_clock_and_it_alone)
{
	int64_t t = 1700000000 * NS;
	uint64_t x = 88172645463325252ull; /* xorshift64 */

	moves(t, 5 * NS, (uint64_t)t, 0);
	moves(t + 999999999, 5 * NS, (uint64_t)(t + NS), 1);
	moves(t, 5 * NS, (uint64_t)t - 1, 0);
	moves(t + 1, 5 * NS + 999999999, (uint64_t)(t + 86400 * NS * 365) + 999999999, 10000000);
	moves(t, 5 * NS, 6 * NS, 1000);
	for (int i = 0; i < 3000; i++) {
		uint64_t r[4];

		for (unsigned k = 0; k < 4; k++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			r[k] = x;
		}
		moves(t + (int64_t)(r[0] >> 6), (int64_t)(r[1] >> 12), (uint64_t)t + (r[2] >> 6),
		      r[3] >> 30);
	}
}

/* Hours without a tick: the product of cycles and mult has more than 64 bits. */
Test(guestsym, a_long_sleep_does_not_overflow)
{
	struct guestsym_wake w = a_wake(GUESTSYM_CLOCK);
	int64_t offs = (int64_t)peek(sym.tk_offs_real, 8);

	w.kvmclock_ns = CYCLES + 30ull * 86400 * (uint64_t)NS;
	w.realtime_ns = (uint64_t)(offs + (int64_t)peek(sym.tk_mono_base, 8)) +
	                (peek(sym.tk_mono_xtime_nsec, 8) >> SHIFT) + 30ull * 86400 * (uint64_t)NS +
	                1;
	apply(&w);
	cr_assert_eq((int64_t)peek(sym.tk_offs_real, 8), offs + 1);
}

Test(guestsym, a_clock_source_behind_its_last_tick_counts_as_standing)
{
	struct guestsym_wake at = a_wake(GUESTSYM_CLOCK), behind = at;

	at.kvmclock_ns = CYCLES;
	behind.kvmclock_ns = CYCLES - 1000;
	apply(&at);
	memcpy(before, after, SIZE);
	set_clock((int64_t)time(NULL) * NS, NS);
	apply(&behind);
	cr_assert_eq(peek(sym.tk_xtime_sec, 8), at.realtime_ns / (uint64_t)NS);
}

static void clock_refused(int code, uint64_t at, uint64_t value, size_t n, bool mirrored)
{
	struct guestsym_wake w = a_wake(GUESTSYM_ALL);

	cr_assert_eq(gmem_write(&mem, gpa(0), before, SIZE), 0);
	poke(at, value, n);
	if (mirrored)
		mirror_tk();
	cr_assert_eq(gmem_read(&mem, gpa(0), before, SIZE), 0);
	cr_assert_eq(guestsym_apply(&mem, &sym, &w, &err), code, "%#llx at %#llx",
	             (unsigned long long)value, (unsigned long long)at);
	cr_assert_eq(gmem_read(&mem, gpa(0), after, SIZE), 0);
	cr_assert_eq(changed_within(0, 0), 0u);
	poke(at, 0, n);
}

/* A guest may have forged all of it: refused as a whole, no arithmetic goes wrong. */
Test(guestsym, refuses_forged_clocks)
{
	uint8_t good[SIZE];
	const struct {
		uint64_t at, value;
		size_t n;
	} forged[] = {
		{ sym.tk_seq, 41, 4 },
		{ sym.vdso_raw_seq, 1, 4 },
		{ sym.tk_mono_shift, 33, 4 },
		{ sym.tk_mono_mult, 0, 4 },
		{ sym.tk_xtime_sec, 0, 8 },
		{ sym.tk_xtime_sec, 1ull << 32, 8 },
		{ sym.tk_xtime_sec, UINT64_MAX, 8 },
		{ sym.tk_mono_xtime_nsec, (uint64_t)NS << SHIFT, 8 },
		{ sym.tk_offs_real, 1ull << 63, 8 },
		{ sym.tk_offs_real, 1ull << 62, 8 },
		{ sym.tk_offs_real, (uint64_t)NS * ((uint64_t)time(NULL) + 2), 8 },
		{ sym.tk_offs_tai, 1ull << 63, 8 },
		{ sym.tk_tai_offset, 0x7fffffff, 4 },
	};

	memcpy(good, before, SIZE);
	for (unsigned i = 0; i < ARRAY_LEN(forged); i++) {
		memcpy(before, good, SIZE);
		clock_refused(-EPROTO, forged[i].at, forged[i].value, forged[i].n, true);
	}
	memcpy(before, good, SIZE);
	clock_refused(-EPROTO, SHADOW + 8, 1, 8, false);
}

Test(guestsym, refuses_times_that_cannot_be)
{
	struct guestsym_wake w = a_wake(GUESTSYM_ALL);

	w.realtime_ns = 50 * (uint64_t)NS; /* the guest runs for 100 s */
	cr_assert_eq(guestsym_apply(&mem, &sym, &w, &err), -ERANGE);
	w.realtime_ns = UINT64_MAX;
	cr_assert_eq(guestsym_apply(&mem, &sym, &w, &err), -ERANGE);
	w = a_wake(GUESTSYM_ALL);
	w.kvmclock_ns = UINT64_MAX;
	cr_assert_eq(guestsym_apply(&mem, &sym, &w, &err), -ERANGE);
	cr_assert_eq(gmem_read(&mem, gpa(0), after, SIZE), 0);
	cr_assert_eq(changed_within(0, 0), 0u);
}

/* ---- what an idle guest waits for ---- */

#define DIRECT 0xffff888000000000ull
#define IMAGE  0xffffffff80000000ull
#define TICK   0x152000u
#define FIRST  0x151000u
#define OFFSET 0x151010u
#define MONO   (100 * NS + 5) /* of set_clock() in setup() */

/* The tick lies in the kernel's own data, others do not. */
static uint64_t pointer(uint64_t at)
{
	return at == 0 ? 0 : at == TICK ? IMAGE + at : DIRECT + at;
}

static void put_node(uint64_t at, uint64_t parent, uint64_t left, uint64_t right, int64_t expires)
{
	poke(at, pointer(parent) | 1, 8);
	poke(at + 8, pointer(right), 8);
	poke(at + 16, pointer(left), 8);
	poke(at + 24, (uint64_t)expires, 8);
}

Test(guestsym, an_older_kernel_cannot_idle)
{
	static const char *const needed[] = { "rq.nr_running", "hrtimer.first.0", "hrtimer.first.1",
		                              "hrtimer.offset.0" };
	struct guestsym_state s;

	cr_assert(guestsym_can_idle(&sym));
	for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
		cr_assert_eq(load_with(line_of(needed[i]), NULL, &s), 0, "%s", err.msg);
		cr_assert_not(guestsym_can_idle(&s), "%s", needed[i]);
	}
}

Test(guestsym, tasks_that_want_to_run)
{
	poke(0x150000, 3, 4);
	cr_assert_eq(guestsym_nr_running(&mem, &sym), 3u);
}

Test(guestsym, no_timer_but_the_tick)
{
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), UINT64_MAX, "no timer at all");
	put_node(TICK, 0, 0, 0, MONO + 1);
	poke(FIRST, pointer(TICK), 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), UINT64_MAX);
}

Test(guestsym, the_timer_behind_the_tick)
{
	enum { A = 0x153000, B = 0x154000, C = 0x155000 };

	/* B(9 ms) has the tick (1 ms) to its left, which has A (5 ms) to its right, C (7 ms) is right of that. */
	put_node(B, 0, TICK, 0, MONO + 9000000);
	put_node(TICK, B, 0, A, MONO + 1000000);
	put_node(A, TICK, 0, C, MONO + 5000000);
	put_node(C, A, 0, 0, MONO + 7000000);
	poke(FIRST, pointer(TICK), 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), 5000000u);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES + 2000000), 3000000u, "time goes on");
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES + 6000000), 0u, "overdue");
	/* The tick without right child: its parent is next. */
	put_node(TICK, B, 0, 0, MONO + 1000000);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), 9000000u);
	/* Deeper on the left of its right child. */
	put_node(TICK, B, 0, C, MONO + 1000000);
	put_node(C, TICK, A, 0, MONO + 7000000);
	put_node(A, C, 0, 0, MONO + 5000000);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), 5000000u);
}

Test(guestsym, timers_of_other_clocks)
{
	const int64_t offset = 1000 * NS;

	put_node(0x153000, 0, 0, 0, MONO + offset + 4000000);
	poke(FIRST + 0x40, DIRECT + 0x153000, 8);
	poke(OFFSET + 0x40, (uint64_t)offset, 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), 4000000u);
	put_node(0x154000, 0, 0, 0, MONO + 3000000);
	poke(FIRST + 7 * 0x40, DIRECT + 0x154000, 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), 3000000u);
}

/* The guest may write what it likes: an answer comes, and soon. */
Test(guestsym, forged_timers, .timeout = 10)
{
	put_node(TICK, TICK, TICK, TICK, MONO);
	poke(FIRST, pointer(TICK), 8);
	(void)guestsym_next_timer(&mem, &sym, CYCLES);
	poke(TICK, 0, 8);
	poke(TICK + 8, 0x1234567890abcdefull, 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), UINT64_MAX);
	poke(FIRST, UINT64_MAX, 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), UINT64_MAX);
	poke(FIRST, 8, 8);
	cr_assert_eq(guestsym_next_timer(&mem, &sym, CYCLES), UINT64_MAX);
}
