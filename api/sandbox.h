/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One monitor process (thawbox-vmm), its control socket and the streams into its guest
 * (docs/protocol.md, sections 1 and 2). Nothing here waits for a round trip unless its name says
 * call or wait: lines and requests are written ahead, answers are taken as they come.
 *
 * An object belongs to one thread. The monitor lives no longer than its control socket: whatever
 * ends this process ends the sandbox. "Lost" means that the monitor or its guest is gone; the error
 * then is -ECONNABORTED and says why.
 */
#ifndef API_SANDBOX_H
#define API_SANDBOX_H

#include "api/frames.h"
#include "api/monitor.h"
#include "core/err.h"

#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SANDBOX_PENDING_MAX 64

/* A stream to a guest port. */
struct stream {
	int fd; /* owned; -1: closed */
	bool eof;
	struct frame_reader in;
	struct bytes out; /* queued, not yet taken by the socket */
};

#define STREAM_NONE ((struct stream){ .fd = -1 })

struct sandbox {
	pid_t pid; /* 0: none */
	int pid_fd;
	int control_fd;
	char *cgroup; /* owned; NULL: none of its own */
	int log_fd;   /* what the monitor wrote to its standard error; -1: our own standard error */
	int intr_fd;  /* borrowed: readable ends every wait with -EINTR; -1: none */
	/* How long a process whose socket has closed may take to end, so that the error can say how. A loop's is short. */
	unsigned end_wait_ms;

	struct bytes lines;                   /* control bytes not yet parsed */
	uint8_t pending[SANDBOX_PENDING_MAX]; /* what each outstanding answer is for */
	unsigned nr_pending;
	json_t *answer;  /* of sandbox_call() */
	json_t *thawed;  /* answer to the thaw, or NULL so far: ports, create_ms, timing */
	struct err fail; /* the thaw was refused; code 0: not */
	struct err lost; /* code 0: alive */

	bool parked;        /* event seen */
	bool ready;         /* a shell or a standby: sandbox_take() may come */
	bool first_done;    /* event seen */
	bool first_sent;    /* a stream went with the thaw */
	bool first_pending; /* the first cell is under way; cell_run() takes its answer */
	unsigned port;      /* of the default context */
	unsigned agent_port;
	uint64_t start_ns; /* CLOCK_MONOTONIC, just before the monitor was started, or taken */
	struct stream kernel;
};

struct zygote;

/* How to start the monitor. */
struct sandbox_spec {
	struct zygote *zygote;      /* borrowed: it forks the monitor; NULL: `vmm` is executed */
	const char *vmm;            /* NULL: $THAWBOX_VMM, beside this program, libexec, PATH */
	struct isolation isolation; /* of a fork its cgroup alone: the rest is its zygote's */
	bool verbose; /* the monitor's log goes to our standard error; of a fork: where the zygote's goes */
	int intr_fd; /* as in struct sandbox; -1: none */
};

/* A second, of each disk and of each direction of vsock; 0: no limit. */
struct sandbox_limits {
	uint64_t disk_bytes, disk_ops, vsock_bytes;
};

struct thaw_spec {
	const char *dir; /* the snapshot; NULL: the one that the zygote, or the member, has open */
	const char
		*overlay_dir; /* a directory for the unnamed private disk; NULL: none is needed */
	const char *id;       /* NULL: a random one */
	const char *vsock;    /* path of the Unix socket for vsock, or NULL */
	const json_t *env;    /* borrowed object of strings, or NULL */
	struct sandbox_limits limits;
	bool record;    /* the monitor will be asked for the working set of the first cell */
	bool no_reseed; /* tests only: keep the template's random state */
	double age_s;   /* tests only: take the snapshot for that much older, seconds */
};

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_ns(void);

/* No monitor, nothing open: what the calls below begin with, and sandbox_close() ends with. */
void sandbox_init(struct sandbox *sb);

/* Starts a monitor that awaits commands. On error nothing is left. sandbox_close() ends it. */
NODISCARD int sandbox_start(struct sandbox *sb, const struct sandbox_spec *spec, struct err *err);

