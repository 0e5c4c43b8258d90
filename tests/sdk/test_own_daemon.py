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
                thawbox._exit.end_all()
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


LEFT = """
import asyncio
from thawbox import AsyncSandbox, Sandbox

def one():
    return Sandbox.create().run_code("1").text

async def other():
    return await (await AsyncSandbox.create()).run_code("2")

print(one(), asyncio.run(other()).text, len(Sandbox.list()))
"""


def test_what_a_program_leaves_with_anothers_daemon_ends_with_it(daemon):
    """Of both layers, whether somebody has the object or not."""
    done = subprocess.run([sys.executable, "-c", LEFT], check=True, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": SRC, "THAWBOX_URL": daemon.url})
    assert done.stdout == "1 2 2\n" and done.stderr == ""
    assert Sandbox.list() == []


TEMPLATES = Path(os.environ.get("THAWBOX_HOME") or ("/var/lib/thawbox" if not os.geteuid() else
                 Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser() / "thawbox")) / "templates"


@pytest.fixture
def home(no_daemon, monkeypatch, tmp_path) -> Path:
    """Of templates: the one of this machine. `thawbox template build` gives it another name, and writes down what it was asked."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    (home / "templates").mkdir(parents=True)
    (home / "templates" / "code-interpreter").symlink_to(TEMPLATES / "code-interpreter")
    programs.mkdir()
    for name in ("thawboxd", "thawbox-vmm"):
        (programs / name).symlink_to(BIN / name)
    command = programs / "thawbox"
    command.write_text(f"""#!/bin/sh
echo "$@" >>{tmp_path}/asked
[ "$5" != 1024 ] || {{ echo 'thawbox: no room' >&2; exit 1; }}
ln -s {TEMPLATES}/code-interpreter "{home}/templates/$3@$5"
""")
    command.chmod(0o755)
    monkeypatch.setenv("THAWBOX_HOME", str(home))
    monkeypatch.setenv("THAWBOX_BIN", str(programs))
    yield tmp_path
    thawbox.stop_own_daemons()


def test_memory_picks_the_variant(home):
    """There is none of 640 MB: an error says how to bake it. One that is there is taken before the template itself."""
    with pytest.raises(thawbox.InvalidInput, match="thawbox template build code-interpreter --memory 640") as caught:
        Sandbox.create(memory_mb=640)
    assert caught.value.code == "no_variant" and "bake=True" in caught.value.remedy and not (home / "asked").exists()
    with Sandbox.create(memory_mb=512) as sb:
        assert sb.template == "code-interpreter", "the template has that size itself"
    (home / "home/templates/code-interpreter@512").symlink_to(TEMPLATES / "code-interpreter")
    with Sandbox.create(memory_mb=512) as sb:
        assert sb.template == "code-interpreter@512" and sb.info().memory_mb == 512


def test_bake_asks_the_command(home):
    """What it is asked for, when, and what its failure becomes; baking itself is the command's, and tested there."""
    with Sandbox.create(memory_mb=512, bake=True):
        assert not (home / "asked").exists(), "it is there"
    with pytest.raises(HostNotReady, match="no room"):
        Sandbox.create(memory_mb=1024, bake=True)
    assert (home / "asked").read_text() == "template build code-interpreter --memory 1024\n"
    with pytest.raises(thawbox.InvalidInput) as caught:  # baked, and by its own word of another size
        Sandbox.create(memory_mb=640, bake=True)
    assert caught.value.code == "no_variant" and (home / "asked").read_text().endswith("--memory 640\n")


def test_bake_is_for_daemons_of_ones_own(start, monkeypatch):
    """Another's daemon would not serve what is baked now: it is told, and nothing is baked."""
    start()
    monkeypatch.setenv("THAWBOX_BIN", "/nowhere")
    with pytest.raises(thawbox.InvalidInput, match="thawboxd --template code-interpreter@640"):
        Sandbox.create(memory_mb=640, bake=True)


EXECUTOR = ("from thawbox.smolagents import ThawboxExecutor\nexecutor = ThawboxExecutor()\n"
            "print(executor('1 + 1').output, flush=True)\ninput()\n")


def test_nothing_is_left_of_a_killed_agent(tmp_path):
    """No container that holds a port: the next one starts at once, beside it or after it."""
    programs = [Program(tmp_path, EXECUTOR) for _ in range(2)]
    for program in programs:
        assert program.process.stdout.readline() == "2\n"
        program.process.kill()
    for program in programs:
        program.process.communicate(timeout=GUARD_S)
        program.wait_gone()


def test_nothing_of_the_environment_is_told(no_daemon, monkeypatch):
    """A daemon of the program's own has its environment; the guest has what it was given."""
    monkeypatch.setenv("TOKEN_OF_THE_HOST", secret := "s3cr3t-of-the-host")
    with Sandbox.create(env={"GIVEN": "1"}) as sb:
        text = sb.run_code("import os, pathlib\n[os.environ.get('GIVEN'), 'TOKEN_OF_THE_HOST' in os.environ, "
                           "[p for p in pathlib.Path('/proc').glob('[0-9]*/environ') if os.access(p, os.R_OK) "
                           f"and {secret[::-1]!r}[::-1].encode() in p.read_bytes()]]").text
        assert text == "['1', False, []]"
    thawbox.stop_own_daemons()
