/* SPDX-License-Identifier: Apache-2.0 */
/* The device's side of a split virtqueue, against a valid driver and against a hostile one. */
#include "tests/unit/devices/driver.h"

#include <errno.h>
#include <stdlib.h>

#define SIZE 16

static struct drv d;
static struct virtq q;
static struct virtq_chain chain;

static void enable(uint64_t features)
{
	struct vdev_host host;

	drv_open(&d, NULL, &host);
	drv_layout(&d, 0, SIZE);
	d.features = features;
	q = (struct virtq){ .s = { .size = SIZE,
		                   .desc = d.q[0].desc,
		                   .avail = d.q[0].avail,
		                   .used = d.q[0].used } };
	cr_assert_eq(virtq_enable(&q, &d.mem, features), 0);
}

static void setup(void)
{
	enable(DRV_ALL_FEATURES);
}

static void teardown(void)
{
	drv_close(&d);
}

TestSuite(virtq, .init = setup, .fini = teardown);

Test(virtq, pops_what_was_added_and_returns_it)
{
	uint64_t a = drv_alloc(&d, 64, 1), b = drv_alloc(&d, 64, 1), c = drv_alloc(&d, 64, 1);
	struct drv_seg seg[] = { { a, 5 }, { b, 7 }, { c, 10 } };
	char text[13] = "";
	uint32_t written;
	int head;

	drv_put(&d, a, "hello", 5);
	drv_put(&d, b, ", guest", 7);
	cr_assert_eq(virtq_pop(&q, &chain), 0);
	head = drv_add(&d, 0, seg, 2, 1);
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_eq(chain.head, head);
	cr_assert_eq(chain.nr_read, 2);
	cr_assert_eq(chain.nr_write, 1);
	cr_assert_eq(chain.read_len, 12);
	cr_assert_eq(chain.write_len, 10);
	cr_assert_eq(chain_read(&chain, 0, text, 12), 0);
	cr_assert_str_eq(text, "hello, guest");
	cr_assert_eq(chain_write(&chain, 3, "abc", 3), 0);
	cr_assert_eq(virtq_push(&q, &chain, 6), 0);
	cr_assert_eq(drv_used(&d, 0, &written), head);
	cr_assert_eq(written, 6);
	drv_get(&d, c + 3, text, 3);
	cr_assert_eq(memcmp(text, "abc", 3), 0);
	cr_assert_eq(virtq_pop(&q, &chain), 0);
}

Test(virtq, unpop_gives_the_same_chain_again)
{
	struct drv_seg seg = { 0x1000, 8 };
	int head = drv_add(&d, 0, &seg, 0, 1);

	cr_assert_eq(virtq_pop(&q, &chain), 1);
	virtq_unpop(&q);
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_eq(chain.head, head);
	cr_assert_eq(virtq_pop(&q, &chain), 0);
}

Test(virtq, indices_wrap_around)
{
	struct drv_seg seg = { 0x1000, 8 };

	for (unsigned i = 0; i < 3 * 65536; i++) {
		int head = drv_add(&d, 0, &seg, 0, 1);

		cr_assert_eq(virtq_pop(&q, &chain), 1);
		cr_assert_eq(virtq_push(&q, &chain, 1), 0);
		cr_assert_eq(drv_used(&d, 0, NULL), head);
	}
}

Test(virtq, indirect_table)
{
	uint64_t table = drv_alloc(&d, 16 * 3, 16);
	struct drv_seg seg[] = { { 0x1000, 4 }, { 0x2000, 4 }, { 0x3000, 4 } };

	drv_add_indirect(&d, 0, table, seg, 1, 2);
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_eq(chain.nr_read, 1);
	cr_assert_eq(chain.nr_write, 2);
	cr_assert_eq(chain.write_len, 8);
}

Test(virtq, indirect_after_direct_descriptors)
{
	uint64_t table = drv_alloc(&d, 16, 16);

	drv_put_desc(&d, table, 0, 0x2000, 4, 2, 0);
	drv_put_desc(&d, d.q[0].desc, 0, 0x1000, 4, 1, 1);
	drv_put_desc(&d, d.q[0].desc, 1, table, 16, 4, 0);
	drv_publish(&d, 0, 0);
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_eq(chain.read_len, 4);
	cr_assert_eq(chain.write_len, 4);
}

