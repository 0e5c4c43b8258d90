# SPDX-License-Identifier: Apache-2.0
"""The loop's ring: what is not in its list is refused (tests/unit/core/test_loop.c asks it for everything); a loop that
goes without does the same work."""
from __future__ import annotations

from dataclasses import replace

import pytest


@pytest.mark.parametrize("engine, args", [("io_uring", ()), ("poll", ("--no-io-uring",))])
def test_thaw_and_freeze(who, frozen, engine, args):
    """Filters are on: what the loop calls instead of the ring is in them."""
    with who.vmm(*args) as m:
        assert m.thaw(frozen, "1+1", overlay_dir=str(who.folder)).answer().result["status"] == "ok"
        stats = m.call("stats")
        assert stats["loop"] == engine
        m.call("pause")
        m.snapshot(who.folder / "second")
    with who.vmm(*args) as m:
        m.thaw(who.folder / "second", None, overlay_dir=str(who.folder))
        m.call("resume")
        m.call("pause")


FORBID = """#!/usr/bin/python3
import ctypes, os, struct, sys
# if (nr == io_uring_setup) return EPERM; else allow
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))))
program = ctypes.create_string_buffer(struct.pack("<H6xQ", 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv({vmm!r}, sys.argv)
"""


def test_no_ring_is_told_once(who, frozen):
    """A process whose starter forbids io_uring, as container engines do."""
    wrapper = who.folder / "thawbox-vmm"
    wrapper.write_text(FORBID.format(vmm=str(who.programs / "thawbox-vmm")))
    wrapper.chmod(0o755)
    with replace(who, programs=who.folder).vmm() as m:
        assert m.thaw(frozen, "1+1", overlay_dir=str(who.folder)).answer().result["status"] == "ok"
        assert m.call("stats")["loop"] == "poll"
        m.call("quit")
        m.process.wait(20)
        assert m.process.stderr.read().count(b"warning: io_uring") == 1
