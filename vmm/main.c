/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox-vmm: one process, one microVM, driven over its control socket. */
#include "core/log.h"
#include "core/loop.h"
#include "vmm/clock.h"
#include "vmm/cpu.h"
#include "vmm/ctl.h"
#include "vmm/jail.h"
#include "vmm/kvm.h"
#include "vmm/seccomp.h"
#include "vmm/trace.h"
#include "vmm/zygote.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef THAWBOX_VERSION
#define THAWBOX_VERSION "0.1.0"
#endif

enum { EX_DONE = 0, EX_FAILED = 1, EX_BAD_USE = 2 };

static const char help[] =
	"Usage: thawbox-vmm --control-fd N | --control PATH [--zygote] [--log LEVEL]\n"
	"                   [--trace FILE] [--isolation LEVEL] [--require-isolation LEVEL]\n"
	"       thawbox-vmm --check | --fingerprint | --version\n"
	"\n"
	"Runs one microVM. The program that starts it talks to it over a stream socket, one JSON\n"
	"object a line (docs/protocol.md):\n"
	"\n"
	"  "
	"{\"cmd\":\"boot\",\"kernel\":\"vmlinux\",\"disks\":[{\"path\":\"root.img\",\"readonly\":"
	"true}],\"serial\":\"log\"}\n"
	"  {\"cmd\":\"thaw\",\"dir\":\"/var/lib/thawbox/templates/code-interpreter/current\"}\n"
	"  shell, standby (most of a thaw ahead of time), pause, resume, snapshot, workset, "
	"connect, stats, quit\n"
	"\n"
	"  --control-fd N   the socket is descriptor N, already connected\n"
	"  --control PATH   listen on this Unix socket and take one connection\n"
	"  --zygote         run none: fork one for each control socket that comes with a line\n"
	"                   {\"cmd\":\"spawn\"}, after {\"cmd\":\"open\",\"dir\":...}\n"
	"  --trace FILE     where the time goes up to the first result, as trace JSON for\n"
	"                   ui.perfetto.dev and chrome://tracing; a zygote adds .PID\n"
	"  --log LEVEL      error, warning (default), info or debug, on standard error\n"
	"  --isolation LEVEL            what is tried: full (default), user, vm, none\n"
	"  --require-isolation LEVEL    refuse to run a guest with less than that. none: nothing "
	"is\n"
	"                   asked for; vm: the VM, and a process without privileges; user: also a\n"
	"                   user of its own, no file and no network of the host; full: all layers\n"
	"                   (thawbox doctor --isolation)\n"
	"  --uid-base N     as root, a sandbox's user and group are N plus its pid (default\n"
	"                   1879048192)\n"
	"  --seccomp MODE   what a system call meets that the thread's role does not need: kill\n"
	"                   (default); trap, with a line on standard error, or log (the "
	"kernel's),\n"
	"                   to find out which; off, for measuring only, as with --isolation none\n"
	"  --no-io-uring    as on a host that forbids it: disks and sockets by poll, slower\n"
	"  --check          what this host's KVM offers, as JSON; exit 1 when something is "
	"missing\n"
	"  --fingerprint    the CPU that a snapshot made here is bound to\n"
	"\n"
	"Ends when the socket is closed. Exit status: 0 after quit or end of the socket, 1 when "
	"the\n"
	"machine could not be started (the reason is in the answer), 2 for wrong usage.\n";

static int check(void)
{
	json_t *report = kvm_report(), *each;
	int missing = 0;
	size_t i;

	json_array_foreach(report, i, each) missing |= !json_is_true(json_object_get(each, "ok"));
	json_dumpf(report, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(report);
	return missing ? EX_FAILED : EX_DONE;
}

static int fingerprint(void)
{
	char line[CPU_FINGERPRINT_MAX];

	cpu_fingerprint(line);
	puts(line);
	return EX_DONE;
}

static int usage(const char *why)
{
	fprintf(stderr, "thawbox-vmm: %s\nTry 'thawbox-vmm --help'.\n", why);
	return EX_BAD_USE;
}

static int level_of(const char *name)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };

	for (int i = 0; i < (int)ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return i;
	return -1;
}

