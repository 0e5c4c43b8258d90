/* SPDX-License-Identifier: Apache-2.0 */
#include "core/own.h"
#include "tests/unit/vmm/test_boot_image.h"
#include "vmm/boot_elf.h"

#include <errno.h>

static struct image im;
static struct gmem mem;

static void setup(void)
{
	image_init(&im);
	cr_assert_eq(gmem_open(&mem, IMAGE_MIB << 20, LAYOUT_HOLE_START, LAYOUT_HOLE_END, -1), 0);
}

static void teardown(void)
{
	gmem_close(&mem);
}

TestSuite(boot_elf, .init = setup, .fini = teardown);

static int parse_cut(size_t n, struct boot_elf *elf, struct err *err)
{
	char path[64];
	own_fd int fd = image_file(&im, n, path);

	*err = (struct err){ 0 };
	return boot_elf_read(fd, n, elf, err);
}

/* The image with its present headers: what reading, then fitting it says. */
static int parse(struct boot_elf *elf, struct err *err)
{
	int ret = parse_cut(sizeof(im), elf, err);

	return ret < 0 ? ret : boot_elf_fit(elf, &mem, (IMAGE_MIB << 20) - GMEM_PAGE, err);
}

static void refused(int code, const char *word)
{
	struct boot_elf elf;
	struct err err;
	int ret = parse(&elf, &err);

	cr_assert_eq(ret, code, "%d (%s), want %d", ret, err.msg, code);
	cr_assert_not_null(strstr(err.msg, word), "\"%s\" does not speak of %s", err.msg, word);
}

Test(boot_elf, reads_segments_entry_and_notes)
{
	struct boot_elf elf;
	struct err err;

	image_note_linux(&im);
	image_note_pvh(&im);
	cr_assert_eq(parse(&elf, &err), 0, "%s", err.msg);
	cr_assert_eq(elf.nr_segments, 2u);
	cr_assert_eq(elf.segment[1].gpa, IMAGE_DATA);
	cr_assert_eq(elf.segment[1].mem_len, IMAGE_BSS_LEN);
	cr_assert_eq(elf.end, IMAGE_DATA + IMAGE_BSS_LEN);
	cr_assert_eq(elf.entry, IMAGE_TEXT + 0x123);
	cr_assert_eq(elf.pvh_entry, IMAGE_PVH);
	cr_assert(elf.is_linux);
	cr_assert(boot_elf_is_code(&elf, IMAGE_TEXT));
	cr_assert(boot_elf_is_code(&elf, IMAGE_TEXT + IMAGE_SEG_LEN - 1));
	cr_assert_not(boot_elf_is_code(&elf, IMAGE_TEXT - 1));
	cr_assert_not(boot_elf_is_code(&elf, IMAGE_TEXT + IMAGE_SEG_LEN));
	cr_assert_not(boot_elf_is_code(&elf, IMAGE_DATA), "data is not executable");
	im.ph[1].p_flags |= PF_X;
	cr_assert_eq(parse(&elf, &err), 0, "%s", err.msg);
	cr_assert(boot_elf_is_code(&elf, IMAGE_DATA + IMAGE_SEG_LEN - 1));
	cr_assert_not(boot_elf_is_code(&elf, IMAGE_DATA + IMAGE_SEG_LEN), "zeros are no code");
}

Test(boot_elf, empty_segments_lie_nowhere)
{
	struct boot_elf elf;
	struct err err;

	im.ph[1].p_paddr = im.ph[1].p_filesz = im.ph[1].p_memsz = 0;
	cr_assert_eq(parse(&elf, &err), 0, "%s", err.msg);
	cr_assert_eq(elf.nr_segments, 1u);
}

Test(boot_elf, the_last_note_need_not_be_padded)
{
	struct boot_elf elf;
	struct err err;

	image_note_linux(&im);
	im.ph[2].p_filesz -= 3;
	cr_assert_eq(parse(&elf, &err), 0, "%s", err.msg);
	cr_assert(elf.is_linux);
}

