/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the monitor's threads may ask of the host's kernel once guest code runs. Whatever is not here kills the
 * process. A line needs a user in this code or in glibc, and says which; the end-to-end tests
 * run the monitor through all it can do, tests/unit/vmm/test_seccomp.c shows what the other calls meet.
 *
 * Not here for any thread with a guest: execve, fork and clone, ptrace, process_vm_*, kill, mmap and mprotect of
 * executable or shared pages, memfd_create, bpf, userfaultfd, perf_event_open, keyctl, mount, and setting up
 * another io_uring. Opening a file by its name is for machines that are being traced alone.
 */
#include "vmm/seccomp_rules.h"
#include "core/compiler.h"

#include <asm/unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Who. */
#define LOOP       SECCOMP_LOOP
#define LOOP_WAITS SECCOMP_LOOP_WAITS
#define LOOP_TRACE SECCOMP_LOOP_TRACE
#define LOOP_UNIX  SECCOMP_LOOP_UNIX
#define VCPU       SECCOMP_VCPU
#define VCPU_WAITS SECCOMP_VCPU_WAITS
#define VCPU_TRACE SECCOMP_VCPU_TRACE
#define BOTH       (LOOP | VCPU)

/* What an argument must be. Of an `int`, or a request, the kernel sees the lower half alone. */
#define ANY               \
	{                 \
		{         \
			0 \
		}         \
	}
#define INT 0xffffffffull
#define IS(n, v)                        \
	{                               \
		(n), INT, (uint64_t)(v) \
	}
#define LONG_IS(n, v)                     \
	{                                 \
		(n), ~0ull, (uint64_t)(v) \
	}
/* No bit but these, whose own value does not matter. */
#define ONLY(n, bits)                     \
	{                                 \
		(n), ~(uint64_t)(bits), 0 \
	}
/* These, and of the rest none but `may`. */
#define WITH(n, bits, may)                                    \
	{                                                     \
		(n), INT & ~(uint64_t)(may), (uint64_t)(bits) \
	}
#define OWN_PID(n) IS(n, SECCOMP_OWN_PID)

