/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/boot_elf.h"

#include "core/own.h"
#include "vmm/layout.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MAX_PHDRS      64u
#define MAX_NOTE_BYTES 65536u

#define XEN_ELFNOTE_PHYS32_ENTRY 18u

typedef unsigned long long ull; /* for messages */

int boot_pread(int fd, void *buf, size_t n, uint64_t off)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = pread(fd, (char *)buf + done, n - done, (off_t)(off + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -ENODATA;
		done += (size_t)got;
	}
	return 0;
}

/* [off, off + len) within [0, size), without a sum that could wrap. */
static bool is_within(uint64_t off, uint64_t len, uint64_t size)
{
	return off <= size && len <= size - off;
}

static int check_header(const Elf64_Ehdr *eh, uint64_t size, struct err *err)
{
	if (memcmp(eh->e_ident, ELFMAG, SELFMAG) != 0)
		return err_set(err, -ENOEXEC, "not an ELF file");
	if (eh->e_ident[EI_CLASS] != ELFCLASS64 || eh->e_ident[EI_DATA] != ELFDATA2LSB ||
	    eh->e_machine != EM_X86_64)
		return err_set(err, -ENOEXEC,
		               "an ELF of class %u, data %u, machine %u; want x86-64 (2, 1, 62)",
		               eh->e_ident[EI_CLASS], eh->e_ident[EI_DATA], eh->e_machine);
	if (eh->e_type != ET_EXEC)
		return err_set(err, -ENOEXEC, "an ELF of type %u; want an executable (2)",
		               eh->e_type);
	if (eh->e_phentsize != sizeof(Elf64_Phdr) || eh->e_phnum == 0 || eh->e_phnum > MAX_PHDRS)
		return err_set(err, -ENOEXEC, "%u program headers of %u bytes; want 1 to %u of %zu",
		               eh->e_phnum, eh->e_phentsize, MAX_PHDRS, sizeof(Elf64_Phdr));
	if (!is_within(eh->e_phoff, (uint64_t)eh->e_phnum * sizeof(Elf64_Phdr), size))
		return err_set(err, -ENOEXEC, "the file is cut in its program headers");
	return 0;
}

static int take_segment(struct boot_elf *elf, const Elf64_Phdr *ph, struct err *err)
{
	uint64_t end;

	if (ph->p_filesz > ph->p_memsz)
		return err_set(err, -ENOEXEC,
		               "segment at %#llx: more bytes in the file than in memory",
		               (ull)ph->p_paddr);
	if (__builtin_add_overflow(ph->p_paddr, ph->p_memsz, &end))
		return err_set(err, -ENOEXEC, "segment at %#llx: %#llx bytes wrap around",
		               (ull)ph->p_paddr, (ull)ph->p_memsz);
	if (ph->p_memsz == 0)
		return 0;
	if (elf->nr_segments == BOOT_ELF_MAX_SEGMENTS)
		return err_set(err, -ENOEXEC, "more than %u segments", BOOT_ELF_MAX_SEGMENTS);
	elf->segment[elf->nr_segments++] = (struct boot_segment){
		.gpa = ph->p_paddr,
		.mem_len = ph->p_memsz,
		.file_off = ph->p_offset,
		.file_len = ph->p_filesz,
		.exec = ph->p_flags & PF_X,
	};
	if (end > elf->end)
		elf->end = end;
	return 0;
}

static bool is_owner(const uint8_t *name, uint32_t name_len, const char *owner)
{
	return name_len == strlen(owner) + 1 && memcmp(name, owner, name_len) == 0;
}

static int take_note(struct boot_elf *elf, const Elf64_Nhdr *nh, const uint8_t *name,
                     const uint8_t *desc, struct err *err)
{
	if (is_owner(name, nh->n_namesz, "Linux"))
		elf->is_linux = true;
	if (!is_owner(name, nh->n_namesz, "Xen") || nh->n_type != XEN_ELFNOTE_PHYS32_ENTRY)
		return 0;
	if (nh->n_descsz != 4 && nh->n_descsz != 8)
		return err_set(err, -ENOEXEC, "PVH note of %u bytes; want 4 or 8", nh->n_descsz);
	elf->pvh_entry = 0;
	memcpy(&elf->pvh_entry, desc, nh->n_descsz);
	return 0;
}

static size_t round_up(size_t n, size_t align)
{
	return (n + align - 1) / align * align;
}

static int scan_notes(struct boot_elf *elf, const uint8_t *p, size_t len, size_t align,
                      struct err *err)
{
	while (len >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr nh;
		size_t desc_off, next;
		int ret;

		memcpy(&nh, p, sizeof(nh));
		desc_off =
			round_up(sizeof(nh) + nh.n_namesz, align); /* 32-bit sizes: no overflow */
		if (!is_within(desc_off, nh.n_descsz, len))
			return err_set(err, -ENOEXEC, "a note runs over the end of its segment");
		ret = take_note(elf, &nh, p + sizeof(nh), p + desc_off, err);
		if (ret < 0)
			return ret;
		next = round_up(desc_off + nh.n_descsz, align);
		if (next > len) /* the last note need not be padded */
			break;
		p += next;
		len -= next;
	}
	return 0;
}

static int read_notes(struct boot_elf *elf, int fd, const Elf64_Phdr *ph, struct err *err)
{
	own_free uint8_t *notes = NULL;
	int ret;

	if (ph->p_filesz > MAX_NOTE_BYTES)
		return err_set(err, -ENOEXEC, "%llu bytes of notes; want at most %u",
		               (ull)ph->p_filesz, MAX_NOTE_BYTES);
	notes = malloc(ph->p_filesz + 1); /* never malloc(0) */
	if (!notes)
		return err_set(err, -ENOMEM, "out of memory");
	ret = boot_pread(fd, notes, ph->p_filesz, ph->p_offset);
	if (ret < 0)
		return err_set(err, ret, "read notes: %s", strerror(-ret));
	return scan_notes(elf, notes, ph->p_filesz, ph->p_align == 8 ? 8 : 4, err);
}

