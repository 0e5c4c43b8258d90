/* SPDX-License-Identifier: Apache-2.0 */
#include "api/daemon/route.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const struct route table[] = {
	{ "GET", "/boxes", NULL, 0, 0 },
	{ "GET", "/boxes/{}", NULL, 0, 0 },
	{ "DELETE", "/boxes/{}", NULL, 0, 0 },
	{ "POST", "/boxes/{}/lid/{}", NULL, 0, 0 },
	{ 0 },
};

static int find(const char *method, const char *path, const char *param[ROUTE_PARAMS],
                bool *wrong_method)
{
	static char copy[64];
	const struct route *r;

	snprintf(copy, sizeof(copy), "%s", path);
	param[0] = param[1] = NULL;
	r = route_find(table, method, copy, param, wrong_method);
	return r ? (int)(r - table) : -1;
}

Test(route, finds)
{
	const char *param[ROUTE_PARAMS];
	bool wrong;

	cr_expect_eq(find("GET", "/boxes", param, &wrong), 0);
	cr_expect_eq(find("GET", "/boxes/abc", param, &wrong), 1);
	cr_expect_str_eq(param[0], "abc");
	cr_expect_eq(find("DELETE", "/boxes/x", param, &wrong), 2);
	cr_expect_eq(find("POST", "/boxes/a/lid/b", param, &wrong), 3);
	cr_expect_str_eq(param[0], "a");
	cr_expect_str_eq(param[1], "b");
}

Test(route, refuses)
{
	static const char *const none[] = { "",         "/",         "/boxe",           "/boxes/",
		                            "/boxes//", "/boxes/a/", "/boxes/a/lid",    "boxes",
		                            "//boxes",  "/boxesx",   "/boxes/a/lid/b/c" };
	const char *param[ROUTE_PARAMS];
	bool wrong;

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		cr_expect_eq(find("GET", none[i], param, &wrong), -1, "%s", none[i]);
		cr_expect(!wrong, "%s", none[i]);
	}
	cr_expect_eq(find("PUT", "/boxes/a", param, &wrong), -1);
	cr_expect(wrong);
}

Test(route, methods)
{
	char methods[ROUTE_METHODS_MAX];

	route_methods(table, "/boxes/a", methods);
	cr_expect_str_eq(methods, "GET, DELETE");
	route_methods(table, "/boxes", methods);
	cr_expect_str_eq(methods, "GET");
	route_methods(table, "/lids", methods);
	cr_expect_str_eq(methods, "");
}

Test(route, targets)
{
	struct target t;

	cr_expect(!route_target(NULL, NULL, NULL, &t) &&
	          !route_target(NULL, NULL, "localhost:8429", &t) &&
	          !route_target(NULL, "49983", "127.0.0.1", &t));
	cr_assert(route_target("iabc123", "49999", "x", &t));
	cr_expect(!strcmp(t.id, "iabc123") && t.port == PORT_INTERPRETER);
	cr_assert(route_target("iabc-client", NULL, "x", &t));
	cr_expect(!strcmp(t.id, "iabc") && t.port == PORT_ENVD);
	cr_assert(route_target(NULL, NULL, "3000-iabc.localhost:8429", &t));
	cr_expect(!strcmp(t.id, "iabc") && t.port == 3000);
	cr_expect(!route_target(NULL, NULL, "a3000-iabc.x", &t) &&
	          !route_target(NULL, NULL, "-iabc.x", &t) &&
	          !route_target(NULL, NULL, "my-host.example", &t) &&
	          !route_target(NULL, NULL, "123456-iabc.x", &t) &&
	          !route_target(NULL, NULL, "3000-IABC.x", &t));
	/* What is no id is for a sandbox all the same: for none that exists. */
	cr_assert(route_target("../x", "99999", "x", &t));
	cr_expect(!strcmp(t.id, "unknown") && t.port == 0);
	cr_assert(route_target("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL, "x",
	                       &t));
	cr_expect_str_eq(t.id, "unknown");
}
