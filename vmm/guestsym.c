/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/guestsym.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NS            1000000000ll
#define MAX_FILE      65536u
#define MAX_TK_LEN    1024u
#define MAX_GPA       (1ull << 46)
#define NODENAME_LEN  65u
#define DAY_S         86400
#define MAX_SHIFT     32u
#define MAX_XTIME_SEC (1ull << 32) /* year 2106: keeps sums of nanoseconds within 64 bits */
#define MAX_OFFSET_NS (1ll << 62)
#define MAX_TAI_S     1000

typedef unsigned long long ull; /* for messages */

/* One field of the kernel. The address goes to `off` of the state. */
struct symbol {
	const char *name;
	uint16_t size; /* bytes; 0: a structure of any size up to MAX_TK_LEN */
	uint16_t off;
	bool optional;
};

#define SYM(name, size, member)                                            \
	{                                                                  \
		name, size, offsetof(struct guestsym_state, member), false \
	}

#define OPTIONAL(name, size, member)                                      \
	{                                                                 \
		name, size, offsetof(struct guestsym_state, member), true \
	}

static const struct symbol symbols[] = {
	SYM("crng.key", 32, crng_key),
	SYM("crng.generation", 8, crng_generation),
	OPTIONAL("vdso.rng_generation", 8, vdso_rng_generation),
	SYM("pool.hash", 32, pool_hash),
	SYM("boot_id", 16, boot_id),
	SYM("uts.nodename", NODENAME_LEN, nodename),
	SYM("tk", 0, tk),
	SYM("tk_shadow", 0, tk_shadow),
	SYM("tk.seq", 4, tk_seq),
	SYM("tk.xtime_sec", 8, tk_xtime_sec),
	SYM("tk.wall_to_monotonic.sec", 8, tk_wtm_sec),
	SYM("tk.wall_to_monotonic.nsec", 8, tk_wtm_nsec),
	SYM("tk.offs_real", 8, tk_offs_real),
	SYM("tk.offs_tai", 8, tk_offs_tai),
	SYM("tk.tai_offset", 4, tk_tai_offset),
	SYM("tk.clock_was_set_seq", 4, tk_clock_was_set_seq),
	SYM("tk.mono.mult", 4, tk_mono_mult),
	SYM("tk.mono.shift", 4, tk_mono_shift),
	SYM("tk.mono.cycle_last", 8, tk_mono_cycle_last),
	SYM("tk.mono.xtime_nsec", 8, tk_mono_xtime_nsec),
	SYM("tk.mono.base", 8, tk_mono_base),
	SYM("tk.mono.base_real", 8, tk_mono_base_real),
	SYM("tk_fast.0.base_real", 8, tk_fast0_base_real),
	SYM("tk_fast.1.base_real", 8, tk_fast1_base_real),
	SYM("vdso.seq", 4, vdso_seq),
	SYM("vdso.raw_seq", 4, vdso_raw_seq),
	SYM("vdso.realtime.sec", 8, vdso_realtime_sec),
	SYM("vdso.realtime.nsec", 8, vdso_realtime_nsec),
	SYM("vdso.realtime_coarse.sec", 8, vdso_coarse_sec),
	SYM("vdso.realtime_coarse.nsec", 8, vdso_coarse_nsec),
	SYM("vdso.tai.sec", 8, vdso_tai_sec),
	SYM("vdso.tai.nsec", 8, vdso_tai_nsec),
	SYM("hrtimer.realtime", 8, hrtimer_realtime),
	SYM("hrtimer.realtime_soft", 8, hrtimer_realtime_soft),
	SYM("hrtimer.tai", 8, hrtimer_tai),
	SYM("hrtimer.tai_soft", 8, hrtimer_tai_soft),
	OPTIONAL("rq.nr_running", 4, rq_nr_running),
	OPTIONAL("hrtimer.first.0", 8, hrtimer_first),
	OPTIONAL("hrtimer.first.1", 8, hrtimer_first_1),
	OPTIONAL("hrtimer.offset.0", 8, hrtimer_offset),
};

