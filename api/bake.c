/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bake.h"

#include "api/cell.h"
#include "api/cmd.h"
#include "api/console.h"
#include "api/freeze.h"
#include "api/pagecache.h"
#include "api/progress.h"
#include "api/sandbox.h"
#include "api/template.h"
#include "core/own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

/* Console and what a kind of host needs come from the monitor. */
#define CMDLINE         "quiet root=/dev/vda rootfstype=erofs ro"
#define SILENCE_NS      (40ull * 60 * 1000000000u) /* software KVM takes its time between two phases */
#define SNAPSHOT_MS     (10 * 60 * 1000)
#define WORKSET_MS      60000
#define TICK_MS         250
#define CLOCK_LIMIT_MS  50.0
#define CELL_TIMEOUT_NS (60ull * 1000000000u)
#define WARM_UP_MS      (20 * 60 * 1000) /* the template's warm-up, once more */

/* A bake under way. */
struct bake {
	const struct bake_plan *plan;
	const struct bake_opts *opts;
	struct progress progress;
	struct console console;
	struct sandbox sb;
	char path[PATHS_MAX]; /* the template's folder */
	char home[PATHS_MAX];
	char times[PATHS_MAX]; /* file of the last bake's times */
	char tmp[PATHS_MAX];   /* ours; locked as long as we live */
	char snap[PATHS_MAX];  /* the snapshot in it */
	int tmp_fd, lock_fd;
};

static void on_phase(void *ctx, const char *text)
{
	struct bake *bake = ctx;

	progress_phase(&bake->progress, text);
}

static int open_folder(const char *path, struct err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? err_set(err, -errno, "%s: %s", path, strerror(errno)) : fd;
}

/* One build of a template at a time: the second waits, and then mostly finds nothing left to do. */
static int lock_template(struct bake *bake, struct err *err)
{
	char path[PATHS_MAX];
	int rc = paths_format(path, err, "%s/.lock", bake->path);

	if (rc)
		return rc;
	bake->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (bake->lock_fd < 0)
		return err_set(err, -errno, "%s: %s", path, strerror(errno));
	if (!flock(bake->lock_fd, LOCK_EX | LOCK_NB))
		return 0;
	cmd_note("another build of %s is under way; waiting for it", bake->plan->name);
	if (flock(bake->lock_fd, LOCK_EX))
		return err_set(err, -errno, "wait for the other build: %s", strerror(errno));
	return 0;
}

static int open_tmp(struct bake *bake, struct err *err)
{
	int rc = paths_format(bake->tmp, err, "%s/.build-XXXXXX", bake->path);

	if (rc)
		return rc;
	if (!mkdtemp(bake->tmp)) {
		bake->tmp[0] = '\0';
		return err_set(err, -errno, "make a folder in %s: %s", bake->path, strerror(errno));
	}
	bake->tmp_fd = open_folder(bake->tmp, err);
	if (bake->tmp_fd < 0)
		return bake->tmp_fd;
	if (flock(bake->tmp_fd, LOCK_SH))
		return err_set(err, -errno, "lock %s: %s", bake->tmp, strerror(errno));
	return paths_format(bake->snap, err, "%s/snapshot", bake->tmp);
}

static json_t *boot_line(const struct bake *bake)
{
	const struct bake_plan *plan = bake->plan;

	return json_pack(
		"{s:s, s:s, s:s, s:s, s:I, s:i, s:s, s:s, s:[{s:s, s:b}, {s:s, s:b, s:b}]}", "cmd",
		"boot", "kernel", plan->kernel, "symbols", plan->symbols, "cmdline",
		"quiet root=/dev/vda rootfstype=erofs ro", "memory_mb", (json_int_t)plan->memory_mb,
		"vcpus", (int)plan->vcpus, "serial", "fd", "overlay_dir", bake->tmp, "disks",
		"path", plan->root, "readonly", 1, "path", plan->scratch, "readonly", 0, "overlay",
		1);
}

static int boot(struct bake *bake, struct err *err)
{
	struct sandbox_spec spec = { .verbose = bake->opts->verbose,
		                     .isolation = bake->opts->isolation,
		                     .intr_fd = bake->opts->intr_fd };
	own_fd int theirs = -1;
	int sv[2];
	int rc = sandbox_start(&bake->sb, &spec, err);

	if (rc)
		return rc;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
		return err_set(err, -errno, "socket pair: %s", strerror(errno));
	bake->console.fd = sv[0];
	theirs = sv[1];
	return sandbox_call(&bake->sb, boot_line(bake), theirs, 60000, NULL, err);
}

