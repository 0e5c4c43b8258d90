# SPDX-License-Identifier: Apache-2.0
"""A hostile guest kernel (payload/) in a monitor built with sanitizers, and a neighbour that must not notice.

THAWBOX_BIN is the folder of that monitor, HOSTILE_PAYLOAD the kernel (make hostile sets both)."""
from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from vmm import Vmm, marked_processes  # noqa: E402

BIN = Path(os.environ["THAWBOX_BIN"])
PAYLOAD = Path(os.environ["HOSTILE_PAYLOAD"])
# A guard, for a busy machine with software KVM and sanitizers.
WAIT_S = float(os.environ.get("THAWBOX_HOSTILE_WAIT_S", 120))

SECTORS = 64
IMAGE = b"".join(bytes([n + 1]) * 512 for n in range(SECTORS))  # the payload knows it: lib.c, disk_works()


class Console:
    """The guest's serial port: what has come so far."""

    def __init__(self, sock: socket.socket):
        self.sock, self.text = sock, b""
        sock.settimeout(WAIT_S)

    def until(self, word: bytes) -> bytes:
        while word not in self.text:
            try:
                got = self.sock.recv(4096)
            except TimeoutError:
                got = b""
            if not got:
                pytest.fail(f"no {word!r} on the console, but {self.text[-300:]!r}")
            self.text += got
        return self.text

    def ask(self, text: bytes) -> bytes:
        """As much as was said; for the neighbour."""
        self.sock.sendall(text)
        got = b""
        while len(got) < len(text):
            got += self.sock.recv(len(text) - len(got))
        return got


class Programs:
    """The host's side of vsock: 1 reads, 2 writes without end, 3 and 4 take no connection."""

    def __init__(self, path: Path):
        self.listeners = []
        for port in (1, 2, 3, 4):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{path}_{port}")
            listener.listen(4096)
            self.listeners.append(listener)
        for listener, serve in zip(self.listeners, (self._read, self._write)):
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()

    @staticmethod
    def _accept(listener: socket.socket, serve) -> None:
        try:
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
        except OSError:
            return  # closed

    @staticmethod
    def _read(sock: socket.socket) -> None:
        with sock:
            try:
                while sock.recv(65536):
                    pass
            except OSError:
                pass

    @staticmethod
    def _write(sock: socket.socket) -> None:
        with sock:
            try:
                while sock.send(b"x" * 65536):
                    pass
            except OSError:
                pass

    def close(self) -> None:
        for listener in self.listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


class Hostile:
    """One monitor with the payload in it."""

    def __init__(self, tmp: Path, env: dict[str, str], scenario: str, seed: int):
        self.disks = [tmp / "readonly.img", tmp / "base.img"]
        for disk in self.disks:
            disk.write_bytes(IMAGE)
        vsock = tmp / "v"
        self.programs = Programs(vsock)
        self.monitor = Vmm(BIN / "thawbox-vmm", env=env)
        ours, theirs = socket.socketpair()
        self.console = Console(ours)
        with theirs:
            self.monitor.call("boot", kernel=str(PAYLOAD), cmdline=f"hostile={scenario} seed={seed}", memory_mb=64,
                              vsock=str(vsock), serial="fd", overlay_dir=str(tmp), fd=theirs.fileno(), timeout=WAIT_S,
                              disks=[{"path": str(self.disks[0]), "readonly": True},
                                     {"path": str(self.disks[1]), "overlay": True}])

    def exit_event(self) -> dict:
        return self.monitor.event("exit", WAIT_S)

    def finish(self) -> str:
        """Ends the monitor in good order: its log, in which no sanitizer has a word."""
        self.monitor.call("quit", timeout=WAIT_S)
        code = self.monitor.process.wait(WAIT_S)
        log = self.monitor.process.stderr.read().decode(errors="replace")
        assert code == 0, f"the monitor ended with {code}:\n{log[-4000:]}"
        assert "ERROR: " not in log and "runtime error" not in log, log[-4000:]
        for disk in self.disks:
            assert hashlib.sha256(disk.read_bytes()).digest() == hashlib.sha256(IMAGE).digest(), f"{disk} was written"
        return log

    def close(self) -> None:
        self.programs.close()
        self.console.sock.close()
        self.monitor.__exit__()


@pytest.fixture(scope="session")
def mark() -> dict[str, str]:
    return {**os.environ, "THAWBOX_TEST_MARK": f"hostile-{os.getpid()}", "UBSAN_OPTIONS": "print_stacktrace=1",
            "ASAN_OPTIONS": "detect_leaks=0"}


@pytest.fixture(scope="session")
def neighbour(mark, tmp_path_factory):
    """ask(): another sandbox answers. It runs only meanwhile, to leave the CPUs to the others."""
    monitor = Vmm(BIN / "thawbox-vmm", env=mark)
    ours, theirs = socket.socketpair()
    console = Console(ours)
    with theirs:
        monitor.call("boot", kernel=str(PAYLOAD), cmdline="hostile=echo", memory_mb=64, serial="fd", fd=theirs.fileno(),
                     timeout=WAIT_S)
    console.until(b"begin\n")
    monitor.call("pause", timeout=WAIT_S)
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        words = f"are you there {asked}?".encode()
        monitor.call("resume", timeout=WAIT_S)
        assert console.ask(words) == words
        monitor.call("pause", timeout=WAIT_S)

    yield ask
    monitor.__exit__()
    ours.close()


@pytest.fixture
def hostile(tmp_path, mark, neighbour):
    """hostile(scenario, seed) -> Hostile. The neighbour answers before, and when all is over."""
    started = []
    neighbour()

    def start(scenario: str, seed: int = 1) -> Hostile:
        started.append(Hostile(tmp_path, mark, scenario, seed))
        return started[-1]

    yield start
    for each in started:
        each.close()
    neighbour()
    end = time.monotonic() + 10
    name, value = "THAWBOX_TEST_MARK", mark["THAWBOX_TEST_MARK"]
    while len(left := marked_processes(f"{name}={value}")) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(left) == 1, left  # the neighbour
