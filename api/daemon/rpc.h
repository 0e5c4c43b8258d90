/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connect RPC with its JSON codec (https://connectrpc.com/docs/protocol), as E2B's SDKs speak it to envd. A
 * unary call is a POST whose answer is an object, or a status with {"code":"snake_case","message"}. A server
 * stream is answered with 200 and envelopes: flags (2: the last), length (big endian), JSON; an error of
 * one is in its last envelope.
 */
#ifndef API_DAEMON_RPC_H
#define API_DAEMON_RPC_H

#include "api/daemon/http.h"

#include <jansson.h>

enum rpc_code {
	RPC_CANCELED,
	RPC_UNKNOWN,
	RPC_INVALID_ARGUMENT,
	RPC_DEADLINE_EXCEEDED,
	RPC_NOT_FOUND,
	RPC_ALREADY_EXISTS,
	RPC_PERMISSION_DENIED,
	RPC_RESOURCE_EXHAUSTED,
	RPC_FAILED_PRECONDITION,
	RPC_ABORTED,
	RPC_UNIMPLEMENTED,
	RPC_INTERNAL,
	RPC_UNAVAILABLE,
	RPC_UNAUTHENTICATED,
};

struct route;

/* A method of a service, by its path: its errors are those below. Pure. */
bool rpc_is_call(const struct route *route);

/* The message of a request, unary or the one of a stream: a new reference, or NULL and it is answered. */
json_t *rpc_message(struct request *req);

/*
 * The next envelope out of what has arrived of a stream: 1, and *data lives until `in` changes; 0: not all of it
 * is here; -EPROTO: it is compressed, or over RPC_MESSAGE_MAX. An end-of-stream envelope is skipped.
 */
#define RPC_MESSAGE_MAX (4u << 20)
NODISCARD int rpc_take_envelope(struct bytes *in, const void **data, size_t *len);

void rpc_reply(struct request *req, json_t *message); /* stolen */
void rpc_fail(struct request *req, enum rpc_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* True: the request is one of a stream, by its content type; else it is answered. */
bool rpc_is_stream(struct request *req);
void rpc_begin(struct request *req);                 /* of an answer in envelopes */
void rpc_send(struct request *req, json_t *message); /* stolen */
void rpc_end(struct request *req);
void rpc_end_fail(struct request *req, enum rpc_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Milliseconds of Connect-Timeout-Ms; 0: none. */
uint64_t rpc_timeout_ms(struct request *req);
/* Seconds of Keepalive-Ping-Interval, or 90. */
unsigned rpc_keepalive_s(struct request *req);
/* The name in "Authorization: Basic NAME:", or "user". False: it is answered. */
bool rpc_user(struct request *req, char user[64]);

/* What an error name of the guest's agent stands for. */
enum rpc_code rpc_code_of(const char *name);

#endif
