/* SPDX-License-Identifier: Apache-2.0 */
/* thawbox repl: a Python prompt in a sandbox, with line editing, history and completion. */
#include "api/cell.h"
#include "api/cmd.h"
#include "api/input.h"
#include "api/session.h"
#include "api/show.h"
#include "core/own.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HISTORY_LINES 2000
#define CTRL_C        '\003'
#define CTRL_D        '\004'

static const char help[] = "The context lives as long as the prompt: variables, imports, files. "
			   "Ctrl-C interrupts the cell\n"
			   "that runs, a second one restarts the context; Ctrl-D ends. A block "
			   "ends with an empty line; Tab\n"
			   "completes. Figures are saved to ./thawbox-figures/ and their path is "
			   "shown. %magics, !commands\n"
			   "and top-level await work as in IPython. Lines come from standard input "
			   "when that is no terminal.\n"
			   "\n"
			   "Examples:\n"
			   "  thawbox repl\n"
			   "  thawbox repl --timeout 60 --env TOKEN=abc\n"
			   "\n"
			   "Exit: 0, 2 usage, 3 host or template not ready, 125 sandbox lost.\n";

struct repl {
	struct session session;
	struct show show;
	struct cell cell;
	EditLine *el;
	History *history;
	HistEvent event;
	struct input input;
	char history_file[PATHS_MAX];
	char figures[64];
	char prompt[32];
	long long count; /* of the next cell */
	bool interactive;
	bool cancelled;   /* Ctrl-C at the prompt */
	bool told_to_end; /* by SIGTERM or SIGHUP while a cell ran */
};

/* --- the line editor --------------------------------------------------------------------------- */

static char *prompt(EditLine *el)
{
	struct repl *r;

	el_get(el, EL_CLIENTDATA, &r);
	if (r->input.len)
		(void)snprintf(r->prompt, sizeof(r->prompt), "   ...: ");
	else
		(void)snprintf(r->prompt, sizeof(r->prompt), "In [%lld]: ", r->count);
	return r->prompt;
}

/* One character, unless the user interrupts: then a Ctrl-C, whose binding drops the line. */
static int get_char(EditLine *el, wchar_t *c)
{
	mbstate_t state = { 0 };
	struct repl *r;

	el_get(el, EL_CLIENTDATA, &r);
	for (;;) {
		struct pollfd fds[2] = { { .fd = 0, .events = POLLIN },
			                 { .fd = r->session.sb.intr_fd, .events = POLLIN } };
		char byte;
		ssize_t n;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return -1;
		if (fds[1].revents & POLLIN) {
			if (cmd_intr_take() != SIGINT)
				return 0; /* as the end of the input */
			*c = CTRL_C;
			return 1;
		}
		if (!(fds[0].revents & (POLLIN | POLLHUP)))
			continue;
		n = read(0, &byte, 1);
		if (n <= 0)
			return (int)n;
		if (byte == '\0') /* a Ctrl-D typed while the terminal was not yet the editor's */
			byte = CTRL_D;
		if (mbrtowc(c, &byte, 1, &state) != (size_t)-2)
			return 1;
	}
}

static unsigned char on_cancel(EditLine *el, int ch)
{
	struct repl *r;

	(void)ch;
	el_get(el, EL_CLIENTDATA, &r);
	r->cancelled = true;
	return CC_NEWLINE;
}

/* What all matches begin with. */
static size_t common_prefix(const json_t *matches)
{
	const char *first = json_string_value(json_array_get(matches, 0));
	size_t n = first ? strlen(first) : 0;

	for (size_t i = 1; i < json_array_size(matches); i++) {
		const char *other = json_string_value(json_array_get(matches, i));
		size_t k = 0;

		while (other && k < n && other[k] == first[k])
			k++;
		n = k;
	}
	return n;
}

static void list_matches(const json_t *matches)
{
	size_t i;
	json_t *each;

	printf("\n");
	json_array_foreach(matches, i, each)
	{
		if (i == 40) {
			printf("  ... %zu more", json_array_size(matches) - i);
			break;
		}
		printf("%s  ", json_string_value(each));
	}
	printf("\n");
	fflush(stdout);
}

static unsigned char on_tab(EditLine *el, int ch)
{
	const LineInfo *line = el_line(el);
	size_t cursor = (size_t)(line->cursor - line->buffer), have, want;
	own_free char *code = strndup(line->buffer, cursor);
	struct err err = { 0 };
	json_t *found = NULL, *matches;
	struct repl *r;
	json_int_t start;

	(void)ch;
	el_get(el, EL_CLIENTDATA, &r);
	if (!code || code[strspn(code, " \t")] == '\0')
		return el_insertstr(el, "    ") ? CC_ERROR : CC_REFRESH; /* an indent */
	/* Character and byte positions agree for ASCII; other lines are left as they are. */
	if (mbstowcs(NULL, code, 0) != cursor ||
	    cell_complete(&r->session.sb, code, cursor, &found, &err))
		return CC_ERROR;
	matches = json_object_get(found, "matches");
	start = json_integer_value(json_object_get(found, "start"));
	have = start >= 0 && (size_t)start <= cursor ? cursor - (size_t)start : 0;
	want = common_prefix(matches);
	if (want > have) {
		own_free char *more =
			strndup(json_string_value(json_array_get(matches, 0)) + have, want - have);

		if (more)
			(void)el_insertstr(el, more);
	} else if (json_array_size(matches) > 1) {
		list_matches(matches);
	}
	json_decref(found);
	return want > have ? CC_REFRESH : CC_REDISPLAY;
}

