/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/ctl.h"

#include "core/log.h"
#include "core/own.h"
#include "vmm/boot_line.h"
#include "vmm/clock.h"
#include "vmm/env.h"
#include "vmm/jail.h"
#include "vmm/lines.h"
#include "vmm/seccomp.h"
#include "vmm/thaw.h"
#include "vmm/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define AGENT_PORT 1024
#define NS_PER_SEC 1000000000ull

struct ctl {
	int fd;
	bool has_vm, over;
	struct thaw_source *source; /* owned; NULL: none yet */
	int ret;
	unsigned long long start_ns, line_ns;
	struct vm vm;
	struct loop_op poll_op, term_op;
	int term_fd;
	struct lines lines;
};

static void say(struct ctl *ctl, json_t *object)
{
	own_free char *text = json_dumps(object, JSON_COMPACT);

	json_decref(object);
	if (!text || lines_write(ctl->fd, text) < 0)
		ctl->over = true;
}

/* The descriptor that came with the line, or -1; it stays the line's. */
static int sent_fd(const struct ctl *ctl)
{
	return ctl->lines.sent_fd[0];
}

static int take_sent_fd(struct ctl *ctl)
{
	return fd_take(&ctl->lines.sent_fd[0]);
}

static void say_error(struct ctl *ctl, struct err *err)
{
	err_hint(err);
	say(ctl, json_pack("{s:b, s:s, s:s, s:s}", "ok", 0, "error", err->msg, "remedy",
	                   err->remedy, "code",
	                   strerrorname_np(-err->code) ? strerrorname_np(-err->code) : "UNKNOWN"));
}

static void on_vm_event(void *ctx, enum vm_event event)
{
	struct ctl *ctl = ctx;

	switch (event) {
	case VM_PARKED:
		say(ctl, json_pack("{s:s}", "event", "parked"));
		break;
	case VM_STANDS_BY:
		say(ctl, json_pack("{s:s}", "event", "standby"));
		break;
	case VM_FIRST_DONE:
		say(ctl, json_pack("{s:s}", "event", "first-done"));
		break;
	case VM_ENDED:
		say(ctl, json_pack("{s:s, s:s, s:s}", "event", "exit", "reason",
		                   vcpu_end_name(ctl->vm.end), "detail", ctl->vm.end_detail));
		break;
	}
}

static const char *string_of(const json_t *line, const char *key)
{
	return json_string_value(json_object_get(line, key));
}

static const char *overlay_dir(const json_t *line)
{
	const char *dir = string_of(line, "overlay_dir");

	return dir ? dir : FILES_OVERLAY_DIR;
}

/* Each thread takes its filter when its part of the machine is made, before anything of the guest runs. */
static void note_seccomp(void)
{
	const char *why;
	bool on = seccomp_available(&why);

	jail_note(JAIL_SECCOMP, on, why);
}

/* /dev/kvm and all else that has a name are open: from here on the monitor has no more of the host. */
static int enter_jail(struct ctl *ctl, struct vm_files *files, struct err *err)
{
	int *kvm_fd = ctl->source ? &ctl->source->kvm_fd : &ctl->vm.kvm.sys_fd;
	int ret = *kvm_fd < 0 ? kvm_open_checked(kvm_fd, err) : 0;

	(void)kvm_kind(); /* known from now on */
	trace_begin("jail entered");
	if (ret >= 0)
		ret = jail_enter(err);
	if (ret >= 0)
		ret = jail_drop(files->largest, err);
	if (ret >= 0)
		ret = files_entered(files, err);
	note_seccomp();
	if (ret >= 0)
		ret = jail_check(err);
	trace_end("jail entered", jail_level());
	return ret < 0 ? ret : 0;
}

static int boot(struct ctl *ctl, const json_t *line, struct vm_files *files, struct err *err)
{
	struct vm_boot_config config;
	int ret = boot_line_open(line, &ctl->lines.sent_fd[0], &config, files, err);

	if (ret == 0)
		ret = enter_jail(ctl, files, err);
	if (ret == 0)
		ret = vm_boot(&ctl->vm, &config, err);
	boot_line_close(&config);
	if (ret == 0)
		say(ctl, json_pack("{s:b}", "ok", 1));
	return ret;
}

