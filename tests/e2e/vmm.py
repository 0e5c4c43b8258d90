# SPDX-License-Identifier: Apache-2.0
"""Speaks to thawbox-vmm and to the guest behind it (docs/protocol.md), for tests below the command line."""
from __future__ import annotations

import array
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

REQUEST, DATA, END, RESULT, STDOUT, STDERR, DISPLAY = 0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x14
MORE = 0x80


class VmmError(Exception):
    """An answer with "ok": false, or the end of the control socket."""


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


def request(**members) -> bytes:
    return frame(REQUEST, json.dumps(members).encode())


@dataclass
class Cell:
    """What came back for one request."""

    stdout: bytes = b""
    stderr: bytes = b""
    displays: list[dict] = field(default_factory=list)
    result: dict = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """text/plain of the cell's value."""
        values = [d["data"].get("text/plain") for d in self.displays if d["kind"] == "result"]
        return values[-1] if values else None


class Stream:
    """One stream of frames; `timeout` in seconds bounds every wait."""

    def __init__(self, sock: socket.socket, timeout: float = 60):
        self.sock = sock
        sock.settimeout(timeout)

    def _exactly(self, n: int) -> bytes:
        got = bytearray()
        while len(got) < n:
            chunk = self.sock.recv(n - len(got))
            if not chunk:
                raise EOFError(f"stream ended, {n - len(got)} bytes missing")
            got += chunk
        return bytes(got)

    def read(self) -> tuple[int, bytes]:
        """The next whole payload."""
        whole = b""
        while True:
            length, kind = struct.unpack("<IB", self._exactly(5))
            assert length <= 1 << 20, "frame too long"
            whole += self._exactly(length)
            if not kind & MORE:
                return kind, whole
            if kind & ~MORE in (STDOUT, STDERR, DATA):
                return kind & ~MORE, whole

    def answer(self) -> Cell:
        cell = Cell()
        while True:
            kind, payload = self.read()
            if kind == STDOUT:
                cell.stdout += payload
            elif kind == STDERR:
                cell.stderr += payload
            elif kind == DISPLAY:
                cell.displays.append(json.loads(payload))
            elif kind == RESULT:
                cell.result = json.loads(payload)
                return cell

    def ask(self, **members) -> Cell:
        self.sock.sendall(request(**members))
        return self.answer()

    def run(self, code: str, **members) -> Cell:
        return self.ask(op="run", code=code, **members)

    def close(self) -> None:
        self.sock.close()


