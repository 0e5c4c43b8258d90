/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane: E2B's REST API for sandboxes (docs/openapi.yaml). */
#include "api/daemon/daemon.h"
#include "api/daemon/journal.h"
#include "api/daemon/listing.h"
#include "api/daemon/text.h"

#include <errno.h>
#include <string.h>

#define TTL_DEFAULT_S 300
#define TEXT_MAX      (64u << 10) /* bytes of metadata, or of an environment */

/* --- what it looks like ------------------------------------------------------------------------- */

/* The answer to create and connect: all that a client needs to talk to it. */
static json_t *box_json(const struct box *box)
{
	json_t *json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?}", "templateID",
	                         box->stall->template.name, "alias", box->stall->template.name,
	                         "sandboxID", box->id, "clientID", "thawbox", "envdVersion",
	                         ENVD_VERSION, "domain", box->daemon->opts.domain);

	if (*box->token)
		json_object_set_new(json, "envdAccessToken", json_string(box->token));
	json_object_set_new(json, "trafficAccessToken",
	                    *box->traffic_token ? json_string(box->traffic_token) : json_null());
	return json;
}

/* --- create --------------------------------------------------------------------------------------- */

/* E2B's names for the template that everybody uses. */
static bool is_default_name(const char *name)
{
	return !strcmp(name, "base") || !strcmp(name, "code-interpreter-v1");
}

/* "name" or "name:tag"; NULL: there is none. */
static struct stall *find_stall(struct daemon *daemon, const char *id)
{
	size_t n = strcspn(id, ":");

	for (unsigned i = 0; i < daemon->nr_stalls; i++) {
		struct stall *stall = daemon->stalls[i];
		const char *name = stall->template.name;

		if ((strlen(name) == n && !strncmp(name, id, n)) ||
		    !strcmp(stall->template.id, id) || (!i && is_default_name(id)))
			return stall;
	}
	return NULL;
}

/* The seconds of a member "timeout"; false: it is answered. */
static bool take_ttl(struct request *req, const json_t *body, uint64_t *seconds)
{
	const json_t *timeout = json_object_get(body, "timeout");
	uint64_t most = daemon_of(req)->opts.max_ttl_ns / 1000000000u;
	json_int_t n =
		timeout && !json_is_null(timeout) ? json_integer_value(timeout) : TTL_DEFAULT_S;

	if (timeout && !json_is_null(timeout) && !json_is_integer(timeout)) {
		reply_error(req, 400, "timeout must be a number of seconds");
		return false;
	}
	if (n < 0 || (uint64_t)n > most) {
		reply_error(req, 400,
		            "timeout must be 0 to %llu seconds; thawboxd --max-ttl allows more",
		            (unsigned long long)most);
		return false;
	}
	*seconds = (uint64_t)n;
	return true;
}

static bool check_map(struct request *req, const json_t *body, const char *name)
{
	const json_t *map = json_object_get(body, name);

	if (!text_is_string_map(map)) {
		reply_error(req, 400, "%s must be an object of strings", name);
		return false;
	}
	if (map && json_dumpb(map, NULL, 0, JSON_COMPACT) > TEXT_MAX) {
		reply_error(req, 400, "%s is over %u KiB", name, TEXT_MAX >> 10);
		return false;
	}
	return true;
}

/* NULL: every member that is known and there (null apart) is of its type. Else what must be. */
static const char *wrong_type(const json_t *body)
{
	static const char *const flags[] = { "secure", "allow_internet_access", "autoPause" };
	const json_t *network = json_object_get(body, "network"), *value;
	const json_t *deny = json_object_get(network, "denyOut");
	const json_t *traffic = json_object_get(network, "allowPublicTraffic");
	size_t k;

	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		value = json_object_get(body, flags[i]);
		if (value && !json_is_null(value) && !json_is_boolean(value))
			return "secure, allow_internet_access and autoPause must be true or false";
	}
	if (network && !json_is_null(network) && !json_is_object(network))
		return "network must be an object";
	if (traffic && !json_is_null(traffic) && !json_is_boolean(traffic))
		return "network.allowPublicTraffic must be true or false";
	if (deny && !json_is_null(deny) && !json_is_array(deny))
		return "network.denyOut must be an array of strings";
	json_array_foreach(deny, k, value)
	{
		if (!json_is_string(value))
			return "network.denyOut must be an array of strings";
	}
	return NULL;
}

