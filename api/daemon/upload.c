/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/upload.h"

#include "api/daemon/daemon.h"
#include "api/daemon/envd.h"
#include "api/daemon/text.h"
#include "core/own.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#define INFLATE_BYTES (64u << 10)
#define PARTS_MAX     1024u
#define FLYING_MAX    16u /* files whose answer is still out */
#define POST_BYTES    (32u << 10)

#define METADATA_PREFIX  "X-Metadata-"
#define METADATA_KEY_MAX 246u /* bytes: with its prefix, the name of an attribute of a file */
#define METADATA_MAX     4096u

struct part {
	struct node node; /* in the order of the request */
	struct upload *upload;
	struct guest_stream stream;
	char *path; /* as the client wrote it */
	bool has_bytes;
	json_t *result; /* NULL so far */
};

struct upload {
	struct request *req;
	char user[64];
	char *path;       /* of the query, or NULL */
	json_t *metadata; /* for each file; NULL: none */
	struct MHD_PostProcessor *post;
	struct node parts;
	struct part *part; /* whose content comes; NULL: nobody's */
	unsigned nr_parts, nr_flying;
	bool is_gzip, has_zlib, zlib_ended;
	z_stream zlib;
	struct bytes packed; /* that is not unpacked yet */
	bool body_ended;
	unsigned status; /* of the first failure; 0: none */
	char message[512];
};

static void pump(struct upload *u);

/* --- its end ------------------------------------------------------------------------------------------- */

static void upload_free(struct upload *u)
{
	while (!list_is_empty(&u->parts)) {
		struct part *part = container_of(u->parts.next, struct part, node);

		guest_close(&part->stream);
		list_remove(&part->node);
		json_decref(part->result);
		free(part->path);
		free(part);
	}
	if (u->post)
		MHD_destroy_post_processor(u->post);
	if (u->has_zlib)
		(void)inflateEnd(&u->zlib);
	bytes_free(&u->packed);
	json_decref(u->metadata);
	free(u->path);
	free(u);
}

/* The first one counts; what still comes of the body goes nowhere. */
static void fail(struct upload *u, unsigned status, const char *message)
{
	if (u->status)
		return;
	u->status = status;
	(void)snprintf(u->message, sizeof(u->message), "%s", message);
}

static json_t *written(const struct upload *u)
{
	json_t *list = json_array();

	for (const struct node *node = u->parts.next; node != &u->parts; node = node->next) {
		const struct part *part =
			container_of((struct node *)(uintptr_t)node, struct part, node);
		const char *path = text_member(part->result, "path");
		const char *slash = path ? strrchr(path, '/') : NULL;

		json_array_append_new(list, json_pack("{s:s*, s:s, s:s, s:O*}", "path", path,
		                                      "name", slash ? slash + 1 : "", "type",
		                                      "file", "metadata", u->metadata));
	}
	return list;
}

static void maybe_finish(struct upload *u)
{
	struct request *req = u->req;

	if (!u->body_ended || u->nr_flying || u->packed.pos < u->packed.len)
		return;
	if (u->status)
		reply_error(req, u->status, "%s", u->message);
	else
		reply_json(req, 200, written(u));
	upload_free(u);
}

/* --- a file -------------------------------------------------------------------------------------------- */

static void land(struct part *part)
{
	struct upload *u = part->upload;

	guest_close(&part->stream);
	u->nr_flying--;
	if (u->part == part)
		u->part = NULL;
	if (u->body_ended)
		maybe_finish(u);
	else
		request_resume(u->req);
}

static void on_part_frame(struct guest_stream *s, const struct frame *frame)
{
	struct part *part = container_of(s, struct part, stream);

	if (frame->type != FRAME_RESULT)
		return;
	part->result = frame_json(frame->data, frame->len);
	if (!envd_is_ok(part->result)) {
		const json_t *error = json_object_get(part->result, "error");
		const char *value = text_member(error, "value"), *name = text_member(error, "name");
		char text[400];

		if (name && !strcmp(name, "IsADirectoryError"))
			(void)snprintf(text, sizeof(text), "path '%.300s' is a directory",
			               part->path);
		else
			(void)snprintf(text, sizeof(text), "%s",
			               value ? value : "the guest refused");
		fail(part->upload, files_status(part->result), text);
	}
	land(part);
}

static void on_part_closed(struct guest_stream *s, const struct err *why)
{
	struct upload *u = container_of(s, struct part, stream)->upload;

	(void)why;
	request_cut(u->req);
	upload_free(u);
}

static void on_part_drained(struct guest_stream *s)
{
	pump(container_of(s, struct part, stream)->upload);
}

static const struct guest_ops part_ops = { .frame = on_part_frame,
	                                   .closed = on_part_closed,
	                                   .drained = on_part_drained };

static bool is_taken(const struct upload *u, const char *path)
{
	for (const struct node *node = u->parts.next; node != &u->parts; node = node->next)
		if (!strcmp(container_of((struct node *)(uintptr_t)node, struct part, node)->path,
		            path))
			return true;
	return false;
}

