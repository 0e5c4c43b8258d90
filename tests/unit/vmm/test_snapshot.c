/* SPDX-License-Identifier: Apache-2.0 */
/* What the directory of a snapshot promises: all parts or none, and every wrong part refused by name. */
#include "vmm/snapshot.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RAM (4u << 20)

static char top[64], dir[96], image[96];
static struct gmem mem;
static struct snapshot_head head;
static struct snapshot_disk disk[2];

static int new_part(const char *name)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	cr_assert_geq(fd, 0);
	return fd;
}

static void write_snapshot(void)
{
	struct snapshot_out out = { .nr = 3, .name = { "state", "memory", "disk1" } };
	struct state_buf buf = { 0 };
	struct err err = { 0 };

	(void)mkdir(dir, 0700);
	for (unsigned i = 0; i < out.nr; i++)
		out.fd[i] = new_part(out.name[i]);
	snapshot_put_head(&buf, &head, disk);
	cr_assert_eq(buf.err, 0);
	cr_assert_eq(snapshot_put(&out, "state", buf.p, buf.len, &err), 0);
	cr_assert_eq(snapshot_put_memory(&out, &mem, head.id, &err), 0, "%s", err.msg);
	cr_assert_eq(ftruncate(out.fd[2], (off_t)disk[1].size), 0);
	cr_assert_eq(snapshot_part(&out, "disk1", &err), out.fd[2]);
	cr_assert_eq(snapshot_seal(out.fd[2], disk[1].size, head.id, &err), 0);
	for (unsigned i = 0; i < out.nr; i++)
		close(out.fd[i]);
	state_buf_free(&buf);
}

static void setup(void)
{
	struct err err = { 0 };
	uint8_t page[GMEM_PAGE];
	int fd;

	snprintf(top, sizeof(top), "/tmp/thawbox-test-XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	snprintf(dir, sizeof(dir), "%s/snap", top);
	snprintf(image, sizeof(image), "%s/root.img", top);
	cr_assert_eq(gmem_open(&mem, RAM, 0xd0000000, 0x100000000, -1), 0);
	memset(page, 0x5a, sizeof(page));
	cr_assert_eq(gmem_write(&mem, gpa(GMEM_PAGE * 3), page, sizeof(page)), 0);
	cr_assert_eq(gmem_write(&mem, gpa(RAM - GMEM_PAGE), page, sizeof(page)), 0);
	head = (struct snapshot_head){ .memory_size = RAM, .nr_vcpus = 1, .nr_disks = 2 };
	memset(head.id, 7, sizeof(head.id));
	cpu_fingerprint((char *)head.fingerprint);
	fd = open(image, O_RDWR | O_CREAT, 0600);
	cr_assert_eq(pwrite(fd, page, sizeof(page), 0), (ssize_t)sizeof(page));
	disk[0] = (struct snapshot_disk){ .readonly = 1 };
	snprintf((char *)disk[0].path, sizeof(disk[0].path), "%s", image);
	cr_assert_eq(snapshot_probe(fd, &disk[0], &err), 0);
	close(fd);
	disk[1] = (struct snapshot_disk){ .size = 1u << 20 };
	write_snapshot();
}

static void teardown(void)
{
	char command[128];

	gmem_close(&mem);
	snprintf(command, sizeof(command), "rm -rf %s", top);
	cr_assert_eq(system(command), 0);
}

TestSuite(snapshot, .init = setup, .fini = teardown);

static void refused(const char *part)
{
	struct snapshot snap;
	struct err err = { 0 };

	cr_assert_lt(snapshot_open(&snap, dir, &err), 0);
	cr_assert_not_null(strstr(err.msg, part), "'%s' does not name %s", err.msg, part);
	cr_assert_neq(err.remedy[0], '\0', "no remedy for '%s'", err.msg);
	cr_assert_eq(snap.memory_fd, -1);
}

static void change(const char *name, off_t at, uint8_t value)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR);
	cr_assert_eq(pwrite(fd, &value, 1, at), 1);
	close(fd);
}

