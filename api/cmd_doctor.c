/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox doctor: can this host do it? Each line: ok, warning or error, and the remedy. */
#include "api/cmd.h"
#include "api/proc.h"
#include "api/template.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define MIB               (1ull << 20)
#define MEMORY_NEEDED_MIB 1024u
#define DISK_NEEDED_MIB   4096u
#define KERNEL_MAJOR      5
#define ISOLATION_MS      10000
#define KERNEL_MINOR      19 /* io_uring with DEFER_TASKRUN is 6.1's; the ring falls back before */

enum level { OK, WARNING, ERROR };

struct doctor {
	json_t *lines; /* {"name","level","detail","remedy"} */
	bool failed;
};

static void line(struct doctor *d, const char *name, enum level level, const char *detail,
                 const char *remedy)
{
	static const char *const words[] = { "ok", "warning", "error" };

	json_array_append_new(d->lines,
	                      json_pack("{s:s, s:s, s:s, s:s}", "name", name, "level", words[level],
	                                "detail", detail, "remedy", level == OK ? "" : remedy));
	d->failed = d->failed || level == ERROR;
}

static bool exists(const char *path)
{
	return !access(path, F_OK);
}

static void check_kvm_device(struct doctor *d)
{
	own_fd int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		line(d, "/dev/kvm", OK, "open for reading and writing", "");
	else if (errno == ENOENT)
		line(d, "/dev/kvm", ERROR, "not there",
		     "switch virtualization on in the firmware, then: modprobe kvm_intel or "
		     "kvm_amd (in a "
		     "virtual machine: nested virtualization must be allowed by its host)");
	else if (errno == EACCES || errno == EPERM)
		line(d, "/dev/kvm", ERROR, "you may not open it",
		     "run as root, or: sudo usermod -aG kvm $USER, and log in again");
	else
		line(d, "/dev/kvm", ERROR, strerror(errno), "see `dmesg | grep -i kvm`");
}

static void check_kvm_kind(struct doctor *d)
{
	if (exists("/sys/module/kvm_pvm"))
		line(d, "KVM kind", WARNING,
		     "kvm_pvm: guest kernels are interpreted; baking takes minutes, cells are fast",
		     "nothing needs to be done; hardware virtualization (VT-x, SVM) is faster");
	else if (exists("/sys/module/kvm_intel"))
		line(d, "KVM kind", OK, "kvm_intel: hardware", "");
	else if (exists("/sys/module/kvm_amd"))
		line(d, "KVM kind", OK, "kvm_amd: hardware", "");
	else
		line(d, "KVM kind", ERROR, "no KVM module is loaded",
		     "modprobe kvm_intel or kvm_amd");
}

/* What the monitor itself asks KVM for; only what is missing gets a line of its own. */
static void check_monitor(struct doctor *d)
{
	char vmm[PATHS_MAX], detail[PATHS_MAX + 64];
	own_free char *out = malloc(65536);
	const char *argv[] = { vmm, "--check", "--json", NULL };
	struct err err = { 0 };
	json_t *report = NULL, *each;
	unsigned missing = 0;
	size_t i;
	int rc = out ? paths_vmm(vmm, &err) : -ENOMEM;

	argv[2] = NULL; /* the report is JSON in any case */
	rc = rc ? rc : proc_capture(argv, out, 65536, &err);
	if (rc < 0) {
		line(d, "thawbox-vmm", ERROR, err.msg, err.remedy);
		return;
	}
	report = json_loads(out, 0, NULL);
	json_array_foreach(report, i, each)
	{
		const char *name = json_string_value(json_object_get(each, "name"));
		const char *what = json_string_value(json_object_get(each, "detail"));

		if (json_is_true(json_object_get(each, "ok")) || !name || !what)
			continue;
		missing++;
		line(d, name, ERROR, what, "a newer host kernel offers it: Debian 12 or later");
	}
	(void)snprintf(detail, sizeof(detail), "%s: %zu things asked of KVM, %u missing", vmm,
	               json_array_size(report), missing);
	if (!json_array_size(report))
		line(d, "thawbox-vmm", ERROR, "its report cannot be read",
		     "build it again: make build");
	else
		line(d, "thawbox-vmm", missing ? ERROR : OK, detail, "see the lines above");
	json_decref(report);
}

static void check_kernel(struct doctor *d)
{
	struct utsname u;
	unsigned major = 0, minor = 0;

	if (uname(&u) || sscanf(u.release, "%u.%u", &major, &minor) != 2)
		line(d, "kernel", WARNING, "its version is unknown",
		     "Linux 6.1 or later is known to do");
	else if (major < KERNEL_MAJOR || (major == KERNEL_MAJOR && minor < KERNEL_MINOR))
		line(d, "kernel", ERROR, u.release, "Linux 6.1 or later is needed (Debian 12)");
	else
		line(d, "kernel", OK, u.release, "");
}

