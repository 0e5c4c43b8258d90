/* SPDX-License-Identifier: Apache-2.0 */
/* What the control plane tells of boxes: list, details, what one uses, its log. Loop's thread. */
#ifndef API_DAEMON_LISTING_H
#define API_DAEMON_LISTING_H

#include <jansson.h>
#include <stdbool.h>

struct box;
struct request;

/* GET /v2/sandboxes: filters, pages. */
void listing_handle(struct request *req);
/* New references. */
json_t *listing_detail(const struct box *box);
json_t *listing_logs(const struct box *box);
/* GET /sandboxes/{}/metrics: one sample, of now. */
void listing_metrics(struct request *req, struct box *box);

/*
 * The filter on metadata, which arrives encoded three times: `text` is what was left after the first decoding.
 * A new object, or NULL: it is no such thing. Pure.
 */
json_t *listing_parse_filter(const char *text);

#endif