Test(boot_elf, loads_bytes_and_leaves_bss)
{
	uint8_t got[IMAGE_SEG_LEN], zero[IMAGE_BSS_LEN - IMAGE_SEG_LEN] = { 0 };
	struct boot_elf elf;
	struct err err;
	char path[64];
	own_fd int fd = image_file(&im, sizeof(im), path);

	cr_assert_eq(parse(&elf, &err), 0);
	cr_assert_eq(boot_elf_load(&elf, fd, &mem, &err), 0, "%s", err.msg);
	cr_assert_eq(gmem_read(&mem, gpa(IMAGE_TEXT), got, sizeof(got)), 0);
	cr_assert_arr_eq(got, im.text, sizeof(got));
	cr_assert_eq(gmem_read(&mem, gpa(IMAGE_DATA), got, sizeof(got)), 0);
	cr_assert_arr_eq(got, im.data, sizeof(got));
	cr_assert_eq(gmem_read(&mem, gpa(IMAGE_DATA + IMAGE_SEG_LEN), got, sizeof(zero)), 0);
	cr_assert_arr_eq(got, zero, sizeof(zero));
}

Test(boot_elf, a_file_that_shrinks_is_an_error)
{
	struct boot_elf elf;
	struct err err;
	char path[64];
	own_fd int fd = image_file(&im, sizeof(im), path);

	cr_assert_eq(parse(&elf, &err), 0);
	cr_assert_eq(ftruncate(fd, sizeof(im) - 1), 0);
	cr_assert_eq(boot_elf_load(&elf, fd, &mem, &err), -ENODATA);
}

Test(boot_elf, refuses_a_file_cut_anywhere)
{
	struct boot_elf elf;
	struct err err;

	image_note_pvh(&im);
	for (size_t n = 0; n < sizeof(im); n += n < offsetof(struct image, text) ? 1 : 255)
		cr_assert_eq(parse_cut(n, &elf, &err), -ENOEXEC, "cut at %zu: %s", n, err.msg);
	cr_assert_eq(parse_cut(sizeof(im) - 1, &elf, &err), -ENOEXEC);
	cr_assert_eq(parse_cut(sizeof(im), &elf, &err), 0);
}

Test(boot_elf, refuses_other_kinds_of_elf)
{
	im.eh.e_machine = EM_AARCH64;
	refused(-ENOEXEC, "machine 183");
	image_init(&im);
	im.eh.e_ident[EI_CLASS] = ELFCLASS32;
	refused(-ENOEXEC, "class 1");
	image_init(&im);
	im.eh.e_ident[EI_DATA] = ELFDATA2MSB;
	refused(-ENOEXEC, "data 2");
	image_init(&im);
	im.eh.e_type = ET_REL;
	refused(-ENOEXEC, "type 1");
	image_init(&im);
	im.eh.e_ident[1] = 'X';
	refused(-ENOEXEC, "not an ELF");
}

Test(boot_elf, refuses_bad_program_header_tables)
{
	im.eh.e_phentsize = 32;
	refused(-ENOEXEC, "program headers");
	image_init(&im);
	im.eh.e_phnum = 0;
	refused(-ENOEXEC, "program headers");
	image_init(&im);
	im.eh.e_phnum = 65;
	refused(-ENOEXEC, "program headers");
	image_init(&im);
	im.eh.e_phoff = UINT64_MAX - 8;
	refused(-ENOEXEC, "program headers");
	image_init(&im);
	im.ph[0].p_type = im.ph[1].p_type = PT_NULL;
	refused(-ENOEXEC, "PT_LOAD");
}

Test(boot_elf, refuses_sizes_that_do_not_fit)
{
	im.ph[1].p_filesz = IMAGE_BSS_LEN + 1;
	im.ph[1].p_offset = 0;
	refused(-ENOEXEC, "more bytes in the file");
	image_init(&im);
	im.ph[1].p_memsz = UINT64_MAX;
	refused(-ENOEXEC, "wrap");
	image_init(&im);
	im.ph[1].p_paddr = UINT64_MAX - 4;
	refused(-ENOEXEC, "wrap");
	image_init(&im);
	im.ph[1].p_offset = UINT64_MAX - 4;
	refused(-ENOEXEC, "cut");
	image_init(&im);
	im.ph[1].p_filesz = UINT64_MAX;
	refused(-ENOEXEC, "cut");
	image_init(&im);
	im.ph[1].p_memsz = 1ull << 40;
	refused(-ENOEXEC, "devices begin");
	image_init(&im);
	im.ph[1].p_memsz = IMAGE_MIB << 20;
	refused(-ENOMEM, "64 MiB");
}

