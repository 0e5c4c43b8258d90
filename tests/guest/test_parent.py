# SPDX-License-Identifier: Apache-2.0
"""The kernel parent: what it tells the agent, how it refuses a bad bake, what it leaves behind."""
from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from harness import PYTHON, WARMUP, Guest, Stream


@pytest.fixture
def parent(kernel, monkeypatch):
    """The parent's module; its extension is in the built folder only."""
    monkeypatch.syspath_prepend(str(kernel.parent))
    return importlib.import_module("thawbox_parent")


def test_events_of_a_bake(start, tmp_path):
    warmup = tmp_path / "warm.py"
    warmup.write_text("# a comment\n# %% first\nx = 1\n# %% raises\n1/0\n")
    guest = start("--imports", "", doorbell=True, spares=2, warmup=warmup)
    guest.bell.wait_parked()
    guest.until("ready")
    kernels = [e for e in guest.events if e["event"] == "kernel"]
    assert [(k["port"], k["role"]) for k in kernels] == [
        (2001, "spare"), (2002, "spare"), (2000, "default")]
    assert all(os.getsid(k["pid"]) == k["pid"] for k in kernels)
    warm = ["warm-up 1/3 ", "warm-up 2/3 first", "warm-up 3/3 raises"]
    assert [p for p in guest.phases if "warm-up" in p] == warm + [f"own {p}" for p in warm]
    assert guest.phases[-1] == "rehearse the first cell"
    for port in (2001, 2002):
        stream = guest.connect(port)
        assert stream.run("'x' in globals()").text == "False"
        stream.close()


@pytest.mark.parametrize(("cells", "says"), [
    ("1/0\n", "cell 1: "), ("# %% raises\n1\n", "expected to raise"), ("x = (\n", "SyntaxError"),
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n", "thread"),
    (None, "name a readable file")])
def test_bad_warm_up_ends_the_bake(start, tmp_path, cells, says):
    warmup = tmp_path / "warm.py"
    if cells:
        warmup.write_text(cells)
    guest = start("--imports", "", warmup=warmup)
    with pytest.raises((EOFError, ConnectionResetError)):
        guest.until("ready")
    assert guest.phases[-1].startswith("failed: warm-up") and says in guest.phases[-1]
    assert guest.process.wait(20) == 1 and not guest.kernels


def test_ends_and_refills(start):
    guest = start("--imports", "", spares=1)
    stream = guest.connect(2000)
    stream.send(b"")
    stream.run("kept = 1")
    with pytest.raises((EOFError, ConnectionResetError)):
        stream.run("import os; os._exit(7)")
    assert guest.until("exit") == {"event": "exit", "pid": guest.kernels[2000], "signal": 0,
                                   "code": 7}
    os.kill(guest.kernels[2001], signal.SIGKILL)
    assert guest.until("exit")["signal"] == signal.SIGKILL
    guest.ctl.send(json.dumps({"op": "fork", "port": 2005}).encode())
    event = guest.until("kernel")
    assert (event["port"], event["role"]) == (2005, "spare")
    fresh = guest.connect(2005)
    assert fresh.run("'kept' in globals()").text == "False"
    for bad in (b"{", b'{"op":"dance"}', b'{"op":"fork","port":"x"}', b'{"op":"fork"}', b"[]"):
        guest.ctl.send(bad)
        assert "refused" in guest.until("phase")["text"]
    assert fresh.run("1").text == "1"


