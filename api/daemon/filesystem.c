/* SPDX-License-Identifier: Apache-2.0 */
/* envd's filesystem.Filesystem: each call is one of the guest's agent. */
#include "api/daemon/daemon.h"
#include "api/daemon/envd.h"
#include "api/daemon/rpc.h"
#include "api/daemon/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define AGENT_MS 60000 /* a tree of 16,000 entries on a slow guest */

/* A call under way. */
struct fs_call {
	struct guest_call call;
	struct request *req;
	char path[PATHS_MAX]; /* as the client wrote it */
	char user[64];
	void (*answer)(struct fs_call *fs, const json_t *result);
};

static void fs_free(struct fs_call *fs)
{
	guest_call_cancel(&fs->call);
	free(fs);
}

static void on_client_gone(struct request *req)
{
	fs_free(req->ctx);
}

static const struct request_ops fs_ops = { .gone = on_client_gone };

static void fail_as_guest(struct request *req, const json_t *result)
{
	const json_t *error = json_object_get(result, "error");
	const char *name = text_member(error, "name"), *value = text_member(error, "value");

	rpc_fail(req, rpc_code_of(name), "%s", value ? value : "the guest refused");
}

bool envd_is_ok(const json_t *result)
{
	const char *status = text_member(result, "status");

	return status && !strcmp(status, "ok");
}

static void on_done(struct guest_call *call, const json_t *result, const struct err *err)
{
	struct fs_call *fs = container_of(call, struct fs_call, call);

	if (err->code == -ETIMEDOUT)
		rpc_fail(fs->req, RPC_DEADLINE_EXCEEDED, "%s", err->msg);
	else if (!result) /* the machine is gone, or its agent: the client asks which */
		request_cut(fs->req);
	else if (fs->answer) {
		fs->answer(fs, result);
		return; /* it goes on, or has freed */
	} else if (envd_is_ok(result))
		rpc_reply(fs->req, json_object());
	else
		fail_as_guest(fs->req, result);
	fs_free(fs);
}

/* `op` with the path and the user; `more` is stolen, or NULL. */
static void ask(struct fs_call *fs, const char *op, json_t *more,
                void (*answer)(struct fs_call *, const json_t *))
{
	/* E2B: an empty path is the default folder. */
	json_t *request = json_pack("{s:s, s:s, s:s}", "op", op, "path", *fs->path ? fs->path : "~",
	                            "user", fs->user);

	if (more)
		json_object_update(request, more);
	json_decref(more);
	fs->answer = answer;
	guest_call(&fs->call, &fs->req->box->machine, request, AGENT_MS, on_done);
}

/* Reads the call's path out of `member`. NULL: it is answered. */
static struct fs_call *start(struct request *req, const json_t *message, const char *member)
{
	const char *path = text_member(message, member);
	struct fs_call *fs = calloc(1, sizeof(*fs));

	if (!fs || (path && strlen(path) >= sizeof(fs->path))) {
		rpc_fail(req, RPC_INVALID_ARGUMENT, "%s: the path is too long", member);
		free(fs);
		return NULL;
	}
	if (!rpc_user(req, fs->user)) {
		free(fs);
		return NULL;
	}
	(void)snprintf(fs->path, sizeof(fs->path), "%s", path ? path : "");
	fs->req = req;
	req->ctx = fs;
	req->ops = &fs_ops;
	return fs;
}

/* --- entries ------------------------------------------------------------------------------------------- */

static void permissions(const char *type, bool is_link, unsigned mode, char out[11])
{
	static const char bits[] = "rwxrwxrwx";

	memset(out, '-', 10);
	if (is_link)
		out[0] = 'L';
	else if (type && !strcmp(type, "dir"))
		out[0] = 'd';
	for (unsigned i = 0; i < 9; i++)
		if (mode >> (8 - i) & 1)
			out[1 + i] = bits[i];
	out[10] = '\0';
}

json_t *envd_entry(const json_t *entry)
{
	const char *type = text_member(entry, "type"), *target = text_member(entry, "target");
	bool is_dangling = type && !strcmp(type, "link");
	json_int_t mode =
		is_dangling ? 0 : json_integer_value(json_object_get(entry, "mode")) & 0777;
	json_int_t ns = json_integer_value(json_object_get(entry, "mtime_ns"));
	json_t *json, *metadata = json_object_get(entry, "metadata");
	char text[11], when[TEXT_TIME_MAX];

	permissions(type, target, (unsigned)mode, text);
	json = json_pack("{s:O*, s:O*, s:O*, s:I, s:s, s:O*, s:O*, s:s, s:s*}", "name",
	                 json_object_get(entry, "name"), "path", json_object_get(entry, "path"),
	                 "size", json_object_get(entry, "size"), "mode", mode, "permissions", text,
	                 "owner", json_object_get(entry, "owner"), "group",
	                 json_object_get(entry, "group"), "modifiedTime",
	                 text_time(ns / 1000, when), "symlinkTarget", target);
	if (json_object_size(metadata) && text_is_string_map(metadata))
		json_object_set(json, "metadata", metadata);
	if (type && !is_dangling && strcmp(type, "other") != 0)
		json_object_set_new(json, "type",
		                    json_string(!strcmp(type, "dir") ? "FILE_TYPE_DIRECTORY"
		                                                     : "FILE_TYPE_FILE"));
	return json;
}

