/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versioned sections of saved state. A section is a tag, an instance, a version, a length, a CRC and
 * its fields, little endian, one after another without padding. One list generates the struct, its
 * field table and its version:
 *
 *   #define UART_STATE(F, A)  F(1, uint8_t, ier) A(1, uint8_t, fifo, 16) \
 *                             F(2, uint8_t, fcr)    <- a later addition: the version is now 2
 *   STATE_STRUCT(uart_state, UART_STATE);           in the header
 *   STATE_DESC(uart_state, UART_STATE, "UART", 1, uart_state_check);   in the .c file: uart_state_desc
 *
 * Fields are only ever appended. A stored section that is older keeps the reset values of what it
 * lacks; one that is newer, or older than `min`, is refused. check() then refuses what a file could
 * forge. Only unsigned integer fields and arrays of them.
 */
#ifndef CORE_STATE_H
#define CORE_STATE_H

#include "core/compiler.h"
#include "core/err.h"

#include <stdint.h>

struct state_field {
	uint16_t since;
	uint16_t width; /* bytes of one element */
	uint32_t count;
	uint32_t offset;
};

struct state_desc {
	char tag[5];
	uint16_t version;
	uint16_t min;
	const struct state_field *fields;
	unsigned nr_fields;
	size_t size; /* of the struct */
	/* Refuses forged values, fills what version `from` lacked. May be NULL. */
	int (*check)(void *state, uint16_t from, struct err *err);
};

#define STATE_MEMBER_F_(since, type, name)        type name;
#define STATE_MEMBER_A_(since, type, name, count) type name[count];
#define STATE_STRUCT(sname, LIST)                      \
	struct sname {                                 \
		LIST(STATE_MEMBER_F_, STATE_MEMBER_A_) \
	}

#define STATE_FIELD_F_(since, type, name) \
	{ since, sizeof(type), 1, (uint32_t)offsetof(STATE_SELF_, name) },
#define STATE_FIELD_A_(since, type, name, count) \
	{ since, sizeof(type), count, (uint32_t)offsetof(STATE_SELF_, name) },
#define STATE_SINCE_F_(since, type, name)        since,
#define STATE_SINCE_A_(since, type, name, count) since,

/* Defines `const struct state_desc *<sname>_desc(void)`. */
#define STATE_DESC(sname, LIST, tag_, min_, check_)                                       \
	const struct state_desc *sname##_desc(void)                                       \
	{                                                                                 \
		typedef struct sname STATE_SELF_;                                         \
		static const struct state_field fields[] = { LIST(STATE_FIELD_F_,         \
			                                          STATE_FIELD_A_) };      \
		static const uint16_t since[] = { LIST(STATE_SINCE_F_, STATE_SINCE_A_) }; \
		static const struct state_desc desc = {                                   \
			.tag = tag_,                                                      \
			.min = min_,                                                      \
			.fields = fields,                                                 \
			.nr_fields = ARRAY_LEN(fields),                                   \
			.size = sizeof(STATE_SELF_),                                      \
			.check = check_,                                                  \
		};                                                                        \
		static struct state_desc full;                                            \
		if (!full.version) {                                                      \
			full = desc;                                                      \
			full.version = since[ARRAY_LEN(since) - 1];                       \
		}                                                                         \
		return &full;                                                             \
	}

/* A growing (writing) or fixed (reading) buffer. `err` is sticky: check once, at the end. */
struct state_buf {
	uint8_t *p;
	size_t len; /* bytes written, or to read */
	size_t cap;
	size_t pos; /* reading */
	int err;    /* 0 or the first -errno */
};

/* Frees what writing allocated. Safe on a zeroed object. Not for a buffer that borrows `p`. */
void state_buf_free(struct state_buf *buf);

/* Appends bytes as they are (a file's magic). */
void state_put_bytes(struct state_buf *buf, const void *bytes, size_t n);
/* Appends a section. -ENOMEM becomes sticky. */
void state_put(struct state_buf *buf, const struct state_desc *desc, uint16_t instance,
               const void *state);
/* Appends a raw section (a KVM structure: the kernel's ABI is its version). */
void state_put_raw(struct state_buf *buf, const char *tag, uint16_t instance, const void *data,
                   size_t n);

/*
 * Reads the next section, which must be `desc`'s and `instance`: 0, or -EBADMSG (damaged, other section,
 * wrong length), -EPROTONOSUPPORT (version). On error `state` is unchanged.
 */
NODISCARD int state_get(struct state_buf *buf, const struct state_desc *desc, uint16_t instance,
                        void *state, struct err *err);
/* Reads the next raw section of exactly `n` bytes. */
NODISCARD int state_get_raw(struct state_buf *buf, const char *tag, uint16_t instance, void *data,
                            size_t n, struct err *err);
/* As above with a length between min and max; the length goes to *n. */
NODISCARD int state_get_var(struct state_buf *buf, const char *tag, uint16_t instance, void *data,
                            size_t min, size_t max, size_t *n, struct err *err);

/* CRC-32C (Castagnoli), by the CPU's instruction where it has one. */
uint32_t state_crc(const void *data, size_t n);

#endif