static bool is_set(const json_t *value)
{
	return json_is_true(value) || json_object_size(value) || json_array_size(value);
}

/* What would change nothing without a word, or would promise what is not kept, is refused. */
static bool check_offered(struct request *req, const json_t *body)
{
	static const struct {
		const char *member, *what;
	} missing[] = {
		{ "mcp", "MCP gateways" },
		{ "iam", "identity tokens" },
	};
	const json_t *network = json_object_get(body, "network");
	const char *name;
	json_t *value;

	for (size_t i = 0; i < ARRAY_LEN(missing); i++) {
		if (json_object_size(json_object_get(body, missing[i].member))) {
			reply_not_offered(req, missing[i].what);
			return false;
		}
	}
	if (json_is_true(json_object_get(body, "autoPause"))) {
		reply_not_offered(req, "sandboxes that pause");
		return false;
	}
	if (json_array_size(json_object_get(body, "volumeMounts"))) {
		reply_not_offered(req, "volumes");
		return false;
	}
	json_object_foreach((json_t *)(uintptr_t)network, name, value)
	{
		/* A sandbox has no network at all: rules that forbid are kept. */
		if (strcmp(name, "allowPublicTraffic") != 0 && strcmp(name, "denyOut") != 0 &&
		    is_set(value)) {
			reply_not_offered(req, "network access of sandboxes");
			return false;
		}
	}
	return true;
}

/* The members of "limits": what a sandbox is held to. False: it is answered. */
static bool take_limits(struct request *req, const json_t *body, struct box_spec *spec)
{
	const json_t *limits = json_object_get(body, "limits");
	const struct {
		const char *name;
		uint64_t *to;
	} rates[] = {
		{ "diskBytesPerSecond", &spec->limits.disk_bytes },
		{ "diskOpsPerSecond", &spec->limits.disk_ops },
		{ "vsockBytesPerSecond", &spec->limits.vsock_bytes },
	};
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)limits, name, value)
	{
		size_t i = 0;

		while (i < ARRAY_LEN(rates) && strcmp(rates[i].name, name) != 0)
			i++;
		if (i < ARRAY_LEN(rates) && json_integer_value(value) > 0) {
			*rates[i].to = (uint64_t)json_integer_value(value);
		} else if (!strcmp(name, "cpu") && json_number_value(value) >= 0.01 &&
		           json_number_value(value) <= 1024) {
			spec->cpu_share = json_number_value(value);
		} else {
			reply_error(req, 400,
			            "limits: %.40s must be cpu (processors, 0.01 or more), "
			            "diskBytesPerSecond, diskOpsPerSecond or vsockBytesPerSecond "
			            "(integers above 0)",
			            name);
			return false;
		}
	}
	if (limits && !json_is_null(limits) && !json_is_object(limits))
		reply_error(req, 400, "limits must be an object");
	return !req->status;
}

/* How many there may be, of all and of this key. */
static bool check_limits(struct request *req)
{
	struct daemon *daemon = daemon_of(req);
	struct key *key = req->key;
	unsigned wait_s;
	char text[16];

	if (daemon->is_stopping) {
		reply_error(req, 503, "the daemon is stopping");
		return false;
	}
	if (daemon->nr_boxes - daemon->nr_dying >= daemon->opts.max_sandboxes) {
		reply_error(req, 429,
		            "there are %llu sandboxes, which is the limit: kill one, or start "
		            "thawboxd with a larger --max-sandboxes",
		            (unsigned long long)daemon->opts.max_sandboxes);
		return false;
	}
	if (key && key->max_sandboxes && key->live >= key->max_sandboxes) {
		reply_error(req, 429, "this key has its %llu sandboxes: kill one first",
		            (unsigned long long)key->max_sandboxes);
		return false;
	}
	if (key && !keys_take(key, clock_ns(), &wait_s)) {
		(void)snprintf(text, sizeof(text), "%u", wait_s);
		reply_header(req, "Retry-After", text);
		reply_error(req, 429,
		            "this key may create %g sandboxes a second: try again in "
		            "%u s",
		            key->rate, wait_s);
		return false;
	}
	return true;
}

static void on_creator_gone(struct request *req)
{
	struct box *box = req->ctx;

	box->ctx = NULL;
}

