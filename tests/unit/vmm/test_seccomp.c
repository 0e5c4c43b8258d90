/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The filters as make has compiled them: each is run here by a small interpreter, with many calls, and some by
 * the kernel, in a child.
 */
#include "vmm/seccomp.h"

#include "core/compiler.h"
#include "vmm/kvm.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NR_CALLS  512
#define X32       0x40000000
#define OWN       SECCOMP_OWN_PID
#define ALLOWED   SECCOMP_RET_ALLOW
#define KILLED    SECCOMP_RET_KILL_PROCESS
#define LOOP      SECCOMP_LOOP
#define VCPU      SECCOMP_VCPU
#define ALL_LOOPS (SECCOMP_LOOP_WAITS | SECCOMP_LOOP_TRACE | SECCOMP_LOOP_UNIX)

/* --- an interpreter of classic BPF, as much as libseccomp writes ------------------------------------ */

static uint32_t word_at(const struct seccomp_data *data, uint32_t off)
{
	uint32_t word;

	cr_assert(off % 4 == 0 && off < sizeof(*data), "a load at %u", off);
	memcpy(&word, (const char *)data + off, sizeof(word));
	return word;
}

static bool jumps(const struct sock_filter *f, uint32_t a)
{
	switch (BPF_OP(f->code)) {
	case BPF_JEQ:
		return a == f->k;
	case BPF_JGT:
		return a > f->k;
	case BPF_JGE:
		return a >= f->k;
	case BPF_JSET:
		return a & f->k;
	default:
		cr_assert_fail("jump 0x%x", f->code);
		return false;
	}
}

static uint32_t run(const struct seccomp_program *program, const struct seccomp_data *data)
{
	uint32_t a = 0;

	for (unsigned pc = 0; pc < program->len; pc++) {
		const struct sock_filter *f = &program->code[pc];

		if (f->code == (BPF_LD | BPF_W | BPF_ABS))
			a = word_at(data, f->k);
		else if (f->code == (BPF_ALU | BPF_AND | BPF_K))
			a &= f->k;
		else if (f->code == (BPF_JMP | BPF_JA))
			pc += f->k;
		else if (BPF_CLASS(f->code) == BPF_JMP)
			pc += jumps(f, a) ? f->jt : f->jf;
		else if (f->code == (BPF_RET | BPF_K))
			return f->k;
		else
			cr_assert_fail("instruction 0x%x", f->code);
	}
	cr_assert_fail("the filter has no end");
	return 0;
}

static const struct seccomp_program *program_of(unsigned who)
{
	for (size_t i = 0; i < seccomp_nr_programs; i++)
		if (seccomp_programs[i].who == who)
			return &seccomp_programs[i];
	cr_assert_fail("no filter of 0x%x", who);
	return NULL;
}

struct call {
	long nr;
	uint64_t arg[6];
};

static uint32_t verdict(unsigned who, struct call call)
{
	struct seccomp_data data = { .nr = (int)call.nr, .arch = AUDIT_ARCH_X86_64 };

	for (int i = 0; i < 6; i++)
		data.args[i] = call.arg[i];
	return run(program_of(who), &data);
}

/* Whether any of many arguments is allowed. */
static bool may_at_all(unsigned who, long nr)
{
	static const uint64_t likely[] = { 0, 1, 2, 3, 4, 34, OWN, KVM_RUN, ~0ull };

	for (size_t i = 0; i < ARRAY_LEN(likely); i++)
		for (size_t j = 0; j < ARRAY_LEN(likely); j++)
			if (verdict(who, (struct call){ nr,
			                                { likely[i], likely[j], likely[i],
			                                  likely[j], likely[i], likely[j] } }) !=
			    KILLED)
				return true;
	return false;
}

/* --- what they say ---------------------------------------------------------------------------------- */

Test(seccomp, one_filter_for_each_role_and_choice)
{
	unsigned seen = 0;

	for (size_t i = 0; i < seccomp_nr_programs; i++) {
		const struct seccomp_program *p = &seccomp_programs[i];

		cr_assert_leq(p->len, SECCOMP_MAX_LEN);
		cr_assert_eq(program_of(p->who), p, "twice 0x%x", p->who);
		seen |= p->who;
	}
	cr_assert_eq(seen, 2 * SECCOMP_VCPU_TRACE - 1, "every extra is in one");
	cr_assert_eq(seccomp_nr_programs, 8 + 4);
}

