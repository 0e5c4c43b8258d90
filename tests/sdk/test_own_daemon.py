# SPDX-License-Identifier: Apache-2.0
"""The daemon that the package starts for itself: found, shared, ended with its process however that ends."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import thawbox
from conftest import BIN, GUARD_S, ROOT
from thawbox import HostNotReady, Sandbox, _daemon

from vmm import marked_processes

SRC = str(ROOT / "sdk" / "python" / "src")


class Program:
    """A Python program of a user, marked so that all that it starts is found."""

    def __init__(self, tmp_path: Path, code: str) -> None:
        self.mark = f"THAWBOX_TEST_MARK={os.urandom(8).hex()}"
        name, value = self.mark.split("=")
        env = {k: v for k, v in os.environ.items() if k not in ("THAWBOX_URL", "E2B_API_URL")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**env, name: value, "PYTHONPATH": SRC, "THAWBOX_BIN": str(BIN), "XDG_RUNTIME_DIR": str(tmp_path)})

    def names(self) -> list[str]:
        return [name for _, name in marked_processes(self.mark)]

    def wait_gone(self) -> None:
        end = time.monotonic() + GUARD_S
        while (found := marked_processes(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not found, found


HELD = "from thawbox import Sandbox\nsb = Sandbox.create()\nprint(sb.run_code('1 + 1').text, flush=True)\ninput()\n"


def test_no_set_up_step(tmp_path):
    """Three lines; nothing is left when the program ends by itself, though it has closed nothing."""
    program = Program(tmp_path, HELD)
    assert program.process.stdout.readline() == "2\n"
    assert any("thawboxd" in name for name in program.names()) and len(program.names()) > 2
    out, _ = program.process.communicate("\n", timeout=GUARD_S)
    assert program.process.returncode == 0 and out == ""
    program.wait_gone()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_is_killed(tmp_path, how):
    program = Program(tmp_path, HELD)
    assert program.process.stdout.readline() == "2\n"
    program.process.send_signal(how)
    program.process.communicate(timeout=GUARD_S)
    program.wait_gone()


def test_in_this_process(no_daemon):
    with Sandbox.create() as sb:
        assert sb.run_code("2 + 3").text == "5"
        daemon = _daemon.own_daemon("code-interpreter")
        assert daemon.endpoint == _daemon.find("code-interpreter") and daemon.is_alive
        with Sandbox.create() as other:
            assert other.id != sb.id and len(Sandbox.list()) == 2
    pid = daemon.pid
    thawbox.stop_own_daemons()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(HostNotReady):  # it is gone, and says so; a new sandbox starts another
        other._line.http.send(thawbox._wire.info(other.id))
    thawbox.stop_own_daemons()


def test_a_daemon_that_has_died_is_replaced(no_daemon):
    with Sandbox.create() as sb:
        os.kill(_daemon.own_daemon("code-interpreter").pid, signal.SIGKILL)
        with pytest.raises((HostNotReady, thawbox.SandboxGone)):
            sb.run_code("1")
        with Sandbox.create() as other:
            assert other.run_code("1 + 1").text == "2"
    thawbox.stop_own_daemons()


def test_a_child_of_fork_leaves_it_alone(no_daemon):
    with Sandbox.create() as sb:
        sb.run_code("x = 1")
        pid = os.fork()
        if not pid:
            try:
                thawbox.stop_own_daemons()
                thawbox._sandbox._close_all()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert sb.run_code("x").text == "1"
    thawbox.stop_own_daemons()


def test_a_template_that_is_not_baked(no_daemon):
    with pytest.raises(HostNotReady, match="thawbox template build nothing-such") as caught:
        Sandbox.create("nothing-such")
    assert caught.value.code == "no_template"
    with pytest.raises(thawbox.InvalidInput, match="thawbox template build code-interpreter --memory 4321"):
        Sandbox.create(memory_mb=4321)
    with Sandbox.create(memory_mb=512) as sb:
        assert sb.info().memory_mb == 512
    thawbox.stop_own_daemons()


def test_no_program(no_daemon, monkeypatch, tmp_path):
    monkeypatch.setenv("THAWBOX_BIN", str(tmp_path))
    with pytest.raises(HostNotReady, match="THAWBOX_BIN"):
        Sandbox.create()


def test_sockets_of_the_user(no_daemon, tmp_path):
    """A daemon that listens at the user's socket is used, and not started again."""
    path = tmp_path / "thawbox" / "thawboxd.sock"
    path.parent.mkdir()
    assert not _daemon.is_served(str(path))
    daemon = subprocess.Popen([BIN / "thawboxd", "--unix", path, "--keys", tmp_path / "keys.json", "--exit-with-stdin"],
                              stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while b" serves " not in (line := daemon.stderr.readline()):
            assert line, "it ended"
        assert _daemon.find("code-interpreter").uds == str(path) and not _daemon.find("code-interpreter").is_own
        with Sandbox.create() as sb:
            assert sb.run_code("1 + 1").text == "2"
        assert not _daemon._own
    finally:
        daemon.stdin.close()
        assert daemon.wait(GUARD_S) == 0
        daemon.stderr.close()
    assert not path.exists()


def test_bake_asks_the_command(monkeypatch, tmp_path):
    """What it is asked for, and what its failure becomes; baking itself is the command's, and tested there."""
    command = tmp_path / "thawbox"
    command.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path}/asked\necho 'thawbox: no room' >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("THAWBOX_BIN", str(tmp_path))
    with pytest.raises(HostNotReady, match="no room"):
        Sandbox.create(memory_mb=1024, bake=True)
    assert (tmp_path / "asked").read_text() == "template build code-interpreter --memory 1024\n"
