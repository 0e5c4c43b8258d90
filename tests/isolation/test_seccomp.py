# SPDX-License-Identifier: Apache-2.0
"""The system call filters of a monitor: each thread has one, what is not in it is the end of the monitor, and its starter
is told."""
from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import inject
from conftest import running
from test_jail import child_of, needs_root, status, thread_roles

ATTEMPTS = {
    "open a file": ("open", b"/etc/passwd\0", 0),
    "execute": ("execve", b"/bin/true\0", 0, 0),
    "make a process": ("clone", 17, 0, 0, 0, 0),
    "trace": ("ptrace", 0x4206, 1, 0, 0),
    "kill": ("kill", 1, 0),
    "connect to the network": ("socket", 2, 1, 0),
    "make pages executable": ("mmap", 0, 4096, 7, 0x22, 0xffffffffffffffff, 0),
    "make its own pages executable": ("mprotect", 0x400000, 4096, 7),
    "leave its namespaces": ("unshare", 0x10000000),
    "another ring": ("io_uring_setup", 8, 0),
    "another filter": ("seccomp", 1, 0, 0),
    "bpf": ("bpf", 0, 0, 0),
    "prctl": ("prctl", 3, 0, 0, 0, 0),
}


@needs_root
def test_every_thread_has_one(filtered):
    for tid in thread_roles(filtered.process.pid):
        of = dict(line.split(":", 1) for line in Path(f"/proc/{tid}/status").read_text().splitlines())
        assert of["Seccomp"].strip() == "2" and of["Seccomp_filters"].strip() == "1", (tid, of["Name"])


@needs_root
@pytest.mark.parametrize("role", ["loop", "vcpu"])
@pytest.mark.parametrize("what", ATTEMPTS)
def test_what_is_not_in_it_is_the_end(filtered, what, role):
    name, *args = ATTEMPTS[what]
    tid = thread_roles(filtered.process.pid)[role == "vcpu"]
    assert inject.outcome(tid, name, *args) == "killed by SIGSYS"
    assert filtered.process.wait(20) == -signal.SIGSYS


def ioctl(request: int) -> tuple:
    """On any descriptor: the filter sees the request first."""
    return ("ioctl", 0, request, 0)


ANONYMOUS, SHARED_ANONYMOUS, FIXED = 0x22, 0x21, 0x32
NO_FD = (1 << 64) - 1
# Others that whoever has taken a thread over would try next. None: a process that is another sandbox's.
OTHERS = {
    "read another's memory": ("process_vm_readv", None, 0, 0, 0, 0, 0),
    "write another's memory": ("process_vm_writev", None, 0, 0, 0, 0, 0),
    "advise another's memory": ("process_madvise", 3, 0, 0, 21, 0),
    "take another's descriptor": ("pidfd_getfd", 3, 0, 0),
    "name another": ("pidfd_open", None, 0),
    "compare with another": ("kcmp", None, 1, 0, 0, 0),
    "signal another": ("rt_sigqueueinfo", None, 9, 0),
    "signal another's thread": ("tgkill", None, None, 9),
    "signal a thread": ("tkill", None, 9),
    "end its own by another signal": ("tgkill", 1, 1, 11),
    "limits of another": ("prlimit64", None, 7, 0, 0),
    "serve page faults": ("userfaultfd", 0),
    "keys": ("keyctl", 0, 0xFFFFFFFD, 0, 0, 0),
    "add a key": ("add_key", b"user\0", b"x\0", b"x", 1, 0xFFFFFFFD),
    "ask for a key": ("request_key", b"user\0", b"x\0", 0, 0),
    "memory with a name": ("memfd_create", b"x\0", 0),
    "secret memory": ("memfd_secret", 0),
    "count events": ("perf_event_open", 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0),
    "shared memory": ("shmget", 0, 4096, 0o1600),
    "attach shared memory": ("shmat", 0, 0, 0),
    "semaphores": ("semget", 0, 1, 0o1600),
    "messages": ("msgget", 0, 0o1600),
    "message queues": ("mq_open", b"x\0", 0o102, 0o600, 0),
    "fork": ("fork",),
    "vfork": ("vfork",),
    "clone3": ("clone3", 0, 88),
    "execute by descriptor": ("execveat", 0, b"\0", 0, 0, 0x1000),
    "open by a folder": ("openat", 0xFFFFFF9C, b"/etc/passwd\0", 0, 0),
    "open with rules": ("openat2", 0xFFFFFF9C, b"/etc/passwd\0", 0, 24),
    "open by a handle": ("open_by_handle_at", 0xFFFFFF9C, 0, 0),
    "cut a file": ("truncate", b"/etc/passwd\0", 0),
    "make a link": ("link", b"/etc/passwd\0", b"/x\0"),
    "make a device": ("mknod", b"/x\0", 0o60600, 0),
    "root": ("pivot_root", b"/\0", b"/\0"),
    "mount": ("mount", b"none\0", b"/\0", b"tmpfs\0", 0, 0),
    "clone a mount": ("open_tree", 0xFFFFFF9C, b"/\0", 1),
    "move a mount": ("move_mount", 3, b"\0", 0xFFFFFF9C, b"/\0", 0),
    "new file system": ("fsopen", b"tmpfs\0", 0),
    "join a namespace": ("setns", 3, 0),
    "bind a socket": ("bind", 3, b"\2\0\0\0\0\0\0\0", 16),
    "listen": ("listen", 3, 1),
    "connect a socket": ("connect", 3, b"\2\0\0\0\0\0\0\0", 16),
    "a Unix socket": ("socket", 1, 1, 0),
    "a netlink socket": ("socket", 16, 3, 0),
    "map what it shares": ("mmap", 0, 4096, 3, SHARED_ANONYMOUS, NO_FD, 0),
    "map over what is there": ("mmap", 0x400000, 4096, 3, FIXED, NO_FD, 0),
    "map executable pages": ("mmap", 0, 4096, 5, ANONYMOUS, NO_FD, 0),
    "executable by a key": ("pkey_mprotect", 0x400000, 4096, 7, 0),
    "have pages merged": ("madvise", 0x400000, 4096, 12),
    "another list for the ring": ("io_uring_register", 3, 11, 0, 0),
    "another ruleset": ("landlock_create_ruleset", 0, 0, 1),
    "a module": ("finit_module", 3, b"\0", 0),
    "another kernel": ("kexec_load", 0, 0, 0, 0),
    "ports": ("iopl", 3),
    "segments": ("modify_ldt", 1, 0, 0),
    "another personality": ("personality", 0x0400000),
    "priority": ("setpriority", 0, 0, 0xFFFFFFEC),
    "a scheduler": ("sched_setscheduler", 0, 1, 0),
    "reboot": ("reboot", 0xFEE1DEAD, 672274793, 0x1234567, 0),
    "kernel's log": ("syslog", 2, 0, 0),
    "the host's clock": ("settimeofday", 0, 0),
    "a timer": ("timer_create", 0, 0, 0),
    "watch files": ("inotify_init1", 0),
    "watch all files": ("fanotify_init", 0, 0),
    "a descriptor again": ("dup", 0),
    "flags of a descriptor": ("fcntl", 0, 4, 0),
    "pages into a pipe": ("vmsplice", 3, 0, 0, 0),
    "another VM": ioctl(0xAE01),
    "a vCPU": ioctl(0xAE41),
    "memory of the guest": ioctl(0x4020AE46),
    "a device of KVM": ioctl(0xC00CAEE0),
    "an eventfd of KVM": ioctl(0x4020AE76),
    "a guest's page tables": ioctl(0xC018AE85),
    "break into a guest": ioctl(0x4048AE9B),
    "input of a terminal": ioctl(0x5412),
    "how the loop's epoll waits": ioctl(0x40088A01),
}


