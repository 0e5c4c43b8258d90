# SPDX-License-Identifier: Apache-2.0
"""A sandbox that cannot be reseeded answers nothing: what is to be replaced lies where it cannot be.

The template's `state`, and for the clock its `memory`, are changed with right checksums, as no accident would do it.
(A host without random bytes is in tests/faults/test_reseed.py.)
"""
import os
import socket
import struct
from pathlib import Path

import pytest

from test_snapshot import copy, rewrite  # noqa: F401: a fixture
from vmm import VmmError, request

BEYOND = 1 << 40  # of any guest's memory here
GSYM = {"crng.key": 0, "crng.generation": 8, "pool.hash": 24, "boot_id": 32, "uts.nodename": 40}  # offsets in the section
TK_SEQ = 64
MAILBOX = 16


def patch(offset: int, value: int):
    return lambda version, body: (version, body[:offset] + struct.pack("<Q", value) + body[offset + 8:])


def refused(vmm, directory: Path) -> str:
    """A thaw with a request: no byte of an answer, ever. Returns the error."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    ours.sendall(request(op="run", code="print('I spoke')"))
    with ours, vmm() as m:
        with theirs, pytest.raises(VmmError) as error:
            m.call("thaw", dir=str(directory), id="x", hostname="x", env={}, overlay_dir="/tmp", fd=theirs.fileno())
        m.process.wait(60)  # a machine that could not be thawed is the end of its monitor
        assert ours.recv(1) == b""
    cause, _, _ = str(error.value).partition(" | ")
    assert cause and "closed" not in cause
    return cause


@pytest.mark.parametrize("field", GSYM)
def test_what_is_to_be_replaced_is_not_there(vmm, copy, field):  # noqa: F811
    path = copy("state") / "state"
    rewrite(path, b"GSYM", patch(GSYM[field], BEYOND))
    assert field in refused(vmm, path.parent)


def test_mailbox_is_not_there(vmm, copy):  # noqa: F811
    """It would bring the interpreter its entropy."""
    path = copy("state") / "state"
    rewrite(path, b"BELL", patch(MAILBOX, BEYOND))
    assert "mailbox" in refused(vmm, path.parent)


def section(state: bytes, tag: bytes) -> bytes:
    at = 8
    while state[at:at + 4] != tag:
        at += 16 + struct.unpack_from("<I", state, at + 8)[0]
    return state[at + 16:at + 16 + struct.unpack_from("<I", state, at + 8)[0]]


def test_clock_that_is_being_changed(vmm, copy):  # noqa: F811
    """All parts are replaced or none: a clock that cannot be set does not go with random state that was."""
    directory = copy("memory")
    at = struct.unpack_from("<Q", section((directory / "state").read_bytes(), b"GSYM"), TK_SEQ)[0]
    with open(directory / "memory", "r+b") as file:
        seq = struct.unpack("<I", os.pread(file.fileno(), 4, at))[0]
        assert not seq & 1, "not the sequence counter"
        os.pwrite(file.fileno(), struct.pack("<I", seq + 1), at)
    assert "clock" in refused(vmm, directory)