static const struct request_ops create_ops = { .gone = on_creator_gone };

static void on_made(struct box *box, const struct err *err)
{
	struct request *req = box->ctx;

	if (err->code) {
		journal_event(LOG_LVL_ERR, NULL, "create: %s", err->msg);
		if (req)
			reply_err(req, err->code == -EOPNOTSUPP ? 501 : 503, err);
		return;
	}
	if (!req) {
		box_end(box, "its creator left before it was there");
		return;
	}
	memcpy(req->box_id, box->id, sizeof(box->id));
	reply_json(req, 201, box_json(box));
}

static void create_of(struct request *req, const json_t *body, struct stall *stall)
{
	const json_t *secure = json_object_get(body, "secure");
	struct box_spec spec = {
		.stall = stall,
		.key = req->key,
		.is_open = json_is_false(secure),
		.is_private = json_is_false(
			json_object_get(json_object_get(body, "network"), "allowPublicTraffic")),
		.metadata = json_object_get(body, "metadata"),
		.env = json_object_get(body, "envVars"),
		.made = on_made,
		.ctx = req,
	};
	struct box *box;

	if (json_is_null(spec.metadata))
		spec.metadata = NULL;
	if (json_is_null(spec.env))
		spec.env = NULL;
	if (spec.is_private && spec.is_open) {
		reply_error(req, 400, "a sandbox without public traffic must be secure");
		return;
	}
	if (!take_ttl(req, body, &spec.ttl_s) || !take_limits(req, body, &spec))
		return;
	if (!spec.ttl_s) {
		reply_error(req, 400, "timeout must be above 0");
		return;
	}
	box = box_create(daemon_of(req), &spec);
	if (!box) {
		reply_error(req, 503, "no memory");
		return;
	}
	req->ctx = box;
	req->ops = &create_ops;
}

static void create(struct request *req)
{
	json_t *body = request_json(req);
	const char *id = text_member(body, "templateID");
	struct stall *stall = id ? find_stall(daemon_of(req), id) : NULL;
	const char *wrong = wrong_type(body);

	if (!body)
		return;
	if (!id || wrong)
		reply_error(req, 400, "%s", id ? wrong : "templateID is missing");
	else if (!stall)
		reply_error(req, 404,
		            "there is no template '%s' here: start thawboxd with --template %s "
		            "(`thawbox template list` shows what is baked)",
		            id, id);
	else if (check_map(req, body, "metadata") && check_map(req, body, "envVars") &&
	         check_offered(req, body) && check_limits(req))
		create_of(req, body, stall);
	json_decref(body);
}

/* --- one of them ------------------------------------------------------------------------------------ */

/* Of the path; NULL: it is answered. A key sees its own alone. */
static struct box *named_box(struct request *req)
{
	const char *id = req->param[0];
	size_t n = strcspn(id, "-"); /* what old clients put behind it */
	char short_id[40] = "";
	struct box *box;

	if (n < sizeof(short_id))
		memcpy(short_id, id, n);
	box = box_find(daemon_of(req), short_id);
	if (box && req->key && box->key != req->key)
		box = NULL;
	if (!box)
		reply_error(req, 404,
		            "sandbox \"%.40s\" doesn't exist or you don't have access to "
		            "it",
		            id);
	else
		memcpy(req->box_id, box->id, sizeof(box->id));
	return box;
}

static void connect_box(struct request *req)
{
	struct box *box = named_box(req);
	json_t *body = box ? request_json(req) : NULL;
	uint64_t ttl;

	if (body && take_ttl(req, body, &ttl)) {
		if (clock_us() + (int64_t)ttl * 1000000 > box->end_us) /* never shortened */
			box_set_ttl(box, ttl);
		reply_json(req, 200, box_json(box));
	}
	json_decref(body);
}

static void get(struct request *req)
{
	struct box *box = named_box(req);

	if (box)
		reply_json(req, 200, listing_detail(box));
}

static void kill_box(struct request *req)
{
	struct box *box = named_box(req);

	if (!box)
		return;
	daemon_of(req)->counters.ended_killed++;
	journal_event(LOG_LVL_INFO, box->id, "killed");
	box_end(box, "it was killed");
	reply_empty(req, 204);
}