Test(virtq, offsets_are_bounded)
{
	struct drv_seg seg[] = { { 0x1000, 4 }, { 0x2000, 4 }, { 0x3000, 8 } };
	struct iovec iov[2];
	uint8_t bytes[16];

	drv_add(&d, 0, seg, 2, 1);
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_eq(chain_read(&chain, 0, bytes, 9), -EPROTO);
	cr_assert_eq(chain_read(&chain, 9, bytes, 0), -EPROTO);
	cr_assert_eq(chain_read(&chain, 8, bytes, 0), 0);
	cr_assert_eq(chain_read(&chain, 1, bytes, UINT32_MAX), -EPROTO);
	cr_assert_eq(chain_write(&chain, 8, bytes, 1), -EPROTO);
	cr_assert_eq(chain_write(&chain, UINT32_MAX, bytes, 2), -EPROTO);
	cr_assert_eq(chain_read_iov(&chain, 3, 2, iov, 2), 2);
	cr_assert_eq(iov[0].iov_len, 1);
	cr_assert_eq(iov[1].iov_len, 1);
	cr_assert_eq(chain_read_iov(&chain, 0, 8, iov, 1), -EPROTO);
	cr_assert_eq(chain_read_iov(&chain, 0, 9, iov, 2), -EPROTO);
	cr_assert_eq(chain_write_iov(&chain, 2, 6, iov, 2), 1);
	cr_assert_eq(iov[0].iov_len, 6);
}

/* ---- hostile rings: every one is -EPROTO, and nothing is taken ---- */

static void refused(const char *why)
{
	uint16_t before = q.s.next_avail;

	cr_assert_eq(virtq_pop(&q, &chain), -EPROTO, "%s", why);
	cr_assert_eq(q.s.next_avail, before, "%s: the position moved", why);
}

Test(virtq, refuses_a_loop)
{
	drv_put_desc(&d, d.q[0].desc, 0, 0x1000, 4, 1, 1);
	drv_put_desc(&d, d.q[0].desc, 1, 0x1000, 4, 1, 0);
	drv_publish(&d, 0, 0);
	refused("loop");
}

Test(virtq, refuses_indices_out_of_range)
{
	drv_publish(&d, 0, SIZE);
	refused("head");
	q.s.next_avail++;
	drv_put_desc(&d, d.q[0].desc, 0, 0x1000, 4, 1, SIZE);
	drv_publish(&d, 0, 0);
	refused("next");
}

Test(virtq, refuses_more_pending_than_entries)
{
	drv_store16(&d, d.q[0].avail + 2, SIZE + 1);
	refused("pending");
	drv_store16(&d, d.q[0].avail + 2, UINT16_MAX);
	refused("pending, behind");
}

static void one(uint64_t addr, uint32_t len, uint16_t flags)
{
	drv_put_desc(&d, d.q[0].desc, 0, addr, len, flags, 0);
	drv_publish(&d, 0, 0);
}

Test(virtq, refuses_memory_outside)
{
	const struct drv_seg bad[] = {
		{ 16u << 20, 1 },      { (16u << 20) - 1, 2 }, { UINT64_MAX, 1 },
		{ UINT64_MAX - 3, 8 }, { 0xc0000000, 4 },      { 0, UINT32_MAX },
		{ 0x1000, 16u << 20 }, { 1ull << 63, 0x1000 }, { 0x1000, 0 },
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		one(bad[i].addr, bad[i].len, 0);
		refused("segment");
		q.s.next_avail++;
	}
}

Test(virtq, refuses_a_total_that_is_too_long)
{
	for (uint16_t i = 0; i < 8; i++)
		drv_put_desc(&d, d.q[0].desc, i, 0, 15u << 20, i < 7 ? 1 : 0, (uint16_t)(i + 1));
	drv_publish(&d, 0, 0);
	refused("total");
}

Test(virtq, refuses_readable_after_writable)
{
	drv_put_desc(&d, d.q[0].desc, 0, 0x1000, 4, 1 | 2, 1);
	drv_put_desc(&d, d.q[0].desc, 1, 0x1000, 4, 0, 0);
	drv_publish(&d, 0, 0);
	refused("order");
}