static json_t *timing_json(const struct ctl *ctl)
{
	const struct vm_timing *t = &ctl->vm.timing;

	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "process_start_ns",
	                 (json_int_t)ctl->start_ns, "received_ns", (json_int_t)ctl->line_ns,
	                 "opened_ns", (json_int_t)t->opened, "memory_ns", (json_int_t)t->memory,
	                 "vm_ns", (json_int_t)t->vm, "state_ns", (json_int_t)t->state, "devices_ns",
	                 (json_int_t)t->devices, "populated_ns", (json_int_t)t->populated, "run_ns",
	                 (json_int_t)t->run);
}

/* Of a machine that begins: what its snapshot needs beside itself. */
static int open_files(struct ctl *ctl, const json_t *line, struct vm_files *files, struct err *err)
{
	struct thaw_source *src = ctl->source;
	const struct snapshot_head *head = &src->snap.head;
	const char *dir = overlay_dir(line);
	int ret = 0;

	if (src->overlay_fd >= 0 && strcmp(dir, src->overlay_dir) != 0)
		return err_set(err, -EXDEV, "overlay_dir: this monitor's is %s", src->overlay_dir);
	files_may_write(files, head->memory_size + GMEM_PAGE);
	for (unsigned i = 0; ret == 0 && i < head->nr_disks; i++) {
		files_may_write(files, src->snap.disk[i].size + GMEM_PAGE);
		if (!src->snap.disk[i].readonly)
			ret = files_overlay(files, i, dir, src->overlay_fd, err);
	}
	own_close_fd(&src->overlay_fd); /* a way to all of the host's folders */
	src->overlay_fd = -1;
	if (ret == 0 && json_is_true(json_object_get(line, "record")))
		ret = files_pagemap(files, err);
	return ret;
}

/* A zygote's child has its source already; a member of a pool has used its own. */
static int open_source(struct ctl *ctl, const json_t *line, struct err *err)
{
	const char *dir = string_of(line, "dir");

	if (!dir)
		return ctl->source ? 0 : err_set(err, -EINVAL, "thaw: dir is missing");
	if (ctl->source && strcmp(ctl->source->dir, dir) == 0)
		return 0;
	if (ctl->has_vm)
		return err_set(err, -EINVAL, "thaw: this machine is of %s", ctl->source->dir);
	thaw_source_close(ctl->source);
	return thaw_source_open(&ctl->source, dir, err);
}

static int thaw(struct ctl *ctl, const json_t *line, struct vm_files *files, struct err *err)
{
	const char *vsock = string_of(line, "vsock");
	struct env env = { 0 };
	struct vm_thaw_config config = { .files = files,
		                         .hostname = string_of(line, "hostname"),
		                         .reseed = !json_is_false(json_object_get(line, "reseed")),
		                         .record = json_is_true(json_object_get(line, "record")),
		                         .hold = json_is_true(json_object_get(line, "hold")) };
	struct vm *vm = &ctl->vm;
	int ret;

	config.age_ns = (uint64_t)json_integer_value(json_object_get(line, "age_s")) * NS_PER_SEC;
	trace_begin("environment made");
	ret = env_make(&env, line, err);
	trace_end("environment made", env.len);
	config.env = env.p;
	config.env_len = (uint32_t)env.len;
	if (ret == 0 && ctl->vm.stage == VM_EMPTY)
		ret = open_files(ctl, line, files, err);
	if (ret == 0 && vsock)
		ret = files_vsock(files, vsock, err);
	if (ret == 0 && ctl->vm.stage == VM_EMPTY)
		ret = enter_jail(ctl, files, err);
	if (ret == 0) {
		config.first_fd = take_sent_fd(ctl);
		ret = vm_thaw(vm, ctl->source, &config, err);
	}
	env_free(&env);
	if (ret < 0)
		return ret;
	if (!json_is_true(json_object_get(line, "paused"))) {
		trace_begin("resumed");
		vm_resume(vm);
		trace_end("resumed", 0);
		vm->timing.run = vcpu_wait_running(&vm->vcpu[0]);
	}
	trace_begin("answer written");
	say(ctl, json_pack("{s:b, s:i, s:i, s:f, s:o}", "ok", 1, "port", (int)vm->bell.s.port,
	                   "agent_port", AGENT_PORT, "create_ms",
	                   vm->timing.run ? (double)(vm->timing.run - ctl->line_ns) / 1e6 : 0.0,
	                   "timing", timing_json(ctl)));
	trace_end("answer written", 0);
	return 0;
}