static int take_phdr(struct boot_elf *elf, int fd, const Elf64_Phdr *ph, uint64_t size,
                     struct err *err)
{
	if (ph->p_type != PT_LOAD && ph->p_type != PT_NOTE)
		return 0;
	if (!is_within(ph->p_offset, ph->p_filesz, size))
		return err_set(err, -ENOEXEC,
		               "segment at %#llx: %#llx bytes at file offset %#llx, but the file "
		               "has %#llx: it is cut",
		               (ull)ph->p_paddr, (ull)ph->p_filesz, (ull)ph->p_offset, (ull)size);
	return ph->p_type == PT_LOAD ? take_segment(elf, ph, err) : read_notes(elf, fd, ph, err);
}

int boot_elf_read(int fd, uint64_t size, struct boot_elf *elf, struct err *err)
{
	Elf64_Phdr ph[MAX_PHDRS];
	Elf64_Ehdr eh;
	int ret;

	*elf = (struct boot_elf){ 0 };
	ret = size < sizeof(eh) ? -ENODATA : boot_pread(fd, &eh, sizeof(eh), 0);
	if (ret == -ENODATA)
		return err_set(err, -ENOEXEC, "the file is cut in its ELF header");
	if (ret < 0)
		return err_set(err, ret, "read: %s", strerror(-ret));
	ret = check_header(&eh, size, err);
	if (ret < 0)
		return ret;
	ret = boot_pread(fd, ph, eh.e_phnum * sizeof(ph[0]), eh.e_phoff);
	if (ret < 0)
		return err_set(err, ret, "read program headers: %s", strerror(-ret));
	elf->entry = eh.e_entry;
	for (unsigned i = 0; i < eh.e_phnum; i++) {
		ret = take_phdr(elf, fd, &ph[i], size, err);
		if (ret < 0)
			return ret;
	}
	if (elf->nr_segments == 0)
		return err_set(err, -ENOEXEC, "nothing to load: no PT_LOAD segment");
	return 0;
}

bool boot_elf_is_code(const struct boot_elf *elf, uint64_t addr)
{
	for (unsigned i = 0; i < elf->nr_segments; i++) {
		const struct boot_segment *s = &elf->segment[i];

		if (s->exec && addr >= s->gpa && addr - s->gpa < s->file_len)
			return true;
	}
	return false;
}

static bool is_overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b ? b - a < a_len : a - b < b_len;
}

static int fit_segment(const struct boot_elf *elf, unsigned i, const struct gmem *mem,
                       uint64_t vmgenid, struct err *err)
{
	const struct boot_segment *s = &elf->segment[i];
	struct gview view;

	if (s->gpa < LAYOUT_HIGH_START)
		return err_set(err, -ENOEXEC,
		               "segment at %#llx lies over the boot structures, below %#llx",
		               (ull)s->gpa, LAYOUT_HIGH_START);
	if (!is_within(s->gpa, s->mem_len, LAYOUT_HOLE_START))
		return err_set(err, -ENOEXEC,
		               "segment at %#llx, %#llx bytes: beyond %#llx, where devices begin",
		               (ull)s->gpa, (ull)s->mem_len, LAYOUT_HOLE_START);
	if (gmem_view(mem, gpa(s->gpa), s->mem_len, &view) < 0) {
		(void)err_set(err, -ENOMEM,
		              "it ends at %#llx, but the guest has %llu MiB of memory",
		              (ull)elf->end, (ull)mem->size >> 20);
		return err_remedy(err, "give the guest more memory: %llu MiB hold the kernel alone",
		                  ((ull)elf->end >> 20) + 1);
	}
	if (vmgenid && is_overlap(s->gpa, s->mem_len, vmgenid, GMEM_PAGE)) {
		(void)err_set(err, -ENOMEM,
		              "segment at %#llx lies over the generation id page %#llx",
		              (ull)s->gpa, (ull)vmgenid);
		return err_remedy(err, "give the guest more memory");
	}
	for (unsigned k = 0; k < i; k++)
		if (is_overlap(s->gpa, s->mem_len, elf->segment[k].gpa, elf->segment[k].mem_len))
			return err_set(err, -ENOEXEC, "segments at %#llx and %#llx overlap",
			               (ull)elf->segment[k].gpa, (ull)s->gpa);
	return 0;
}

int boot_elf_fit(const struct boot_elf *elf, const struct gmem *mem, uint64_t vmgenid,
                 struct err *err)
{
	for (unsigned i = 0; i < elf->nr_segments; i++) {
		int ret = fit_segment(elf, i, mem, vmgenid, err);

		if (ret < 0)
			return ret;
	}
	return 0;
}

int boot_elf_load(const struct boot_elf *elf, int fd, const struct gmem *mem, struct err *err)
{
	for (unsigned i = 0; i < elf->nr_segments; i++) {
		const struct boot_segment *s = &elf->segment[i];
		struct gview view;
		struct iovec to;
		int ret = gmem_view(mem, gpa(s->gpa), s->mem_len, &view);

		if (ret == 0)
			ret = gview_iov(&view, 0, s->file_len, &to);
		if (ret == 0)
			ret = boot_pread(fd, to.iov_base, to.iov_len, s->file_off);
		if (ret < 0)
			return err_set(err, ret, "read segment at %#llx: %s", (ull)s->gpa,
			               strerror(-ret));
	}
	return 0;
}
