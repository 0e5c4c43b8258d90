# SPDX-License-Identifier: Apache-2.0
"""Runs the guest's interpreter kernels on the host: Unix sockets for vsock, a doorbell of pipes and
shared memory that the test answers itself. The kernels' code is the same as in a guest."""
from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import shutil
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "guest" / "python"
WARMUP = ROOT / "guest" / "templates" / "code-interpreter" / "warmup.py"
PYTHON = "/usr/bin/python3"
AREA = 16 * 4096
REQUEST, CELL, RESULT, STDOUT, STDERR, DISPLAY = 0x01, 0x04, 0x10, 0x11, 0x12, 0x14
PORT, PARK, OUT, DONE, NEXT = 0x0C, 0x10, 0x14, 0x18, 0x1C
SERVED, LOOK, YIELD = 0xFFFFFFFE, 0xFFFFFFFC, 0xFFFFFFFB
HEADER = struct.Struct("<IB")


def build(into: Path) -> Path:
    """Lays out the kernel as the root image does; returns kernel.py."""
    for source in (*SOURCES.glob("*.py"), *SOURCES.glob("*.js")):
        shutil.copy(source, into)
    for output, source in (("_thawbox.so", "_thawbox.c"), ("thawbox_reseed.node", "thawbox_reseed.c")):
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-std=c11", "-Wall", "-Wextra",
                        "-Wconversion", "-Wshadow", "-Werror", "-isystem", "/usr/include/python3.11",
                        "-o", str(into / output), str(SOURCES / source)], check=True)
    return into / "kernel.py"


def request(**members: Any) -> bytes:
    """Returns a REQUEST frame."""
    payload = json.dumps(members).encode()
    return HEADER.pack(len(payload), REQUEST) + payload


def cell(frame: bytes) -> bytes:
    """Returns a REQUEST as a CELL where the monitor would make one of it (docs/protocol.md section 5)."""
    members = json.loads(frame[5:])
    if members.get("op") != "run" or members.keys() - {"op", "code", "silent", "max_output"}:
        return frame
    payload = struct.pack("<BQ", members.get("silent", False), members.get("max_output", 0)) \
        + members["code"].encode()
    return HEADER.pack(len(payload), CELL) + payload


@dataclass
class Answer:
    """The frames that answered one request."""

    frames: list[tuple[int, bytes]] = field(default_factory=list)

    def stream(self, kind: int) -> bytes:
        return b"".join(p for k, p in self.frames if k == kind)

    @property
    def stdout(self) -> str:
        return self.stream(STDOUT).decode()

    @property
    def stderr(self) -> str:
        return self.stream(STDERR).decode()

    @property
    def displays(self) -> list[dict]:
        return [json.loads(p) for k, p in self.frames if k == DISPLAY]

    @property
    def result(self) -> dict:
        return json.loads(self.frames[-1][1])

    @property
    def error(self) -> dict | None:
        return self.result["error"]

    @property
    def text(self) -> str | None:
        """text/plain of the cell's value."""
        for d in self.displays:
            if d["kind"] == "result":
                return d["data"]["text/plain"]
        return None


class Frames:
    """Takes a byte stream apart."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.partial = b""

    def pop(self) -> tuple[int, bytes] | None:
        if len(self.data) < 5:
            return None
        n, kind = HEADER.unpack_from(self.data)
        assert n <= 1 << 20, "a frame is at most 1 MiB"
        if len(self.data) < 5 + n:
            return None
        payload = bytes(self.data[5:5 + n])
        del self.data[:5 + n]
        self.partial += payload
        if kind & 0x80:
            return self.pop()
        whole, self.partial = self.partial, b""
        return kind, whole


class Stream:
    """A connection to a kernel's port."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(path))
        self.frames = Frames()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def frame(self, timeout: float = 60) -> tuple[int, bytes]:
        """Returns the next frame."""
        self.sock.settimeout(timeout)
        while (got := self.frames.pop()) is None:
            piece = self.sock.recv(1 << 20)
            if not piece:
                raise EOFError("the kernel closed the stream")
            self.frames.data += piece
        return got

    def answer(self) -> Answer:
        a = Answer()
        while not a.frames or a.frames[-1][0] != RESULT:
            a.frames.append(self.frame())
        return a

    def call(self, **members: Any) -> Answer:
        self.send(request(**members))
        return self.answer()

    def run(self, code: str, **members: Any) -> Answer:
        return self.call(op="run", code=code, **members)

    def close(self) -> None:
        self.sock.close()


