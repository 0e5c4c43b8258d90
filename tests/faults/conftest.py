# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the fault tests: those of the end-to-end tests, a frozen guest of a few instructions, and faults on demand.

After each test nothing that it started may run, and nothing may be left in its temporary folder.
"""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

E2E = Path(__file__).resolve().parents[1] / "e2e"
sys.path.insert(0, str(E2E))
spec = importlib.util.spec_from_file_location("e2e_fixtures", E2E / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
spec.loader.exec_module(e2e)
pytest_configure, template, thawbox, BIN = e2e.pytest_configure, e2e.template, e2e.thawbox, e2e.BIN
SHIM = Path(os.environ.get("FAULT_SHIM", BIN / "shim.so"))

from tiny import elf, interpreter  # noqa: E402
from vmm import RESULT, Vmm, VmmError, frame  # noqa: E402

ANSWER = frame(RESULT, json.dumps({"status": "ok", "execution_count": 1, "error": None}).encode())


@pytest.fixture(scope="session")
def frozen(tmp_path_factory) -> Path:
    """A snapshot of a tiny guest at the freeze point, with a writable disk of 1 MiB."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "kernel").write_bytes(elf(interpreter(ANSWER), pvh=True))
    (folder / "disk.img").write_bytes(os.urandom(1 << 20))
    with Vmm(BIN / "thawbox-vmm") as m:
        m.call("boot", kernel=str(folder / "kernel"), memory_mb=64,
               disks=[{"path": str(folder / "disk.img"), "overlay": True}], overlay_dir=str(folder))
        m.event("parked", 60)
        m.snapshot(folder / "snapshot")
    yield folder / "snapshot"
    shutil.rmtree(folder)


class Faults:
    """Environments in which calls fail (tests/faults/shim.c), and what has failed."""

    def __init__(self, folder: Path, env: dict[str, str]):
        self.log, self.env = folder / "faults.log", env

    def __call__(self, fault: str, program: str = "thawbox-vmm", **more: str) -> dict[str, str]:
        self.log.unlink(missing_ok=True)
        return {**self.env, "LD_PRELOAD": str(SHIM), "FAULT": fault, "FAULT_PROGRAM": program,
                "FAULT_LOG": str(self.log), **more}

    @property
    def struck(self) -> list[str]:
        """The calls that were made to fail since the last environment was asked for."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def faults(thawbox, tmp_path):
    if not SHIM.exists():
        pytest.exit(f"{SHIM} is missing: run make faults", returncode=1)
    return Faults(tmp_path, thawbox.env)


@pytest.fixture
def vmm(thawbox):
    """vmm(*args, env=...) is a context manager that yields a running monitor, outside of its jail: in there the shim
    could neither read nor write its files."""
    return lambda *args, env=None: Vmm(BIN / "thawbox-vmm", "--isolation", "none", "--seccomp", "off", *args,
                                       env=env or thawbox.env)


def told(error: VmmError) -> None:
    """An error names its cause and a remedy; a monitor that has died without a word does neither."""
    cause, _, remedy = str(error).partition(" | ")
    assert cause and remedy, f"no cause or no remedy: {error}"
    assert "closed" not in cause, cause


@contextmanager
def unchanged(directory: Path):
    """Nothing in a snapshot may be changed by what fails."""
    def look():
        return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns, p.stat().st_size) for p in directory.iterdir()}

    before = look()
    yield
    assert look() == before