Test(seccomp, foreign_calls_are_none)
{
	for (size_t i = 0; i < seccomp_nr_programs; i++) {
		unsigned who = seccomp_programs[i].who;

		for (int nr = 0; nr < NR_CALLS; nr++) {
			struct seccomp_data data = { .nr = nr, .arch = AUDIT_ARCH_I386 };

			cr_assert_eq(run(program_of(who), &data), KILLED, "i386 %d", nr);
			cr_assert_eq(verdict(who, (struct call){ .nr = nr | X32 }), KILLED,
			             "x32 %d", nr);
		}
	}
}

Test(seccomp, no_role_with_a_guest_may)
{
	static const int never[] = {
		SYS_execve,
		SYS_execveat,
		SYS_fork,
		SYS_vfork,
		SYS_clone,
		SYS_clone3,
		SYS_ptrace,
		SYS_process_vm_readv,
		SYS_process_vm_writev,
		SYS_kill,
		SYS_tkill,
		SYS_rt_sigqueueinfo,
		SYS_rt_tgsigqueueinfo,
		SYS_pidfd_open,
		SYS_pidfd_getfd,
		SYS_pidfd_send_signal,
		SYS_bpf,
		SYS_userfaultfd,
		SYS_perf_event_open,
		SYS_keyctl,
		SYS_add_key,
		SYS_request_key,
		SYS_io_uring_setup,
		SYS_io_uring_register,
		SYS_memfd_create,
		SYS_mount,
		SYS_umount2,
		SYS_pivot_root,
		SYS_chroot,
		SYS_unshare,
		SYS_setns,
		SYS_open,
		SYS_creat,
		SYS_openat2,
		SYS_open_by_handle_at,
		SYS_link,
		SYS_symlink,
		SYS_chmod,
		SYS_fchmodat,
		SYS_chown,
		SYS_setuid,
		SYS_setresuid,
		SYS_capset,
		SYS_prctl,
		SYS_arch_prctl,
		SYS_seccomp,
		SYS_personality,
		SYS_init_module,
		SYS_finit_module,
		SYS_kexec_load,
		SYS_reboot,
		SYS_swapon,
		SYS_modify_ldt,
		SYS_pkey_mprotect,
		SYS_shmget,
		SYS_msgget,
		SYS_socketpair,
		SYS_bind,
		SYS_listen,
		SYS_setsockopt,
		SYS_dup2,
		SYS_sendmmsg,
		SYS_vmsplice,
		SYS_splice,
		SYS_rt_sigaction,
		SYS_chdir,
	};

	for (size_t i = 0; i < seccomp_nr_programs; i++)
		for (size_t j = 0; j < ARRAY_LEN(never); j++)
			cr_assert_not(may_at_all(seccomp_programs[i].who, never[j]),
			              "0x%x may call %d", seccomp_programs[i].who, never[j]);
}

/* A sandbox's threads reach no file and no socket by name; the vCPU's is not even near. */
Test(seccomp, names_are_for_who_needs_them)
{
	static const int files[] = { SYS_openat, SYS_rename };
	static const int nobody[] = { SYS_mkdir, SYS_renameat,   SYS_renameat2, SYS_unlinkat,
		                      SYS_rmdir, SYS_getdents64, SYS_access,    SYS_readlink };
	static const int sockets[] = { SYS_socket, SYS_connect, SYS_accept4, SYS_newfstatat };

	for (size_t i = 0; i < seccomp_nr_programs; i++) {
		unsigned who = seccomp_programs[i].who;

		for (size_t j = 0; j < ARRAY_LEN(files); j++)
			cr_assert_eq(may_at_all(who, files[j]), !!(who & SECCOMP_LOOP_TRACE));
		for (size_t j = 0; j < ARRAY_LEN(nobody); j++)
			cr_assert_not(may_at_all(who, nobody[j]));
		/* socket(2) by its family: below. */
		for (size_t j = 1; j < ARRAY_LEN(sockets); j++)
			cr_assert_eq(may_at_all(who, sockets[j]), !!(who & SECCOMP_LOOP_UNIX));
		cr_assert_eq(may_at_all(who, SYS_unlink),
		             !!(who & (SECCOMP_LOOP_UNIX | SECCOMP_LOOP_TRACE)));
		cr_assert_eq(may_at_all(who, SYS_io_uring_enter), !(who & VCPU));
	}
}

