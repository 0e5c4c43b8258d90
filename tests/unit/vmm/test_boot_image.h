/* SPDX-License-Identifier: Apache-2.0 */
/* Crafted kernels for the boot tests: a small ELF with two segments and a note, files in memory. */
#ifndef TESTS_BOOT_IMAGE_H
#define TESTS_BOOT_IMAGE_H

#include "core/gmem.h"
#include "vmm/layout.h"

#include <asm/bootparam.h>
#include <criterion/criterion.h>
#include <elf.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define IMAGE_MIB     64ull
#define IMAGE_TEXT    0x1000000ull
#define IMAGE_DATA    0x1004000ull
#define IMAGE_NOTES   0x400u /* file offset */
#define IMAGE_NR_PHDR 3u
#define IMAGE_SEG_LEN 0x1000u
#define IMAGE_BSS_LEN 0x1800u
#define IMAGE_PVH     (IMAGE_TEXT + 0x40)

struct image {
	Elf64_Ehdr eh;
	Elf64_Phdr ph[IMAGE_NR_PHDR]; /* text, data with bss, notes */
	uint8_t head_pad[IMAGE_NOTES - sizeof(Elf64_Ehdr) - IMAGE_NR_PHDR * sizeof(Elf64_Phdr)];
	uint8_t notes[0xc00];
	uint8_t text[IMAGE_SEG_LEN];
	uint8_t data[IMAGE_SEG_LEN];
};
_Static_assert(offsetof(struct image, text) == 0x1000, "no padding");

static inline void image_init(struct image *im)
{
	*im = (struct image){ 0 };
	memcpy(im->eh.e_ident, ELFMAG, SELFMAG);
	im->eh.e_ident[EI_CLASS] = ELFCLASS64;
	im->eh.e_ident[EI_DATA] = ELFDATA2LSB;
	im->eh.e_ident[EI_VERSION] = EV_CURRENT;
	im->eh.e_type = ET_EXEC;
	im->eh.e_machine = EM_X86_64;
	im->eh.e_version = EV_CURRENT;
	im->eh.e_entry = IMAGE_TEXT + 0x123;
	im->eh.e_phoff = offsetof(struct image, ph);
	im->eh.e_phentsize = sizeof(Elf64_Phdr);
	im->eh.e_phnum = IMAGE_NR_PHDR;
	im->ph[0] = (Elf64_Phdr){ .p_type = PT_LOAD,
		                  .p_flags = PF_R | PF_X,
		                  .p_offset = offsetof(struct image, text),
		                  .p_vaddr = 0xffffffff81000000ull,
		                  .p_paddr = IMAGE_TEXT,
		                  .p_filesz = IMAGE_SEG_LEN,
		                  .p_memsz = IMAGE_SEG_LEN };
	im->ph[1] = (Elf64_Phdr){ .p_type = PT_LOAD,
		                  .p_flags = PF_R | PF_W,
		                  .p_offset = offsetof(struct image, data),
		                  .p_vaddr = 0xffffffff81004000ull,
		                  .p_paddr = IMAGE_DATA,
		                  .p_filesz = IMAGE_SEG_LEN,
		                  .p_memsz = IMAGE_BSS_LEN };
	im->ph[2] = (Elf64_Phdr){ .p_type = PT_NOTE, .p_offset = IMAGE_NOTES, .p_align = 4 };
	for (unsigned i = 0; i < IMAGE_SEG_LEN; i++) {
		im->text[i] = (uint8_t)(i * 7 + 1);
		im->data[i] = (uint8_t)(i * 13 + 5);
	}
}

static inline void image_note(struct image *im, const char *owner, uint32_t type, const void *desc,
                              uint32_t len)
{
	Elf64_Nhdr nh = { .n_namesz = (uint32_t)strlen(owner) + 1,
		          .n_descsz = len,
		          .n_type = type };
	uint8_t *p = im->notes + im->ph[2].p_filesz;

	memcpy(p, &nh, sizeof(nh));
	memcpy(p + sizeof(nh), owner, nh.n_namesz);
	memcpy(p + sizeof(nh) + (nh.n_namesz + 3u) / 4 * 4, desc, len);
	im->ph[2].p_filesz += sizeof(nh) + (nh.n_namesz + 3u) / 4 * 4 + (len + 3u) / 4 * 4;
}

static inline void image_note_pvh(struct image *im)
{
	uint64_t entry = IMAGE_PVH;

	image_note(im, "Xen", 18, &entry, sizeof(entry));
}

static inline void image_note_linux(struct image *im)
{
	image_note(im, "Linux", 0x100, "", 1);
}

/* A file of `n` bytes that exists in memory only; its path is good until the descriptor is closed. */
static inline int image_file(const void *bytes, size_t n, char path[64])
{
	int fd = memfd_create("test", MFD_CLOEXEC);

	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, bytes, n), (ssize_t)n);
	(void)snprintf(path, 64, "/proc/self/fd/%d", fd);
	return fd;
}

#define BZIMAGE_SETUP   1024u /* boot sector and one sector of setup */
#define BZIMAGE_PAYLOAD 0x100u

/* Head of a bzImage whose payload has `len` bytes at BZIMAGE_SETUP + BZIMAGE_PAYLOAD. */
static inline void image_bzimage(uint8_t *head, uint32_t len)
{
	struct setup_header h = {
		.setup_sects = 1,
		.boot_flag = 0xaa55,
		.header = 0x53726448,
		.version = 0x020f,
		.loadflags = LOADED_HIGH,
		.payload_offset = BZIMAGE_PAYLOAD,
		.payload_length = len,
	};

	memset(head, 0, BZIMAGE_SETUP + BZIMAGE_PAYLOAD);
	memcpy(head + 0x1f1, &h, sizeof(h));
}

#endif
