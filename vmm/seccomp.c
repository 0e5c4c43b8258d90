/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/seccomp.h"

#include "core/log.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define EXIT_SIGSYS (128 + SIGSYS) /* as a shell tells it */

static enum seccomp_mode mode = SANITIZED ? SECCOMP_OFF : SECCOMP_KILLS;

static const char *const mode_names[] = {
	[SECCOMP_KILLS] = "kill",
	[SECCOMP_TRAPS] = "trap",
	[SECCOMP_LOGS] = "log",
	[SECCOMP_OFF] = "off",
};

static const unsigned actions[] = {
	[SECCOMP_KILLS] = SECCOMP_RET_KILL_PROCESS,
	[SECCOMP_TRAPS] = SECCOMP_RET_TRAP,
	[SECCOMP_LOGS] = SECCOMP_RET_LOG,
	[SECCOMP_OFF] = SECCOMP_RET_ALLOW,
};

int seccomp_mode_of(const char *name)
{
	for (int i = 0; i < (int)ARRAY_LEN(mode_names); i++)
		if (strcmp(name, mode_names[i]) == 0)
			return i;
	return -1;
}

const char *seccomp_mode_name(void)
{
	return mode_names[mode];
}

enum seccomp_mode seccomp_get_mode(void)
{
	return mode;
}

/* Two system calls, both in every role. */
static void on_trap(int sig, siginfo_t *info, void *context)
{
	const greg_t *r = ((const ucontext_t *)context)->uc_mcontext.gregs;

	(void)sig;
	log_err("system call %d (0x%llx, 0x%llx, 0x%llx, 0x%llx, 0x%llx, 0x%llx) at 0x%llx is not "
	        "allowed to this thread",
	        info->si_syscall, r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8],
	        r[REG_R9], r[REG_RIP]);
	(void)syscall(SYS_exit_group, EXIT_SIGSYS); /* does not return */
}

void seccomp_set_mode(enum seccomp_mode wanted)
{
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };

	mode = wanted;
	if (mode == SECCOMP_TRAPS)
		sigaction(SIGSYS, &action, NULL);
}

static const struct seccomp_program *program_of(unsigned who)
{
	for (size_t i = 0; i < seccomp_nr_programs; i++)
		if (seccomp_programs[i].who == who)
			return &seccomp_programs[i];
	return NULL;
}

/* The filter as it is for this process and mode. */
static void adapt(const struct seccomp_program *program, struct sock_filter *code)
{
	unsigned pid = (unsigned)getpid();

	memcpy(code, program->code, program->len * sizeof(*code));
	for (unsigned i = 0; i < program->len; i++) {
		if (code[i].code == (BPF_JMP | BPF_JEQ | BPF_K) && code[i].k == SECCOMP_OWN_PID)
			code[i].k = pid;
		else if (code[i].code == (BPF_RET | BPF_K) && code[i].k == SECCOMP_RET_KILL_PROCESS)
			code[i].k = actions[mode];
	}
}

int seccomp_enter(unsigned who, struct err *err)
{
	const struct seccomp_program *program = program_of(who);
	struct sock_filter code[SECCOMP_MAX_LEN];
	struct sock_fprog fprog = { .filter = code };

	if (mode == SECCOMP_OFF)
		return 0;
	BUG_ON(!program || program->len > ARRAY_LEN(code));
	fprog.len = program->len;
	adapt(program, code);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &fprog) == 0)
		return 0;
	err_set(err, -errno, "system call filter: %s", strerror(errno));
	return err_remedy(
		err, "the host's kernel needs CONFIG_SECCOMP_FILTER, and a container's profile "
		     "must allow seccomp(2)");
}

bool seccomp_available(const char **why)
{
	unsigned action = SECCOMP_RET_KILL_PROCESS;

	*why = "one filter for each role of a thread; what is not in it kills the monitor";
	if (mode == SECCOMP_OFF || mode == SECCOMP_LOGS) {
		*why = SANITIZED              ? "off: this is a sanitizer's build"
		       : mode == SECCOMP_LOGS ? "off: --seccomp log only logs"
		                              : "switched off by --seccomp or --isolation";
		return false;
	}
	if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0)
		return true;
	*why = "this kernel has no seccomp filters, or a container's profile forbids seccomp(2)";
	return false;
}