static void expect(unsigned who, uint32_t what, struct call call)
{
	cr_assert_eq(verdict(who, call), what,
	             "0x%x: call %ld (0x%llx, 0x%llx, 0x%llx, 0x%llx): want 0x%x", who, call.nr,
	             (unsigned long long)call.arg[0], (unsigned long long)call.arg[1],
	             (unsigned long long)call.arg[2], (unsigned long long)call.arg[3], what);
}

Test(seccomp, memory)
{
	const unsigned who[] = { LOOP, LOOP | ALL_LOOPS, VCPU };
	const uint64_t rw = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;

	for (size_t i = 0; i < ARRAY_LEN(who); i++) {
		expect(who[i], ALLOWED, (struct call){ SYS_mmap, { 0, 4096, rw, anon, -1ull } });
		expect(who[i], ALLOWED,
		       (struct call){ SYS_mmap, { 0, 4096, PROT_NONE, anon | MAP_NORESERVE } });
		expect(who[i], ALLOWED, (struct call){ SYS_mprotect, { 4096, 4096, rw } });
		for (uint64_t prot = 4; prot; prot <<= 1) {
			expect(who[i], KILLED,
			       (struct call){ SYS_mmap, { 0, 4096, rw | prot, anon } });
			expect(who[i], KILLED,
			       (struct call){ SYS_mprotect, { 0, 4096, rw | prot } });
		}
		expect(who[i], KILLED, (struct call){ SYS_mmap, { 0, 4096, rw, MAP_PRIVATE, 5 } });
		expect(who[i], KILLED, (struct call){ SYS_mmap, { 0, 4096, rw, MAP_SHARED, 5 } });
		expect(who[i], KILLED,
		       (struct call){ SYS_mmap, { 4096, 4096, rw, anon | MAP_FIXED } });
		expect(who[i], ALLOWED, (struct call){ SYS_madvise, { 0, 0, MADV_DONTNEED } });
		expect(who[i], ALLOWED,
		       (struct call){ SYS_madvise, { 0, 0, MADV_POPULATE_WRITE } });
		expect(who[i], KILLED, (struct call){ SYS_madvise, { 0, 0, MADV_DOFORK } });
		expect(who[i], KILLED, (struct call){ SYS_madvise, { 0, 0, MADV_HWPOISON } });
	}
	expect(LOOP, ALLOWED, (struct call){ SYS_mremap, { 0, 1, 2, MREMAP_MAYMOVE } });
	expect(LOOP, KILLED,
	       (struct call){ SYS_mremap, { 0, 1, 2, MREMAP_MAYMOVE | MREMAP_FIXED } });
}