@needs_root
@pytest.mark.parametrize("role", ["loop", "vcpu"])
def test_others_are_the_end_too(who, frozen, role):
    """One monitor each. What is printed is the list of what was tried, and what came of it."""
    for what, (name, *args) in OTHERS.items():
        with running("exec", who, frozen) as m:
            args = [os.getpid() if arg is None else arg for arg in args]
            found = inject.outcome(thread_roles(m.process.pid)[role == "vcpu"], name, *args)
            print(f"{role}, started by {'root' if who.root else 'a user'}: {what} ({name}): {found}")
            assert found == "killed by SIGSYS", what
            assert m.process.wait(20) == -signal.SIGSYS


@needs_root
@pytest.mark.parametrize("role, request_", [("loop", 0xAE80), ("vcpu", 0xC008AE88), ("vcpu", 0x8090AE81)])
def test_what_one_role_may_is_the_end_of_another(who, frozen, role, request_):
    """KVM_RUN by the loop; KVM_GET_MSRS and KVM_GET_REGS by the vCPU's thread: the last is in both filters."""
    with running("exec", who, frozen) as m:
        found = inject.outcome(thread_roles(m.process.pid)[role == "vcpu"], *ioctl(request_))
        if request_ == 0x8090AE81:
            assert found in ("ENOTTY", "EBADF", "ENXIO"), found
        else:
            assert found == "killed by SIGSYS", found


@needs_root
def test_off_is_off(monitor):
    assert status(monitor.process.pid)["Seccomp"].strip() == "0"
    layer = next(layer for layer in monitor.call("isolation")["layers"] if layer["name"] == "seccomp")
    assert not layer["on"] and "--seccomp" in layer["why"]


@needs_root
def test_the_command_says_so(who, kernel):
    boot = who.thawbox("boot", "--kernel", str(kernel), stdin=-1, stdout=-1, stderr=-1, text=True)
    try:
        pid = child_of(boot.pid)
        while status(pid).get("Seccomp", "0").strip() != "2":
            os.sched_yield()
        assert inject.outcome(pid, "open", b"/etc/passwd\0", 0) == "killed by SIGSYS"
        _, err = boot.communicate(timeout=30)
    finally:
        boot.kill()
        boot.communicate()
    assert boot.returncode != 0 and "SIGSYS" in err and "filter" in err, err