def test_spares_draw_different_numbers(start):
    guest = start("--imports", "numpy", spares=2)
    code = "import random, numpy; [random.random(), numpy.random.rand()]"
    streams = [guest.connect(port) for port in (2000, 2001, 2002)]
    drawn = [s.run(code).text for s in streams]
    assert len(set(drawn)) == 3
    assert len({n for text in drawn for n in re.findall(r"0\.\d+", text)}) == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_kernels_are_the_users(kernel, tmp_path, guests):
    """With --user, as in a guest: login environment, no way back to root, own files readable."""
    user, home = "nobody", tmp_path / "0" / "home"
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        f"import pwd, sys\nsys.path.insert(0, {str(kernel.parent)!r})\nreal = pwd.getpwnam\n"
        "pwd.getpwnam = lambda name: pwd.struct_passwd(\n"
        f"    (name, 'x', real(name).pw_uid, real(name).pw_gid, '', {str(home)!r}, '/bin/bash'))\n"
        "import thawbox_parent\nsys.exit(thawbox_parent.main(sys.argv[1:]))\n")
    (tmp_path / "0").mkdir()
    home.mkdir()
    for folder in (home.parent, home):
        folder.chmod(0o777)
    for folder in (*home.parents[1:-1], kernel.parent):
        folder.chmod(folder.stat().st_mode | 0o055)
    guest = Guest(wrapper, home.parent, "--user", user, "--imports", "")
    guests.append(guest)
    stream = guest.connect()
    answer = stream.run(
        "import json, os\ntry: os.setuid(0); back = True\nexcept PermissionError: back = False\n"
        "print(json.dumps([os.getresuid(), back, os.environ['USER'], os.environ['HOME'],"
        "os.getcwd() == os.environ['PWD'] == os.environ['HOME'],"
        "len(os.listdir('/proc/self/fd')) > 2,"
        "os.access('/proc/self/mem', os.R_OK), os.getgroups()]))")
    uids, back, name, home, pwd, fds, mem, groups = json.loads(answer.stdout)
    assert len(set(uids)) == 1 and uids[0] != 0 and not back and name == user
    assert pwd and fds and mem and 0 not in groups


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_openssl_has_drawn_no_randomness_at_the_freeze(kernel, tmp_path):
    """Every clone of the snapshot would go on from OpenSSL's state, if there were one."""
    log = tmp_path / "strace"
    script = tmp_path / "run.py"
    script.write_text(
        "import json, os, socket, subprocess, sys\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "p = subprocess.Popen(sys.argv[1:] + ['--ctl', str(theirs.fileno())], "
        "pass_fds=[theirs.fileno()])\ntheirs.close()\n"
        "while b'\"kernel\"' not in (packet := ours.recv(65536)): pass\n"
        "os.kill(json.loads(packet)['pid'], 9)\nours.close()\np.wait()\n")
    home = tmp_path / "home"
    home.mkdir()
    command = ["strace", "-f", "-k", "-o", str(log), "-e", "trace=getrandom", PYTHON, str(kernel),
               "--user", "", "--listen", f"unix:{tmp_path}", "--spares", "0", "--template", "/none",
               "--doorbell", "none", "--warmup", str(WARMUP)]
    subprocess.run([sys.executable, str(script), *command], check=True, timeout=300, cwd=home,
                   env={"PATH": os.environ["PATH"], "HOME": str(home), "SHELL": "/bin/bash"})
    stacks = log.read_text()
    assert "getrandom(" in stacks and "python3.11" in stacks
    assert "libcrypto" not in stacks


def test_a_default_kernel_that_dies_ends_the_bake(start, tmp_path):
    warmup = tmp_path / "warm.py"
    warmup.write_text("import os\nassert 'second' not in os.environ\nos.environ['second'] = '1'\n")
    guest = start("--imports", "", doorbell=True, warmup=warmup)
    guest.bell.access()
    guest.bell.reply()
    with pytest.raises((EOFError, ConnectionResetError)):
        guest.until("ready")
    assert guest.phases[-1].startswith("failed: the default kernel ended before the freeze")
    assert guest.process.wait(20) == 1


def test_options_come_from_the_template(parent, tmp_path):
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"kernels": 2, "warmup": "w.py", "env": {"A": "b"}}))
    args = parent.options(["--template", str(template)])
    assert (args.spares, args.warmup, args.env) == (2, str(tmp_path / "w.py"), {"A": "b"})
    assert parent.options(["--template", str(template), "--spares", "0"]).spares == 0
    args = parent.options(["--template", "/nonexistent"])
    assert (args.spares, args.warmup) == (1, None)


def test_split_cells(parent):
    assert parent.split_cells("a\n# %% t\nb\nc\n\n# %%\n\n# %% raises\nd") == [
        ("", "a\n"), ("t", "b\nc\n\n"), ("raises", "d")]
    cells = parent.split_cells(WARMUP.read_text())
    assert len(cells) > 20 and {t for t, _ in cells} == {"", "raises", "first", "first raises"}


def test_the_parent_ends_with_its_agent(start):
    guest = start("--imports", "", spares=0)
    guest.until("kernel")
    guest.ctl.close()
    assert guest.process.wait(20) == 0
    stream = Stream(guest.folder / "2000.sock")
    assert stream.run("'kernels go on'").text == "'kernels go on'"