Test(seccomp, ioctls)
{
	/* From the loop always: a guest that stands idle goes on. */
	static const uint64_t load[] = { KVM_SET_REGS, KVM_SET_MSRS, KVM_SET_LAPIC };
	static const uint64_t
		never[] = { KVM_CREATE_VM,         KVM_CREATE_VCPU,      KVM_SET_USER_MEMORY_REGION,
		            KVM_CREATE_DEVICE,     KVM_IOEVENTFD,        KVM_IRQFD,
		            KVM_SET_NESTED_STATE,  KVM_ENABLE_CAP,       KVM_SET_GSI_ROUTING,
		            KVM_MEMORY_ENCRYPT_OP, 0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */ };
	const unsigned who[] = { LOOP, LOOP | ALL_LOOPS, VCPU, VCPU | SECCOMP_VCPU_WAITS };

	for (size_t i = 0; i < ARRAY_LEN(who); i++) {
		bool waits = who[i] & (SECCOMP_LOOP_WAITS | SECCOMP_VCPU_WAITS);

		for (size_t j = 0; j < ARRAY_LEN(never); j++)
			expect(who[i], KILLED, (struct call){ SYS_ioctl, { 3, never[j] } });
		for (size_t j = 0; j < ARRAY_LEN(load); j++)
			expect(who[i], waits || (who[i] & LOOP) ? ALLOWED : KILLED,
			       (struct call){ SYS_ioctl, { 3, load[j] } });
		expect(who[i], waits ? ALLOWED : KILLED,
		       (struct call){ SYS_ioctl, { 3, KVM_SET_CLOCK } });
		expect(who[i], who[i] & VCPU ? ALLOWED : KILLED,
		       (struct call){ SYS_ioctl, { 3, KVM_RUN } });
		/* The kernel reads 32 bits of a request. */
		expect(who[i], ALLOWED,
		       (struct call){ SYS_ioctl, { 3, 0xdead00000000ull | KVM_SIGNAL_MSI } });
		expect(who[i], who[i] & VCPU ? KILLED : ALLOWED,
		       (struct call){ SYS_ioctl, { 3, KVM_GET_XCRS } });
	}
	expect(VCPU | SECCOMP_VCPU_WAITS, ALLOWED,
	       (struct call){ SYS_ioctl, { 3, KVM_SET_CPUID2 } });
	expect(LOOP | ALL_LOOPS, KILLED, (struct call){ SYS_ioctl, { 3, KVM_SET_CPUID2 } });
}

Test(seccomp, signals_go_to_ourselves)
{
	for (int sig = 0; sig < 65; sig++) {
		expect(LOOP, sig == 34 || sig == SIGABRT ? ALLOWED : KILLED,
		       (struct call){ SYS_tgkill, { OWN, 77, (uint64_t)sig } });
		expect(VCPU, sig == SIGABRT ? ALLOWED : KILLED,
		       (struct call){ SYS_tgkill, { OWN, 77, (uint64_t)sig } });
		expect(LOOP, KILLED, (struct call){ SYS_tgkill, { OWN + 1, 77, (uint64_t)sig } });
	}
}

Test(seccomp, sockets)
{
	const unsigned un = LOOP | SECCOMP_LOOP_UNIX;

	for (uint64_t family = 0; family < 46; family++)
		for (uint64_t type = 0; type < 11; type++)
			expect(un, family == AF_UNIX && type == SOCK_STREAM ? ALLOWED : KILLED,
			       (struct call){ SYS_socket, { family, type | SOCK_CLOEXEC } });
	for (int i = 0; i < 2; i++) {
		const unsigned who = i ? VCPU : LOOP;

		expect(who, ALLOWED, (struct call){ SYS_sendto, { 3, 4096, 1, MSG_DONTWAIT } });
		/* By an address. */
		expect(who, KILLED, (struct call){ SYS_sendto, { 3, 4096, 1, 0, 4096, 16 } });
		expect(who, KILLED, (struct call){ SYS_sendto, { 3, 4096, 1, 0, 1ull << 32, 16 } });
	}
	expect(un, KILLED, (struct call){ SYS_accept4, { 3, 4096, 4096 } });
}

/* Extras only ever add. */
Test(seccomp, extras_take_nothing_away)
{
	for (size_t i = 0; i < seccomp_nr_programs; i++) {
		unsigned who = seccomp_programs[i].who, role = who & LOOP ? LOOP : VCPU;

		for (int nr = 0; nr < NR_CALLS; nr++)
			cr_assert(!may_at_all(role, nr) || may_at_all(who, nr));
	}
}

/* --- in the kernel ---------------------------------------------------------------------------------- */

/* Ends as `call` does behind a filter: the status of the child. */
static int child_status(unsigned who, enum seccomp_mode mode, struct call call)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct err err = { 0 };

		seccomp_set_mode(mode);
		if (call.arg[0] == OWN)
			call.arg[0] = (uint64_t)getpid();
		if (seccomp_enter(who, &err) < 0)
			_exit(99);
		(void)syscall(call.nr, call.arg[0], call.arg[1], call.arg[2], call.arg[3],
		              call.arg[4], call.arg[5]);
		_exit(7);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return status;
}

