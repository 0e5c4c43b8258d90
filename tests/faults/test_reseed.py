# SPDX-License-Identifier: Apache-2.0
"""A sandbox that cannot be reseeded answers nothing: the host has no random bytes for it, and says so.

(What cannot be written into the guest is in tests/e2e/test_reseed.py.)
"""
import json
import socket
from contextlib import contextmanager

import pytest

from conftest import BIN, told, unchanged
from vmm import VmmError, Zygote, request

NONE = "getrandom:EAGAIN:1:1000000"  # from now on, for as long as the fault is armed


class OpenZygote(Zygote):
    """Outside of its jail, where the shim finds its files."""

    def _start(self, child, program, *args, env=None):
        return super()._start(child, program, "--isolation", "none", "--seccomp", "off", *args, env=env)


@contextmanager
def member(way: str, vmm, frozen, env):
    if way == "exec":
        with vmm(env=env) as m:
            yield m
        return
    with OpenZygote(BIN / "thawbox-vmm", frozen, env=env) as zygote, getattr(zygote, way)() as m:
        yield m


def ask(m, frozen) -> tuple[str, bytes]:
    """A thaw with a request: the error, or "", and all that ever came on the request's stream."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    ours.sendall(request(op="run", code="1+1"))
    error = ""
    with ours:
        with theirs:
            try:
                m.call("thaw", dir=str(frozen), id="x", hostname="x", env={}, overlay_dir="/tmp", fd=theirs.fileno())
            except VmmError as e:
                told(e)
                error = str(e)
        if not error:
            m.event("first-done")
            m.call("quit")
        m.process.wait(60)  # after an error the monitor ends by itself
        came = b""
        while chunk := ours.recv(65536):
            came += chunk
    return error, came


@pytest.mark.parametrize("way", ["exec", "fork", "shell", "standby"])
def test_no_random_bytes_no_answer(vmm, faults, frozen, tmp_path, way):
    """Those that wait in a pool were made while there still were some."""
    armed = tmp_path / "armed"
    env = faults(NONE, FAULT_ARMED_BY=str(armed))
    with unchanged(frozen), member(way, vmm, frozen, env) as m:
        armed.touch()
        error, came = ask(m, frozen)
        armed.unlink()
    assert "reseed" in error and "getrandom" in error and came == b"", (error, came)
    with member(way, vmm, frozen, env) as m:
        error, came = ask(m, frozen)
    assert not error and json.loads(came[5:])["status"] == "ok", "the control: without the fault it answers"


def test_command_says_why(thawbox, faults, template):
    env = faults(NONE, THAWBOX_ISOLATION="none", THAWBOX_SECCOMP="off")
    done = thawbox("run", "-c", "print('I spoke')", env=env)
    assert done.returncode in (3, 125) and done.stdout == b"", done
    assert b"reseed" in done.stderr and b"getrandom" in done.stderr and b"remedy" in done.stderr, done.stderr
    assert faults.struck