#define KVM(request, who, why)                                   \
	{                                                        \
		__NR_ioctl, (who), { IS(1, KVM_##request) }, why \
	}
#define ADVICE(advice, who, why)                                   \
	{                                                          \
		__NR_madvise, (who), { IS(2, MADV_##advice) }, why \
	}

/* One rule a line. */
/* clang-format off */
const struct seccomp_rule seccomp_rules[] = {
	/* --- the guest --- */
	KVM(RUN, VCPU,                                           "runs the guest"),
	KVM(SIGNAL_MSI, BOTH,                                    "an interrupt, from the thread on which the device finds cause"),
	KVM(GET_REGS, BOTH,                                      "what a guest that has crashed looked like; a snapshot"),
	KVM(GET_SREGS, BOTH,                                     "the same"),
	KVM(GET_STATS_FD, LOOP | VCPU_TRACE,                     "stats: KVM's counters; on the vCPU's own thread for a trace"),

	/* --- a snapshot of it, on the loop's thread while the vCPUs stand --- */
	KVM(GET_MP_STATE, LOOP,                                  "state of a vCPU, to be saved"),
	KVM(GET_XCRS, LOOP,                                      "the same"),
	KVM(GET_XSAVE, LOOP,                                     "the same, where the kernel has no GET_XSAVE2"),
	KVM(GET_XSAVE2, LOOP,                                    "the same"),
	KVM(GET_DEBUGREGS, LOOP,                                 "the same"),
	KVM(GET_LAPIC, LOOP,                                     "the same; a standby that comes to rest"),
	KVM(GET_TSC_KHZ, LOOP,                                   "the same"),
	KVM(GET_VCPU_EVENTS, LOOP,                               "the same"),
	KVM(GET_CPUID2, LOOP,                                    "the same"),
	KVM(GET_MSRS, LOOP | VCPU_WAITS,                         "the same; and where its TSC stands when it is thawed, or goes on"),
	KVM(GET_MSR_INDEX_LIST, LOOP,                            "which MSRs are to be saved"),
	KVM(CHECK_EXTENSION, LOOP,                               "how large the saved XSAVE area is"),
	KVM(GET_CLOCK, LOOP,                                     "kvm-clock, to be saved; of a standby that comes to rest; when an idle guest has its next timer"),

	/* --- a guest that stands idle between two cells (vmm/idle.c) goes on, from the loop's thread; and a thaw --- */
	KVM(SET_REGS, LOOP | VCPU_WAITS,                         "what its read of the doorbell gives; where the guest goes on"),
	KVM(SET_LAPIC, LOOP | VCPU_WAITS,                        "its timer; a tick that is due must not get lost"),
	KVM(SET_MSRS, LOOP | VCPU_WAITS,                         "its deadline, and of a shell all MSRs"),
	KVM(KVMCLOCK_CTRL, LOOP | VCPU_WAITS,                    "the guest knows that it was stopped"),

	/* --- the rest of a thaw, of a machine that has waited in a pool --- */
	KVM(SET_CLOCK, LOOP_WAITS | VCPU_WAITS,                  "kvm-clock"),
	KVM(SET_CPUID2, VCPU_WAITS,                              "state of a shell's vCPU"),
	KVM(SET_SREGS, VCPU_WAITS,                               "the same"),
	KVM(SET_XCRS, VCPU_WAITS,                                "the same"),
	KVM(SET_XSAVE, VCPU_WAITS,                               "the same"),
	KVM(SET_DEBUGREGS, VCPU_WAITS,                           "the same"),
	KVM(SET_VCPU_EVENTS, VCPU_WAITS,                         "the same"),
	KVM(SET_MP_STATE, VCPU_WAITS,                            "the same"),
	{ __NR_getrandom, LOOP, ANY,                             "a snapshot's id; entropy for one that has waited; names of temporary files" },

	/* --- guest memory --- */
	ADVICE(POPULATE_WRITE, BOTH,                             "the pages that the first cell writes; later the loop's share of others"),
	ADVICE(POPULATE_READ, BOTH,                              "pages that are mapped in one piece, of a cold cache"),
	ADVICE(RANDOM, LOOP_WAITS,                               "a cold cache: what nobody could foresee is read alone"),
	{ __NR_fadvise64, LOOP_WAITS, { IS(3, POSIX_FADV_RANDOM) },  "is the cache cold? A look brings no neighbours along" },
	ADVICE(WILLNEED, LOOP_WAITS,                             "a cold cache: the working set is asked for"),
	ADVICE(HUGEPAGE, LOOP_WAITS,                             "the same, what is mapped in large pages"),

	/* --- the event loop --- */
	{ __NR_io_uring_enter, LOOP, ANY,                        "starts operations and waits; which, is for the ring's own list (core/loop_ring.c)" },
	{ __NR_ppoll, LOOP, ANY,                                 "waits, in a loop without io_uring (core/loop_plain.c)" },
	{ __NR_preadv2, LOOP, ANY,                               "disk, in a loop without io_uring; is the working set in the page cache?" },
	{ __NR_pwritev2, LOOP, ANY,                              "disk and serial console, in a loop without io_uring" },
	{ __NR_fallocate, LOOP, ANY,                             "discard, in a loop without io_uring" },
	{ __NR_fdatasync, LOOP, ANY,                             "flush, in a loop without io_uring" },
	{ __NR_write, BOTH, ANY,                                 "wakes the loop (eventfd); log; serial console" },
	{ __NR_read, LOOP, ANY,                                  "serial console" },

	/* --- the control socket, and streams to the guest: sockets that were given to us --- */
	{ __NR_recvmsg, LOOP, ANY,                               "control lines with descriptors; data of streams" },
	{ __NR_sendmsg, BOTH, ANY,                               "answers and events; data of streams; the first cell's output" },
	{ __NR_recvfrom, LOOP, { LONG_IS(4, 0) },                "the first request; a look at a stream's first bytes. From nobody by name" },
	{ __NR_sendto, BOTH, { LONG_IS(4, 0) },                  "the rest of a cell's output; OK of a connection. To nobody by name" },
	{ __NR_shutdown, LOOP, ANY,                              "one half of a stream ends" },
	{ __NR_epoll_ctl, LOOP, ANY,                             "streams that the loop watches" },
	{ __NR_epoll_wait, LOOP, ANY,                            "those with something to do" },
	{ __NR_close, LOOP, ANY,                                 "streams that have ended; all of it at the end" },
	{ __NR_poll, BOTH, ANY,                                  "a client that reads its first result slowly; last words of a serial console" },

	/* --- that socket of ours which stands for the guest's ports, if there is one --- */
	{ __NR_accept4, LOOP_UNIX, { LONG_IS(1, 0) },            "a program that connects to a port of the guest" },
	{ __NR_socket, LOOP_UNIX, { IS(0, AF_UNIX), WITH(1, SOCK_STREAM, SOCK_NONBLOCK | SOCK_CLOEXEC), IS(2, 0) },
	                                                         "the guest connects to a port of the host" },
	{ __NR_connect, LOOP_UNIX, ANY,                          "the same: to PATH_PORT. The jail leaves it that folder alone" },
	{ __NR_newfstatat, LOOP_UNIX, ANY,                       "is it still ours when it is removed?" },
	{ __NR_unlink, LOOP_UNIX | LOOP_TRACE, ANY,              "it is removed; what an earlier trace has left" },

	/* --- a snapshot's parts: files that were given to us --- */
	{ __NR_pwrite64, LOOP, ANY,                              "its parts" },
	{ __NR_pread64, LOOP | VCPU_TRACE, ANY,                  "a disk's content; KVM's counters" },
	{ __NR_lseek, LOOP, ANY,                                 "what of a disk is no hole" },
	{ __NR_copy_file_range, LOOP, ANY,                       "a disk's content, without it passing through here" },
	{ __NR_ftruncate, LOOP, ANY,                             "a disk's size" },
	{ __NR_newfstatat, LOOP, { IS(3, AT_EMPTY_PATH) },       "size of the working set that pages are added to, by its descriptor" },
	{ __NR_fsync, LOOP, ANY,                                 "it outlives a crash" },

	/* --- a file by its name, in the one folder that such a monitor still sees --- */
	{ __NR_openat, LOOP_TRACE, ANY,                          "the trace, when it is written" },
	{ __NR_rename, LOOP_TRACE, ANY,                          "it takes its name" },

	/* --- memory of our own: no page is ever made executable, none shared --- */
	{ __NR_brk, LOOP, ANY,                                   "malloc" },
	{ __NR_mmap, BOTH, { ONLY(2, PROT_READ | PROT_WRITE), WITH(3, MAP_PRIVATE | MAP_ANONYMOUS, MAP_NORESERVE) },
	                                                         "malloc" },
	{ __NR_mprotect, BOTH, { ONLY(2, PROT_READ | PROT_WRITE) },  "malloc: a thread's heap grows" },
	{ __NR_mremap, LOOP, { IS(3, MREMAP_MAYMOVE) },          "realloc of something large" },
	{ __NR_munmap, BOTH, ANY,                                "free; guest memory at the end" },
	ADVICE(DONTNEED, BOTH,                                   "free; the stack of a thread that ends"),

	/* --- threads, signals, time --- */
	{ __NR_futex, BOTH, ANY,                                 "locks, conditions, the end of a thread" },
	{ __NR_tgkill, LOOP, { OWN_PID(0), IS(2, 34) },          "takes a vCPU out of KVM_RUN (SIGRTMIN of glibc)" },
	{ __NR_tgkill, BOTH, { OWN_PID(0), IS(2, SIGABRT) },     "abort() of glibc: a damaged heap or stack" },
	{ __NR_getpid, BOTH, ANY,                                "for tgkill" },
	{ __NR_gettid, BOTH, ANY,                                "for tgkill, of abort()" },
	{ __NR_writev, BOTH, ANY,                                "abort() of glibc says what is wrong" },
	{ __NR_rt_sigprocmask, BOTH, ANY,                        "glibc: pthread_kill, a thread's end, abort()" },
	{ __NR_rt_sigreturn, BOTH, ANY,                          "the end of a signal's handler: that which takes a vCPU out of KVM_RUN" },
	{ __NR_restart_syscall, BOTH, ANY,                       "the kernel's own, after a stop (SIGSTOP, a debugger) in poll or futex" },
	{ __NR_sched_setaffinity, VCPU, { IS(0, 0) },            "its own CPUs: anywhere, once it runs" },
	{ __NR_clock_gettime, BOTH, ANY,                         "where the host's clock source has no vDSO" },
	{ __NR_getrusage, LOOP | VCPU_TRACE, ANY,                "page faults so far: is the guest in unknown territory? A trace" },
	{ __NR_exit, VCPU, ANY,                                  "the thread ends" },
	{ __NR_exit_group, BOTH, ANY,                            "the process ends; also by --seccomp trap" },
};
/* clang-format on */
const size_t seccomp_nr_rules = ARRAY_LEN(seccomp_rules);
