# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the benchmarks' tests: the programs, a monitor that only plays one, and the real one with its template.

What a test starts carries a mark in its environment and has a folder of its own for temporary files: afterwards nothing
with the mark may run and nothing may be in that folder.
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench"))
import common  # noqa: E402

FAKE = Path(__file__).with_name("fake_vmm.py")


# A shell ignores it for what it starts in the background, and what we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Runner:
    """Runs benchmark programs with a marked environment."""

    def __init__(self, tmp: Path):
        self.mark = f"THAWBOX_TEST_MARK={uuid.uuid4()}"
        self.tmp = tmp
        self.tmp.mkdir()
        name, value = self.mark.split("=")
        self.env = {**os.environ, name: value, "TMPDIR": str(self.tmp)}

    def popen(self, program: str, *args: str, **env: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, TOP / "bench" / f"{program}.py", *args], env={**self.env, **env},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, program: str, *args: str, code: int = 0, **env: str) -> subprocess.CompletedProcess:
        """Runs one to its end, which must be the exit code `code`."""
        with self.popen(program, *args, **env) as process:
            out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def wait_for_sandboxes(self, process: subprocess.Popen, n: int) -> None:
        """Until there are so many monitors that only play one."""
        while sum("fake_vmm" in command for _, command in common.marked_processes(self.mark)) < n:
            assert process.poll() is None, process.communicate()

    def left_behind(self) -> list[str]:
        """What is there 2 s after the end, the time that a kernel may take for a VM."""
        end = time.monotonic() + 2
        while (found := common.marked_processes(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        return [str(process) for process in found] + [str(path) for path in self.tmp.rglob("*")]


@pytest.fixture
def bench(tmp_path):
    runner = Runner(tmp_path / "private-tmp")
    yield runner
    assert not runner.left_behind()


@pytest.fixture
def fake(tmp_path) -> list[str]:
    """Options that have a program use a monitor that evaluates cells itself; FAKE_VMM says what it does wrong."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "thawbox-vmm").write_text(f'#!/bin/sh\nexec {sys.executable} -ESs {FAKE} "$@"\n')
    (programs / "thawbox-vmm").chmod(0o755)
    template = tmp_path / "template"
    template.mkdir()
    (template / "manifest").write_text("fake\n")
    return ["--bin", str(programs), "--template", str(template)]


@pytest.fixture(scope="session")
def real() -> list[str]:
    """Options of the real monitor and template; a reason to skip where there is none."""
    try:
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            pytest.skip("/dev/kvm is missing, or not ours")
        return ["--bin", str(common.find_programs(None).parent), "--template",
                str(common.find_template("code-interpreter"))]
    except common.BenchError as e:
        pytest.skip(f"{e}; {e.remedy}")