static uint64_t address_of(const struct guestsym_state *state, const struct symbol *sym)
{
	uint64_t at;

	memcpy(&at, (const char *)state + sym->off, sizeof(at));
	return at;
}

/* A snapshot's section: all addresses or none, so that a wake is never done by half. */
static int check_state(void *state, uint16_t from, struct err *err)
{
	const struct guestsym_state *s = state;

	(void)from;
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		uint64_t at = address_of(s, &symbols[i]);

		if (at >= MAX_GPA || (!symbols[i].optional && (at != 0) != guestsym_is_known(s)))
			return err_set(err, -EBADMSG, "address %#llx of %s", (ull)at,
			               symbols[i].name);
	}
	if (s->tk_len > MAX_TK_LEN || (s->tk_len != 0) != guestsym_is_known(s))
		return err_set(err, -EBADMSG, "timekeeper of %u bytes", s->tk_len);
	return 0;
}

STATE_DESC(guestsym_state, GUESTSYM_STATE, "GSYM", 1, check_state)

static int read_file(const char *path, char **text, struct err *err)
{
	own_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	own_free char *buf = malloc(MAX_FILE + 1);
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(err, -errno, "open: %s", strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE)
		return err_set(err, -EINVAL, "not a file of at most %u bytes", MAX_FILE);
	if (!buf)
		return err_set(err, -ENOMEM, "out of memory");
	n = pread(fd, buf, MAX_FILE, 0);
	if (n < 0)
		return err_set(err, -errno, "read: %s", strerror(errno));
	buf[n] = '\0';
	*text = ptr_take(buf);
	return 0;
}

/* Digits alone: strtoull takes signs, spaces and prefixes. */
static bool parse_hex(const char *s, uint64_t *v)
{
	size_t n = s ? strlen(s) : 0;

	if (n == 0 || n > 16 || strspn(s, "0123456789abcdef") != n)
		return false;
	*v = strtoull(s, NULL, 16);
	return true;
}

struct line {
	const char *name;
	uint64_t address;
	uint64_t size;
};

static bool parse_line(char *text, struct line *l)
{
	char *save;

	l->name = strtok_r(text, " ", &save);
	return l->name && parse_hex(strtok_r(NULL, " ", &save), &l->address) &&
	       parse_hex(strtok_r(NULL, " ", &save), &l->size) && !strtok_r(NULL, " ", &save);
}

static const struct symbol *find_symbol(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++)
		if (strcmp(name, symbols[i].name) == 0)
			return &symbols[i];
	return NULL;
}

static int take_symbol(struct guestsym_state *s, const struct line *l, uint64_t base,
                       struct err *err)
{
	const struct symbol *sym = find_symbol(l->name);
	uint64_t at = l->address - base;

	if (!sym) /* of a newer kernel */
		return 0;
	if (l->address <= base || at >= MAX_GPA)
		return err_set(err, -EINVAL, "%s at %#llx, but the base is %#llx", l->name,
		               (ull)l->address, (ull)base);
	if (address_of(s, sym))
		return err_set(err, -EINVAL, "%s comes twice", l->name);
	if (sym->size ? l->size != sym->size : l->size == 0 || l->size > MAX_TK_LEN)
		return err_set(err, -EINVAL, "%s has %llu bytes; want %u", l->name, (ull)l->size,
		               sym->size ? sym->size : MAX_TK_LEN);
	if (sym->size == 0 && s->tk_len && s->tk_len != l->size)
		return err_set(err, -EINVAL, "tk and tk_shadow differ in size");
	if (sym->size == 0)
		s->tk_len = (uint32_t)l->size;
	memcpy((char *)s + sym->off, &at, sizeof(at));
	return 0;
}