static int open_editor(struct repl *r, struct err *err)
{
	/* What is typed is UTF-8, whatever the terminal's language is said to be. */
	if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
		(void)setlocale(LC_CTYPE, "C.UTF-8");
	r->history = history_init();
	r->el = el_init("thawbox", stdin, stdout, stderr);
	if (!r->history || !r->el)
		return err_set(err, -ENOMEM, "the line editor could not be started");
	history(r->history, &r->event, H_SETSIZE, HISTORY_LINES);
	history(r->history, &r->event, H_SETUNIQUE, 1);
	history(r->history, &r->event, H_LOAD, r->history_file);
	el_set(r->el, EL_CLIENTDATA, r);
	el_set(r->el, EL_PROMPT, prompt);
	el_set(r->el, EL_EDITOR, "emacs");
	el_set(r->el, EL_HIST, history, r->history);
	el_set(r->el, EL_GETCFN, get_char);
	el_set(r->el, EL_ADDFN, "thawbox-cancel", "drop the line", on_cancel);
	el_set(r->el, EL_ADDFN, "thawbox-complete", "complete", on_tab);
	el_set(r->el, EL_BIND, "^C", "thawbox-cancel", NULL);
	el_set(r->el, EL_BIND, "^I", "thawbox-complete", NULL);
	el_set(r->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
	el_source(r->el, NULL); /* the user's ~/.editrc has the last word */
	return 0;
}

static void close_editor(struct repl *r)
{
	if (r->el)
		el_end(r->el);
	if (r->history) {
		history(r->history, &r->event, H_SAVE, r->history_file);
		history_end(r->history);
	}
}

/* --- cells ------------------------------------------------------------------------------------- */

/* A folder for figures: here, else in the temporary folder. */
static void open_figures(struct repl *r)
{
	static char tmp[] = "/tmp/thawbox-figures-XXXXXX";

	if (!mkdir("thawbox-figures", 0777) || errno == EEXIST)
		(void)snprintf(r->figures, sizeof(r->figures), "thawbox-figures");
	else if (mkdtemp(tmp))
		(void)snprintf(r->figures, sizeof(r->figures), "%s", tmp);
}

static void on_display(void *ctx, json_t *display)
{
	struct repl *r = ctx;

	if (!r->figures[0] && json_object_get(json_object_get(display, "data"), "image/png"))
		open_figures(r);
	r->show.figures = r->figures[0] ? r->figures : NULL;
	show_display(&r->show, display);
}

static void on_output(void *ctx, enum frame_type type, const void *data, size_t len)
{
	show_output(&((struct repl *)ctx)->show, type, data, len);
}

static bool on_interrupt(void *ctx)
{
	struct repl *r = ctx;

	r->told_to_end = cmd_intr_take() != SIGINT;
	return !r->told_to_end;
}

/* Runs what has been typed. -1: go on, else the exit code. */
static int run_cell(struct repl *r)
{
	struct cell_sink sink = {
		.output = on_output, .display = on_display, .interrupted = on_interrupt, .ctx = r
	};
	char out_prompt[32];
	struct cell_result result;
	struct err err = { 0 };
	json_int_t count;
	int rc;

	r->cell.code = r->input.text;
	r->cell.code_len = r->input.len;
	(void)snprintf(out_prompt, sizeof(out_prompt), "Out[%lld]: ", r->count);
	r->show.prompt = r->interactive ? out_prompt : NULL;
	rc = cell_run(&r->session.sb, &r->cell, &sink, &result, &err);
	input_clear(&r->input);
	if (r->told_to_end)
		return EXIT_INTERRUPTED;
	if (rc == -EINVAL)
		return cmd_fail(-1, &err);
	if (rc)
		return cmd_fail(cmd_exit_code(&r->session.sb, &err), &err);
	show_result(&r->show, &result);
	count = json_integer_value(json_object_get(result.result, "execution_count"));
	r->count = result.end == CELL_KERNEL_DIED ? 1 : count > 0 ? count + 1 : r->count;
	cell_result_free(&result);
	return r->session.sb.lost.code ? EXIT_LOST : -1;
}

static bool is_exit(const struct input *in)
{
	static const char *const words[] = { "exit", "quit", "exit()", "quit()" };
	size_t len = in->len;

	while (len && (in->text[len - 1] == '\n' || in->text[len - 1] == ' '))
		len--;
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strlen(words[i]) == len && !strncmp(in->text, words[i], len))
			return true;
	return false;
}

