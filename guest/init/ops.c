/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

#include "exec.h"
#include "files.h"
#include "kernels.h"
#include "notify.h"
#include "ports.h"

#include <string.h>

static void (*shutdown_fn)(void);

void op_on_shutdown(void (*fn)(void))
{
	shutdown_fn = fn;
}

static void ping(struct stream *s, const json_t *request)
{
	(void)request;
	stream_result(
		s, json_pack("{s:s, s:I}", "status", "ok", "uptime_ms", (json_int_t)loop_now_ms()));
}

static void shut_down(struct stream *s, const json_t *request)
{
	(void)request;
	stream_result(s, json_pack("{s:s}", "status", "ok"));
	shutdown_fn();
}

static const struct {
	const char *name;
	void (*start)(struct stream *, const json_t *);
} ops[] = {
	{ "ping", ping },           { "exec", exec_start },
	{ "write", files_write },   { "read", files_read },
	{ "stat", files_stat },     { "list", files_list },
	{ "mkdir", files_mkdir },   { "remove", files_remove },
	{ "rename", files_rename }, { "interrupt", kernels_interrupt },
	{ "kill", kernels_kill },   { "context", kernels_context },
	{ "watch", notify_start },  { "connect", ports_connect },
	{ "shutdown", shut_down },
};

void op_start(struct stream *s, const json_t *request)
{
	const char *name = json_string_value(json_object_get(request, "op"));

	for (size_t i = 0; name && i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (strcmp(ops[i].name, name) == 0) {
			ops[i].start(s, request);
			return;
		}
	}
	stream_error(s, "ProtocolError", "no operation '%s'", name ? name : "");
}