static int parse(char *text, struct guestsym_state *s, struct err *err)
{
	uint64_t base = 0;
	char *save, *at = strtok_r(text, "\n", &save);

	for (unsigned nr = 1; at; nr++, at = strtok_r(NULL, "\n", &save)) {
		struct line l;
		int ret = 0;

		if (!parse_line(at, &l))
			return err_set(err, -EINVAL, "line %u is not: name address size", nr);
		if (nr == 1 && strcmp(l.name, "virtual_base") != 0)
			return err_set(err, -EINVAL, "line 1 is not virtual_base");
		if (nr == 1)
			base = l.address;
		else
			ret = take_symbol(s, &l, base, err);
		if (ret < 0)
			return err_wrap(err, "line %u", nr);
	}
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++)
		if (!symbols[i].optional && !address_of(s, &symbols[i]))
			return err_set(err, -EINVAL, "no line for %s", symbols[i].name);
	return 0;
}

int guestsym_load(const char *path, struct guestsym_state *state, struct err *err)
{
	own_free char *text = NULL;
	int ret = read_file(path, &text, err);

	*state = (struct guestsym_state){ 0 };
	if (ret == 0)
		ret = parse(text, state, err);
	if (ret == 0)
		return 0;
	*state = (struct guestsym_state){ 0 };
	(void)err_wrap(err, "symbols %s", path);
	(void)err_remedy(err, "give the `symbols` that was built with this kernel, or none");
	return ret;
}

/* Fields of the guest kernel; the first address outside RAM is kept as error. */
struct guest {
	const struct gmem *mem;
	const struct guestsym_state *sym;
	int err;
};

static void get(struct guest *g, uint64_t at, void *dst, size_t n)
{
	int ret = gmem_read(g->mem, gpa(at), dst, n);

	if (ret < 0) {
		memset(dst, 0, n);
		g->err = ret;
	}
}

static uint64_t get64(struct guest *g, uint64_t at)
{
	uint64_t v;

	get(g, at, &v, sizeof(v));
	return v;
}

static uint32_t get32(struct guest *g, uint64_t at)
{
	uint32_t v;

	get(g, at, &v, sizeof(v));
	return v;
}

static void put(struct guest *g, uint64_t at, const void *src, size_t n)
{
	int ret = gmem_write(g->mem, gpa(at), src, n);

	if (ret < 0)
		g->err = ret;
}

static void put64(struct guest *g, uint64_t at, uint64_t v)
{
	put(g, at, &v, sizeof(v));
}

static void put32(struct guest *g, uint64_t at, uint32_t v)
{
	put(g, at, &v, sizeof(v));
}

/* Once this holds no get or put fails. */
static int check_addresses(const struct gmem *mem, const struct guestsym_state *s, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		uint64_t at = address_of(s, &symbols[i]);
		struct gview view;

		if (symbols[i].optional && !at)
			continue;
		if (gmem_view(mem, gpa(at), symbols[i].size ? symbols[i].size : s->tk_len, &view) <
		    0)
			return err_set(err, -EFAULT, "guest kernel: %s at %#llx is outside memory",
			               symbols[i].name, (ull)at);
	}
	return 0;
}

/* The kernel's wall clock: docs/guest-kernel.md, "Setting the wall clock from outside". */
struct clock {
	uint64_t xtime_sec;  /* CLOCK_REALTIME at cycle_last, */
	uint64_t xtime_nsec; /* nanoseconds << shift */
	uint64_t cycle_last; /* clock source */
	uint32_t mult;
	uint32_t shift;
	int32_t tai_offset; /* s */
	int64_t offs_real;  /* ns: CLOCK_REALTIME - CLOCK_MONOTONIC */
	int64_t offs_tai;   /* ns */
	int64_t wtm_sec;    /* -offs_real */
	int64_t wtm_nsec;
	int64_t base; /* ns: CLOCK_MONOTONIC at cycle_last, without xtime_nsec */
};

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

static int64_t floor_mod(int64_t a, int64_t b)
{
	return a % b + (a % b < 0 ? b : 0);
}

static void clock_derive(struct clock *c)
{
	c->wtm_sec = floor_div(-c->offs_real, NS);
	c->wtm_nsec = floor_mod(-c->offs_real, NS);
	c->base = ((int64_t)c->xtime_sec + c->wtm_sec) * NS + c->wtm_nsec;
}

