/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox boot: any kernel and disks, with the serial console on the terminal. */
#include "api/cmd.h"
#include "api/paths.h"
#include "core/own.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#define ESCAPE    0x1d /* Ctrl-] */
#define BOOT_MS   60000
#define DISKS_MAX 8

static const char help[] =
	"The machine has a serial console, virtio disks and a virtio socket, no network and no "
	"PCI. The\n"
	"console is the terminal, in raw mode: Ctrl-] x ends the machine, Ctrl-] Ctrl-] sends "
	"Ctrl-].\n"
	"Disks are /dev/vda, /dev/vdb, ... in the order given; PATH:ro is read-only, PATH:cow "
	"keeps\n"
	"what the guest writes out of the file, and forgets it.\n"
	"\n"
	"Examples:\n"
	"  thawbox boot --disk root.img:ro --disk scratch.img:cow --cmdline 'init=/bin/sh'\n"
	"  thawbox boot --kernel vmlinux --memory 1024 --disk debian.img --vsock /tmp/vm.sock\n"
	"\n"
	"Exit: 0 after shutdown, reboot or Ctrl-] x; 1 when the guest broke down; 2 usage; 3 host "
	"not\n"
	"ready; 125 the monitor was lost.\n";

struct boot_opts {
	const char *kernel, *symbols, *cmdline, *vsock;
	struct arg_list disks;
	uint64_t memory_mb, vcpus;
	bool verbose;
};

static int disk_json(const char *text, json_t *disks, struct err *err)
{
	const char *colon = strrchr(text, ':');
	bool ro = colon && !strcmp(colon, ":ro"), cow = colon && !strcmp(colon, ":cow");
	size_t len = ro || cow ? (size_t)(colon - text) : strlen(text);
	own_free char *name = strndup(text, len);
	char path[PATHS_MAX];

	if (!name || !realpath(name, path))
		return err_set(err, -errno, "--disk %s: %s", text, strerror(errno));
	if (json_array_append_new(disks, json_pack("{s:s, s:b, s:b}", "path", path, "readonly", ro,
	                                           "overlay", cow)))
		return err_set(err, -EINVAL, "--disk %s: not UTF-8", text);
	return 0;
}

static int boot_json(const struct boot_opts *o, json_t **line, struct err *err)
{
	char kernel[PATHS_MAX], symbols[PATHS_MAX];
	json_t *disks = json_array();
	int rc = 0;

	if (o->kernel && !realpath(o->kernel, kernel))
		rc = err_set(err, -errno, "--kernel %s: %s", o->kernel, strerror(errno));
	else if (!o->kernel)
		rc = paths_asset("kernel", "vmlinux", kernel, err);
	for (unsigned i = 0; !rc && i < o->disks.nr; i++)
		rc = disk_json(o->disks.at[i], disks, err);
	*line = rc ? NULL
	           : json_pack("{s:s, s:s, s:s, s:I, s:I, s:O, s:s}", "cmd", "boot", "kernel",
	                       kernel, "cmdline", o->cmdline, "memory_mb", (json_int_t)o->memory_mb,
	                       "vcpus", (json_int_t)o->vcpus, "disks", disks, "serial", "fd");
	json_decref(disks);
	if (!rc && o->symbols && !realpath(o->symbols, symbols))
		rc = err_set(err, -errno, "--symbols %s: %s", o->symbols, strerror(errno));
	if (!rc && o->symbols)
		json_object_set_new(*line, "symbols", json_string(symbols));
	if (!rc && o->vsock)
		json_object_set_new(*line, "vsock", json_string(o->vsock));
	return rc;
}

/* Raw mode while the guest has the terminal. */
struct tty {
	bool raw;
	struct termios before;
};

static void tty_open(struct tty *tty)
{
	struct termios raw;

	tty->raw = isatty(0) && !tcgetattr(0, &tty->before);
	if (!tty->raw)
		return;
	raw = tty->before;
	cfmakeraw(&raw);
	tty->raw = !tcsetattr(0, TCSANOW, &raw);
}

static void tty_close(struct tty *tty)
{
	if (tty->raw)
		(void)tcsetattr(0, TCSANOW, &tty->before); /* nothing better can be done */
	tty->raw = false;
}

/* Takes the escape out of what was typed: bytes for the guest, or -1: end. */
static ssize_t take_escape(char *buf, ssize_t n, bool *escaped)
{
	ssize_t out = 0;

	for (ssize_t i = 0; i < n; i++) {
		if (*escaped) {
			*escaped = false;
			if (buf[i] == 'x' || buf[i] == 'X')
				return -1;
			if (buf[i] != ESCAPE)
				buf[out++] = ESCAPE;
			buf[out++] = buf[i];
		} else if (buf[i] == ESCAPE) {
			*escaped = true;
		} else {
			buf[out++] = buf[i];
		}
	}
	return out;
}

struct terminal {
	struct sandbox *sb;
	int serial; /* owned by the caller; -1 when it has ended */
	bool raw, stdin_open, escaped;
};