class Bell:
    """The monitor's side of the doorbell."""

    def __init__(self) -> None:
        self.shm = os.memfd_create("mailbox")
        os.ftruncate(self.shm, 2 * AREA)
        self.map = mmap.mmap(self.shm, 2 * AREA)
        self.from_guest, self.to_test = os.pipe()
        self.from_test, self.to_guest = os.pipe()
        self.trace: list[tuple[int, int]] = []

    @property
    def guest_fds(self) -> tuple[int, int, int]:
        return self.shm, self.to_test, self.from_test

    def access(self, timeout: float = 120) -> tuple[int, int, bool]:
        """Waits for a register access: (offset, value, is a write)."""
        if not select.select([self.from_guest], [], [], timeout)[0]:
            raise TimeoutError("the kernel did not touch the doorbell")
        off, value, is_write = struct.unpack("<III", os.read(self.from_guest, 12))
        self.trace.append((off, value))
        return off, value, bool(is_write)

    def reply(self, value: int = 0) -> None:
        os.write(self.to_guest, struct.pack("<I", value))

    def wait_parked(self) -> None:
        """Returns when the kernel stands at the freeze point, its read unanswered."""
        while True:
            off, value, is_write = self.access()
            if off == PARK and not is_write:
                return
            self.reply()

    def put(self, frame: bytes, entropy: bytes = b"\x5a" * 64, env: dict | None = None,
            hostname: str = "", id: str = "") -> None:
        """Fills the request area as a thaw does."""
        pairs = {"HOSTNAME": hostname, "THAWBOX_ID": id}
        pairs = {name: value for name, value in pairs.items() if value} | (env or {})
        block = b"".join(f"{name}={value}".encode() + b"\0" for name, value in pairs.items())
        message = struct.pack("<4sI", b"WAKE", len(block)) + entropy \
            + struct.pack("<Q", time.time_ns()) + block + frame
        self.map[:len(message)] = message

    def thaw(self, frame: bytes, **wake: Any) -> Answer:
        """Answers PARK with a request and collects the first stream until DONE."""
        frame = cell(frame)
        self.put(frame, **wake)
        self.trace.clear()
        self.reply(len(frame))
        return self.collect()

    def wait_next(self, value: int = 0) -> None:
        """Replies to DONE, or `value` to PARK or NEXT; returns when the kernel reads NEXT, unanswered then."""
        self.reply(value)
        assert self.access() == (NEXT, 0, False)

    def next(self, frame: bytes) -> Answer:
        """As thaw(), of a later request: the kernel stands at DONE."""
        self.wait_next()
        frame = cell(frame)
        self.map[:len(frame)] = frame
        self.reply(len(frame))
        return self.collect()

    def serve(self, value: int = 0) -> None:
        """As wait_next(), then has the kernel go on by its stream."""
        self.wait_next(value)
        self.reply(SERVED)

    def collect(self) -> Answer:
        """Collects output until DONE."""
        frames, answer = Frames(), Answer()
        while True:
            off, value, is_write = self.access()
            assert is_write and off in (OUT, DONE) and value <= AREA
            frames.data += self.map[AREA:AREA + value]
            while (got := frames.pop()) is not None:
                answer.frames.append(got)
            if off == DONE:
                break  # the caller replies: until then the kernel stands still
            self.reply()
        assert not frames.data
        return answer


class Guest:
    """A kernel parent and its kernels."""

    def __init__(self, kernel: Path, folder: Path, *args: str, doorbell: bool = False,
                 spares: int = 0, warmup: Path | None = None) -> None:
        self.folder = folder
        self.bell = Bell() if doorbell else None
        fds = self.bell.guest_fds if self.bell else ()
        self.ctl, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ctl.settimeout(120)
        command = [PYTHON, str(kernel), "--ctl", str(theirs.fileno()), "--user", "", "--listen",
                   f"unix:{folder}", "--spares", str(spares), "--template", "/nonexistent",
                   "--doorbell", "fake:" + ",".join(map(str, fds)) if fds else "none", *args]
        if warmup:
            command += ["--warmup", str(warmup)]
        home = folder / "home"
        home.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8",
               "OPENBLAS_NUM_THREADS": "1", "SHELL": "/bin/bash"}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno(), *fds], env=env,
                                        cwd=home, stdin=subprocess.DEVNULL)
        theirs.close()
        self.phases: list[str] = []
        self.kernels: dict[int, int] = {}
        self.events: list[dict] = []

    def event(self, timeout: float = 120) -> dict:
        """Returns the parent's next message."""
        self.ctl.settimeout(timeout)
        packet = self.ctl.recv(65536)
        if not packet:
            raise EOFError(f"the parent ended; phases {self.phases}")
        message = json.loads(packet)
        if message["event"] == "phase":
            self.phases.append(message["text"])
        if message["event"] == "kernel":
            self.kernels[message["port"]] = message["pid"]
        self.events.append(message)
        return message

    def until(self, name: str, timeout: float = 120) -> dict:
        while (message := self.event(timeout))["event"] != name:
            pass
        return message

    def connect(self, port: int = 2000) -> Stream:
        while port not in self.kernels:
            self.event()
        return Stream(self.folder / f"{port}.sock")

    def close(self) -> None:
        for pid in self.kernels.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.ctl.close()
        self.process.wait(30)
