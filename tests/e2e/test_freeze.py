# SPDX-License-Identifier: Apache-2.0
"""Freeze and thaw of a guest of a few instructions: the whole path of a first cell, in milliseconds."""
import json
import os
import signal
import socket
import struct
import time

import pytest

from tiny import IF_NOT_ZERO, JUMP, assemble, elf, interpreter
from vmm import RESULT, VmmError, frame, request

ANSWER = frame(RESULT, json.dumps({"status": "ok", "execution_count": 1, "error": None}).encode())


@pytest.fixture
def frozen(vmm, tmp_path):
    """A snapshot of that guest at the freeze point, with a writable disk."""
    kernel, disk, directory = tmp_path / "kernel", tmp_path / "disk.img", tmp_path / "snapshot"
    kernel.write_bytes(elf(interpreter(ANSWER), pvh=True))
    disk.write_bytes(b"disk".ljust(1 << 20, b"\0"))
    with vmm() as m:
        m.call("boot", kernel=str(kernel), memory_mb=64, disks=[{"path": str(disk), "overlay": True}],
               overlay_dir=str(tmp_path))
        m.event("parked", 20)
        m.snapshot(directory)
    return directory


def test_parts_and_holes(frozen):
    assert {p.name for p in frozen.iterdir()} >= {"state", "memory", "disk", "manifest"}
    memory = frozen / "memory"
    assert memory.stat().st_size == (64 << 20) + 4096
    assert memory.stat().st_blocks * 512 < 1 << 20, "pages of zeros must be holes"
    json.loads((frozen / "manifest").read_text())


def test_first_request_through_the_mailbox(vmm, frozen):
    for _ in range(3):
        with vmm() as m:
            assert m.thaw(frozen, "1+1").answer().result["status"] == "ok"
            m.event("first-done")
            assert m.thawed["port"] == 2000


def test_stats_of_a_halted_guest(vmm, frozen):
    """Asking for counters must not wait for a vCPU that sleeps in KVM_RUN."""
    with vmm() as m:
        m.thaw(frozen, "1+1").answer()
        assert m.call("stats", timeout=10)["vcpu"]["exits"] > 0


def test_first_request_that_is_too_long_for_the_mailbox(vmm, frozen):
    """The mailbox is a page here: the thaw must still succeed, the request goes by vsock."""
    with vmm() as m:
        m.thaw(frozen, "x" * 100_000)
        m.call("pause", timeout=10)


def test_environment_that_is_too_long(vmm, frozen):
    with vmm() as m:
        with pytest.raises(VmmError, match="environment"):
            m.thaw(frozen, "1+1", env={"A": "x" * 8000})


def freeze_parked(vmm, folder, code, *names):
    """Snapshots of a guest of that code at the freeze point, in `folder`."""
    kernel = folder / "kernel"
    kernel.write_bytes(elf(code, pvh=True))
    with vmm() as m:
        m.call("boot", kernel=str(kernel), memory_mb=64)
        m.event("parked", 60)
        for name in names:
            m.snapshot(folder / name)


def test_hostile_answer_lengths(vmm, tmp_path):
    """DONE with more bytes than the response area: what the area holds may come, no more; the monitor lives."""
    code = bytearray(interpreter(ANSWER))
    at = code.index(b"\xb8" + struct.pack("<I", len(ANSWER)) + b"\xa3")
    code[at + 1:at + 5] = struct.pack("<I", 0x7FFFFFFF)
    freeze_parked(vmm, tmp_path, bytes(code), "snapshot")
    with vmm() as m:
        stream = m.thaw(tmp_path / "snapshot", "1+1")
        assert stream.answer().result["status"] == "ok"
        stream.sock.settimeout(1)
        rest = b""
        with pytest.raises((TimeoutError, EOFError, OSError)):
            while len(rest) <= 1 << 20:
                rest += stream._exactly(1)
        assert len(ANSWER) + len(rest) <= 4096, "more than the response area holds"
        m.call("pause", timeout=10)


def test_half_a_request(vmm, frozen):
    """The stream may end before its frame does: nothing may wait for ever."""
    for data in (b"", b"\x05", request(op="run", code="1")[:-1]):
        ours, theirs = socket.socketpair()
        with vmm() as m, theirs:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            try:
                m.call("thaw", dir=str(frozen), overlay_dir="/tmp", fd=theirs.fileno())
                m.call("pause", timeout=10)
            except VmmError as error:
                assert str(error).strip(" |")
        ours.close()


def test_thaw_keeps_the_snapshot_as_it_is(vmm, frozen):
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_size, p.read_bytes()) for p in frozen.iterdir()}
    with vmm() as m:
        m.thaw(frozen, "1+1").answer()
    assert before == {p.name: (p.stat().st_mtime_ns, p.stat().st_size, p.read_bytes()) for p in frozen.iterdir()}


def test_frozen_again(vmm, frozen, tmp_path):
    """A thawed machine is a machine: it can be frozen and thawed once more."""
    with vmm() as m:
        m.thaw(frozen, "1+1").answer()
        m.call("pause")
        m.snapshot(tmp_path / "second")
    with vmm() as m:
        m.thaw(tmp_path / "second", None)
        m.call("pause", timeout=10)


@pytest.mark.parametrize("names, files", [
    (["state", "memory", "disk", "manifest"], 3), (["state", "memory", "disk"], 3), ([], 0), ([1], 1)])
def test_snapshot_without_a_part(vmm, frozen, tmp_path, names, files):
    with vmm() as m:
        m.thaw(frozen, None)
        m.call("pause")
        fds = [os.open(tmp_path / f"part{i}", os.O_RDWR | os.O_CREAT) for i in range(files)]
        with pytest.raises(VmmError, match="descriptor"):
            m.call("snapshot", parts=names, fd=fds)
        for fd in fds:
            os.close(fd)
        assert m.call("resume")["ok"], "a snapshot that failed must not end the machine"