/* Follows the console until an interpreter stands at the freeze point. */
static int await_parked(struct bake *bake, struct err *err)
{
	uint64_t until = clock_ns() + SILENCE_NS;

	while (!bake->sb.parked) {
		struct pollfd serial = { .fd = bake->console.fd, .events = POLLIN };
		int rc = sandbox_wait(&bake->sb, NULL, 0, &serial, 1, TICK_MS, err);

		if (rc < 0)
			return rc;
		if (serial.revents) {
			console_read(&bake->console, on_phase, bake);
			until = clock_ns() + SILENCE_NS;
		}
		if (!bake->opts->verbose)
			progress_tick(&bake->progress);
		if (clock_ns() > until)
			return err_set(err, -ETIMEDOUT,
			               "the guest has said nothing for %llu minutes",
			               SILENCE_NS / 60000000000u);
	}
	return 0;
}

static int freeze(struct bake *bake, struct err *err)
{
	int rc = boot(bake, err);

	rc = rc ? rc : await_parked(bake, err);
	if (!rc) {
		on_phase(bake, "snapshot");
		rc = freeze_snapshot(&bake->sb, bake->snap, false, SNAPSHOT_MS, err);
	}
	console_close(&bake->console);
	sandbox_close(&bake->sb);
	return rc ? err_wrap(err, "bake %s", bake->plan->name) : 0;
}

/* --- trial runs ------------------------------------------------------------------------------ */

struct trial {
	struct bytes out;
	char text[64]; /* text/plain of the value */
	struct cell_result result;
	double before_s, after_s; /* our wall clock around the run */
	double create_ms, first_result_ms;
};

static void trial_output(void *ctx, enum frame_type type, const void *data, size_t len)
{
	struct trial *trial = ctx;

	/* A trial cell prints a line; one that does not fit is a failed trial, found by its reader. */
	if (type == FRAME_STDOUT && trial->out.len < 4096 && bytes_append(&trial->out, data, len))
		trial->out.len = 0;
}

static void trial_display(void *ctx, json_t *display)
{
	struct trial *trial = ctx;
	const char *text =
		json_string_value(json_object_get(json_object_get(display, "data"), "text/plain"));

	(void)snprintf(trial->text, sizeof(trial->text), "%s", text ? text : "");
}

static double wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* A thaw of the new snapshot with `code` as its first cell. The sandbox stays open in bake->sb. */
static int trial_run(struct bake *bake, const char *code, bool record, struct trial *trial,
                     struct err *err)
{
	struct sandbox_spec spec = { .verbose = bake->opts->verbose,
		                     .isolation = bake->opts->isolation,
		                     .intr_fd = bake->opts->intr_fd };
	struct thaw_spec thaw = { .dir = bake->snap, .overlay_dir = bake->tmp, .record = record };
	struct cell cell = { .code = code,
		             .code_len = strlen(code),
		             .max_output = 4096,
		             .timeout_ns = CELL_TIMEOUT_NS };
	struct cell_sink sink = { .output = trial_output, .display = trial_display, .ctx = trial };
	json_t *request = cell_request(&cell);
	int rc;

	*trial = (struct trial){ .before_s = wall_clock() };
	rc = sandbox_thaw(&bake->sb, &spec, &thaw, request, err);
	json_decref(request);
	rc = rc ? rc : cell_run(&bake->sb, &cell, &sink, &trial->result, err);
	trial->after_s = wall_clock();
	rc = rc ? rc : sandbox_wait_thawed(&bake->sb, 10000, err);
	if (rc)
		return rc;
	trial->create_ms = json_number_value(json_object_get(bake->sb.thawed, "create_ms"));
	trial->first_result_ms = (double)(trial->result.end_ns - trial->result.begin_ns) / 1e6;
	if (!trial->result.ok)
		return err_set(err, -EIO, "a trial cell failed: %s",
		               json_string_value(json_object_get(
				       json_object_get(trial->result.result, "error"), "value")));
	return 0;
}

static void trial_end(struct bake *bake, struct trial *trial)
{
	bytes_free(&trial->out);
	cell_result_free(&trial->result);
	sandbox_close(&bake->sb);
}

/* The plainest cell touches what every cell touches: more than that would slow each thaw down. */
static int record_workset(struct bake *bake, struct err *err)
{
	struct trial trial;
	int rc = trial_run(bake, "1+1", true, &trial, err);

	rc = rc ? rc : freeze_workset(&bake->sb, bake->snap, false, WORKSET_MS, err);
	trial_end(bake, &trial);
	return rc ? err_wrap(err, "record the working set") : 0;
}