static void answer_entry(struct fs_call *fs, const json_t *result)
{
	if (envd_is_ok(result))
		rpc_reply(fs->req, json_pack("{s:o}", "entry",
		                             envd_entry(json_object_get(result, "entry"))));
	else
		fail_as_guest(fs->req, result);
	fs_free(fs);
}

static void answer_list(struct fs_call *fs, const json_t *result)
{
	json_t *entries = json_array(), *entry;
	size_t i;

	json_array_foreach(json_object_get(result, "entries"), i, entry)
	{
		json_array_append_new(entries, envd_entry(entry));
	}
	if (envd_is_ok(result))
		rpc_reply(fs->req, json_pack("{s:O}", "entries", entries));
	else
		fail_as_guest(fs->req, result);
	json_decref(entries);
	fs_free(fs);
}

/* Something was there when a folder was to be made. */
static void answer_what_is_there(struct fs_call *fs, const json_t *result)
{
	const char *type = text_member(json_object_get(result, "entry"), "type");
	bool is_dir = type && !strcmp(type, "dir");

	rpc_fail(fs->req, is_dir ? RPC_ALREADY_EXISTS : RPC_INVALID_ARGUMENT,
	         is_dir ? "directory already exists: '%s'"
	                : "path already exists but it is not a directory: '%s'",
	         fs->path);
	fs_free(fs);
}

static void answer_mkdir(struct fs_call *fs, const json_t *result)
{
	const char *name = text_member(json_object_get(result, "error"), "name");

	if (name && !strcmp(name, "FileExistsError"))
		ask(fs, "stat", NULL, answer_what_is_there);
	else
		answer_entry(fs, result);
}

static void answer_remove(struct fs_call *fs, const json_t *result)
{
	const char *name = text_member(json_object_get(result, "error"), "name");

	if (envd_is_ok(result) || (name && !strcmp(name, "FileNotFoundError")))
		rpc_reply(fs->req, json_object()); /* as `rm -rf` */
	else
		fail_as_guest(fs->req, result);
	fs_free(fs);
}

/* --- calls --------------------------------------------------------------------------------------------- */

/* `op` of the agent, about the path and nothing else. */
static void ask_plain(struct request *req, const char *op,
                      void (*answer)(struct fs_call *fs, const json_t *result))
{
	json_t *message = rpc_message(req);
	struct fs_call *fs = message ? start(req, message, "path") : NULL;

	if (fs)
		ask(fs, op, NULL, answer);
	json_decref(message);
}

static void on_stat(struct request *req)
{
	ask_plain(req, "stat", answer_entry);
}

static void on_list(struct request *req)
{
	json_t *message = rpc_message(req);
	json_int_t depth = json_integer_value(json_object_get(message, "depth"));
	struct fs_call *fs = message ? start(req, message, "path") : NULL;

	if (fs)
		ask(fs, "list", json_pack("{s:I}", "depth", depth > 1 ? depth : 1), answer_list);
	json_decref(message);
}

static void on_make_dir(struct request *req)
{
	ask_plain(req, "mkdir", answer_mkdir);
}

static void on_move(struct request *req)
{
	json_t *message = rpc_message(req);
	const char *to = text_member(message, "destination");
	struct fs_call *fs = message ? start(req, message, "source") : NULL;

	if (fs)
		ask(fs, "rename", json_pack("{s:s}", "to", to ? to : ""), answer_entry);
	json_decref(message);
}

static void on_remove(struct request *req)
{
	ask_plain(req, "remove", answer_remove);
}

static void on_health(struct request *req)
{
	reply_empty(req, 204);
}

static void on_envs(struct request *req)
{
	reply_json(req, 200, json_incref(req->box->env));
}

const struct route envd_routes[] = {
	{ "GET", "/health", on_health, 0, ROUTE_OPEN },
	{ "GET", "/envs", on_envs, 0, 0 },
	{ "GET", "/files", files_read, 0, ROUTE_OPEN },
	{ "POST", "/files", files_write, 0, ROUTE_OPEN | ROUTE_STREAMS },
	{ "POST", "/filesystem.Filesystem/Stat", on_stat, 0, 0 },
	{ "POST", "/filesystem.Filesystem/ListDir", on_list, 0, 0 },
	{ "POST", "/filesystem.Filesystem/MakeDir", on_make_dir, 0, 0 },
	{ "POST", "/filesystem.Filesystem/Move", on_move, 0, 0 },
	{ "POST", "/filesystem.Filesystem/Remove", on_remove, 0, 0 },
	{ "POST", "/filesystem.Filesystem/WatchDir", watch_stream, 0, 0 },
	{ "POST", "/filesystem.Filesystem/CreateWatcher", watch_create, 0, 0 },
	{ "POST", "/filesystem.Filesystem/GetWatcherEvents", watch_get_events, 0, 0 },
	{ "POST", "/filesystem.Filesystem/RemoveWatcher", watch_remove, 0, 0 },
	{ "POST", "/process.Process/Start", process_start, 4u << 20, 0 },
	{ "POST", "/process.Process/Connect", process_connect, 0, 0 },
	{ "POST", "/process.Process/List", process_list, 0, 0 },
	{ "POST", "/process.Process/SendInput", process_send_input, 4u << 20, 0 },
	{ "POST", "/process.Process/StreamInput", process_stream_input, 0, ROUTE_STREAMS },
	{ "POST", "/process.Process/CloseStdin", process_close_stdin, 0, 0 },
	{ "POST", "/process.Process/SendSignal", process_send_signal, 0, 0 },
	{ "POST", "/process.Process/Update", process_update, 0, 0 },
	{ 0 },
};
