# SPDX-License-Identifier: Apache-2.0
"""The system call filters of a monitor: each thread has one, what is not in it is the end of the monitor, and its starter
is told."""
from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import inject
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