/* The guest's own values, bounded so that no sum below can overflow. */
static int clock_read(struct guest *g, struct clock *c, struct err *err)
{
	const struct guestsym_state *s = g->sym;
	uint8_t tk[MAX_TK_LEN], shadow[MAX_TK_LEN];
	uint32_t seqs = get32(g, s->tk_seq) | get32(g, s->vdso_seq) | get32(g, s->vdso_raw_seq);

	get(g, s->tk, tk, s->tk_len);
	get(g, s->tk_shadow, shadow, s->tk_len);
	*c = (struct clock){
		.xtime_sec = get64(g, s->tk_xtime_sec),
		.xtime_nsec = get64(g, s->tk_mono_xtime_nsec),
		.cycle_last = get64(g, s->tk_mono_cycle_last),
		.mult = get32(g, s->tk_mono_mult),
		.shift = get32(g, s->tk_mono_shift),
		.tai_offset = (int32_t)get32(g, s->tk_tai_offset),
		.offs_real = (int64_t)get64(g, s->tk_offs_real),
		.offs_tai = (int64_t)get64(g, s->tk_offs_tai),
	};
	if (seqs & 1 || memcmp(tk, shadow, s->tk_len) != 0)
		return err_set(err, -EPROTO, "guest kernel: its clock is being changed");
	if (c->shift > MAX_SHIFT || c->mult == 0 || c->xtime_sec == 0 ||
	    c->xtime_sec >= MAX_XTIME_SEC || c->xtime_nsec >= (uint64_t)NS << c->shift ||
	    c->offs_real < 0 || c->offs_real >= MAX_OFFSET_NS || c->offs_tai < -MAX_OFFSET_NS ||
	    c->offs_tai >= MAX_OFFSET_NS || c->tai_offset < -MAX_TAI_S || c->tai_offset > MAX_TAI_S)
		return err_set(err, -EPROTO, "guest kernel: its clock is not plausible");
	clock_derive(c);
	if (c->base + (int64_t)(c->xtime_nsec >> c->shift) < 0)
		return err_set(err, -EPROTO, "guest kernel: its monotonic clock is negative");
	return 0;
}

/* CLOCK_REALTIME when the clock source reads `cycles`; one that has gone back a little counts as standing. */
static int64_t clock_now(const struct clock *c, uint64_t cycles)
{
	uint64_t delta = cycles > c->cycle_last ? cycles - c->cycle_last : 0;
	unsigned __int128 ns = ((unsigned __int128)delta * c->mult + c->xtime_nsec) >> c->shift;

	return ns > (uint64_t)MAX_OFFSET_NS ? -1 : (int64_t)c->xtime_sec * NS + (int64_t)ns;
}

/* Moves the wall clock, and it alone, so that it reads wake->realtime_ns. */
static int clock_set(struct clock *c, const struct guestsym_wake *wake, struct err *err)
{
	int64_t now = clock_now(c, wake->kvmclock_ns), d;

	if (now < 0 || wake->realtime_ns >= MAX_XTIME_SEC * NS)
		return err_set(err, -ERANGE,
		               "guest kernel: clock source at %llu ns, wall clock %llu ns",
		               (ull)wake->kvmclock_ns, (ull)wake->realtime_ns);
	d = (int64_t)wake->realtime_ns - now;
	if (c->offs_real + d < 0)
		return err_set(err, -ERANGE,
		               "guest kernel: a wall clock of %llu ns is before its boot",
		               (ull)wake->realtime_ns);
	c->xtime_nsec += (uint64_t)floor_mod(d, NS) << c->shift;
	c->xtime_sec += (uint64_t)floor_div(d, NS);
	if (c->xtime_nsec >= (uint64_t)NS << c->shift) {
		c->xtime_nsec -= (uint64_t)NS << c->shift;
		c->xtime_sec++;
	}
	c->offs_real += d;
	c->offs_tai += d;
	clock_derive(c);
	return 0;
}