/* The content of the current file is complete. */
static void end_part(struct upload *u)
{
	if (u->part)
		guest_send(&u->part->stream, FRAME_END, NULL, 0);
	u->part = NULL;
}

static void begin_part(struct upload *u, const char *path)
{
	struct part *part;

	end_part(u);
	if (u->status)
		return;
	if (is_taken(u, path) || u->nr_parts == PARTS_MAX) {
		fail(u, 400,
		     u->nr_parts == PARTS_MAX ? "too many files in one request"
		                              : "the same path is given twice in one request");
		return;
	}
	part = calloc(1, sizeof(*part));
	if (!part || !(part->path = strdup(path))) {
		free(part);
		fail(u, 503, "no memory");
		return;
	}
	part->upload = u;
	u->nr_parts++;
	u->nr_flying++;
	u->part = part;
	list_append(&u->parts, &part->node);
	guest_open(&part->stream, &u->req->box->machine, GUEST_PORT_AGENT, &part_ops);
	guest_send_json(&part->stream, json_pack("{s:s, s:s, s:s, s:O*}", "op", "write", "path",
	                                         path, "user", u->user, "metadata", u->metadata));
}

static void add(struct upload *u, const void *data, size_t len)
{
	if (!u->part || u->status || !len)
		return;
	u->part->has_bytes = true;
	guest_send(&u->part->stream, FRAME_DATA, data, len);
}

static bool has_room(struct upload *u)
{
	return !u->part || u->status || guest_has_room(&u->part->stream);
}

/* --- the body ------------------------------------------------------------------------------------------ */

/* Unpacks as much as the guest takes. */
static void unpack(struct upload *u)
{
	uint8_t out[INFLATE_BYTES];

	while (u->packed.pos < u->packed.len && has_room(u)) {
		int rc;

		if (u->status ||
		    u->zlib_ended) { /* what stands behind the end is ignored, as by gzip */
			u->packed.pos = u->packed.len;
			break;
		}
		u->zlib.next_in = u->packed.p + u->packed.pos;
		u->zlib.avail_in = (unsigned)(u->packed.len - u->packed.pos);
		u->zlib.next_out = out;
		u->zlib.avail_out = sizeof(out);
		rc = inflate(&u->zlib, Z_NO_FLUSH);
		u->packed.pos = u->packed.len - u->zlib.avail_in;
		add(u, out, sizeof(out) - u->zlib.avail_out);
		u->zlib_ended = rc == Z_STREAM_END;
		if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
			fail(u, 400, "the body is no gzip");
	}
}

/* Everything that is here has been given to the guest? Then the end, or more of the body. */
static void pump(struct upload *u)
{
	if (u->is_gzip)
		unpack(u);
	if (u->packed.pos < u->packed.len)
		return;
	if (u->body_ended) {
		if (u->is_gzip && !u->zlib_ended)
			fail(u, 400, "the body is a gzip that was cut off");
		end_part(u);
		maybe_finish(u);
	} else {
		request_resume(u->req);
	}
}

void upload_decode_name(char *name)
{
	static const struct {
		char text[4], c;
	} codes[] = { { "%22", '"' }, { "%0D", '\r' }, { "%0A", '\n' } };
	char *to = name;

	for (const char *p = name; *p; p++) {
		char c = *p;

		for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
			if (!strncasecmp(p, codes[i].text, 3)) {
				c = codes[i].c;
				p += 2;
				break;
			}
		}
		*to++ = c;
	}
	*to = '\0';
}

/* MHD may tell the beginning of a part twice, when the first piece had no byte. */
static void begin_named_part(struct upload *u, const char *filename)
{
	const char *from = u->path ? u->path : filename;
	own_free char *name = from ? strdup(from) : NULL;

	if (!name) {
		fail(u, 400, "a part has no filename, and the query no path");
		return;
	}
	if (!u->path)
		upload_decode_name(name);
	if (!u->part || u->part->has_bytes || strcmp(u->part->path, name) != 0)
		begin_part(u, name);
}

/* A piece of a part: MHD_PostDataIterator. */
static enum MHD_Result on_piece(void *cls, enum MHD_ValueKind kind, const char *key,
                                const char *filename, const char *type, const char *encoding,
                                const char *data, uint64_t off, size_t size)
{
	struct upload *u = cls;
	(void)kind;
	(void)type;
	(void)encoding;
	if (u->status)
		return MHD_YES;
	if (!off && key && !strcmp(key, "file"))
		begin_named_part(u, filename);
	else if (!off)
		end_part(u);
	add(u, data, size);
	return MHD_YES;
}

static void on_data(struct request *req, const void *data, size_t len)
{
	struct upload *u = req->ctx;

	daemon_of(req)->counters.bytes_in += len;
	if (u->post) {
		if (MHD_post_process(u->post, data, len) != MHD_YES)
			fail(u, 400, "the body is no multipart/form-data");
	} else if (u->is_gzip) {
		if (bytes_append(&u->packed, data, len))
			fail(u, 503, "no memory");
		unpack(u);
	} else {
		add(u, data, len);
	}
	if (!u->status &&
	    (!has_room(u) || u->packed.pos < u->packed.len || u->nr_flying > FLYING_MAX))
		request_hold(req);
}