static bool survives(unsigned who, struct call call)
{
	int status = child_status(who, SECCOMP_KILLS, call);

	if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
		return true;
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "status 0x%x", status);
	return false;
}

Test(seccomp, the_kernel_agrees, .timeout = 30)
{
	static char name[] = "/etc/passwd";
	const char *why;
	const uint64_t rw = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;
	const struct {
		unsigned who;
		bool may;
		struct call call;
	} cases[] = {
		{ LOOP, true, { SYS_mmap, { 0, 4096, rw, anon, -1ull } } },
		{ LOOP, false, { SYS_mmap, { 0, 4096, rw | PROT_EXEC, anon, -1ull } } },
		{ LOOP, false, { SYS_openat, { (uint64_t)AT_FDCWD, (uintptr_t)name } } },
		{ LOOP | ALL_LOOPS, true, { SYS_openat, { (uint64_t)AT_FDCWD, (uintptr_t)name } } },
		{ LOOP, true, { SYS_tgkill, { OWN, 1, 34 } } },
		{ LOOP, false, { SYS_tgkill, { 1, 1, 34 } } },
		{ VCPU, true, { SYS_ioctl, { 0, KVM_RUN } } },
		{ LOOP, false, { SYS_ioctl, { 0, KVM_RUN } } },
		{ VCPU, false, { SYS_execve, { (uintptr_t)name } } },
		{ VCPU, false, { SYS_io_uring_enter, { 0 } } },
		{ VCPU | SECCOMP_VCPU_WAITS, true, { SYS_ioctl, { 0, KVM_SET_REGS } } },
	};

	if (!seccomp_available(&why))
		cr_skip_test("%s", why); /* a sanitizer's calls would be its end */
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		cr_assert_eq(survives(cases[i].who, cases[i].call), cases[i].may, "case %zu", i);
}

static void *enter_and_open(void *arg)
{
	struct err err = { 0 };

	(void)arg;
	if (seccomp_enter(VCPU, &err) < 0)
		_exit(99);
	(void)open("/dev/null", O_RDONLY);
	_exit(7);
}

/* One thread's call ends the whole process. */
Test(seccomp, kills_the_process, .timeout = 30)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		pthread_t thread;

		seccomp_set_mode(SECCOMP_KILLS);
		pthread_create(&thread, NULL, enter_and_open, NULL);
		for (;;)
			pause();
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "status 0x%x", status);
}

Test(seccomp, trap_tells_number_and_arguments, .timeout = 30)
{
	char line[512] = { 0 };
	int fd[2], status, kept = dup(STDERR_FILENO);

	cr_assert_eq(pipe(fd), 0);
	dup2(fd[1], STDERR_FILENO);
	status = child_status(VCPU, SECCOMP_TRAPS, (struct call){ SYS_kill, { 0x123, 9 } });
	dup2(kept, STDERR_FILENO);
	cr_assert_gt(read(fd[0], line, sizeof(line) - 1), 0);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGSYS, "0x%x", status);
	cr_assert(strstr(line, "system call 62 (0x123, 0x9,"), "%s", line);
}

Test(seccomp, off_and_log_let_it_pass, .timeout = 30)
{
	const struct call call = { SYS_kill, { 1u << 30, 0 } };

	cr_assert_eq(child_status(VCPU, SECCOMP_OFF, call), 7 << 8);
	cr_assert_eq(child_status(VCPU, SECCOMP_LOGS, call), 7 << 8);
}

Test(seccomp, modes_have_names)
{
	static const char *const names[] = { "kill", "trap", "log", "off" };

	for (int i = 0; i < 4; i++) {
		cr_assert_eq(seccomp_mode_of(names[i]), i);
		seccomp_set_mode((enum seccomp_mode)i);
		cr_assert_str_eq(seccomp_mode_name(), names[i]);
		cr_assert_eq((int)seccomp_get_mode(), i);
	}
	cr_assert_eq(seccomp_mode_of("kil"), -1);
}

Test(seccomp, the_host_has_it)
{
	const char *why = NULL;
	bool has = seccomp_available(&why);

	cr_assert(why && *why);
	cr_assert(has || strstr(why, "sanitizer"), "%s", why);
}