/*
 * Makes a sandbox that is nobody's yet of a monitor that was just started, for sandbox_take(): a shell has VM
 * and devices, a standby also a guest that has run and stands still. Only sends the command: sb->control_fd
 * becomes readable when there is news for sandbox_wait_ready().
 */
struct member_spec {
	const char *dir, *overlay_dir; /* as in struct thaw_spec */
	bool warm; /* a standby whose guest has run the template's warm-up, and so has the pages of real cells */
	bool record; /* a standby whose monitor will be asked for the working set */
};
NODISCARD int sandbox_begin_shell(struct sandbox *sb, const struct member_spec *spec,
                                  struct err *err);
NODISCARD int sandbox_begin_standby(struct sandbox *sb, const struct member_spec *spec,
                                    struct err *err);
/* Waits for it to be ready. -ETIMEDOUT; with 0 ms it only looks. Other errors as of sandbox_wait(). */
NODISCARD int sandbox_wait_ready(struct sandbox *sb, int timeout_ms, struct err *err);

/*
 * Thaws a shell or a standby that is ready; otherwise as sandbox_thaw(). After an error there is nothing to be
 * done with it but sandbox_close().
 */
NODISCARD int sandbox_take(struct sandbox *sb, const struct thaw_spec *thaw, const json_t *request,
                           struct err *err);

/*
 * Starts a monitor with its thaw command already in the socket. `request` (borrowed; NULL: none) is
 * the kernel's first request: it travels with the thaw when it fits the mailbox, else as the first
 * on sb->kernel. Errors of the thaw itself come out of the next wait.
 */
NODISCARD int sandbox_thaw(struct sandbox *sb, const struct sandbox_spec *spec,
                           const struct thaw_spec *thaw, const json_t *request, struct err *err);

/* Kills the monitor, reaps it and frees all. Idempotent. Takes as long as the VM's teardown. */
void sandbox_close(struct sandbox *sb);

/* Kills the guest, at once and for good; later operations find the sandbox lost for `why`. */
void sandbox_kill(struct sandbox *sb, const char *why);

/*
 * One control command: `line` is stolen, `fd` (-1: none) is sent with it and stays the caller's.
 * Waits for the answer at most `timeout_ms` (-1: for ever). *answer, when asked for, is a new
 * reference. A refusal is -EREMOTEIO with the monitor's words.
 */
NODISCARD int sandbox_call(struct sandbox *sb, json_t *line, int fd, int timeout_ms,
                           json_t **answer, struct err *err);

/* The same with several descriptors. */
NODISCARD int sandbox_call_with(struct sandbox *sb, json_t *line, const int *fds, unsigned nr_fds,
                                int timeout_ms, json_t **answer, struct err *err);

/* Waits for the answer to the thaw. */
NODISCARD int sandbox_wait_thawed(struct sandbox *sb, int timeout_ms, struct err *err);

/* Opens a stream to a guest port, without waiting. */
NODISCARD int sandbox_open(struct sandbox *sb, struct stream *s, unsigned port, struct err *err);
/* The default context's stream, opened where it is not. */
NODISCARD int sandbox_open_kernel(struct sandbox *sb, struct err *err);

void stream_close(struct stream *s);
/* Queues a JSON frame. -ENOMEM. */
NODISCARD int stream_send(struct stream *s, enum frame_type type, const json_t *json);
/* Gives the socket what it takes now. A closed peer is not an error here: its last words are still to be read. */
void stream_flush(struct stream *s);

/*
 * Moves bytes and control lines until one of the streams has something to read (or ended), an extra
 * descriptor is ready, the monitor said something, or time is up. 1: look at them; 0: time is up; -EINTR: intr_fd is readable;
 * -ECONNABORTED: lost; the thaw's own error when it was refused. Streams may be closed (fd -1).
 */
NODISCARD int sandbox_wait(struct sandbox *sb, struct stream *const *streams, unsigned nr,
                           struct pollfd *extra, unsigned nr_extra, int timeout_ms,
                           struct err *err);

/* Fills `err` with the reason for the loss and returns its code; waits shortly for the reason. */
int sandbox_why_lost(struct sandbox *sb, struct err *err);

#endif
