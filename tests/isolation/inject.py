# SPDX-License-Identifier: Apache-2.0
"""Has a thread of another process make a system call, as one who has taken it over could: ptrace(2), by root."""
from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
GETREGS, SETREGS, DETACH, SYSCALL, SEIZE, INTERRUPT = 12, 13, 17, 24, 0x4206, 0x4207
WALL = 0x40000000
SYSCALL_BYTES = 2  # of the instruction
NR = {"read": 0, "write": 1, "open": 2, "mmap": 9, "mprotect": 10, "socket": 41, "connect": 42, "clone": 56, "execve": 59,
      "kill": 62, "chdir": 80, "mkdir": 83, "symlink": 88, "ptrace": 101, "setuid": 105, "setresuid": 117, "prctl": 157,
      "chroot": 161, "mount": 165, "unshare": 272, "setns": 308, "process_vm_readv": 310, "shmget": 29, "shmat": 30,
      "clone3": 435, "bpf": 321, "memfd_create": 319, "userfaultfd": 323, "io_uring_setup": 425, "seccomp": 317,
      "ioctl": 16, "madvise": 28, "bind": 49, "listen": 50, "fork": 57, "vfork": 58, "pivot_root": 155, "openat": 257,
      "perf_event_open": 298, "open_by_handle_at": 304, "process_vm_writev": 311, "finit_module": 313, "kexec_load": 246,
      "add_key": 248, "request_key": 249, "keyctl": 250, "execveat": 322, "pkey_mprotect": 329, "io_uring_register": 427,
      "open_tree": 428, "move_mount": 429, "fsopen": 430, "pidfd_open": 434, "openat2": 437, "pidfd_getfd": 438,
      "process_madvise": 440, "landlock_create_ruleset": 444, "memfd_secret": 447, "rt_sigqueueinfo": 129, "tkill": 200,
      "tgkill": 234, "timer_create": 222, "inotify_init1": 294, "fanotify_init": 300, "personality": 135, "iopl": 172,
      "modify_ldt": 154, "reboot": 169, "swapon": 167, "quotactl": 179, "syslog": 103, "acct": 163, "settimeofday": 164,
      "dup": 32, "fcntl": 72, "truncate": 76, "link": 86, "mknod": 133, "semget": 64, "msgget": 68, "mq_open": 240,
      "setpriority": 141, "sched_setscheduler": 144, "prlimit64": 302, "kcmp": 312, "vmsplice": 278, "splice": 275}


class Regs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in (
        "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base "
        "ds es fs gs").split()]


class Died(Exception):
    """The call ended the process, by the signal."""


def _ptrace(request: int, tid: int, data=None) -> None:
    if libc.ptrace(request, tid, None, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def is_our_child(tid: int) -> bool:
    with open(f"/proc/{tid}/status") as file:
        text = file.read()
    return f"\nTgid:\t{tid}\n" in text and f"\nPPid:\t{os.getpid()}\n" in text


def _wait(tid: int) -> None:
    """A child of ours that has ended is left to who waits for it as such; others are told when the tracer knows."""
    end = os.waitid(os.P_PID, tid, os.WEXITED | os.WSTOPPED | os.WNOWAIT | WALL)
    if end.si_code in (os.CLD_KILLED, os.CLD_DUMPED) and is_our_child(tid):
        raise Died(signal.Signals(end.si_status).name)
    _, status = os.waitpid(tid, WALL)
    if not os.WIFSTOPPED(status):
        raise Died(signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status:#x}")


def call(tid: int, name: str, *args: int | bytes) -> int:
    """What the call returns in that thread: a value, or -errno. Bytes are put below its stack.

    The thread is stopped where it next enters a system call, wherever it is now: one that waits in a call is thrown
    out of it and enters it again (syscall-stops of ptrace(2)). That call is made after ours."""
    regs, mine = Regs(), Regs()
    _ptrace(SEIZE, tid)
    try:
        _ptrace(INTERRUPT, tid)
        _wait(tid)
        _ptrace(SYSCALL, tid)
        _wait(tid)
        _ptrace(GETREGS, tid, ctypes.byref(regs))
        ctypes.memmove(ctypes.byref(mine), ctypes.byref(regs), ctypes.sizeof(regs))
        at = (regs.rsp - 8192) & ~15
        with open(f"/proc/{tid}/mem", "r+b", buffering=0) as mem:
            for register, arg in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), args):
                if isinstance(arg, bytes):
                    mem.seek(at)
                    mem.write(arg)
                    arg, at = at, at + len(arg) + 16 & ~15
                setattr(mine, register, arg & (1 << 64) - 1)
        mine.orig_rax = NR[name]
        _ptrace(SETREGS, tid, ctypes.byref(mine))
        _ptrace(SYSCALL, tid)
        _wait(tid)
        _ptrace(GETREGS, tid, ctypes.byref(mine))
        regs.rip, regs.rax, regs.orig_rax = regs.rip - SYSCALL_BYTES, regs.orig_rax, (1 << 64) - 1
        _ptrace(SETREGS, tid, ctypes.byref(regs))
        _ptrace(SYSCALL, tid)
        _wait(tid)  # one that a filter kills stops at the call's end all the same, with the number for its value
        return ctypes.c_longlong(mine.rax).value
    finally:
        libc.ptrace(DETACH, tid, None, None)  # a dead one is detached


def outcome(tid: int, name: str, *args: int | bytes) -> str:
    """In a word: "EACCES", "killed by SIGSYS", or the value."""
    try:
        value = call(tid, name, *args)
    except Died as death:
        return f"killed by {death}"
    return errno.errorcode.get(-value, str(value)) if -4096 < value < 0 else str(value)


def inet(port: int) -> bytes:
    """127.0.0.1:port as a sockaddr_in."""
    return struct.pack("<H", 2) + struct.pack(">H", port) + bytes([127, 0, 0, 1]) + bytes(8)