static void on_complete(struct request *req)
{
	struct upload *u = req->ctx;

	if (u->post) {
		if (MHD_destroy_post_processor(u->post) != MHD_YES)
			fail(u, 400, "the body is a multipart/form-data that was cut off");
		u->post = NULL;
	}
	if (!u->nr_parts)
		fail(u, 400, "there is no part named file in the body");
	u->body_ended = true;
	pump(u);
}

static void on_gone(struct request *req)
{
	upload_free(req->ctx);
}

static const struct request_ops upload_ops = { .data = on_data,
	                                       .complete = on_complete,
	                                       .gone = on_gone };

bool upload_add_metadata(json_t *metadata, const char *name, const char *value)
{
	char key[METADATA_KEY_MAX + 1];
	size_t total = strlen(name) + strlen(value), n = 0;
	const char *other;
	json_t *text;

	for (; name[n] && n < METADATA_KEY_MAX; n++)
		key[n] = (char)tolower((unsigned char)name[n]);
	key[n] = '\0';
	for (const char *p = value; *p; p++)
		if (*p < ' ' || *p == 0x7f)
			return false;
	json_object_foreach(metadata, other, text)
	{
		total += strlen(other) + json_string_length(text);
	}
	return n && !name[n] && total <= METADATA_MAX &&
	       !json_object_set_new(metadata, key, json_string(value));
}

struct metadata {
	json_t *all;
	bool is_wrong;
};

/* MHD_KeyValueIterator. */
static enum MHD_Result take_metadata(void *cls, enum MHD_ValueKind kind, const char *key,
                                     const char *value)
{
	struct metadata *m = cls;

	(void)kind;
	if (strncasecmp(key, METADATA_PREFIX, strlen(METADATA_PREFIX)) != 0)
		return MHD_YES;
	m->all = m->all ? m->all : json_object();
	if (!upload_add_metadata(m->all, key + strlen(METADATA_PREFIX), value ? value : ""))
		m->is_wrong = true;
	return MHD_YES;
}

static bool is_multipart(const char *type)
{
	return !strncasecmp(type, "multipart/form-data", 19);
}

/* False: it is answered. */
static bool check(struct request *req, const char *type, const char *path)
{
	const char *encoding = request_header(req, "Content-Encoding");

	if (!is_multipart(type) && strncasecmp(type, "application/octet-stream", 24) != 0) {
		reply_error(req, 400,
		            "the content type must be multipart/form-data or "
		            "application/octet-stream");
	} else if (!is_multipart(type) && !path) {
		reply_error(req, 400, "the query must have a path");
	} else if (encoding && !text_is(encoding, "identity") && !text_is(encoding, "gzip")) {
		reply_error(req, 400, "the content encoding must be gzip, or none");
	} else if (text_is(encoding, "gzip") && is_multipart(type)) {
		reply_error(req, 400,
		            "a multipart body cannot be compressed here: send "
		            "application/octet-stream");
	}
	return !req->status;
}

/* What the kind of body needs. False: it is answered. */
static bool prepare(struct upload *u, struct request *req, const char *type)
{
	if (is_multipart(type))
		u->post = MHD_create_post_processor(req->conn, POST_BYTES, on_piece, u);
	u->is_gzip = text_is(request_header(req, "Content-Encoding"), "gzip");
	if (u->is_gzip)
		u->has_zlib = inflateInit2(&u->zlib, 16 + MAX_WBITS) == Z_OK;
	if ((is_multipart(type) && !u->post) || (u->is_gzip && !u->has_zlib))
		reply_error(req, 400, "the content type is not understood");
	return !req->status;
}

void upload_begin(struct request *req)
{
	const char *path = request_query(req, "path"), *user = request_query(req, "username"),
		   *type = request_header(req, "Content-Type");
	struct metadata metadata = { 0 };
	struct upload *u;

	type = type ? type : "";
	if (!check(req, type, path))
		return;
	(void)MHD_get_connection_values(req->conn, MHD_HEADER_KIND, take_metadata, &metadata);
	if (metadata.is_wrong)
		reply_error(req, 400,
		            "metadata: a key has 1 to %u bytes, all of it is printable ASCII, and "
		            "has %u bytes together at most",
		            METADATA_KEY_MAX, METADATA_MAX);
	u = metadata.is_wrong ? NULL : calloc(1, sizeof(*u));
	if (!u) {
		json_decref(metadata.all);
		if (!req->status)
			reply_error(req, 503, "no memory");
		return;
	}
	list_init(&u->parts);
	u->metadata = metadata.all;
	u->req = req;
	u->path = path ? strdup(path) : NULL;
	(void)snprintf(u->user, sizeof(u->user), "%s", user && *user ? user : "user");
	if (!prepare(u, req, type)) {
		upload_free(u);
		return;
	}
	req->ctx = u;
	req->ops = &upload_ops;
	if (!is_multipart(type) && u->path)
		begin_part(u, u->path);
}
