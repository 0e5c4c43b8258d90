/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile ring: the input is the queue's registers, then guest memory from address 0. Every chain that the
 * queue accepts is read and written whole, so that a segment outside of guest memory meets the
 * guards around it.
 */
#include "devices/virtq.h"

#include "devices/vdev.h"
#include "tests/fuzz/fuzz.h"

struct registers {
	uint8_t flags;
	uint8_t size_log2;
	uint16_t desc, avail,
		used; /* in units of 4 bytes, so that misaligned tables are tried as well */
	uint16_t next;
};

/* Every byte of both parts through the accessors, in uneven steps; and as iovecs, which must add up. */
static void use_chain(const struct virtq_chain *chain)
{
	static struct iovec iov[VIRTQ_MAX_SIZE];
	uint8_t buf[777];
	size_t total = 0;
	int nr;

	if (chain->nr_read + chain->nr_write > VIRTQ_MAX_SIZE ||
	    (uint64_t)chain->read_len + chain->write_len > VIRTQ_MAX_BYTES)
		abort();
	for (uint32_t off = 0, step; off < chain->read_len; off += step) {
		step = chain->read_len - off;
		step = step < sizeof(buf) ? step : sizeof(buf);
		if (chain_read(chain, off, buf, step) < 0)
			abort();
	}
	memset(buf, 0x5a, sizeof(buf));
	for (uint32_t off = 0, step; off < chain->write_len; off += step) {
		step = chain->write_len - off;
		step = step < sizeof(buf) ? step : sizeof(buf);
		if (chain_write(chain, off, buf, step) < 0)
			abort();
	}
	if (chain_read(chain, chain->read_len, buf, 1) != -71 ||
	    chain_write(chain, UINT32_MAX, buf, 2) != -71) /* -EPROTO */
		abort();
	nr = chain_write_iov(chain, 0, chain->write_len, iov, VIRTQ_MAX_SIZE);
	for (int i = 0; i < nr; i++)
		total += iov[i].iov_len;
	if (nr < 0 || total != chain->write_len)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct gmem mem;
	static struct virtq_chain chain;
	struct virtq q = { 0 };
	struct registers reg;
	uint64_t features = 1ull << VIRTIO_F_VERSION_1;

	if (!mem.size)
		fz_mem_open(&mem);
	if (n < sizeof(reg))
		return 0;
	memcpy(&reg, data, sizeof(reg));
	n -= sizeof(reg);
	fz_mem_clear(&mem);
	memcpy(mem.region[0].hva, data + sizeof(reg), n < FZ_LOW ? n : FZ_LOW);
	if (reg.flags & 1)
		features |= 1ull << VIRTIO_F_INDIRECT_DESC;
	if (reg.flags & 2)
		features |= 1ull << VIRTIO_F_EVENT_IDX;
	q.s = (struct virtq_state){
		.size = (uint16_t)(reg.flags & 4 ? reg.next : 1u << (reg.size_log2 % 10)),
		.ready = 1,
		.desc = reg.desc * 4u,
		.avail = reg.avail * 4u,
		.used = reg.used * 4u,
		.next_avail = reg.next,
		.next_used = reg.next,
	};
	if (virtq_enable(&q, &mem, features) < 0)
		return 0;
	/* A ring may point at itself: what the device writes can make more chains. Hence the bound. */
	for (int i = 0; i < 64 && virtq_pop(&q, &chain) == 1; i++) {
		use_chain(&chain);
		if (virtq_push(&q, &chain, chain.write_len) < 0)
			break;
		FZ_CHECK(q.s.next_used == q.s.next_avail); /* one back for each taken */
		(void)virtq_should_irq(&q);                /* the answer is the driver's business */
	}
	virtq_kicks_off(&q);
	(void)virtq_kicks_on(&q); /* as above */
	return 0;
}