static void clock_write_tk(struct guest *g, const struct clock *c)
{
	const struct guestsym_state *s = g->sym;
	uint8_t tk[MAX_TK_LEN];

	put64(g, s->tk_xtime_sec, c->xtime_sec);
	put64(g, s->tk_mono_xtime_nsec, c->xtime_nsec);
	put64(g, s->tk_wtm_sec, (uint64_t)c->wtm_sec);
	put64(g, s->tk_wtm_nsec, (uint64_t)c->wtm_nsec);
	put64(g, s->tk_offs_real, (uint64_t)c->offs_real);
	put64(g, s->tk_offs_tai, (uint64_t)c->offs_tai);
	put64(g, s->tk_mono_base, (uint64_t)c->base);
	put64(g, s->tk_mono_base_real, (uint64_t)(c->base + c->offs_real));
	/* Timer queues read their offsets again. */
	put32(g, s->tk_clock_was_set_seq, get32(g, s->tk_clock_was_set_seq) + 1);
	get(g, s->tk, tk, s->tk_len);
	put(g, s->tk_shadow, tk, s->tk_len);
}

/* `moved`: by how many nanoseconds offs_real has. The fast timekeepers may be older than tk. */
static void clock_write(struct guest *g, const struct clock *c, int64_t moved)
{
	const struct guestsym_state *s = g->sym;
	const uint64_t fast[] = { s->tk_fast0_base_real, s->tk_fast1_base_real };
	const uint64_t seq[] = { s->tk_seq, s->vdso_seq, s->vdso_raw_seq };

	clock_write_tk(g, c);
	for (size_t i = 0; i < ARRAY_LEN(fast); i++)
		put64(g, fast[i], get64(g, fast[i]) + (uint64_t)moved);
	put64(g, s->vdso_realtime_sec, c->xtime_sec);
	put64(g, s->vdso_realtime_nsec, c->xtime_nsec);
	put64(g, s->vdso_coarse_sec, c->xtime_sec);
	put64(g, s->vdso_coarse_nsec, c->xtime_nsec >> c->shift);
	put64(g, s->vdso_tai_sec, c->xtime_sec + (uint64_t)(int64_t)c->tai_offset);
	put64(g, s->vdso_tai_nsec, c->xtime_nsec);
	put64(g, s->hrtimer_realtime, (uint64_t)c->offs_real);
	put64(g, s->hrtimer_realtime_soft, (uint64_t)c->offs_real);
	put64(g, s->hrtimer_tai, (uint64_t)c->offs_tai);
	put64(g, s->hrtimer_tai_soft, (uint64_t)c->offs_tai);
	/* A reader that was interrupted between its two looks starts again. */
	for (size_t i = 0; i < ARRAY_LEN(seq); i++)
		put32(g, seq[i], get32(g, seq[i]) + 2);
}

static void write_random(struct guest *g, const struct guestsym_wake *wake)
{
	const struct guestsym_state *s = g->sym;
	uint64_t generation = get64(g, s->crng_generation) + 1;
	uint8_t pool[sizeof(wake->pool_entropy)];

	if (generation == UINT64_MAX) /* means "never seeded" */
		generation++;
	put(g, s->crng_key, wake->crng_key, sizeof(wake->crng_key));
	put64(g, s->crng_generation, generation);
	if (s->vdso_rng_generation) /* 0 means "never seeded" there */
		put64(g, s->vdso_rng_generation, generation + 1);
	get(g, s->pool_hash, pool, sizeof(pool));
	for (size_t i = 0; i < sizeof(pool); i++)
		pool[i] ^= wake->pool_entropy[i];
	put(g, s->pool_hash, pool, sizeof(pool));
}

static void write_boot_id(struct guest *g, const struct guestsym_wake *wake)
{
	uint8_t id[sizeof(wake->boot_id)];

	memcpy(id, wake->boot_id, sizeof(id));
	id[6] = (uint8_t)((id[6] & 0x0f) | 0x40); /* RFC 9562 5.4: version 4 */
	id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
	put(g, g->sym->boot_id, id, sizeof(id));
}