Test(snapshot, opens_and_maps)
{
	struct snapshot snap;
	struct err err = { 0 };
	struct gmem copy;
	uint8_t a[GMEM_PAGE], b[GMEM_PAGE];

	cr_assert_eq(snapshot_open(&snap, dir, &err), 0, "%s", err.msg);
	cr_assert_eq(gmem_open(&copy, RAM, 0xd0000000, 0x100000000, snap.memory_fd), 0);
	for (uint64_t at = 0; at < RAM; at += GMEM_PAGE) {
		cr_assert_eq(gmem_read(&mem, gpa(at), a, sizeof(a)), 0);
		cr_assert_eq(gmem_read(&copy, gpa(at), b, sizeof(b)), 0);
		cr_assert_eq(memcmp(a, b, sizeof(a)), 0, "page %llu",
		             (unsigned long long)at / GMEM_PAGE);
	}
	gmem_close(&copy);
	snapshot_close(&snap);
}

Test(snapshot, memory_is_sparse)
{
	char path[160];
	struct stat st;

	snprintf(path, sizeof(path), "%s/memory", dir);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, RAM + GMEM_PAGE);
	cr_assert_leq(st.st_blocks * 512, 8 * GMEM_PAGE);
}

Test(snapshot, every_flipped_byte_of_state_is_refused)
{
	char path[160];
	struct stat st;

	snprintf(path, sizeof(path), "%s/state", dir);
	cr_assert_eq(stat(path, &st), 0);
	for (off_t at = 0; at < st.st_size; at++) {
		uint8_t old;
		int fd = open(path, O_RDWR);

		cr_assert_eq(pread(fd, &old, 1, at), 1);
		close(fd);
		change("state", at, (uint8_t)(old ^ 0x11));
		refused("state");
		change("state", at, old);
	}
}

Test(snapshot, cut_parts)
{
	char path[160];

	snprintf(path, sizeof(path), "%s/memory", dir);
	cr_assert_eq(truncate(path, RAM), 0);
	refused("memory");
	cr_assert_eq(truncate(path, RAM + GMEM_PAGE), 0);
	refused("memory");
}

Test(snapshot, disk_of_another_snapshot)
{
	change("disk1", (off_t)disk[1].size + 8, 9);
	refused("disk1");
}

Test(snapshot, changed_image)
{
	int fd = open(image, O_RDWR);

	cr_assert_eq(pwrite(fd, "x", 1, 100), 1);
	close(fd);
	refused("root.img");
}

Test(snapshot, missing_image)
{
	cr_assert_eq(unlink(image), 0);
	refused("root.img");
}

Test(snapshot, foreign_cpu)
{
	head.fingerprint[0] ^= 1;
	write_snapshot();
	refused("CPU");
}

Test(snapshot, part_that_did_not_come)
{
	struct snapshot_out out = { .nr = 1, .name = { "state" }, .fd = { 0 } };
	struct err err = { 0 };

	cr_assert_eq(snapshot_part(&out, "memory", &err), -EINVAL);
	cr_assert_not_null(strstr(err.msg, "memory"));
	cr_assert_eq(snapshot_put_memory(&out, &mem, head.id, &err), -EINVAL);
}

Test(snapshot, a_link_is_no_part)
{
	char from[160], to[160];

	for (unsigned i = 0; i < 3; i++) {
		const char *name = ((const char *[]){ "state", "memory", "disk1" })[i];

		snprintf(from, sizeof(from), "%s/%s", dir, name);
		snprintf(to, sizeof(to), "%s/real", dir);
		cr_assert_eq(rename(from, to), 0);
		cr_assert_eq(symlink("real", from), 0);
		refused(name);
		cr_assert_eq(rename(to, from), 0);
	}
}
