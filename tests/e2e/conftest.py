# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests: the real programs, the real template, the real /dev/kvm.

THAWBOX_BIN is the folder of the programs (make e2e sets it), THAWBOX_HOME where templates are. Everything
that a test starts carries a mark in its environment and a temporary folder of its own; after each test
nothing with that mark may run and nothing may be left in that folder.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from vmm import Vmm, marked_processes  # noqa: E402

BIN = Path(os.environ.get("THAWBOX_BIN", Path(__file__).parents[2] / "build" / "release")).resolve()
SOFTWARE_KVM = Path("/sys/module/kvm_pvm").exists()
"""The guest's kernel is interpreted; hardware KVM runs every instruction."""


def pytest_configure(config) -> None:
    if not os.path.exists("/dev/kvm"):
        pytest.exit("/dev/kvm is missing: these tests need it", returncode=1)
    if not (BIN / "thawbox").exists():
        pytest.exit(f"{BIN}/thawbox is missing: run make build", returncode=1)


def default_home() -> Path:
    if "THAWBOX_HOME" in os.environ:
        return Path(os.environ["THAWBOX_HOME"])
    if os.geteuid() == 0:
        return Path("/var/lib/thawbox")
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share")) / "thawbox"


@pytest.fixture(scope="session")
def template() -> Path:
    """Directory of the current code-interpreter snapshot."""
    directory = default_home() / "templates" / "code-interpreter" / "current"
    if not directory.exists():
        pytest.exit(f"no template in {directory}: run make template", returncode=1)
    return directory.resolve()


class Thawbox:
    """Runs the command with a marked environment."""

    def __init__(self, tmp: Path):
        self.mark = f"THAWBOX_TEST_MARK={uuid.uuid4()}"
        self.tmp = tmp
        self.tmp.mkdir()
        name, value = self.mark.split("=")
        self.env = {**os.environ, name: value, "TMPDIR": str(self.tmp), "XDG_RUNTIME_DIR": str(self.tmp),
                    "HOME": str(self.tmp.parent)}

    def popen(self, *args: str, env: dict[str, str] | None = None, **kwargs) -> subprocess.Popen:
        return subprocess.Popen([BIN / "thawbox", *args], env={**self.env, **(env or {})}, **kwargs)

    def __call__(self, *args: str, input: bytes | None = None, env: dict[str, str] | None = None,
                 cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess:
        stdin = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run([BIN / "thawbox", *args], env={**self.env, **(env or {})}, capture_output=True,
                              cwd=cwd, timeout=timeout, **stdin)

    def json(self, *args: str, code: int = 0, **kwargs) -> dict:
        """`thawbox run --json ...`: its one object; the exit code must be `code`."""
        done = self("run", "--json", *args, **kwargs)
        assert done.returncode == code, f"exit {done.returncode}: {done.stderr.decode()} {done.stdout.decode()}"
        return json.loads(done.stdout)

    def processes(self) -> list[tuple[int, str]]:
        return marked_processes(self.mark)

    def left_behind(self) -> list[str]:
        """What still exists of anything started here, after at most 2 s for the kernel to tear VMs down."""
        end = time.monotonic() + 2
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        left = [f"process {pid}: {command}" for pid, command in found]
        left += [f"file {path}" for path in self.tmp.rglob("*")]
        left += [f"socket {line}" for line in Path("/proc/net/unix").read_text().splitlines() if str(self.tmp) in line]
        left += [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines()
                 if str(self.tmp) in line]
        return left


@pytest.fixture
def thawbox(tmp_path):
    box = Thawbox(tmp_path / "private-tmp")
    yield box
    assert not box.left_behind()


@pytest.fixture
def vmm(thawbox):
    """Starts monitors: vmm() is a context manager that yields a running, empty one."""
    return lambda *args: Vmm(BIN / "thawbox-vmm", *args, env=thawbox.env)


