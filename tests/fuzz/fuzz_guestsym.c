/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's fields that a thaw replaces. First byte even: the input is a `symbols` file. Odd: forged addresses
 * and a forged kernel's memory, into which all is written or, after an error, nothing.
 */
#include "vmm/guestsym.h"

#include "tests/fuzz/fuzz.h"

static struct gmem mem;

static void fuzz_file(struct fz_in in)
{
	struct guestsym_state s;
	struct err err = { 0 };
	char path[96];
	int dir = open(fz_dir(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	fz_put(dir, "symbols", in.p, in.n);
	(void)close(dir);
	(void)snprintf(path, sizeof(path), "%s/symbols", fz_dir());
	if (guestsym_load(path, &s, &err) < 0)
		FZ_CHECK(err.code < 0 && err.msg[0] && err.remedy[0] && !guestsym_is_known(&s));
	else
		FZ_CHECK(guestsym_is_known(&s) && s.tk_len && s.tk && s.tk_shadow);
}

/* Fields one after another, as the kernel of the unit test; some of them somewhere else. */
static void lay_out(struct fz_in *in, struct guestsym_state *s)
{
	const struct state_desc *desc = guestsym_state_desc();
	uint8_t moves = fz_u8(in) % 4;
	uint64_t at = 0x1000;

	*s = (struct guestsym_state){ .tk_len = 256 };
	for (unsigned i = 0; i < desc->nr_fields; i++) {
		if (desc->fields[i].width != sizeof(at))
			continue;
		memcpy((uint8_t *)s + desc->fields[i].offset, &at, sizeof(at));
		at += 0x80;
	}
	s->tk = 0x4000;
	s->tk_shadow = 0x4800;
	while (moves--) {
		unsigned i = fz_u8(in) % desc->nr_fields;

		at = fz_gpa(in);
		memcpy((uint8_t *)s + desc->fields[i].offset, &at, desc->fields[i].width);
	}
}

/* A clock that passes for one, then bytes of the input over it. */
static void fill_memory(struct fz_in *in, const struct guestsym_state *s)
{
	const uint64_t sec = 1800000000, off = 1799999000ull * 1000000000u, mult = 1;

	fz_mem_clear(&mem);
	(void)!gmem_write(&mem, gpa(s->tk_xtime_sec), &sec, 8);
	(void)!gmem_write(&mem, gpa(s->tk_offs_real), &off, 8);
	(void)!gmem_write(&mem, gpa(s->tk_mono_mult), &mult, 4);
	while (in->n) {
		uint64_t at = fz_u8(in) & 1 ? 0x1000 + fz_u8(in) % 40 * 0x80ull : fz_gpa(in);
		uint64_t value = fz_u64(in);

		(void)!gmem_write(&mem, gpa(at), &value, 8);
	}
}

static void fuzz_apply(struct fz_in in)
{
	static uint8_t was[FZ_LOW + FZ_HIGH];
	uint8_t parts = fz_u8(&in);
	struct guestsym_wake wake = { .parts = parts & GUESTSYM_ALL,
		                      .crng_key = { 1 },
		                      .pool_entropy = { 2 },
		                      .boot_id = { 3 },
		                      .hostname = parts & 0x80 ? "clone" : NULL,
		                      .realtime_ns = fz_u64(&in),
		                      .kvmclock_ns = fz_u64(&in) };
	struct state_buf buf = { 0 };
	struct guestsym_state s, loaded;
	struct err err = { 0 };

	lay_out(&in, &s);
	state_put(&buf, guestsym_state_desc(), 0, &s);
	if (state_get(&buf, guestsym_state_desc(), 0, &loaded, &err) < 0) {
		state_buf_free(&buf); /* a snapshot with these is not even opened */
		return;
	}
	state_buf_free(&buf);
	fill_memory(&in, &s);
	memcpy(was, mem.region[0].hva, FZ_LOW);
	memcpy(was + FZ_LOW, mem.region[1].hva, FZ_HIGH);
	(void)!guestsym_check(&mem, &s, &err); /* reads only */
	FZ_CHECK(memcmp(was, mem.region[0].hva, FZ_LOW) == 0);
	if (guestsym_apply(&mem, &s, &wake, &err) == 0)
		return;
	FZ_CHECK(err.code < 0 && err.msg[0]);
	FZ_CHECK(memcmp(was, mem.region[0].hva, FZ_LOW) == 0 &&
	         memcmp(was + FZ_LOW, mem.region[1].hva, FZ_HIGH) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fz_in in = { data, n };

	if (!mem.size)
		fz_mem_open(&mem);
	if (fz_u8(&in) & 1)
		fuzz_apply(in);
	else
		fuzz_file(in);
	return 0;
}
