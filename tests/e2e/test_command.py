# SPDX-License-Identifier: Apache-2.0
"""The command as such: help, doctor, templates, a machine on the terminal; and the monitor's own options."""
import json
import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BIN

COMMANDS = ("run", "repl", "exec", "boot", "doctor", "template build", "template list", "template show",
            "template verify", "template rm", "snapshot inspect")
KERNEL = Path(__file__).parents[2] / "out" / "kernel" / "current" / "vmlinux"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(thawbox, command):
    done = thawbox(*command.split(), "--help")
    assert done.returncode == 0 and b"Example" in done.stdout and not done.stderr
    assert f"thawbox {command}".encode() in done.stdout
    assert b"--help" in thawbox(*command.split(), "--nonsense").stderr


def test_overview_and_version(thawbox):
    overview = thawbox("--help")
    assert overview.returncode == 0 and all(c.encode() in overview.stdout for c in COMMANDS)
    assert thawbox("--version").stdout.startswith(b"thawbox 0.")
    assert thawbox().returncode == 2 and thawbox("frobnicate").returncode == 2 and thawbox("template").returncode == 2


def test_doctor(thawbox):
    done = thawbox("doctor")
    assert done.returncode == 0, done.stdout
    assert b"kvm" in done.stdout.lower() and b"error" not in done.stdout.lower()
    report = json.loads(thawbox("doctor", "--json").stdout)
    assert report


def test_doctor_names_what_is_missing(thawbox, tmp_path):
    done = thawbox("doctor", env={"THAWBOX_HOME": str(tmp_path / "empty")})
    assert b"thawbox template build" in done.stdout


def test_template_commands(thawbox, template):
    listed = thawbox("template", "list")
    assert listed.returncode == 0 and b"code-interpreter" in listed.stdout
    shown = thawbox("template", "show", "code-interpreter")
    assert shown.returncode == 0 and template.name.encode() in shown.stdout
    assert thawbox("template", "show", "no-such").returncode == 3
    assert thawbox("template", "build", "no-such-template").returncode in (2, 3)


def test_build_is_a_no_op_when_nothing_changed(thawbox, template):
    start = time.monotonic()
    done = thawbox("template", "build", "code-interpreter")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 10
    assert template == template.parent.joinpath("current").resolve()


def test_boot_shows_the_console_and_quits(thawbox):
    """Any kernel: here ours without a disk, which panics for want of a root; the escape ends it before or after."""
    master, slave = pty.openpty()
    process = thawbox.popen("boot", "--kernel", str(KERNEL), "--memory", "256", "--cmdline", "loglevel=7 init=/none",
                            stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen, end = b"", time.monotonic() + 120
    while b"Linux version" not in seen and time.monotonic() < end:
        if select.select([master], [], [], 1)[0]:
            seen += os.read(master, 65536)
    os.write(master, b"\x1dx")
    assert process.wait(30) == 0, seen
    os.close(master)
    assert b"Linux version" in seen


def test_boot_refuses_what_is_no_kernel(thawbox, tmp_path):
    path = tmp_path / "kernel"
    path.write_bytes(os.urandom(1 << 20))
    done = thawbox("boot", "--kernel", str(path))
    assert done.returncode in (1, 2, 3) and b"kernel" in done.stderr.lower()
    assert thawbox("boot", "--kernel", str(tmp_path / "missing")).returncode == 2


def test_monitor_options():
    check = subprocess.run([BIN / "thawbox-vmm", "--check"], capture_output=True)
    report = json.loads(check.stdout)
    assert check.returncode == 0 and all(entry["ok"] for entry in report) and any(e["name"] == "/dev/kvm" for e in report)
    fingerprint = subprocess.run([BIN / "thawbox-vmm", "--fingerprint"], capture_output=True)
    assert fingerprint.returncode == 0 and fingerprint.stdout.strip()
    for arguments in ([], ["--control-fd", "x"], ["--nonsense"], ["--check", "extra"][1:]):
        assert subprocess.run([BIN / "thawbox-vmm", *arguments], capture_output=True).returncode == 2


def test_monitor_refuses_wrong_lines(vmm):
    with vmm() as m:
        for line in (b"not json\n", b"[]\n", b"{}\n", b'{"cmd":"dance"}\n', b'{"cmd":"pause"}\n', b'{"cmd":1}\n'):
            m.sock.sendall(line)
            answer = m._line(10)
            assert answer["ok"] is False and answer["error"], line
        assert m.call("quit")["ok"]
        assert m.process.wait(10) == 0


def test_monitor_ends_with_its_socket(vmm):
    with vmm() as m:
        m.sock.sendall(b"x" * 70_000)  # a line that never ends
        m.sock.close()
        assert m.process.wait(10) in (0, 1)