static int make_shell(struct ctl *ctl, const json_t *line, struct vm_files *files, struct err *err)
{
	int ret = open_files(ctl, line, files, err);

	if (ret == 0)
		ret = enter_jail(ctl, files, err);
	if (ret == 0)
		ret = vm_make_shell(&ctl->vm, ctl->source, files, err);
	if (ret == 0)
		say(ctl, json_pack("{s:b}", "ok", 1));
	return ret;
}

static int warm_up(struct ctl *ctl, const json_t *line, struct vm_files *files, struct err *err)
{
	struct vm_warm_config config = { .files = files,
		                         .all = json_is_true(json_object_get(line, "warm")),
		                         .record = json_is_true(json_object_get(line, "record")) };
	int ret = open_files(ctl, line, files, err);

	if (ret == 0)
		ret = enter_jail(ctl, files, err);
	if (ret == 0)
		ret = vm_warm_up(&ctl->vm, ctl->source, &config, err);
	if (ret == 0)
		say(ctl, json_pack("{s:b}", "ok", 1));
	return ret;
}

/* The commands that make a machine, and the stages of a machine at which they may come. */
static const struct {
	const char *name;
	int (*run)(struct ctl *ctl, const json_t *line, struct vm_files *files, struct err *err);
	bool needs_source, of_member;
} starts[] = {
	{ "boot", boot, false, false },
	{ "thaw", thaw, true, true },
	{ "shell", make_shell, true, false },
	{ "standby", warm_up, true, false },
};

/* A member of a pool has its devices already, and keeps its limits when the thaw names none. */
static int limit(struct ctl *ctl, const json_t *limits, struct err *err)
{
	int ret = limits_parse(&ctl->vm.limits, limits, err);

	if (ret == 0 && limits)
		limits_apply(&ctl->vm);
	return ret;
}

static int start(struct ctl *ctl, const json_t *line, struct err *err)
{
	const char *cmd = string_of(line, "cmd");
	enum vm_stage stage = ctl->vm.stage;
	struct vm_files files;
	size_t i = 0;
	int ret;

	while (strcmp(cmd, starts[i].name) != 0)
		i++;
	if (stage == VM_WARMING)
		return err_set(err, -EAGAIN, "%s: the machine is not yet ready to stand by", cmd);
	if (ctl->has_vm && !(starts[i].of_member && stage != VM_LIVE))
		return err_set(err, -EBUSY, "%s: this monitor has its machine already", cmd);
	ret = starts[i].needs_source ? open_source(ctl, line, err) : 0;
	trace_begin("machine initialised");
	if (!ctl->has_vm)
		vm_init(&ctl->vm, on_vm_event, ctl);
	trace_end("machine initialised", sizeof(ctl->vm));
	ctl->has_vm = true;
	files_init(&files);
	if (ret == 0)
		ret = limit(ctl, json_object_get(line, "limits"), err);
	if (ret == 0)
		ret = starts[i].run(ctl, line, &files, err);
	files_close(&files);
	if (ret < 0) { /* one machine, one process: nothing else can come of this one */
		ctl->over = true;
		ctl->ret = ret;
	}
	return ret;
}

static int pause_vm(struct ctl *ctl, const json_t *line, struct err *err)
{
	(void)line;
	(void)err;
	vm_pause(&ctl->vm);
	say(ctl, json_pack("{s:b}", "ok", 1));
	return 0;
}

static int resume_vm(struct ctl *ctl, const json_t *line, struct err *err)
{
	(void)line;
	(void)err;
	vm_resume(&ctl->vm);
	say(ctl, json_pack("{s:b}", "ok", 1));
	return 0;
}

/* The names of the files that a snapshot of this machine consists of. */
static int parts(struct ctl *ctl, const json_t *line, struct err *err)
{
	json_t *names = json_pack("[s, s, s]", "state", "memory", "manifest");

	(void)line;
	(void)err;
	for (unsigned i = 0; i < ctl->vm.nr_disks; i++) {
		char name[16];

		snapshot_disk_name(i, name);
		if (!ctl->vm.disk_info[i].readonly)
			json_array_append_new(names, json_string(name));
	}
	say(ctl, json_pack("{s:b, s:o}", "ok", 1, "parts", names));
	return 0;
}