def test_snapshot_into_what_cannot_be_written(vmm, frozen):
    with vmm() as m:
        m.thaw(frozen, None)
        m.call("pause")
        names = m.call("parts")["parts"]
        fds = [os.open("/dev/full", os.O_RDWR) for _ in names]
        with pytest.raises(VmmError, match="No space|Invalid"):
            m.call("snapshot", parts=names, fd=fds)
        for fd in fds:
            os.close(fd)
        assert m.call("resume")["ok"]


def test_thaw_of_nothing(vmm, tmp_path):
    for directory in (tmp_path / "missing", tmp_path):
        with vmm() as m:
            with pytest.raises(VmmError) as error:
                m.thaw(directory, "1+1")
            assert str(directory) in str(error.value) or "state" in str(error.value)


def test_vsock_path(vmm, frozen, tmp_path):
    """The Unix socket speaks the CONNECT convention, refuses a taken path, and is gone afterwards."""
    path = tmp_path / "vsock"
    with vmm() as m:
        m.thaw(frozen, None, vsock=str(path))
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(str(path))
            s.sendall(b"NONSENSE\n")
            assert s.recv(64) == b""
        with vmm() as other:
            with pytest.raises(VmmError, match="vsock"):
                other.thaw(frozen, None, vsock=str(path))
        assert path.exists()
    assert not path.exists()


def at64(address: int) -> bytes:
    return b"\x48\xb8" + struct.pack("<Q", address)  # mov rax, address


def store64(address: int, low: int, high: int | None = None) -> bytes:
    code = at64(address) + b"\xc7\x00" + struct.pack("<I", low)  # mov dword [rax], low
    return code if high is None else code + b"\xc7\x40\x04" + struct.pack("<I", high)


def test_memory_on_both_sides_of_the_hole(vmm, tmp_path):
    """3.3 GiB, of which a guest uses pages beyond 2 GiB, at the hole (but for the page of the generation id), from 4 GiB on and the last one: they are in the
    snapshot where docs/snapshot.md says, and the thawed guest finds them."""
    hole, above, large, tables, turns = 0xD0000000, 64 << 20, 2 << 20, 0x300000, 0x304000
    end = (1 << 32) + above
    window = 1 << 32  # the fifth GiB of the guest's addresses: large pages of its own choice
    pages = [0x80000000, hole - large, 1 << 32, end - large, hole]  # the last for the serial port
    marks = {window: pages[0], window + 2 * large - 8192: hole - 8192, window + 2 * large: hole,
             window + 4 * large - 4096: hole + above - 4096}  # and where they are in the file
    code = store64(0xA020, tables | 3, 0)  # the fifth entry of the page directories' table (vmm/layout.h)
    for n, page in enumerate(pages):
        code += store64(tables + 8 * n, page & 0xFFFFFFFF | 0x83, page >> 32)
    code += b"".join(store64(address, 0xC0FFEE00 + n) for n, address in enumerate(marks))
    code = assemble(code, at64(window + 4 * large), b"\xc6\x00r", "again",
                    *(part for n, address in enumerate(marks) for part in (
                        at64(address), b"\x81\x38" + struct.pack("<I", 0xC0FFEE00 + n), (IF_NOT_ZERO, "bad"))),
                    at64(turns), b"\xff\x00", (JUMP, "again"), "bad", b"\x0f\x0b")
    (tmp_path / "kernel").write_bytes(elf(code, pvh=False))

    def read(name: str, where: int) -> int:
        with open(tmp_path / name / "memory", "rb") as file:
            return struct.unpack("<I", os.pread(file.fileno(), 4, where))[0]

    ours, theirs = socket.socketpair()
    with vmm() as m, ours:
        with theirs:
            m.call("boot", kernel=str(tmp_path / "kernel"), memory_mb=(hole + above) >> 20, serial="fd", fd=theirs.fileno())
        ours.settimeout(60)
        assert ours.recv(1) == b"r"
        m.snapshot(tmp_path / "first")
    memory = (tmp_path / "first" / "memory").stat()
    assert memory.st_size == hole + above + 4096 and memory.st_blocks * 512 < 1 << 20
    assert [read("first", where) for where in marks.values()] == [0xC0FFEE00 + n for n in range(4)]
    with vmm() as m:
        m.thaw(tmp_path / "first", None)
        for n in range(100):
            time.sleep(0.1)  # it looks around; how long it has does not matter
            m.snapshot(tmp_path / f"later{n}")
            if read(f"later{n}", turns) > read("first", turns) + 1:
                break
            m.call("resume")
        assert not [e for e in m.events if e["event"] == "exit"]
        assert read(f"later{n}", turns) > read("first", turns) + 1, "it has not looked"
        assert [read(f"later{n}", where) for where in marks.values()] == [0xC0FFEE00 + n for n in range(4)]


def test_memory_that_is_cut_under_a_guest(vmm, tmp_path):
    """Who may write a template can end its sandboxes; it is their end, and nobody else's."""
    freeze_parked(vmm, tmp_path, interpreter(ANSWER), "whole", "cut")
    with vmm() as neighbour, vmm() as m:
        neighbour.thaw(tmp_path / "whole", "1", paused=True)
        m.thaw(tmp_path / "cut", "1", paused=True)
        os.truncate(tmp_path / "cut" / "memory", 0)
        try:
            m.call("resume")
            assert m.event("exit")["reason"] == "kvm-error"
        except VmmError:
            assert m.process.wait(60) == -signal.SIGBUS
        assert neighbour.call("resume")["ok"]
        neighbour.event("first-done")
