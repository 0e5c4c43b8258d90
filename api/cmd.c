/* SPDX-License-Identifier: Apache-2.0 */
#include "api/cmd.h"

#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t cmd_start_ns;

static int intr_pipe[2] = { -1, -1 };

static void print_help(const struct cmd *cmd, const struct arg *args, size_t nr)
{
	printf("Usage: thawbox %s %s\n\n%s\n", cmd->name, cmd->usage, cmd->about);
	printf("\nOptions:\n");
	args_help(args, nr, stdout);
	printf("  -h, --help                   this text\n\n%s", cmd->help);
}

int cmd_parse(const struct cmd *cmd, const struct arg *args, size_t nr, int argc, char **argv,
              bool stop_at_operand, struct arg_rest *rest)
{
	struct arg all[32] = { 0 };
	struct err err = { 0 };
	bool help = false;

	BUG_ON(nr >= ARRAY_LEN(all));
	if (nr)
		memcpy(all, args, nr * sizeof(*args));
	all[nr] = (struct arg){ "help", 'h', ARG_FLAG, &help, NULL, NULL };
	if (args_parse(all, nr + 1, argc, argv, stop_at_operand, rest, &err))
		return cmd_usage(cmd, "%s", err.msg);
	if (!help)
		return -1;
	print_help(cmd, args, nr);
	return EXIT_OK;
}

int cmd_usage(const struct cmd *cmd, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "thawbox %s: ", cmd->name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nusage: thawbox %s %s\nsee `thawbox %s --help`\n", cmd->name, cmd->usage,
	        cmd->name);
	return EXIT_USAGE;
}

int cmd_fail(int code, const struct err *err)
{
	const char *red = cmd_has_colour(2) ? "\033[31m" : "", *off = *red ? "\033[0m" : "";
	struct err told = *err;

	err_hint(&told);
	fprintf(stderr, "%sthawbox: %s%s\n", red, told.msg, off);
	if (told.remedy[0])
		fprintf(stderr, "  remedy: %s\n", told.remedy);
	return code;
}

int cmd_exit_code(const struct sandbox *sb, const struct err *err)
{
	if (sb && sb->fail.code)
		return EXIT_NOT_READY;
	switch (err->code) {
	case -ECONNABORTED:
	case -ETIMEDOUT: /* a guest that does not answer is no better than one that is gone */
		return EXIT_LOST;
	case -EINTR:
		return EXIT_INTERRUPTED;
	default:
		return EXIT_CELL;
	}
}

void cmd_note(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "thawbox: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
}

static void on_signal(int sig)
{
	unsigned char byte = (unsigned char)sig;
	int keep = errno;
	ssize_t n = write(intr_pipe[1], &byte, 1);

	(void)n; /* a full pipe is readable already */
	errno = keep;
}

int cmd_intr_open(struct err *err)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction act = { .sa_handler = on_signal };

	if (intr_pipe[0] >= 0)
		return intr_pipe[0];
	if (pipe2(intr_pipe, O_CLOEXEC | O_NONBLOCK))
		return err_set(err, -errno, "pipe: %s", strerror(errno));
	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		if (sigaction(signals[i], &act, NULL))
			return err_set(err, -errno, "sigaction: %s", strerror(errno));
	return intr_pipe[0];
}

int cmd_intr_take(void)
{
	unsigned char byte[64];
	ssize_t n = read(intr_pipe[0], byte, sizeof(byte));

	return n > 0 ? byte[n - 1] : 0;
}

bool cmd_is_terminal(int fd)
{
	const char *term = getenv("TERM");

	return isatty(fd) && term && strcmp(term, "dumb") != 0;
}

bool cmd_has_colour(int fd)
{
	const char *no = getenv("NO_COLOR");

	return !(no && *no) && cmd_is_terminal(fd);
}

void cmd_write(int fd, const void *data, size_t len)
{
	const char *p = data;

	while (len) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n < 0) {
			if (fd != 2)
				fprintf(stderr, "thawbox: write: %s\n", strerror(errno));
			_exit(EXIT_CELL); /* the sandbox ends with this process */
		}
		p += n;
		len -= (size_t)n;
	}
}

void cmd_print_json(const json_t *json, bool indent)
{
	own_free char *text =
		json_dumps(json, JSON_REAL_PRECISION(9) | (indent ? JSON_INDENT(2) : JSON_COMPACT));

	if (!text) { /* memory, or a string that is not UTF-8: jansson tells neither */
		fprintf(stderr, "thawbox: the result cannot be written as JSON\n");
		_exit(EXIT_CELL);
	}
	cmd_write(1, text, strlen(text));
	cmd_write(1, "\n", 1);
}

int cmd_read_file(const char *path, size_t max, char **text, size_t *len, struct err *err)
{
	own_fd int opened = strcmp(path, "-") != 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	int fd = strcmp(path, "-") != 0 ? opened : 0;
	size_t cap = 64u << 10, got = 0;
	own_free char *buf = malloc(cap);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return err_set(err, -errno, "%s: %s", path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return err_set(err, -EISDIR, "%s: is a folder", path);
	while (buf) {
		ssize_t n = read(fd, buf + got, cap - got);
		char *more;

		if (n < 0)
			return err_set(err, -errno, "%s: %s", path, strerror(errno));
		got += (size_t)n;
		if (!n)
			break;
		if (got > max)
			return err_set(err, -EFBIG, "%s: over the limit of %zu MiB", path,
			               max >> 20);
		if (got < cap)
			continue;
		more = realloc(buf, cap * 2);
		if (!more)
			return err_set(err, -ENOMEM, "%s: no memory", path);
		buf = more;
		cap *= 2;
	}
	if (!buf)
		return err_set(err, -ENOMEM, "%s: no memory", path);
	*text = ptr_take(buf);
	*len = got;
	return 0;
}

json_t *cmd_env(const struct arg_list *list, struct err *err)
{
	json_t *env = json_object();

	for (unsigned i = 0; i < list->nr; i++) {
		const char *eq = strchr(list->at[i], '=');
		json_t *value = eq ? json_string(eq + 1) : NULL;
		own_free char *name = eq ? strndup(list->at[i], (size_t)(eq - list->at[i])) : NULL;

		/* json_object_set_new() takes the value also when it refuses the name. */
		if (!name || !*name || json_object_set_new(env, name, value)) {
			if (!name || !*name)
				json_decref(value);
			(void)err_set(err, -EINVAL, "--env '%s' is not NAME=VALUE in UTF-8",
			              list->at[i]);
			json_decref(env);
			return NULL;
		}
	}
	return env;
}

const char *cmd_age(int64_t seconds, char out[32])
{
	static const struct {
		const char *name;
		int64_t s, until; /* until so many seconds it is told in these */
	} units[] = { { "s", 1, 120 },
		      { "min", 60, 7200 },
		      { "h", 3600, INT64_C(48) * 3600 },
		      { "days", 86400, 0 } };
	unsigned u = 0;

	while (u + 1 < ARRAY_LEN(units) && seconds >= units[u].until)
		u++;
	if (seconds < 0)
		(void)snprintf(out, 32, "unknown");
	else
		(void)snprintf(out, 32, "%" PRId64 " %s", seconds / units[u].s, units[u].name);
	return out;
}

const char *cmd_bytes(uint64_t n, char out[32])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double v = (double)n;
	unsigned u = 0;

	for (; v >= 1024 && u + 1 < ARRAY_LEN(units); u++)
		v /= 1024;
	(void)snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", v, units[u]);
	return out;
}
