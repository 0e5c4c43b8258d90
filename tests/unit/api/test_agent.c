/* SPDX-License-Identifier: Apache-2.0 */
#include "api/agent.h"
#include "tests/unit/api/fake_guest.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define SIZE (3 * FRAME_MAX + 12345)

static char dir[] = "/tmp/test_agent.XXXXXX";

static void make_dir(void)
{
	umask(022); /* what comes out has the mode the guest tells, less this */
	cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void)
{
	char cmd[64];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	cr_assert_eq(system(cmd), 0);
}

static char *path_in(const char *name, char out[64])
{
	snprintf(out, 64, "%s/%s", dir, name);
	return out;
}

static unsigned nr_files(void)
{
	char cmd[96];
	FILE *p;
	unsigned n = 99;

	snprintf(cmd, sizeof(cmd), "ls -A %s | wc -l", dir);
	p = popen(cmd, "r");
	cr_assert_eq(fscanf(p, "%u", &n), 1);
	pclose(p);
	return n;
}

TestSuite(agent, .init = make_dir, .fini = remove_dir, .timeout = 30);

Test(agent, file_goes_in_and_comes_out_unchanged)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	uint8_t *data = malloc(SIZE), *back = malloc(SIZE + 1);
	char in[64], out[64];
	struct stat st;
	int fd;

	for (size_t i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(i * 7 + i / 1000);
	fd = open(path_in("in put", in), O_RDWR | O_CREAT, 0600);
	cr_assert_eq(write(fd, data, SIZE), SIZE);
	cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
	fake_open(&fake, &sb);
	cr_assert_eq(agent_put(&sb, fd, "/home/user/\xc3\xa4 b", &err), 0, "%s", err.msg);
	cr_assert_str_eq(json_string_value(json_object_get(fake.last_request, "path")),
	                 "/home/user/\xc3\xa4 b");
	cr_assert_eq(json_integer_value(json_object_get(fake.last_request, "size")), SIZE);
	cr_assert(fake.file.len == SIZE && !memcmp(fake.file.p, data, SIZE));
	close(fd);
	cr_assert_eq(agent_get(&sb, "/x", path_in("out", out), &err), 0, "%s", err.msg);
	fd = open(out, O_RDONLY);
	cr_assert_eq(read(fd, back, SIZE + 1), SIZE);
	cr_assert_eq(memcmp(back, data, SIZE), 0);
	cr_assert(!fstat(fd, &st) && (st.st_mode & 0777) == 0640);
	cr_assert_eq(nr_files(), 2, "no temporary file is left");
	close(fd);
	free(data);
	free(back);
	fake_close(&fake, &sb);
}

Test(agent, empty_file)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	char out[64];
	struct stat st;
	int fd = open("/dev/null", O_RDONLY);

	fake_open(&fake, &sb);
	cr_assert_eq(agent_put(&sb, fd, "/x", &err), 0, "%s", err.msg);
	cr_assert_eq(fake.file.len, 0);
	cr_assert_eq(agent_get(&sb, "/x", path_in("out", out), &err), 0, "%s", err.msg);
	cr_assert(!stat(out, &st) && st.st_size == 0);
	close(fd);
	fake_close(&fake, &sb);
}

Test(agent, missing_guest_file_changes_nothing_here)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	char out[64];
	FILE *f = fopen(path_in("out", out), "w");

	fputs("old", f);
	fclose(f);
	fake_open(&fake, &sb);
	cr_assert_eq(agent_get(&sb, "/missing", out, &err), -ENOENT);
	cr_assert_str_eq(err.msg, "get /missing: FileNotFoundError: no such file");
	f = fopen(out, "r");
	cr_assert_eq(fgetc(f), 'o');
	fclose(f);
	cr_assert_eq(nr_files(), 1);
	fake_close(&fake, &sb);
}

Test(agent, put_that_the_guest_refuses_ends_early)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	char in[64];
	int fd = open(path_in("in", in), O_RDWR | O_CREAT, 0600);

	cr_assert_eq(ftruncate(fd, 64 << 20), 0);
	fake_open(&fake, &sb);
	cr_assert_eq(agent_put(&sb, fd, "/missing/x", &err), -ENOENT);
	cr_assert_not_null(strstr(err.msg, "FileNotFoundError"), "%s", err.msg);
	cr_assert_lt(lseek(fd, 0, SEEK_CUR), 8 << 20, "the rest was not even read");
	close(fd);
	fake_close(&fake, &sb);
}

static void collect(void *ctx, enum frame_type type, const void *data, size_t len)
{
	(void)type;
	if (bytes_append(ctx, data, len))
		abort();
}

Test(agent, command_gets_stdin_and_gives_its_exit_code)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	struct bytes got = { 0 };
	struct cell_sink sink = { .output = collect, .ctx = &got };
	char in[64], *text = malloc(2 << 20);
	int fd = open(path_in("in", in), O_RDWR | O_CREAT, 0600), status = -1;
	struct agent_exec exec = { .request = json_pack("{s:s}", "shell", "cat"), .in_fd = fd };

	memset(text, 'y', 2 << 20);
	cr_assert_eq(write(fd, text, 2 << 20), 2 << 20);
	cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
	fake_open(&fake, &sb);
	cr_assert_eq(agent_exec(&sb, &exec, &sink, &status, &err), 0, "%s", err.msg);
	cr_assert_eq(status, 7);
	cr_assert_eq(got.len, (2 << 20) + 4);
	cr_assert_eq(memcmp(got.p, text, 2 << 20), 0);
	bytes_free(&got);
	free(text);
	close(fd);
	fake_close(&fake, &sb);
}

Test(agent, command_has_a_deadline)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };
	struct cell_sink sink = { 0 };
	struct agent_exec exec = { .request = json_pack("{s:s}", "shell", "sleep"),
		                   .in_fd = -1,
		                   .timeout_ns = 200000000 };
	int status = -1;

	fake_open(&fake, &sb);
	fake.deaf = true;
	cr_assert_eq(agent_exec(&sb, &exec, &sink, &status, &err), 0, "%s", err.msg);
	cr_assert_eq(status, AGENT_TIMED_OUT);
	fake_close(&fake, &sb);
}

Test(agent, call_gives_up_in_time)
{
	struct fake fake;
	struct sandbox sb;
	struct err err = { 0 };

	fake_open(&fake, &sb);
	fake.deaf = true;
	cr_assert_eq(agent_call(&sb, json_pack("{s:s}", "op", "ping"), 100, NULL, &err),
	             -ETIMEDOUT);
	fake.deaf = false;
	cr_assert_eq(agent_call(&sb, json_pack("{s:s}", "op", "ping"), 5000, NULL, &err), 0);
	fake_close(&fake, &sb);
}