/* And what the template's own warm-up writes is kept ready for cells that do such things. */
static int record_later(struct bake *bake, struct err *err)
{
	struct sandbox_spec spec = { .verbose = bake->opts->verbose,
		                     .isolation = bake->opts->isolation,
		                     .intr_fd = bake->opts->intr_fd };
	struct member_spec member = {
		.dir = bake->snap, .overlay_dir = bake->tmp, .warm = true, .record = true
	};
	int rc = sandbox_start(&bake->sb, &spec, err);

	rc = rc ? rc : sandbox_begin_standby(&bake->sb, &member, err);
	rc = rc ? rc : sandbox_wait_ready(&bake->sb, WARM_UP_MS, err);
	rc = rc ? rc : freeze_workset(&bake->sb, bake->snap, true, WORKSET_MS, err);
	sandbox_close(&bake->sb);
	return rc ? err_wrap(err, "record the warm-up's working set") : 0;
}

/* The trial runs are then what a user's will be. */
static int settle_memory(struct bake *bake, struct err *err)
{
	char path[PATHS_MAX];
	int rc = paths_format(path, err, "%s/memory", bake->snap);

	return rc ? rc : pagecache_settle(path, err);
}

static const char prove_code[] = "import os, time\n"
				 "print(os.urandom(16).hex(), repr(time.time()))\n"
				 "1+1";

/* Milliseconds by which the guest's clock was outside of the time that the run took by ours. */
static double clock_error_ms(const struct trial *trial, double guest_s)
{
	double early = trial->before_s - guest_s, late = guest_s - trial->after_s;

	if (early > 0)
		return 1000 * early;
	return late > 0 ? 1000 * late : 0;
}

static int prove_once(struct bake *bake, char random[33], struct bake_result *result,
                      struct err *err)
{
	struct trial trial;
	double guest_s;
	char line[128] = "";
	int rc = trial_run(bake, prove_code, false, &trial, err);

	if (!rc && trial.out.len < sizeof(line)) {
		memcpy(line, trial.out.p, trial.out.len);
		if (sscanf(line, "%32[0-9a-f] %lf", random, &guest_s) != 2 ||
		    strlen(random) != 32 || strcmp(trial.text, "2") != 0)
			rc = err_set(err, -EIO, "a trial cell gave '%s' and '%s'", line,
			             trial.text);
	} else if (!rc) {
		rc = err_set(err, -EIO, "a trial cell printed %zu bytes", trial.out.len);
	}
	if (!rc) {
		result->clock_ms = clock_error_ms(&trial, guest_s);
		result->create_ms = trial.create_ms;
		result->first_result_ms = trial.first_result_ms;
		if (result->clock_ms > CLOCK_LIMIT_MS)
			rc = err_set(err, -EIO, "the guest's clock is wrong by %.0f ms",
			             result->clock_ms);
	}
	trial_end(bake, &trial);
	return rc;
}

/* Two thaws: the sum is right, the clock too, and they share no random state. */
static int prove(struct bake *bake, struct bake_result *result, struct err *err)
{
	char first[33], second[33];
	int rc = prove_once(bake, first, result, err);

	rc = rc ? rc : prove_once(bake, second, result, err);
	if (!rc && !strcmp(first, second))
		rc = err_set(err, -EIO, "two thaws gave the same os.urandom");
	return rc ? err_wrap(err, "prove the new template") : 0;
}

/* --- publishing -------------------------------------------------------------------------------- */

static int write_info(const struct bake *bake, struct err *err)
{
	const struct bake_plan *plan = bake->plan;
	char path[PATHS_MAX];
	json_t *info = json_pack(
		"{s:s, s:s, s:I, s:i, s:s, s:s, s:I, s:f, s:O}", "name", plan->name, "inputs",
		plan->inputs, "memory_mb", (json_int_t)plan->memory_mb, "vcpus", (int)plan->vcpus,
		"kernel", plan->kernel, "root", plan->root, "built", (json_int_t)time(NULL),
		"seconds", progress_elapsed(&bake->progress), "template", plan->template);
	int rc = paths_format(path, err, "%s/template.json", bake->snap);

	if (!rc && (!info || json_dump_file(info, path, JSON_INDENT(1))))
		rc = err_set(err, -EIO, "%s: cannot be written", path);
	json_decref(info);
	return rc;
}

/* The time, and what it was made from; a second one of one second gets a number. */
static int choose_id(const struct bake *bake, char id[TEMPLATE_ID_MAX], char dir[PATHS_MAX],
                     struct err *err)
{
	time_t now = time(NULL);
	char stamp[32];
	struct tm tm;
	int rc;