Test(boot_elf, refuses_segments_in_the_wrong_place)
{
	im.ph[1].p_paddr = LAYOUT_ZERO_PAGE;
	refused(-ENOEXEC, "boot structures");
	image_init(&im);
	im.ph[1].p_paddr = LAYOUT_HIGH_START - 1;
	refused(-ENOEXEC, "boot structures");
	image_init(&im);
	im.ph[1].p_paddr = IMAGE_TEXT + IMAGE_SEG_LEN - 1;
	refused(-ENOEXEC, "overlap");
	image_init(&im);
	im.ph[1].p_paddr = IMAGE_TEXT - IMAGE_BSS_LEN + 1;
	refused(-ENOEXEC, "overlap");
	image_init(&im);
	im.ph[1].p_paddr = (IMAGE_MIB << 20) - IMAGE_BSS_LEN;
	refused(-ENOMEM, "generation id");
	image_init(&im);
	im.ph[1].p_paddr = LAYOUT_IOAPIC;
	refused(-ENOEXEC, "devices begin");
}

Test(boot_elf, accepts_segments_that_touch)
{
	struct boot_elf elf;
	struct err err;

	im.ph[1].p_paddr = IMAGE_TEXT + IMAGE_SEG_LEN;
	cr_assert_eq(parse(&elf, &err), 0, "%s", err.msg);
	im.ph[1].p_paddr = (IMAGE_MIB << 20) - GMEM_PAGE - IMAGE_BSS_LEN;
	cr_assert_eq(parse(&elf, &err), 0, "%s", err.msg);
}

Test(boot_elf, refuses_too_many_segments)
{
	Elf64_Phdr ph[BOOT_ELF_MAX_SEGMENTS + 1];

	for (unsigned i = 0; i <= BOOT_ELF_MAX_SEGMENTS; i++)
		ph[i] = im.ph[0];
	im.eh.e_phnum = BOOT_ELF_MAX_SEGMENTS + 1;
	im.eh.e_phoff = offsetof(struct image, data);
	memcpy(im.data, ph, sizeof(ph));
	refused(-ENOEXEC, "segments");
}

Test(boot_elf, refuses_broken_notes)
{
	uint32_t entry = (uint32_t)IMAGE_PVH;
	Elf64_Nhdr *nh = (Elf64_Nhdr *)(void *)im.notes;
	struct boot_elf elf;
	struct err err;

	image_note(&im, "Xen", 18, &entry, 2);
	refused(-ENOEXEC, "PVH note of 2");
	image_init(&im);
	image_note_pvh(&im);
	nh->n_descsz = 0xffffffff;
	refused(-ENOEXEC, "note runs over");
	image_init(&im);
	image_note_pvh(&im);
	nh->n_namesz = 0xffffffff;
	refused(-ENOEXEC, "note runs over");
	image_init(&im);
	im.ph[2].p_filesz = sizeof(im) - IMAGE_NOTES + 1;
	refused(-ENOEXEC, "cut");
	image_init(&im);
	image_note(&im, "Xen", 18, &entry, 4);
	cr_assert_eq(parse(&elf, &err), 0, "32-bit form: %s", err.msg);
	cr_assert_eq(elf.pvh_entry, IMAGE_PVH);
}

/* Any one byte of the headers may be anything: an error with a text or a plan that fits, never a fault. */
Test(boot_elf, survives_each_header_byte)
{
	static const uint8_t values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
	const size_t heads = offsetof(struct image, head_pad);
	struct boot_elf elf;
	struct err err;

	image_note_linux(&im);
	image_note_pvh(&im);
	for (size_t i = 0; i < heads + im.ph[2].p_filesz; i++) {
		uint8_t *p = (uint8_t *)&im + (i < heads ? i : i - heads + IMAGE_NOTES), was = *p;

		for (unsigned k = 0; k < ARRAY_LEN(values); k++) {
			char path[64];
			own_fd int fd = -1;

			*p = values[k];
			fd = image_file(&im, sizeof(im), path);
			if (parse(&elf, &err) == 0)
				(void)!boot_elf_load(&elf, fd, &mem, &err); /* either is right */
			else
				cr_assert(err.msg[0] && err.code < 0);
		}
		*p = was;
	}
}