static int snapshot(struct ctl *ctl, const json_t *line, struct err *err)
{
	struct snapshot_out out = { 0 };
	size_t i;
	json_t *each;
	int ret;

	json_array_foreach(json_object_get(line, "parts"), i, each)
	{
		const char *name = json_string_value(each);

		if (!name || i >= ctl->lines.nr_sent)
			return err_set(err, -EINVAL,
			               "snapshot: one descriptor for each name of `parts`");
		out.name[i] = name;
		out.fd[i] = ctl->lines.sent_fd[i];
		out.nr++;
	}
	ret = vm_snapshot(&ctl->vm, &out, err);
	if (ret == 0)
		say(ctl, json_pack("{s:b}", "ok", 1));
	return ret;
}

static int workset(struct ctl *ctl, const json_t *line, struct err *err)
{
	int ret;

	(void)line;
	if (sent_fd(ctl) < 0)
		return err_set(err, -EINVAL, "workset: no descriptor came with the line");
	ret = vm_record(&ctl->vm, ctl->lines.sent_fd[1], sent_fd(ctl), err);
	if (ret == 0)
		say(ctl, json_pack("{s:b}", "ok", 1));
	return ret;
}

/* Asked of a monitor without a machine, it is inside from then on. */
static int isolation(struct ctl *ctl, const json_t *line, struct err *err)
{
	json_t *report;
	int ret = jail_enter(err);

	(void)line;
	if (ret == 0)
		ret = jail_drop(0, err);
	if (!ctl->has_vm)
		note_seccomp();
	if (ret < 0)
		return ret;
	report = jail_report();
	json_object_set_new(report, "ok", json_true());
	say(ctl, report);
	return 0;
}

static int connect_port(struct ctl *ctl, const json_t *line, struct err *err)
{
	json_int_t port = json_integer_value(json_object_get(line, "port"));
	int ret;

	if (sent_fd(ctl) < 0)
		return err_set(err, -EINVAL, "connect: no descriptor came with the line");
	if (port <= 0 || port > UINT32_MAX)
		return err_set(err, -EINVAL, "connect: port %lld is not possible", (long long)port);
	ret = vm_connect(&ctl->vm, sent_fd(ctl), (uint32_t)port, err);
	if (ret < 0)
		return ret;
	(void)take_sent_fd(ctl); /* the device's now */
	say(ctl, json_pack("{s:b}", "ok", 1));
	return 0;
}

static int stats(struct ctl *ctl, const json_t *line, struct err *err)
{
	json_t *all = vm_stats(&ctl->vm);

	(void)line;
	(void)err;
	json_object_set_new(all, "ok", json_true());
	json_object_set_new(all, "timing", timing_json(ctl));
	say(ctl, all);
	return 0;
}

static int quit(struct ctl *ctl, const json_t *line, struct err *err)
{
	(void)line;
	(void)err;
	say(ctl, json_pack("{s:b}", "ok", 1));
	ctl->over = true;
	return 0;
}

static const struct {
	const char *name;
	int (*run)(struct ctl *ctl, const json_t *line, struct err *err);
	enum vm_stage from; /* which the machine must have reached */
} commands[] = {
	{ "boot", start, VM_EMPTY },          { "thaw", start, VM_EMPTY },
	{ "shell", start, VM_EMPTY },         { "standby", start, VM_EMPTY },
	{ "pause", pause_vm, VM_LIVE },       { "resume", resume_vm, VM_LIVE },
	{ "parts", parts, VM_LIVE },          { "snapshot", snapshot, VM_LIVE },
	{ "workset", workset, VM_STANDBY },   { "isolation", isolation, VM_EMPTY },
	{ "connect", connect_port, VM_LIVE }, { "stats", stats, VM_SHELL },
	{ "quit", quit, VM_EMPTY },
};