static bool parse_level(const char *name, enum jail_level *level)
{
	int found = jail_level_of(name);

	*level = found < 0 ? JAIL_LEVEL_NONE : (enum jail_level)found;
	return found >= 0;
}

static int failed(const struct err *err)
{
	fprintf(stderr, "thawbox-vmm: %s\n%s%s%s", err->msg, err->remedy[0] ? "  remedy: " : "",
	        err->remedy, err->remedy[0] ? "\n" : "");
	return EX_FAILED;
}

static int begin_trace(const char *file, bool zygote, uint64_t start_ns, struct err *err)
{
	int ret = trace_open(file, zygote, err);

	if (ret == 0 && !zygote)
		trace_add(TRACE_BEGIN, "process set up", start_ns, 0);
	return ret;
}

static int serve(int fd, const char *path, bool zygote, uint64_t start_ns)
{
	struct err err = { 0 };

	if (path)
		fd = ctl_accept(path, &err);
	if (fd < 0)
		return failed(&err);
	return (zygote ? zygote_serve(fd) : ctl_serve(fd, NULL, start_ns)) < 0 ? EX_FAILED
	                                                                       : EX_DONE;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "control-fd", required_argument, NULL, 'f' },
		{ "control", required_argument, NULL, 'c' },
		{ "zygote", no_argument, NULL, 'z' },
		{ "isolation", required_argument, NULL, 'i' },
		{ "require-isolation", required_argument, NULL, 'r' },
		{ "uid-base", required_argument, NULL, 'u' },
		{ "seccomp", required_argument, NULL, 's' },
		{ "log", required_argument, NULL, 'l' },
		{ "trace", required_argument, NULL, 't' },
		{ "no-io-uring", no_argument, NULL, 'n' },
		{ "check", no_argument, NULL, 'k' },
		{ "fingerprint", no_argument, NULL, 'p' },
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	uint64_t start_ns = clock_mono_ns();
	struct jail_config isolation = { .most = JAIL_LEVEL_FULL, .uid_base = JAIL_UID_BASE };
	int fd = -1, opt, filter = -1, level = LOG_LVL_WARN;
	const char *path = NULL, *trace = NULL;
	struct err err = { 0 };
	bool zygote = false;
	char *end;

	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 'f':
			fd = (int)strtol(optarg, &end, 10);
			if (*end || fd < 0)
				return usage("--control-fd wants a number");
			break;
		case 'c':
			path = optarg;
			break;
		case 'z':
			zygote = true;
			break;
		case 'l':
			level = level_of(optarg);
			if (level < 0)
				return usage("--log wants error, warning, info or debug");
			break;
		case 't':
			trace = optarg;
			break;
		case 'i':
			if (!parse_level(optarg, &isolation.most))
				return usage("--isolation wants none, vm, user or full");
			break;
		case 'r':
			if (!parse_level(optarg, &isolation.least))
				return usage("--require-isolation wants none, vm, user or full");
			break;
		case 'n':
			loop_forbid_ring();
			break;
		case 's':
			filter = seccomp_mode_of(optarg);
			if (filter < 0)
				return usage("--seccomp wants kill, trap, log or off");
			break;
		case 'u':
			isolation.uid_base = (uint32_t)strtoul(optarg, &end, 0);
			if (*end || !isolation.uid_base)
				return usage("--uid-base wants a number above zero");
			break;
		case 'k':
			return check();
		case 'p':
			return fingerprint();
		case 'v':
			puts("thawbox-vmm " THAWBOX_VERSION);
			return EX_DONE;
		case 'h':
			fputs(help, stdout);
			return EX_DONE;
		default:
			return usage("unknown option");
		}
	}
	if (optind < argc || (fd < 0) == !path)
		return usage("want one of --control-fd N and --control PATH");
	log_open(2, (enum log_level)level, "thawbox-vmm");
	if (filter < 0 && isolation.most == JAIL_LEVEL_NONE)
		filter = SECCOMP_OFF;
	if (filter >= 0)
		seccomp_set_mode((enum seccomp_mode)filter);
	jail_begin(&isolation, fd);
	if (trace && begin_trace(trace, zygote, start_ns, &err) < 0)
		return failed(&err);
	return serve(fd, path, zygote, start_ns);
}