static bool is_printable(const char *s)
{
	for (; *s; s++)
		if (*s <= ' ' || *s > '~')
			return false;
	return true;
}

static int check_hostname(const char *name, struct err *err)
{
	size_t len = name ? strlen(name) : 0;

	if (len == 0 || len >= NODENAME_LEN || !is_printable(name)) {
		(void)err_set(err, -EINVAL, "host name of %zu bytes is not valid", len);
		return err_remedy(err, "give a name of 1 to %u printable characters",
		                  NODENAME_LEN - 1);
	}
	return 0;
}

static void write_hostname(struct guest *g, const char *name)
{
	char field[NODENAME_LEN] = { 0 };

	memcpy(field, name, strlen(name) + 1);
	put(g, g->sym->nodename, field, sizeof(field));
}

int guestsym_apply(const struct gmem *mem, const struct guestsym_state *state,
                   const struct guestsym_wake *wake, struct err *err)
{
	struct guest g = { .mem = mem, .sym = state };
	struct clock c = { 0 };
	int64_t offs_was = 0;
	int ret;

	if (!guestsym_is_known(state))
		return 0;
	ret = check_addresses(mem, state, err);
	if (ret == 0 && wake->parts & GUESTSYM_HOSTNAME)
		ret = check_hostname(wake->hostname, err);
	if (ret == 0 && wake->parts & GUESTSYM_CLOCK) {
		ret = clock_read(&g, &c, err);
		offs_was = c.offs_real;
		if (ret == 0)
			ret = clock_set(&c, wake, err);
	}
	if (ret < 0)
		return ret;
	if (wake->parts & GUESTSYM_RANDOM)
		write_random(&g, wake);
	if (wake->parts & GUESTSYM_BOOT_ID)
		write_boot_id(&g, wake);
	if (wake->parts & GUESTSYM_HOSTNAME)
		write_hostname(&g, wake->hostname);
	if (wake->parts & GUESTSYM_CLOCK)
		clock_write(&g, &c, c.offs_real - offs_was);
	BUG_ON(g.err); /* all addresses have been checked */
	return 0;
}

static int check_identity(struct guest *g, struct err *err)
{
	const struct guestsym_state *s = g->sym;
	uint64_t generation = get64(g, s->crng_generation);
	uint8_t key[32], zero[32] = { 0 };
	char name[NODENAME_LEN];

	get(g, s->crng_key, key, sizeof(key));
	get(g, s->nodename, name, sizeof(name));
	if (generation == 0 || generation >> 32 || memcmp(key, zero, sizeof(key)) == 0)
		return err_set(err, -EPROTO, "random generator: generation %#llx", (ull)generation);
	if (s->vdso_rng_generation && get64(g, s->vdso_rng_generation) != generation + 1)
		return err_set(err, -EPROTO, "random generator: the vDSO's generation differs");
	if (!memchr(name, '\0', sizeof(name)) || !is_printable(name))
		return err_set(err, -EPROTO, "host name is not text");
	return 0;
}

static int check_clock(struct guest *g, struct err *err)
{
	const struct guestsym_state *s = g->sym;
	struct clock c;
	int ret = clock_read(g, &c, err);
	int64_t off;

	if (ret < 0)
		return ret;
	off = (int64_t)c.xtime_sec - (int64_t)time(NULL);
	if (off > DAY_S || off < -DAY_S)
		return err_set(err, -EPROTO, "wall clock is %lld s from the host's",
		               (long long)off);
	if (c.wtm_sec != (int64_t)get64(g, s->tk_wtm_sec) ||
	    c.wtm_nsec != (int64_t)get64(g, s->tk_wtm_nsec) ||
	    c.base != (int64_t)get64(g, s->tk_mono_base) ||
	    get64(g, s->vdso_realtime_sec) != c.xtime_sec ||
	    get64(g, s->vdso_realtime_nsec) != c.xtime_nsec)
		return err_set(err, -EPROTO, "copies of the wall clock differ");
	return 0;
}

