/* SPDX-License-Identifier: Apache-2.0 */
#include "devices/doorbell.h"

#include "core/log.h"

#include <errno.h>
#include <sys/uio.h>

/* docs/protocol.md section 5 */
#define REG_MAGIC   0x00u
#define REG_PAGE_LO 0x04u
#define REG_PAGE_HI 0x08u
#define REG_PORT    0x0cu
#define REG_OUT     0x14u
#define REG_DONE    0x18u
#define REG_NEXT    0x1cu
#define REG_POWER   0x20u

static int doorbell_state_check(void *state, uint16_t from, struct err *err)
{
	struct doorbell_state *s = state;

	if (s->phase > DOORBELL_VSOCK || s->nr_pages > DOORBELL_MAX_PAGES)
		return err_set(err, -EBADMSG, "phase %u or %u mailbox pages out of range", s->phase,
		               s->nr_pages);
	for (uint32_t i = 0; i < s->nr_pages; i++)
		if (s->page[i] % GMEM_PAGE)
			return err_set(err, -EBADMSG, "mailbox page %u is not aligned", i);
	if (from < 2)
		s->form = 1;
	if (s->form < 3 && s->phase == DOORBELL_DONE)
		s->phase = DOORBELL_VSOCK;
	return 0;
}
STATE_DESC(doorbell_state, DOORBELL_STATE, "BELL", 1, doorbell_state_check)

/* Pages of the request area, and of the response area that follows it. */
static uint32_t half(const struct doorbell *bell)
{
	return bell->s.nr_pages / 2;
}

static void add_page(struct doorbell *bell, uint64_t addr)
{
	struct gview view;

	if (bell->s.nr_pages >= DOORBELL_MAX_PAGES || addr % GMEM_PAGE ||
	    gmem_view(bell->mem, gpa(addr), GMEM_PAGE, &view) < 0) {
		log_guest("doorbell: a mailbox page is not aligned memory, or one too many");
		return;
	}
	for (uint32_t i = 0; i < bell->s.nr_pages; i++)
		if (bell->s.page[i] == addr)
			return;
	bell->s.page[bell->s.nr_pages++] = addr;
}

/* Hands the first `n` bytes of the response area over; more than it holds is cut. */
static void output(struct doorbell *bell, size_t n, bool done)
{
	struct iovec iov[DOORBELL_MAX_PAGES / 2];
	unsigned nr = 0;

	for (uint32_t i = 0; i < half(bell) && n; i++) {
		uint64_t addr = bell->s.page[half(bell) + i];
		size_t take = n < GMEM_PAGE ? n : GMEM_PAGE;
		struct gview view;

		if (gmem_view(bell->mem, gpa(addr), take, &view) < 0 ||
		    gview_iov(&view, 0, take, &iov[nr]) < 0)
			break;
		nr++;
		n -= take;
	}
	if (nr || done)
		bell->output(bell->ctx, iov, nr, done);
}

uint32_t doorbell_read(struct doorbell *bell, uint32_t off)
{
	if (off == REG_MAGIC)
		return DOORBELL_MAGIC;
	if (off == REG_NEXT)
		return bell->s.phase == DOORBELL_DONE ? bell->next(bell->ctx) : DOORBELL_SERVED;
	if (off != DOORBELL_PARK)
		return 0;
	if (bell->s.phase >= DOORBELL_FIRST)
		return DOORBELL_SERVED;
	/* Also when it parks again: a bake that goes on after its snapshot. */
	bell->s.phase = DOORBELL_PARKED;
	bell->s.form = DOORBELL_FORM;
	bell->parked(bell->ctx);
	return DOORBELL_AGAIN;
}

static void write_baking(struct doorbell *bell, uint32_t off, uint32_t value)
{
	if (off == REG_PAGE_LO)
		bell->s.page_lo = value;
	else if (off == REG_PAGE_HI)
		add_page(bell, (uint64_t)value << 32 | bell->s.page_lo);
	else if (off == REG_PORT)
		bell->s.port = value;
}

void doorbell_write(struct doorbell *bell, uint32_t off, uint32_t value)
{
	if (off == REG_POWER) {
		if (value == 1)
			bell->power(bell->ctx);
	} else if (bell->s.phase == DOORBELL_BAKE) {
		write_baking(bell, off, value);
	} else if (bell->s.phase == DOORBELL_FIRST && off == REG_OUT) {
		output(bell, value, false);
	} else if (bell->s.phase == DOORBELL_FIRST && off == REG_DONE) {
		bell->s.phase = DOORBELL_DONE;
		output(bell, value, true);
	}
}

size_t doorbell_request_room(const struct doorbell *bell)
{
	return (size_t)half(bell) * GMEM_PAGE;
}

int doorbell_put(struct doorbell *bell, size_t off, const void *bytes, size_t n)
{
	size_t room = doorbell_request_room(bell);
	const uint8_t *src = bytes;

	if (off > room || n > room - off)
		return -EMSGSIZE;
	while (n) {
		size_t in_page = off % GMEM_PAGE;
		size_t take = n < GMEM_PAGE - in_page ? n : GMEM_PAGE - in_page;
		int ret = gmem_write(bell->mem, gpa(bell->s.page[off / GMEM_PAGE] + in_page), src,
		                     take);

		if (ret < 0)
			return ret;
		off += take;
		src += take;
		n -= take;
	}
	return 0;
}
