# SPDX-License-Identifier: Apache-2.0
"""The official SDKs of E2B, unchanged, against a real thawboxd and real microVMs.

The daemon is started once for all tests that only use it, and anew (`start`) for those that end or limit
it. Commands start bash in the guest, which takes seconds where KVM is done in software: every limit here is a
guard, none is a measurement.
"""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from vmm import marked_processes  # noqa: E402

BIN = Path(os.environ.get("THAWBOX_BIN", ROOT / "build" / "release")).resolve()
KEY = "e2b_" + "0" * 40
GUARD_S = 120


def pytest_configure(config) -> None:
    for path in (Path("/dev/kvm"), BIN / "thawboxd"):
        if not path.exists():
            pytest.exit(f"{path} is missing: these tests need it", returncode=1)


# Becomes a program that a service manager has started with descriptors 3, 4 and so on, and no others.
LAUNCHER = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 1000) for fd in sys.argv[1].split(",")]
os.closerange(3, 1000)
for n, fd in enumerate(fds):
    os.dup2(fd, 3 + n)
os.closerange(1000, 1000 + len(fds))
os.environ.update(LISTEN_FDS=str(len(fds)), LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Daemon:
    """A thawboxd with a home of its own for keys, and the templates of this machine."""

    def __init__(self, tmp: Path, *args: str | Path, wait: bool = True, program: Path = BIN / "thawboxd",
                 fds: tuple[int, ...] = (), env: dict[str, str] | None = None) -> None:
        """`fds` become descriptors 3 and so on, as systemd hands them over; then `env` may have LISTEN_FDNAMES."""
        self.mark = f"THAWBOX_TEST_MARK={os.urandom(8).hex()}"
        name, value = self.mark.split("=")
        self.log = tmp / f"log-{value}"
        command = [program, "--listen", "127.0.0.1:0", "--keys", tmp / "keys.json", *args]
        if fds:
            command = [sys.executable, "-c", LAUNCHER, ",".join(map(str, fds)), *command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, **(env or {}), name: value}, pass_fds=fds)
        self.url = self._url() if wait else ""

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _url(self) -> str:
        """The address, which it logs when it serves."""
        end = time.monotonic() + GUARD_S
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"serves \S+ at (https?://[\d.:]+)", self.text()):
                return found[1]
            time.sleep(0.02)
        raise AssertionError(f"thawboxd did not come up: {self.text()}")

    def use(self) -> None:
        """Points the SDKs of this process at it."""
        os.environ.update(E2B_API_URL=self.url, E2B_SANDBOX_URL=self.url, E2B_API_KEY=KEY, NO_PROXY="127.0.0.1")

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        return self.request("GET", path, None, **headers)

    def request(self, method: str, path: str, body: object, **headers: str) -> tuple[int, bytes]:
        """A plain request; header names have _ for -."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in {"X_API_KEY": KEY, **headers}.items()}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metric(self, name: str) -> float:
        from prometheus_client.parser import text_string_to_metric_families

        text = self.get("/metrics")[1].decode()
        return {sample.name + (json.dumps(sample.labels) if sample.labels else ""): sample.value
                for family in text_string_to_metric_families(text) for sample in family.samples}[name]

    def status_kib(self, field: str) -> int:
        """Of /proc/PID/status: VmRSS is what the process holds of memory, VmHWM the most it has held."""
        return int(re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1])

    def wait_text(self, text: str) -> None:
        """Until it has said so."""
        end = time.monotonic() + GUARD_S
        while text not in self.text() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert text in self.text(), self.text()[-4000:]

    def processes(self) -> list[tuple[int, str]]:
        return marked_processes(self.mark)

    def wait_gone(self) -> None:
        """Nothing that it started is left."""
        end = time.monotonic() + GUARD_S
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not found, found

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(GUARD_S)
        self.wait_gone()
        return code


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("thawboxd"), "--pool", "2")
    yield daemon
    assert daemon.stop() == 0, daemon.text()


@pytest.fixture
def daemon(shared: Daemon) -> Iterator[Daemon]:
    """The daemon of all tests; no sandbox of a test may be left in it."""
    shared.use()
    yield shared
    assert shared.process.poll() is None, shared.text()[-4000:]
    assert json.loads(shared.get("/v2/sandboxes")[1]) == []


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons for one test."""
    started = []

    def start_one(*args: str, **kwargs) -> Daemon:
        started.append(Daemon(tmp_path, "--pool", "1", *args, **kwargs))
        if kwargs.get("wait", True):
            started[-1].use()
        return started[-1]

    yield start_one
    for one in started:
        one.stop()


@pytest.fixture
def sandbox(daemon):
    from e2b_code_interpreter import Sandbox

    box = Sandbox.create()
    yield box
    box.kill()