/* One line has come. -1: go on, else the exit code. */
static int on_line(struct repl *r, const char *line)
{
	if (input_add(&r->input, line))
		return cmd_fail(EXIT_CELL, &(struct err){ .msg = "no memory for the input" });
	if (!input_complete(&r->input))
		return -1;
	if (input_blank(&r->input)) {
		input_clear(&r->input);
		return -1;
	}
	if (r->interactive)
		history(r->history, &r->event, H_ENTER, r->input.text);
	if (is_exit(&r->input))
		return EXIT_OK;
	return run_cell(r);
}

static int interact(struct repl *r)
{
	for (;;) {
		int n, code;
		const char *line;

		r->cancelled = false;
		el_resize(r->el);
		line = el_gets(r->el, &n);
		if (r->cancelled) {
			input_clear(&r->input);
			printf("^C\n");
			continue;
		}
		if (!line || n <= 0) {
			printf("\n");
			return EXIT_OK;
		}
		code = on_line(r, line);
		if (code >= 0)
			return code;
	}
}

/* Lines that do not come from a terminal: blocks end as they do at the prompt, or with the input. */
static int read_lines(struct repl *r)
{
	own_free char *line = NULL;
	size_t cap = 0;
	int code = -1;

	while (code < 0 && getline(&line, &cap, stdin) > 0)
		code = on_line(r, line);
	if (code < 0 && !input_blank(&r->input))
		code = run_cell(r);
	return code < 0 ? EXIT_OK : code;
}

static void history_path(struct repl *r)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

	if (state && *state)
		(void)snprintf(r->history_file, sizeof(r->history_file), "%s/thawbox_history",
		               state);
	else
		(void)snprintf(r->history_file, sizeof(r->history_file), "%s/.thawbox_history",
		               home ? home : "/tmp");
}

static int start(struct repl *r, const struct session_spec *spec, struct err *err)
{
	int rc = session_open(&r->session, spec, err);

	rc = rc ? rc : sandbox_wait_thawed(&r->session.sb, 30000, err);
	r->interactive = isatty(0) && isatty(1);
	if (rc || !r->interactive)
		return rc;
	history_path(r);
	rc = open_editor(r, err);
	printf("thawbox: %s, ready in %.0f ms. Ctrl-D ends it, and all that is in it.\n",
	       r->session.template.name, (double)(clock_ns() - cmd_start_ns) / 1e6);
	return rc;
}

static int repl_main(int argc, char **argv)
{
	struct repl r = { .count = 1, .cell = { .max_output = 8u << 20, .keep_on_intr = true } };
	struct session_spec spec = { 0 };
	struct arg_list env_list = { 0 };
	const struct arg args[] = {
		{ "env", 'e', ARG_LIST, &env_list, "NAME=VALUE", "environment of the code" },
		{ "timeout", 't', ARG_SECONDS, &r.cell.timeout_ns, "TIME",
		  "deadline of a cell (none)" },
		{ "memory", 'm', ARG_NUMBER, &spec.memory_mb, "MB",
		  "the template's variant of that size" },
		{ "template", 'T', ARG_TEXT, &spec.template, "NAME",
		  "template (code-interpreter)" },
		{ "max-output", '\0', ARG_BYTES, &r.cell.max_output, "BYTES",
		  "of a cell, 0: all (8M)" },
		CMD_LIMIT_ARGS(spec.limits),
		CMD_ISOLATION_ARGS(spec.isolation),
	};
	struct arg_rest rest;
	struct err err = { 0 };
	int code = cmd_parse(&cmd_repl, args, ARRAY_LEN(args), argc, argv, false, &rest);
	json_t *env;

	if (code >= 0)
		return code;
	if (rest.nr)
		return cmd_usage(&cmd_repl, "%s: it takes options only", rest.at[0]);
	env = cmd_env(&env_list, &err);
	if (!env)
		return cmd_fail(EXIT_USAGE, &err);
	spec.env = env;
	spec.intr_fd = cmd_intr_open(&err);
	sandbox_init(&r.session.sb);
	r.session.template.lock_fd = -1;
	if (spec.intr_fd < 0 || start(&r, &spec, &err))
		code = cmd_fail(err.code == -EINTR ? EXIT_INTERRUPTED : EXIT_NOT_READY, &err);
	else
		code = r.interactive ? interact(&r) : read_lines(&r);
	close_editor(&r);
	session_close(&r.session);
	input_clear(&r.input);
	free(r.input.text);
	json_decref(env);
	return code;
}

const struct cmd cmd_repl = { "repl", "[options]", "A Python prompt in a sandbox.", help,
	                      repl_main };
