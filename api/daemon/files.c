/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/files.h"

#include "api/daemon/daemon.h"
#include "api/daemon/envd.h"
#include "api/daemon/text.h"
#include "api/daemon/upload.h"

#include <errno.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- who may ------------------------------------------------------------------------------------------- */

void files_sign(const char *path, const char *op, const char *user, const char *token,
                const char *expiry, char out[SIGNATURE_MAX])
{
	const char *parts[] = {
		path, ":", op, ":", user, ":", token, expiry ? ":" : "", expiry ? expiry : ""
	};
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx ctx;
	char *text;

	sha256_init(&ctx);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		sha256_update(&ctx, strlen(parts[i]), (const uint8_t *)parts[i]);
	sha256_digest(&ctx, sizeof(digest), digest);
	text = text_base64(digest, sizeof(digest));
	(void)snprintf(out, SIGNATURE_MAX, "v1_%.*s", text ? (int)strcspn(text, "=") : 0,
	               text ? text : "");
	free(text);
}

static bool signature_fits(struct request *req, const struct box *box)
{
	const char *path = request_query(req, "path"), *user = request_query(req, "username"),
		   *given = request_query(req, "signature");
	char wanted[SIGNATURE_MAX];

	files_sign(path ? path : "", strcmp(req->method, "GET") != 0 ? "write" : "read",
	           user ? user : "", box->token, request_query(req, "signature_expiration"),
	           wanted);
	return *box->token && strlen(given) == strlen(wanted) &&
	       memeql_sec(given, wanted, strlen(wanted));
}

/* False: it is answered. Called when the signature fits. */
static bool check_expiry(struct request *req)
{
	const char *expiry = request_query(req, "signature_expiration");

	if (!expiry || strtoll(expiry, NULL, 10) >= time(NULL))
		return true;
	reply_error(req, 401, "signature is already expired");
	return false;
}

struct box *files_find_signed(struct request *req)
{
	struct daemon *daemon = daemon_of(req);

	if (!request_query(req, "signature")) {
		reply_error(req, 401, "missing signature query parameter");
		return NULL;
	}
	list_each(&daemon->boxes, node)
	{
		struct box *box = container_of(node, struct box, node);

		if (signature_fits(req, box))
			return box;
	}
	daemon->counters.denied++;
	reply_error(req, 401, "invalid signature");
	return NULL;
}

/* By the header, or by the signature. False: it is answered. */
static bool check_access(struct request *req)
{
	const char *token = request_header(req, "X-Access-Token");
	const char *wanted = req->box->token;

	if (!*wanted)
		return true;
	if (token) {
		if (strlen(token) == strlen(wanted) && memeql_sec(token, wanted, strlen(wanted)))
			return true;
		reply_error(req, 401, "access token present in header but does not match");
	} else if (!request_query(req, "signature")) {
		reply_error(req, 401, "missing signature query parameter");
	} else if (!signature_fits(req, req->box)) {
		reply_error(req, 401, "invalid signature");
	} else {
		return check_expiry(req);
	}
	daemon_of(req)->counters.denied++;
	return false;
}

unsigned files_status(const json_t *result)
{
	const json_t *error = json_object_get(result, "error");
	const char *name = text_member(error, "name"), *value = text_member(error, "value");

	if (!name)
		return 500;
	if (!strcmp(name, "FileNotFoundError"))
		return 404;
	if (!strcmp(name, "KeyError"))
		return 401;
	if (!strcmp(name, "PermissionError"))
		return 403;
	if (value && strstr(value, "No space left"))
		return 507;
	return 400; /* a folder, a device, a name that cannot be */
}

void files_refuse(struct request *req, const json_t *result, const char *path)
{
	const json_t *error = json_object_get(result, "error");
	const char *name = text_member(error, "name"), *value = text_member(error, "value");

	if (name && !strcmp(name, "IsADirectoryError"))
		reply_error(req, 400, "path '%s' is a directory", path);
	else
		reply_error(req, files_status(result), "%s", value ? value : "the guest refused");
}

/* --- out ----------------------------------------------------------------------------------------------- */

struct download {
	struct guest_stream stream;
	struct request *req;
	char path[PATHS_MAX];
};

static void download_free(struct download *d)
{
	guest_close(&d->stream);
	free(d);
}

static void on_reader_drained(struct request *req)
{
	guest_resume(&((struct download *)req->ctx)->stream);
}

static void on_reader_gone(struct request *req)
{
	download_free(req->ctx);
}

static const struct request_ops reader_ops = { .drained = on_reader_drained,
	                                       .gone = on_reader_gone };

/* The last frame. An error in the middle of the content can only be shown by cutting it off. */
static void on_read_result(struct download *d, const struct frame *frame)
{
	json_t *result = frame_json(frame->data, frame->len);

	if (!d->req->status) /* nothing came before it */
		files_refuse(d->req, result, d->path);
	else if (envd_is_ok(result))
		reply_end(d->req);
	else
		request_cut(d->req);
	json_decref(result);
	download_free(d);
}

static void on_read_frame(struct guest_stream *s, const struct frame *frame)
{
	struct download *d = container_of(s, struct download, stream);

	if (frame->type == FRAME_RESULT) {
		on_read_result(d, frame);
		return;
	}
	if (frame->type != FRAME_DATA && frame->type != FRAME_END)
		return;
	if (!d->req->status)
		reply_stream(d->req, 200, "application/octet-stream");
	reply_write(d->req, frame->data, frame->len);
	if (!reply_has_room(d->req))
		guest_pause(s);
}

static void on_read_closed(struct guest_stream *s, const struct err *why)
{
	struct download *d = container_of(s, struct download, stream);

	(void)why;
	request_cut(d->req);
	download_free(d);
}

static const struct guest_ops read_ops = { .frame = on_read_frame, .closed = on_read_closed };

void files_read(struct request *req)
{
	const char *path = request_query(req, "path"), *user = request_query(req, "username");
	struct download *d;

	if (!check_access(req))
		return;
	d = path && strlen(path) < PATHS_MAX ? calloc(1, sizeof(*d)) : NULL;
	if (!d) {
		reply_error(req, 400, "the query must have a path of at most %d bytes", PATHS_MAX);
		return;
	}
	(void)snprintf(d->path, sizeof(d->path), "%s", path);
	d->req = req;
	req->ctx = d;
	req->ops = &reader_ops;
	guest_open(&d->stream, &req->box->machine, GUEST_PORT_AGENT, &read_ops);
	guest_send_json(&d->stream,
	                json_pack("{s:s, s:s, s:s}", "op", "read", "path", *path ? path : "~",
	                          "user", user && *user ? user : "user"));
}

void files_write(struct request *req)
{
	if (check_access(req))
		upload_begin(req);
}
