/* SPDX-License-Identifier: Apache-2.0 */
#include "api/session.h"

#include <stdlib.h>

int session_open(struct session *s, const struct session_spec *spec, struct err *err)
{
	const char *name = spec->template ? spec->template : TEMPLATE_DEFAULT;
	const char *age = getenv("THAWBOX_TEST_AGE_S");
	struct sandbox_spec start = { .verbose = getenv("THAWBOX_DEBUG") != NULL,
		                      .isolation = spec->isolation,
		                      .intr_fd = spec->intr_fd };
	struct thaw_spec thaw = { .env = spec->env,
		                  .limits = spec->limits,
		                  .no_reseed = getenv("THAWBOX_TEST_NO_RESEED") != NULL,
		                  .age_s = age ? atof(age) : 0 };
	int rc;

	sandbox_init(&s->sb);
	rc = template_open(&s->template, name, spec->memory_mb, err);
	if (rc)
		return rc;
	thaw.dir = s->template.dir;
	thaw.overlay_dir = s->template.home;
	rc = sandbox_thaw(&s->sb, &start, &thaw, spec->request, err);
	if (rc)
		template_close(&s->template);
	return rc;
}

void session_close(struct session *s)
{
	sandbox_close(&s->sb);
	template_close(&s->template);
}