	gmtime_r(&now, &tm);
	(void)strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &tm);
	for (unsigned n = 1;; n++) {
		char number[16] = "";

		if (n > 1)
			(void)snprintf(number, sizeof(number), "-%u", n);
		(void)snprintf(id, TEMPLATE_ID_MAX, "%s-%.8s%s", stamp, bake->plan->inputs, number);
		rc = paths_format(dir, err, "%s/%s", bake->path, id);
		if (rc || access(dir, F_OK))
			return rc;
	}
}

static int publish(struct bake *bake, struct bake_result *result, struct err *err)
{
	char id[TEMPLATE_ID_MAX];
	own_fd int dir = -1;
	int rc = write_info(bake, err);

	rc = rc ? rc : template_write_checksums(bake->snap, err);
	rc = rc ? rc : choose_id(bake, id, result->dir, err);
	dir = rc ? -1 : open_folder(bake->snap, err);
	if (dir < 0)
		return rc ? rc : dir;
	if (fchmod(dir, 0755) || syncfs(dir) || rename(bake->snap, result->dir))
		return err_set(err, -errno, "publish %s: %s", result->dir, strerror(errno));
	return template_publish(bake->path, id, err);
}

static bool is_current(const struct bake *bake, struct bake_result *result)
{
	struct err ignored = { 0 };
	struct template t;
	const char *inputs;
	json_t *info;
	bool same;

	if (template_open(&t, bake->plan->name, 0, &ignored))
		return false;
	info = template_info(&t);
	inputs = json_string_value(json_object_get(info, "inputs"));
	same = inputs && !strcmp(inputs, bake->plan->inputs) &&
	       !(bake->opts->max_age_s && template_is_old(info, time(NULL), bake->opts->max_age_s));
	if (same)
		memcpy(result->dir, t.dir, sizeof(t.dir));
	json_decref(info);
	template_close(&t);
	return same;
}

static int open_bake(struct bake *bake, struct err *err)
{
	int rc = template_path(bake->plan->name, bake->path, err);

	rc = rc ? rc : paths_home(bake->home, err);
	rc = rc ? rc : paths_format(bake->times, err, "%s/.times", bake->path);
	rc = rc ? rc : paths_make_dirs(bake->path, err);
	return rc ? rc : lock_template(bake, err);
}

static int bake_all(struct bake *bake, struct bake_result *result, struct err *err)
{
	int rc = open_tmp(bake, err);

	progress_begin(&bake->progress, bake->times, cmd_is_terminal(2) && !bake->opts->verbose);
	on_phase(bake, "kernel");
	rc = rc ? rc : freeze(bake, err);
	if (!rc)
		on_phase(bake, "working set");
	rc = rc ? rc : record_workset(bake, err);
	rc = rc ? rc : record_later(bake, err);
	rc = rc ? rc : settle_memory(bake, err);
	if (!rc)
		on_phase(bake, "trial runs");
	rc = rc ? rc : prove(bake, result, err);
	if (!rc)
		on_phase(bake, "checksums");
	rc = rc ? rc : publish(bake, result, err);
	progress_clear(&bake->progress);
	result->seconds = progress_elapsed(&bake->progress);
	if (!rc)
		progress_save(&bake->progress, bake->times);
	return rc;
}

static void cleanup(const char *tmp)
{
	int rc = paths_remove_tree(tmp);

	if (rc) /* the next build tries again */
		cmd_note("%s could not be removed: %s", tmp, strerror(-rc));
}

int bake_run(const struct bake_plan *plan, const struct bake_opts *opts, struct bake_result *result,
             struct err *err)
{
	struct bake bake = { .plan = plan,
		             .opts = opts,
		             .console = { .fd = -1, .verbose = opts->verbose },
		             .tmp_fd = -1,
		             .lock_fd = -1 };
	int rc = open_bake(&bake, err);

	*result = (struct bake_result){ 0 };
	if (!rc)
		template_sweep(bake.path); /* what killed builds left */
	result->current = !rc && !opts->force && is_current(&bake, result);
	if (!rc && !result->current)
		rc = bake_all(&bake, result, err);
	if (rc && rc != -EINTR)
		console_print_kept(&bake.console);
	own_close_fd(&bake.tmp_fd);
	if (bake.tmp[0])
		cleanup(bake.tmp);
	if (!rc)
		template_sweep(bake.path);
	own_close_fd(&bake.lock_fd);
	return rc;
}