static void check_uring(struct doctor *d)
{
	struct {
		uint32_t words[64]; /* larger than struct io_uring_params */
	} params = { 0 };
	long fd = syscall(SYS_io_uring_setup, 4, &params);

	if (fd >= 0) {
		close((int)fd);
		line(d, "io_uring", OK, "available", "");
	} else {
		line(d, "io_uring", ERROR, strerror(errno),
		     errno == EPERM ? "allow it: sysctl kernel.io_uring_disabled=0"
		                    : "a kernel with CONFIG_IO_URING is needed");
	}
}

static uint64_t meminfo_kib(const char *key)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char text[128];
	unsigned long long kib = 0;
	size_t len = strlen(key);

	while (f && fgets(text, sizeof(text), f))
		if (!strncmp(text, key, len) && sscanf(text + len, ": %llu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

static void check_memory(struct doctor *d)
{
	uint64_t available = meminfo_kib("MemAvailable") * 1024;
	char size[32], detail[128];

	(void)snprintf(detail, sizeof(detail), "%s available; a sandbox takes what it writes",
	               cmd_bytes(available, size));
	line(d, "memory", available < MEMORY_NEEDED_MIB * MIB ? WARNING : OK, detail,
	     "1 GiB should be free to bake a template of 512 MB");
}

static void check_huge_pages(struct doctor *d)
{
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
	char text[128] = "";
	bool never = f && fgets(text, sizeof(text), f) && strstr(text, "[never]");

	if (f)
		fclose(f);
	text[strcspn(text, "\n")] = '\0';
	line(d, "huge pages", OK,
	     !f      ? "not offered; not needed"
	     : never ? "off; not needed"
	             : text,
	     "");
}

static void check_disk(struct doctor *d)
{
	char home[PATHS_MAX], path[PATHS_MAX], size[32], detail[PATHS_MAX + 64];
	struct err err = { 0 };
	struct statvfs fs;
	own_fd int tmp = -1;
	uint64_t available;

	if (paths_home(home, &err)) {
		line(d, "disk", ERROR, err.msg, err.remedy);
		return;
	}
	memcpy(path, home, sizeof(path));
	while (!exists(path) && strrchr(path, '/') && strrchr(path, '/') != path)
		*strrchr(path, '/') = '\0'; /* where it would be made */
	if (access(path, W_OK) || statvfs(path, &fs)) {
		(void)snprintf(detail, sizeof(detail), "%s: %s", path, strerror(errno));
		line(d, "disk", WARNING, detail, "set THAWBOX_HOME to a folder that you may write");
		return;
	}
	available = (uint64_t)fs.f_bavail * fs.f_frsize;
	(void)snprintf(detail, sizeof(detail), "%s free for templates in %s",
	               cmd_bytes(available, size), home);
	line(d, "disk", available < DISK_NEEDED_MIB * MIB ? WARNING : OK, detail,
	     "4 GiB should be free, or set THAWBOX_HOME to a folder on a larger disk");
	tmp = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (tmp < 0)
		line(d, "unnamed files", ERROR, strerror(errno),
		     "the private disks need O_TMPFILE: set THAWBOX_HOME to a folder on ext4, xfs, "
		     "btrfs or "
		     "tmpfs");
}

static void check_template(struct doctor *d)
{
	char detail[PATHS_MAX + 64], age[32];
	struct template t;
	struct err err = { 0 };
	json_t *info;

	if (template_open(&t, TEMPLATE_DEFAULT, 0, &err)) {
		line(d, "template", WARNING, err.msg, err.remedy);
		return;
	}
	info = template_info(&t);
	(void)snprintf(detail, sizeof(detail), "%s, of age %s", t.dir,
	               cmd_age(template_age_s(info, time(NULL)), age));
	line(d, "template", template_is_old(info, time(NULL), TEMPLATE_MAX_AGE_S) ? WARNING : OK,
	     detail,
	     "all of its sandboxes have the same addresses in their guest: thawbox template build "
	     "--rotate " TEMPLATE_DEFAULT);
	json_decref(info);
	template_close(&t);
}

static void print_lines(const struct doctor *d)
{
	static const char *const colours[] = { "\033[32m", "\033[33m", "\033[31m" };
	bool colour = cmd_has_colour(1);
	json_t *each;
	size_t i;

	json_array_foreach(d->lines, i, each)
	{
		const char *level = json_string_value(json_object_get(each, "level"));
		const char *remedy = json_string_value(json_object_get(each, "remedy"));
		int n = *level == 'o' ? OK : *level == 'w' ? WARNING : ERROR;

		printf("%s%-8s%s %-14s %s\n", colour ? colours[n] : "", level,
		       colour ? "\033[0m" : "", json_string_value(json_object_get(each, "name")),
		       json_string_value(json_object_get(each, "detail")));
		if (*remedy)
			printf("%-23s remedy: %s\n", "", remedy);
	}
	puts(d->failed ? "this host cannot run sandboxes yet: see the errors above"
	               : "this host can run sandboxes");
}

/* --- isolation --------------------------------------------------------------------------------------------- */

/* What a monitor says that has just entered its jail, as it is started for a sandbox. A new reference. */
static int isolation_report(json_t **report, struct err *err)
{
	const struct sandbox_spec spec = { .intr_fd = -1 };
	struct sandbox sb;
	int rc = sandbox_start(&sb, &spec, err);

	if (rc)
		return rc;
	rc = sandbox_call(&sb, json_pack("{s:s}", "cmd", "isolation"), -1, ISOLATION_MS, report,
	                  err);
	sandbox_close(&sb);
	return rc;
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static void check_isolation(struct doctor *d)
{
	json_t *report = NULL, *each;
	struct err err = { 0 };
	char detail[512];
	size_t i, n;

	if (isolation_report(&report, &err)) {
		line(d, "isolation", ERROR, err.msg, err.remedy);
		return;
	}
	n = (size_t)snprintf(detail, sizeof(detail), "level %s", text_of(report, "level"));
	json_array_foreach(json_object_get(report, "layers"), i,
	                   each) if (!json_is_true(json_object_get(each, "on")) &&
	                             strcmp(text_of(each, "level"), "extra") != 0 &&
	                             n < sizeof(detail)) n +=
		(size_t)snprintf(detail + n, sizeof(detail) - n, "; without %s",
	                         text_of(each, "name"));
	line(d, "isolation", strcmp(text_of(report, "level"), "full") != 0 ? WARNING : OK, detail,
	     "thawbox doctor --isolation says why; as root, or where user namespaces are allowed, "
	     "there is more");
	json_decref(report);
}

static void print_layers(const json_t *report)
{
	static const char *const colours[] = { "\033[33m", "\033[32m" };
	bool colour = cmd_has_colour(1);
	json_t *each;
	size_t i;

	printf("%-20s %-6s %-4s %s\n", "layer", "level", "", "why");
	json_array_foreach(json_object_get(report, "layers"), i, each)
	{
		bool on = json_is_true(json_object_get(each, "on"));

		printf("%-20s %-6s %s%-4s%s %s\n", text_of(each, "name"), text_of(each, "level"),
		       colour ? colours[on] : "", on ? "on" : "off", colour ? "\033[0m" : "",
		       text_of(each, "why"));
	}
	printf("level: %s\n", text_of(report, "level"));
}

static int print_isolation(bool json)
{
	json_t *report = NULL;
	struct err err = { 0 };

	if (isolation_report(&report, &err))
		return cmd_fail(EXIT_NOT_READY, &err);
	json_object_del(report, "ok"); /* of the conversation, not of the report */
	if (json)
		cmd_print_json(report, false);
	else
		print_layers(report);
	json_decref(report);
	return EXIT_OK;
}

static int doctor_main(int argc, char **argv)
{
	bool json = false, isolation = false;
	const struct arg args[] = {
		{ "json", 'j', ARG_FLAG, &json, NULL,
		  "an array of objects; with --isolation, one" },
		{ "isolation", 'i', ARG_FLAG, &isolation, NULL,
		  "each layer of a monitor's jail: on, off, why" },
	};
	struct doctor d = { 0 };
	struct arg_rest rest;
	int code = cmd_parse(&cmd_doctor, args, ARRAY_LEN(args), argc, argv, false, &rest);

	if (code >= 0)
		return code;
	if (rest.nr)
		return cmd_usage(&cmd_doctor, "it takes no operands");
	if (isolation)
		return print_isolation(json);
	d.lines = json_array();
	check_kvm_device(&d);
	check_kvm_kind(&d);
	check_monitor(&d);
	check_kernel(&d);
	check_uring(&d);
	check_isolation(&d);
	check_memory(&d);
	check_huge_pages(&d);
	check_disk(&d);
	check_template(&d);
	if (json)
		cmd_print_json(d.lines, false);
	else
		print_lines(&d);
	json_decref(d.lines);
	return d.failed ? EXIT_CELL : EXIT_OK;
}

const struct cmd cmd_doctor = {
	"doctor", "[--json] [--isolation]", "Tell whether this host can run sandboxes.",
	"Each line is ok, a warning or an error; the last two with what to do.\n\n"
	"Examples:\n  thawbox doctor\n  thawbox doctor --isolation\n\n"
	"Exit: 0, or 1 when there is an error.\n",
	doctor_main
};
