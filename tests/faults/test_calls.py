# SPDX-License-Identifier: Apache-2.0
"""Every call into libc that a thaw or a snapshot makes fails once: the first, the second, until none is left.

The operation succeeds all the same (a call may be one that it can do without), or is refused with a cause and a
remedy; it never hangs, crashes or leaves something, and the snapshot that it was to read, or replace, stays as it is.
"""
import select
import shutil

import pytest

from conftest import told, unchanged
from vmm import VmmError

MOST = 80  # calls of one kind that an operation may make
SECONDS = 30  # a guard against hanging

THAW = [("open", "EMFILE"), ("open", "EIO"), ("read", "EIO"), ("pread", "EIO"), ("pread", "short"), ("mmap", "ENOMEM"),
        ("ioctl", "ENOMEM"), ("ioctl", "EINTR"), ("eventfd", "EMFILE"), ("epoll_create1", "EMFILE"),
        ("getrandom", "EAGAIN"), ("getrandom", "EINTR"), ("getrandom", "short"), ("pthread_create", "EAGAIN")]
SNAPSHOT = [("pwrite", "ENOSPC"), ("pwrite", "EIO"),
            ("pwrite", "EFBIG"), ("pwrite", "short"), ("pwrite", "EINTR"), ("fsync", "EIO"), ("fsync", "ENOSPC"),
            ("fsync", "EINTR"), ("ftruncate", "EFBIG"), ("copy_file_range", "ENOSPC"), ("copy_file_range", "short"),
            ("ioctl", "ENOMEM"), ("getrandom", "EAGAIN"), ("getrandom", "short")]


def thaw(vmm, env, frozen) -> None:
    with vmm(env=env) as m:
        stream = m.thaw(frozen, "1+1", timeout=SECONDS)
        while True:
            if not m.has_read():
                ready = select.select([stream.sock, m.sock], [], [], SECONDS)[0]
                assert ready, "neither an answer nor an event"
                if stream.sock in ready:
                    break
            event = m.any_event(SECONDS)
            if event.get("event") == "exit":
                assert event["reason"] == "kvm-error" and event["detail"]
                return
        assert stream.answer().result["status"] == "ok"
    assert m.process.returncode == 0


def sweep(faults, call: str, error: str, operate) -> list[str]:
    """operate(environment) with the nth call failing, n from 1 on until no call is the nth. Returns what was struck."""
    struck = []
    for n in range(1, MOST + 1):
        env = faults(f"{call}:{error}:{n}:1")
        operate(env)
        if not faults.struck:
            return struck
        struck += faults.struck
    raise AssertionError(f"more than {MOST} calls of {call}")


@pytest.mark.parametrize("call,error", THAW)
def test_thaw(vmm, faults, frozen, call, error):
    refused = []

    def operate(env):
        try:
            thaw(vmm, env, frozen)
        except VmmError as e:
            told(e)
            refused.append(str(e))

    with unchanged(frozen):
        struck = sweep(faults, call, error, operate)
    assert struck, "no such call: this test tests nothing"
    if error in ("EINTR", "short"):
        assert not refused
    thaw(vmm, None, frozen)


@pytest.mark.parametrize("call,error", SNAPSHOT)
def test_snapshot(vmm, faults, frozen, tmp_path, call, error):
    """The machine goes on, and can be frozen afterwards. (Folders and renames are the caller's: tests/unit/api/test_freeze.c.)"""
    outcomes = []

    def operate(env):
        armed = tmp_path / "armed"
        with vmm(env={**env, "FAULT_ARMED_BY": str(armed)}) as m:
            m.thaw(frozen, None, paused=True)
            armed.touch()
            try:
                m.snapshot(tmp_path / "new")
                shutil.rmtree(tmp_path / "new")
                outcomes.append("done")
            except VmmError as e:
                told(e)
                outcomes.append(str(e))
            armed.unlink()
            m.snapshot(tmp_path / "after")
        with vmm() as m:
            m.thaw(tmp_path / "after", None)  # nobody waits for a request in it
            m.call("pause")
        shutil.rmtree(tmp_path / "after")

    struck = sweep(faults, call, error, operate)
    assert struck, "no such call: this test tests nothing"
    if error in ("EINTR", "short"):
        assert set(outcomes) == {"done"}