int guestsym_check(const struct gmem *mem, const struct guestsym_state *state, struct err *err)
{
	struct guest g = { .mem = mem, .sym = state };
	int ret = check_addresses(mem, state, err);

	if (ret == 0)
		ret = check_identity(&g, err);
	if (ret == 0)
		ret = check_clock(&g, err);
	if (ret < 0) {
		(void)err_wrap(err, "symbols do not fit the kernel");
		(void)err_remedy(err,
		                 "give the `symbols` that was built with this kernel, or none");
	}
	return ret;
}

/* ---- what an idle guest waits for (kernel-config/symbols/sched.c, timers.c) ---- */

#define CLOCK_BASES  8u
#define NODE_RIGHT   8u
#define NODE_LEFT    16u
#define NODE_EXPIRES 24u
#define MAX_STEPS    64u /* of a tree's height: what is deeper is forged */
/* Documentation/arch/x86/x86_64/mm.rst, 4-level page tables; nothing is randomised in this kernel. */
#define DIRECT_MAP 0xffff888000000000ull
#define IMAGE_MAP  0xffffffff80000000ull

bool guestsym_can_idle(const struct guestsym_state *s)
{
	return guestsym_is_known(s) && s->rq_nr_running && s->hrtimer_offset && s->hrtimer_first &&
	       s->hrtimer_first_1 > s->hrtimer_first;
}

uint32_t guestsym_nr_running(const struct gmem *mem, const struct guestsym_state *state)
{
	struct guest g = { .mem = mem, .sym = state };

	return get32(&g, state->rq_nr_running);
}

/* Where a pointer of the kernel leads: guest-physical. */
static uint64_t physical(uint64_t pointer)
{
	return pointer >= IMAGE_MAP ? pointer - IMAGE_MAP : pointer - DIRECT_MAP;
}

static bool is_own_data(uint64_t pointer)
{
	return pointer >= IMAGE_MAP;
}

/* rb_next(): a pointer to the node with the next larger key; 0: none. */
static uint64_t next_node(struct guest *g, uint64_t node)
{
	uint64_t link = get64(g, physical(node) + NODE_RIGHT), parent;

	for (unsigned i = 0; link && i < MAX_STEPS; i++) {
		node = link;
		link = get64(g, physical(node) + NODE_LEFT);
		if (!link)
			return node;
	}
	for (unsigned i = 0; i < MAX_STEPS; i++) {
		parent = get64(g, physical(node)) & ~3ull;
		if (!parent || get64(g, physical(parent) + NODE_LEFT) == node)
			return parent;
		node = parent;
	}
	return 0;
}

/* Of one clock's timers that are not the kernel's own, the one that is due first: a pointer; 0: none. */
static uint64_t first_timer(struct guest *g, uint64_t first)
{
	uint64_t node = get64(g, first);

	for (unsigned i = 0; node && is_own_data(node); i++)
		node = i < MAX_STEPS ? next_node(g, node) : 0;
	return node;
}

uint64_t guestsym_next_timer(const struct gmem *mem, const struct guestsym_state *s,
                             uint64_t kvmclock_ns)
{
	struct guest g = { .mem = mem, .sym = s };
	uint64_t stride = s->hrtimer_first_1 - s->hrtimer_first, next = UINT64_MAX;
	struct clock c;
	struct err err;
	int64_t now;

	if (check_addresses(mem, s, &err) < 0 || clock_read(&g, &c, &err) < 0)
		return UINT64_MAX;
	now = clock_now(&c, kvmclock_ns) - c.offs_real; /* CLOCK_MONOTONIC */
	for (unsigned i = 0; i < CLOCK_BASES; i++) {
		uint64_t node = first_timer(&g, s->hrtimer_first + i * stride), wait;
		int64_t due;

		if (!node)
			continue;
		due = (int64_t)(get64(&g, physical(node) + NODE_EXPIRES) -
		                get64(&g, s->hrtimer_offset + i * stride));
		wait = due > now ? (uint64_t)(due - now) : 0;
		next = wait < next ? wait : next;
	}
	return g.err ? UINT64_MAX : next;
}
