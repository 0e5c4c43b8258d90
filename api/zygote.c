/* SPDX-License-Identifier: Apache-2.0 */
#include "api/zygote.h"

#include "core/own.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

#define OPEN_MS  30000
#define SPAWN_MS 10000

/* Under the lock. It serves no more: what came late would be taken for the answer to the next request. */
static int lose(struct zygote *z, int code, struct err *err)
{
	char how[300];

	if (code == -ETIMEDOUT || code == -EPROTO)
		(void)pidfd_send_signal(z->pid_fd, SIGKILL, NULL, 0);
	if (code == -ETIMEDOUT)
		(void)err_set(&z->lost, -ECONNABORTED,
		              "the zygote of thawbox-vmm did not answer in time");
	else if (code == -EPROTO)
		(void)err_set(&z->lost, -ECONNABORTED, "the zygote of thawbox-vmm talks nonsense");
	else if (monitor_ended(z->pid_fd, z->log_fd, 2000, how, sizeof(how)))
		(void)err_set(&z->lost, -ECONNABORTED, "the zygote of thawbox-vmm %s", how);
	else
		(void)err_set(&z->lost, -ECONNABORTED, "the zygote of thawbox-vmm: %s",
		              strerror(-code));
	(void)err_remedy(&z->lost, "start another one; sandboxes that it has forked go on");
	*err = z->lost;
	return err->code;
}

/* Bytes of an answer: 0, or -errno. */
static int receive(struct zygote *z, int timeout_ms)
{
	struct pollfd pfd = { .fd = z->control_fd, .events = POLLIN };
	ssize_t n;
	int rc;

	do
		rc = poll(&pfd, 1, timeout_ms);
	while (rc < 0 && errno == EINTR);
	if (rc <= 0)
		return rc ? -errno : -ETIMEDOUT;
	if (bytes_reserve(&z->in, 4096))
		return -ENOMEM;
	n = recv(z->control_fd, z->in.p + z->in.len, z->in.cap - z->in.len, MSG_DONTWAIT);
	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? 0 : -errno;
	z->in.len += (size_t)n;
	return n && z->in.len <= MONITOR_LINE_MAX ? 0 : -ECONNABORTED;
}

/* Under the lock. *answer is a new reference to one that says "ok". */
static int await_answer(struct zygote *z, int timeout_ms, json_t **answer, struct err *err)
{
	uint8_t *end;
	int rc;

	z->in.len = z->in.pos = 0;
	do {
		rc = receive(z, timeout_ms);
		if (rc)
			return lose(z, rc, err);
		end = z->in.len ? memchr(z->in.p, '\n', z->in.len) : NULL;
	} while (!end);
	*answer = json_loadb((const char *)z->in.p, (size_t)(end - z->in.p), 0, NULL);
	if (!*answer)
		return lose(z, -EPROTO, err);
	rc = monitor_refused(*answer, err);
	if (rc)
		json_decref(*answer);
	return rc;
}

static int send_open(struct zygote *z, const char *dir, const char *overlay_dir, struct err *err)
{
	json_t *line = json_pack("{s:s, s:s, s:s*}", "cmd", "open", "dir", dir, "overlay_dir",
	                         overlay_dir);
	int rc = line ? monitor_send(z->control_fd, line, NULL, 0, err)
	              : err_set(err, -EINVAL, "%s: not UTF-8", dir);

	json_decref(line);
	return rc;
}

static int start(struct zygote *z, const struct zygote_spec *spec, const char *dir, struct err *err)
{
	char path[PATHS_MAX];
	struct monitor_start how = {
		.path = path, .isolation = spec->isolation, .cgroup_fd = -1, .zygote = true
	};
	own_fd int theirs = -1;
	int rc = monitor_find(path, spec->vmm, err);

	rc = rc ? rc : monitor_pair(&z->control_fd, &theirs, err);
	rc = rc ? rc
	        : send_open(z, dir, spec->overlay_dir,
	                    err); /* so that it is there when the process is */
	how.control_fd = theirs;
	how.log_fd = z->log_fd;
	return rc ? rc : monitor_start(&how, &z->pid, &z->pid_fd, err);
}

int zygote_open(struct zygote *z, const struct zygote_spec *spec, const char *dir, struct err *err)
{
	json_t *answer = NULL;
	int rc;

	*z = (struct zygote){ .pid_fd = -1,
		              .control_fd = -1,
		              .log_fd = spec->verbose ? -1 : monitor_log(),
		              .lock = PTHREAD_MUTEX_INITIALIZER };
	rc = start(z, spec, dir, err);
	rc = rc ? rc : await_answer(z, OPEN_MS, &answer, err);
	if (rc) {
		zygote_close(z);
		return rc;
	}
	json_decref(answer);
	return 0;
}

/* Under the lock. */
static int spawn(struct zygote *z, const int *fds, unsigned nr, bool cgroup, pid_t *pid,
                 struct err *err)
{
	json_t *line, *answer = NULL;
	int rc;

	if (z->lost.code) {
		*err = z->lost;
		return err->code;
	}
	line = cgroup ? json_pack("{s:s, s:b}", "cmd", "spawn", "cgroup", 1)
	              : json_pack("{s:s}", "cmd", "spawn");
	rc = monitor_send(z->control_fd, line, fds, nr, err);
	json_decref(line);
	if (rc == -EPIPE || rc == -ECONNRESET)
		return lose(z, rc, err);
	rc = rc ? rc : await_answer(z, SPAWN_MS, &answer, err);
	if (rc)
		return rc;
	*pid = (pid_t)json_integer_value(json_object_get(answer, "pid"));
	json_decref(answer);
	return *pid > 0 ? 0 : lose(z, -EPROTO, err);
}

int zygote_spawn(struct zygote *z, int control_fd, int log_fd, int cgroup_fd, pid_t *pid,
                 struct err *err)
{
	int fds[3] = { control_fd }, rc;
	unsigned nr = 1;

	if (log_fd >= 0)
		fds[nr++] = log_fd;
	if (cgroup_fd >= 0)
		fds[nr++] = cgroup_fd;

	*pid = 0;
	pthread_mutex_lock(&z->lock);
	rc = spawn(z, fds, nr, cgroup_fd >= 0, pid, err);
	pthread_mutex_unlock(&z->lock);
	return rc;
}

bool zygote_is_lost(struct zygote *z)
{
	bool lost;

	pthread_mutex_lock(&z->lock);
	lost = z->lost.code;
	pthread_mutex_unlock(&z->lock);
	return lost;
}

void zygote_close(struct zygote *z)
{
	monitor_end(z->pid, z->pid_fd);
	own_close_fd(&z->pid_fd);
	own_close_fd(&z->control_fd);
	own_close_fd(&z->log_fd);
	bytes_free(&z->in);
	*z = (struct zygote){
		.pid_fd = -1, .control_fd = -1, .log_fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER
	};
}