class Vmm:
    """One thawbox-vmm process. Use as a context manager: it is gone at the end."""

    def __init__(self, program: Path, *args: str, env: dict[str, str] | None = None):
        self.sock, child = socket.socketpair()
        self.started_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.events: list[dict] = []
        self._buffer = b""
        with child:
            self.process = self._start(child, program, *args, env=env)

    def _start(self, child: socket.socket, program: Path, *args: str, env: dict[str, str] | None):
        level = os.environ.get("THAWBOX_ISOLATION")  # as the command takes it: a sanitizer's log is out of reach in a jail
        isolation = ["--isolation", level] if level else []
        if filters := os.environ.get("THAWBOX_SECCOMP"):
            isolation += ["--seccomp", filters]
        return subprocess.Popen([program, "--control-fd", str(child.fileno()), *isolation, *args],
                                pass_fds=[child.fileno()], stderr=subprocess.PIPE, env=env)

    def __enter__(self) -> Vmm:
        return self

    def __exit__(self, *_) -> None:
        self.sock.close()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stderr.close()

    def _line(self, timeout: float) -> dict:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError("no line from thawbox-vmm")
            chunk = self.sock.recv(65536)
            if not chunk:
                raise VmmError(f"control socket closed; exit {self.process.poll()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def call(self, command: str, *, fd: int | list[int] | None = None, timeout: float = 60, **members) -> dict:
        """Sends a command and returns its answer; events that come first are kept in `events`."""
        line = json.dumps({"cmd": command, **members}).encode() + b"\n"
        fds = [fd] if isinstance(fd, int) else fd
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([line], rights)
        while True:
            answer = self._line(timeout)
            if "event" in answer:
                self.events.append(answer)
            elif not answer["ok"]:
                raise VmmError(f"{answer['error']} | {answer.get('remedy', '')}")
            else:
                return answer

    def event(self, name: str, timeout: float = 60) -> dict:
        while True:
            for e in self.events:
                if e["event"] == name:
                    self.events.remove(e)
                    return e
            self.events.append(self._line(timeout))

    def has_read(self) -> bool:
        """Whether an event came together with an answer: select() on the socket does not tell of it any more."""
        return bool(self.events) or b"\n" in self._buffer

    def any_event(self, timeout: float = 60) -> dict:
        return self.events.pop(0) if self.events else self._line(timeout)

    def connect(self, port: int) -> Stream:
        ours, theirs = socket.socketpair()
        with theirs:
            self.call("connect", port=port, fd=theirs.fileno())
        return Stream(ours)

    def snapshot(self, directory: Path) -> None:
        """Freezes into a new folder: its files are ours to make (api/freeze.c does it for the command)."""
        directory.mkdir()
        names = self.call("parts")["parts"]
        files = [os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644) for name in names]
        try:
            self.call("snapshot", parts=names, fd=files)
        except BaseException:
            shutil.rmtree(directory)
            raise
        finally:
            for file in files:
                os.close(file)

    def thaw(self, directory: Path, first: str | None = "1+1", **members) -> Stream | None:
        """Thaws; with `first` its stream comes back, the request already on its way."""
        members = {"id": "e2e", "hostname": "e2e", "env": {}, "overlay_dir": "/tmp", **members}
        if first is None:
            self.thawed = self.call("thaw", dir=str(directory), **members)
            return None
        ours, theirs = socket.socketpair()
        ours.sendall(request(op="run", code=first))
        with theirs:
            self.thawed = self.call("thaw", dir=str(directory), fd=theirs.fileno(), **members)
        return Stream(ours)

    def first_cell(self, directory: Path, code: str = "1+1", **members) -> tuple[Stream, Cell]:
        """Thaws with `hold`: the guest stands still behind its first cell."""
        stream = self.thaw(directory, code, hold=True, **members)
        cell = stream.answer()
        self.event("first-done")
        return stream, cell

    def private_kib(self) -> dict[str, int]:
        """Private memory of the process by mapping name, in KiB."""
        usage: dict[str, int] = {}
        name = ""
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            parts = line.split(maxsplit=5)
            if "-" in parts[0] and ":" not in parts[0]:
                name = parts[5] if len(parts) > 5 else f"[anon {parts[0]}]"
            elif parts[0] in ("Private_Dirty:", "Private_Clean:"):
                usage[name] = usage.get(name, 0) + int(parts[1])
        return usage


class Child:
    """A child of ours that another process has forked: what is needed here of subprocess.Popen."""

    def __init__(self, pid: int, stderr):
        self.pid, self.stderr, self.returncode = pid, stderr, None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None and (end := os.waitid(os.P_PID, self.pid, os.WEXITED | flags)):
            self.returncode = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            os.close(self._pidfd)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("thawbox-vmm", timeout)
        return self._reap(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Forked(Vmm):
    """A monitor that a zygote has forked."""

    def _start(self, child: socket.socket, zygote: Zygote, **_) -> Child:
        read, write = os.pipe()
        try:
            return Child(zygote.call("spawn", fd=[child.fileno(), write])["pid"], open(read, "rb"))
        finally:
            os.close(write)


class Zygote(Vmm):
    """One thawbox-vmm --zygote with a snapshot open."""

    def __init__(self, program: Path, directory: Path, env: dict[str, str] | None = None):
        super().__init__(program, "--zygote", env=env)
        try:
            self.call("open", dir=str(directory), overlay_dir="/tmp")
        except VmmError:
            self.__exit__()
            raise

    def fork(self) -> Forked:
        return Forked(self)

    def shell(self) -> Forked:
        """A member of a pool of shells, ready."""
        member = self.fork()
        member.call("shell", overlay_dir="/tmp")
        return member

    def standby(self) -> Forked:
        """A member of a pool of standbys, ready."""
        member = self.fork()
        member.call("standby", overlay_dir="/tmp")
        member.event("standby")
        return member


def marked_processes(mark: str) -> list[tuple[int, str]]:
    """Processes, zombies apart, whose environment holds the mark: (pid, command line)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