Test(virtq, refuses_bad_indirect_tables)
{
	uint64_t table = drv_alloc(&d, 16 * 32, 16);

	one(table, 15, 4);
	refused("length no multiple");
	q.s.next_avail++;
	one(table, 0, 4);
	refused("empty");
	q.s.next_avail++;
	one(table, 16, 4 | 1);
	refused("with NEXT");
	q.s.next_avail++;
	one(16u << 20, 16, 4);
	refused("outside");
	q.s.next_avail++;
	drv_put_desc(&d, table, 0, table, 16, 4, 0);
	one(table, 16, 4);
	refused("nested");
	q.s.next_avail++;
	drv_put_desc(&d, table, 0, 0x1000, 4, 1, 2);
	one(table, 32, 4);
	refused("next outside the table");
	q.s.next_avail++;
	for (uint16_t i = 0; i < SIZE + 1; i++)
		drv_put_desc(&d, table, i, 0x1000, 4, i < SIZE ? 1 : 0, (uint16_t)(i + 1));
	one(table, 16 * (SIZE + 1), 4);
	refused("longer than the queue");
}

Test(virtq, refuses_indirect_when_not_negotiated)
{
	uint64_t table = drv_alloc(&d, 16, 16);

	cr_assert_eq(virtq_enable(&q, &d.mem, 1ull << VIRTIO_F_VERSION_1), 0);
	drv_put_desc(&d, table, 0, 0x1000, 4, 0, 0);
	one(table, 16, 4);
	refused("not negotiated");
}

Test(virtq, refuses_to_push_what_is_no_head)
{
	cr_assert_eq(virtq_push_head(&q, SIZE, 0), -EPROTO);
	cr_assert_eq(q.s.next_used, 0);
}

Test(virtq, registers_are_checked)
{
	struct virtq_state good = q.s;
	struct virtq_state bad[12];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].size = 0;
	bad[1].size = 12;
	bad[2].size = 512;
	bad[3].desc += 8;
	bad[4].avail += 1;
	bad[5].used += 2;
	bad[6].desc = 16u << 20;
	bad[7].avail = (16u << 20) - 32;
	bad[8].used = (16u << 20) - 128;
	bad[9].desc = UINT64_MAX - 15;
	bad[10].used = UINT64_MAX - 3;
	bad[11].avail = UINT64_MAX - 1;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct virtq fresh = { .s = bad[i] };

		fresh.s.ready = 0;
		cr_assert_eq(virtq_enable(&fresh, &d.mem, DRV_ALL_FEATURES), -EPROTO, "case %zu",
		             i);
		cr_assert_eq(fresh.s.ready, 0, "case %zu", i);
	}
	/* Without EVENT_IDX the rings are two bytes shorter. */
	bad[7].avail = (16u << 20) - 4 - 2 * SIZE;
	{
		struct virtq fresh = { .s = bad[7] };

		cr_assert_eq(virtq_enable(&fresh, &d.mem, 1ull << VIRTIO_F_VERSION_1), 0);
		cr_assert_eq(virtq_enable(&fresh, &d.mem, DRV_ALL_FEATURES), -EPROTO);
	}
}

Test(virtq, does_nothing_while_not_ready)
{
	virtq_reset(&q);
	cr_assert_eq(virtq_pop(&q, &chain), 0);
	cr_assert_eq(virtq_push_head(&q, 0, 0), -EPROTO);
	cr_assert_not(virtq_should_irq(&q));
	cr_assert_not(virtq_kicks_on(&q));
	virtq_kicks_off(&q);
}

/* ---- notifications ---- */

static void push_one(void)
{
	struct drv_seg seg = { 0x1000, 8 };

	drv_add(&d, 0, &seg, 0, 1);
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_eq(virtq_push(&q, &chain, 0), 0);
}

Test(virtq, event_idx_decides_once_per_batch)
{
	uint64_t used_event = d.q[0].avail + 4 + 2 * SIZE;

	push_one();
	cr_assert(virtq_should_irq(&q), "the first is always told");
	cr_assert_not(virtq_should_irq(&q), "nothing was pushed since");
	push_one();
	cr_assert_not(virtq_should_irq(&q), "the driver has not looked yet: used_event is behind");
	while (drv_used(&d, 0, NULL) >= 0)
		;
	push_one();
	push_one();
	push_one();
	cr_assert(virtq_should_irq(&q), "used_event lies in the batch");
	while (drv_used(&d, 0, NULL) >= 0)
		;
	drv_store16(&d, used_event, (uint16_t)(q.s.next_used + 3));
	for (int i = 0; i < 3; i++) {
		push_one();
		cr_assert_not(virtq_should_irq(&q), "push %d of four asked for", i);
	}
	push_one();
	cr_assert(virtq_should_irq(&q));
}

Test(virtq, a_restored_queue_tells_the_first_push)
{
	push_one();
	cr_assert(virtq_should_irq(&q));
	/* used_event stays behind, as when the interrupt was lost in a snapshot. */
	q.s.signalled_valid = 0;
	push_one();
	cr_assert(virtq_should_irq(&q));
}