static int dispatch(struct ctl *ctl, const json_t *line, struct err *err)
{
	const char *cmd = string_of(line, "cmd");

	if (!cmd)
		return err_set(err, -EINVAL, "a line is an object with a `cmd`");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		if (strcmp(cmd, commands[i].name) != 0)
			continue;
		if (ctl->vm.stage < commands[i].from)
			return err_set(err, -ENODEV, "%s: boot or thaw a machine first", cmd);
		return commands[i].run(ctl, line, err);
	}
	return err_set(err, -ENOSYS, "unknown command \"%.32s\"", cmd);
}

static void on_line(struct ctl *ctl, const char *text, size_t len)
{
	struct err err = { 0 };
	json_error_t why;
	json_t *line;

	trace_begin("line parsed");
	line = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
	trace_end("line parsed", len);
	ctl->line_ns = clock_mono_ns();
	if (!json_is_object(line))
		err_set(&err, -EINVAL, "not a JSON object: %s", line ? "another type" : why.text);
	else
		(void)dispatch(ctl, line, &err); /* the error itself is answered */
	if (err.code)
		say_error(ctl, &err);
	json_decref(line);
	lines_drop_fds(&ctl->lines);
}

/* Reads once and serves the whole lines there are. `flags` for recvmsg. */
static void read_lines(struct ctl *ctl, int flags)
{
	const char *text;
	size_t len;
	int ret;

	trace_begin("control line read");
	ret = lines_read(&ctl->lines, flags);
	trace_end("control line read", ctl->lines.len);
	if (ret == -E2BIG) {
		struct err err;

		err_set(&err, ret, "a line has at most %u bytes", LINES_MAX);
		say_error(ctl, &err);
	}
	ctl->over = ctl->over || ret < 0;
	while (!ctl->over && (text = lines_next(&ctl->lines, &len)))
		on_line(ctl, text, len);
}

static void on_readable(struct loop_op *op, int res)
{
	struct ctl *ctl = container_of(op, struct ctl, poll_op);

	if (res >= 0)
		read_lines(ctl, MSG_DONTWAIT);
	if (ctl->over)
		loop_stop(&ctl->vm.loop);
	else
		loop_poll(&ctl->vm.loop, &ctl->poll_op, ctl->fd, POLLIN);
}

static void on_term(struct loop_op *op, int res)
{
	struct ctl *ctl = container_of(op, struct ctl, term_op);

	(void)res;
	ctl->over = true;
	loop_stop(&ctl->vm.loop);
}

/* SIGTERM ends us in good order; Ctrl-C is for the program that holds the control socket. */
static int open_signals(void)
{
	sigset_t set;

	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error of that write alone */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int ctl_serve(int fd, struct thaw_source *source, unsigned long long start_ns)
{
	struct ctl *ctl = calloc(1, sizeof(*ctl));
	int ret;

	if (!ctl) {
		close(fd);
		return -ENOMEM;
	}
	ctl->fd = fd;
	ctl->source = source;
	lines_init(&ctl->lines, fd);
	ctl->start_ns = start_ns;
	ctl->poll_op.done = on_readable;
	ctl->term_op.done = on_term;
	ctl->term_fd = open_signals();
	trace_end("process set up", 0);
	while (!ctl->has_vm && !ctl->over)
		read_lines(ctl, 0);
	if (ctl->has_vm && !ctl->over) {
		loop_poll(&ctl->vm.loop, &ctl->poll_op, ctl->fd, POLLIN);
		loop_poll(&ctl->vm.loop, &ctl->term_op, ctl->term_fd, POLLIN);
		ctl->ret = loop_run(&ctl->vm.loop);
	}
	if (ctl->has_vm)
		vm_close(&ctl->vm);
	thaw_source_close(ctl->source);
	ret = ctl->ret;
	close(ctl->term_fd);
	close(ctl->fd);
	free(ctl);
	return ret;
}

int ctl_accept(const char *path, struct err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	own_fd int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd;

	if (strlen(path) >= sizeof(addr.sun_path))
		return err_set(err, -ENAMETOOLONG, "control socket %s: the path has over %zu bytes",
		               path, sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path));
	if (listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		err_set(err, -errno, "control socket %s: %s", path, strerror(errno));
		return err_remedy(err, "remove it if no monitor uses it, or choose another path");
	}
	fd = listen(listener, 1) < 0 ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		err_set(err, -errno, "control socket %s: %s", path, strerror(errno));
	(void)unlink(path); /* it was ours */
	return fd < 0 ? err->code : fd;
}