static void set_timeout(struct request *req)
{
	struct box *box = named_box(req);
	json_t *body = box ? request_json(req) : NULL;
	uint64_t ttl;

	if (body && take_ttl(req, body, &ttl)) {
		box_set_ttl(box, ttl);
		reply_empty(req, 204);
	}
	json_decref(body);
}

static void metrics(struct request *req)
{
	struct box *box = named_box(req);

	if (box)
		listing_metrics(req, box);
}

static void logs(struct request *req)
{
	struct box *box = named_box(req);

	if (box)
		reply_json(req, 200, listing_logs(box));
}

/* --- what is not offered ---------------------------------------------------------------------------- */

static void no_pause(struct request *req)
{
	if (named_box(req))
		reply_not_offered(req, "pausing and resuming a sandbox");
}

static void no_fork(struct request *req)
{
	if (named_box(req))
		reply_not_offered(req, "forking a sandbox");
}

static void no_snapshot(struct request *req)
{
	reply_not_offered(req, "snapshots of sandboxes");
}

static void no_network(struct request *req)
{
	if (named_box(req))
		reply_not_offered(req, "network access of sandboxes");
}

static void no_template(struct request *req)
{
	reply_error(req, 501,
	            "templates are not built over the network: bake one with `thawbox "
	            "template build FOLDER` and start thawboxd with --template NAME");
}

static void no_volume(struct request *req)
{
	reply_not_offered(req, "volumes");
}

static void no_secret(struct request *req)
{
	reply_not_offered(req, "secrets");
}

static void health(struct request *req)
{
	reply_text(req, 200, "text/plain", "OK\n");
}

const struct route control_routes[] = {
	{ "GET", "/health", health, 0, ROUTE_OPEN },
	{ "GET", "/metrics", stats_handle, 0, 0 },
	{ "POST", "/sandboxes", create, 0, 0 },
	{ "POST", "/v2/sandboxes", create, 0, 0 },
	{ "GET", "/v2/sandboxes", listing_handle, 0, 0 },
	{ "GET", "/sandboxes", listing_handle, 0, 0 },
	{ "GET", "/sandboxes/{}", get, 0, 0 },
	{ "DELETE", "/sandboxes/{}", kill_box, 0, 0 },
	{ "POST", "/sandboxes/{}/connect", connect_box, 0, 0 },
	{ "POST", "/v2/sandboxes/{}/connect", connect_box, 0, 0 },
	{ "POST", "/sandboxes/{}/timeout", set_timeout, 0, 0 },
	{ "GET", "/sandboxes/{}/metrics", metrics, 0, 0 },
	{ "GET", "/sandboxes/{}/logs", logs, 0, 0 },
	{ "POST", "/sandboxes/{}/pause", no_pause, 0, 0 },
	{ "POST", "/sandboxes/{}/resume", no_pause, 0, 0 },
	{ "POST", "/sandboxes/{}/fork", no_fork, 0, 0 },
	{ "POST", "/v2/sandboxes/{}/fork", no_fork, 0, 0 },
	{ "POST", "/sandboxes/{}/snapshots", no_snapshot, 0, 0 },
	{ "GET", "/snapshots", no_snapshot, 0, 0 },
	{ "PUT", "/sandboxes/{}/network", no_network, 0, 0 },
	{ "POST", "/v3/templates", no_template, 0, 0 },
	{ "GET", "/templates", no_template, 0, 0 },
	{ "POST", "/templates", no_template, 0, 0 },
	{ "DELETE", "/templates/{}", no_template, 0, 0 },
	{ "GET", "/templates/aliases/{}", no_template, 0, 0 },
	{ "POST", "/templates/tags", no_template, 0, 0 },
	{ "DELETE", "/templates/tags", no_template, 0, 0 },
	{ "GET", "/templates/{}/tags", no_template, 0, 0 },
	{ "GET", "/volumes", no_volume, 0, 0 },
	{ "POST", "/volumes", no_volume, 0, 0 },
	{ "GET", "/volumes/{}", no_volume, 0, 0 },
	{ "DELETE", "/volumes/{}", no_volume, 0, 0 },
	{ "GET", "/secrets", no_secret, 0, 0 },
	{ "POST", "/secrets", no_secret, 0, 0 },
	{ "GET", "/secrets/{}", no_secret, 0, 0 },
	{ "POST", "/secrets/{}", no_secret, 0, 0 },
	{ "DELETE", "/secrets/{}", no_secret, 0, 0 },
	{ 0 },
};