Test(virtq, flags_without_event_idx)
{
	cr_assert_eq(virtq_enable(&q, &d.mem, 1ull << VIRTIO_F_VERSION_1), 0);
	push_one();
	cr_assert(virtq_should_irq(&q));
	drv_store16(&d, d.q[0].avail, 1);
	push_one();
	cr_assert_not(virtq_should_irq(&q));
	virtq_kicks_off(&q);
	cr_assert_eq(drv_load16(&d, d.q[0].used), 1);
	cr_assert_not(virtq_kicks_on(&q));
	cr_assert_eq(drv_load16(&d, d.q[0].used), 0);
}

Test(virtq, kicks_on_sees_what_came_in_between)
{
	struct drv_seg seg = { 0x1000, 8 };

	cr_assert_not(virtq_kicks_on(&q));
	drv_add(&d, 0, &seg, 0, 1);
	cr_assert(virtq_kicks_on(&q));
	cr_assert_eq(virtq_pop(&q, &chain), 1);
	cr_assert_not(virtq_kicks_on(&q));
	cr_assert_eq(drv_load16(&d, d.q[0].used + 4 + 8 * SIZE), 1, "avail_event");
	cr_assert_eq(virtq_added(&q), 1);
	cr_assert_not(virtq_kicks_at(&q, 1));
	cr_assert(virtq_kicks_at(&q, 7));
}

/* ---- random rings: whatever is popped lies in guest memory and within the limits ---- */

static uint64_t random_word(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Mostly plausible, so that long chains happen, with wild values in between. */
static void random_desc(uint64_t table, uint16_t i, uint64_t *seed)
{
	uint64_t r = random_word(seed);
	uint64_t addr = r % 11 ? (r >> 8) % d.mem.size : random_word(seed);
	uint32_t len = r % 13 ? (uint32_t)(r >> 40) % 4096 : (uint32_t)random_word(seed);
	uint16_t flags = (uint16_t)((r >> 4) % 32 ? (r >> 9) & 3 : r >> 20);
	uint16_t next = (uint16_t)(r % 17 ? (r >> 30) % SIZE : r >> 44);

	drv_put_desc(&d, table, i, addr, len & (flags & 4 ? 0x1f0 : ~0u), flags, next);
}

static void check_chain(void)
{
	uint64_t total = 0;

	cr_assert_lt(chain.head, SIZE);
	cr_assert_leq(chain.nr_read + chain.nr_write, SIZE);
	for (unsigned i = 0; i < (unsigned)chain.nr_read + chain.nr_write; i++) {
		const struct gview *seg = &chain.seg[i];
		const struct gmem_region *ram = &d.mem.region[0];

		cr_assert(seg->len && seg->hva >= ram->hva &&
		          seg->len <= (size_t)(ram->hva + ram->len - seg->hva));
		total += seg->len;
	}
	cr_assert_eq(total, chain.read_len + chain.write_len);
	cr_assert_leq(total, VIRTQ_MAX_BYTES);
}

Test(virtq, random_rings_never_leave_memory)
{
	uint64_t seed = 0x9e3779b97f4a7c15ull;
	unsigned popped = 0, broken = 0;

	for (unsigned round = 0; round < 100000; round++) {
		int ret;

		random_desc(d.q[0].desc, (uint16_t)(random_word(&seed) % SIZE), &seed);
		random_desc(d.q[0].desc, (uint16_t)(random_word(&seed) % SIZE), &seed);
		if (random_word(&seed) % 50 == 0)
			drv_store16(&d, d.q[0].avail + 2, (uint16_t)random_word(&seed));
		else
			drv_publish(&d, 0, (uint16_t)(random_word(&seed) % (SIZE + 1)));
		ret = virtq_pop(&q, &chain);
		if (ret == 1) {
			popped++;
			check_chain();
			cr_assert_eq(virtq_push(&q, &chain, chain.write_len), 0);
			virtq_should_irq(&q);
			virtq_kicks_on(&q);
		} else if (ret < 0) {
			broken++;
			cr_assert_eq(ret, -EPROTO);
		}
		if (ret != 1) { /* as after a reset */
			q.s.next_avail = d.q[0].next_avail;
			drv_store16(&d, d.q[0].avail + 2, d.q[0].next_avail);
		}
	}
	cr_assert_gt(popped, 1000, "%u popped, %u broken", popped, broken);
	cr_assert_gt(broken, 1000, "%u popped, %u broken", popped, broken);
}