/* What was typed goes to the guest. 1: the user has had enough. */
static int on_typed(struct terminal *t)
{
	char buf[2048]; /* an escape can add a byte to each, never more than that in all */
	ssize_t n = read(0, buf, sizeof(buf) / 2);

	if (n <= 0) {
		t->stdin_open = false; /* the console goes on without input */
		return 0;
	}
	n = t->raw ? take_escape(buf, n, &t->escaped) : n;
	if (n < 0)
		return 1;
	/* A guest that does not read its console loses what is typed, as on a real line. */
	if (n && send(t->serial, buf, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE)
		t->stdin_open = false;
	return 0;
}

static void on_printed(struct terminal *t)
{
	char buf[4096];
	ssize_t n = read(t->serial, buf, sizeof(buf));

	if (n > 0)
		cmd_write(1, buf, (size_t)n);
	else if (n == 0 || errno != EINTR)
		t->serial = -1;
}

/* Until the guest or the user ends it: 0: the user did. */
static int follow(struct terminal *t, struct err *err)
{
	for (;;) {
		struct pollfd fds[2] = { { .fd = t->serial, .events = POLLIN },
			                 { .fd = t->stdin_open ? 0 : -1, .events = POLLIN } };
		int rc = sandbox_wait(t->sb, NULL, 0, fds, ARRAY_LEN(fds), -1, err);

		if (rc < 0)
			return rc;
		if (fds[0].revents)
			on_printed(t);
		if (fds[1].revents && on_typed(t))
			return 0;
	}
}

/* How a guest that ended by itself ended. */
static int exit_code(const struct err *err)
{
	static const char *const in_order[] = { "lost: shutdown", "lost: reboot",
		                                "lost: triple-fault" };
	static const char *const broken[] = { "lost: kvm-error", "lost: guest-panic" };

	if (err->code == -EINTR)
		return EXIT_INTERRUPTED;
	for (size_t i = 0; i < ARRAY_LEN(in_order); i++)
		if (strstr(err->msg, in_order[i])) {
			cmd_note("the guest has ended: %s", strstr(err->msg, "lost: ") + 6);
			return EXIT_OK;
		}
	for (size_t i = 0; i < ARRAY_LEN(broken); i++)
		if (strstr(err->msg, broken[i]))
			return cmd_fail(EXIT_CELL, err);
	return cmd_fail(EXIT_LOST, err);
}

static int run(struct sandbox *sb, json_t *line)
{
	own_fd int ours = -1, theirs = -1;
	struct terminal t = { .sb = sb, .stdin_open = true };
	struct tty tty = { 0 };
	struct err err = { 0 };
	int sv[2], rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv)) {
		json_decref(line);
		(void)err_set(&err, -errno, "socket pair: %s", strerror(errno));
		return cmd_fail(EXIT_NOT_READY, &err);
	}
	ours = sv[0];
	t.serial = ours;
	theirs = sv[1];
	if (sandbox_call(sb, line, theirs, BOOT_MS, NULL, &err))
		return cmd_fail(EXIT_NOT_READY, &err);
	close(fd_take(&theirs));
	tty_open(&tty);
	t.raw = tty.raw;
	if (t.raw)
		fprintf(stderr, "thawbox: Ctrl-] x ends the machine\r\n");
	rc = follow(&t, &err);
	tty_close(&tty);
	return rc ? exit_code(&err) : EXIT_OK;
}

static int boot_main(int argc, char **argv)
{
	struct boot_opts o = { .cmdline = "", .memory_mb = 512, .vcpus = 1 };
	struct sandbox_spec spec = { 0 };
	const struct arg args[] = {
		{ "kernel", 'k', ARG_TEXT, &o.kernel, "PATH",
		  "vmlinux or bzImage (the one built here)" },
		{ "symbols", 's', ARG_TEXT, &o.symbols, "PATH", "its symbols file, for snapshots" },
		{ "cmdline", 'a', ARG_TEXT, &o.cmdline, "TEXT",
		  "added to the kernel's command line" },
		{ "disk", 'd', ARG_LIST, &o.disks, "PATH[:ro|:cow]", "a disk; may be repeated" },
		{ "memory", 'm', ARG_NUMBER, &o.memory_mb, "MB", "memory (512)" },
		{ "vcpus", 'n', ARG_NUMBER, &o.vcpus, "N", "virtual processors (1)" },
		{ "vsock", '\0', ARG_TEXT, &o.vsock, "PATH",
		  "Unix socket to reach guest ports by" },
		{ "verbose", 'v', ARG_FLAG, &o.verbose, NULL, "show the monitor's log" },
		CMD_ISOLATION_ARGS(spec.isolation),
	};
	struct arg_rest rest;
	struct sandbox sb;
	struct err err = { 0 };
	json_t *line;
	int code = cmd_parse(&cmd_boot, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr)
		return cmd_usage(&cmd_boot, "%s: it takes options only", rest.at[0]);
	if (o.disks.nr > DISKS_MAX)
		return cmd_usage(&cmd_boot, "more than %d disks", DISKS_MAX);
	if (boot_json(&o, &line, &err)) {
		json_decref(line);
		return cmd_fail(EXIT_USAGE, &err);
	}
	spec.verbose = o.verbose;
	spec.intr_fd = cmd_intr_open(&err);
	if (spec.intr_fd < 0 || sandbox_start(&sb, &spec, &err)) {
		json_decref(line);
		return cmd_fail(EXIT_NOT_READY, &err);
	}
	code = run(&sb, line);
	sandbox_close(&sb);
	return code;
}

const struct cmd cmd_boot = { "boot", "[options]",
	                      "Boot any kernel with its console on the terminal.", help,
	                      boot_main };
