# SPDX-License-Identifier: Apache-2.0
"""Monitors that are killed, bakes that are killed: told, and nothing left."""
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest


def monitor_of(thawbox, timeout: float = 10) -> int:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for pid, _ in thawbox.processes():
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == "thawbox-vmm":
                    return pid
            except FileNotFoundError:
                continue
    raise TimeoutError("no thawbox-vmm was started")


@pytest.mark.parametrize("moment", range(10))
def test_killed_monitor(thawbox, moment):
    """Moments from the first instruction of the monitor to well inside the cell."""
    rng = random.Random(os.urandom(8))
    delay = 0 if moment == 0 else rng.uniform(0, 0.02 * moment ** 2)
    process = thawbox.popen("run", "-c", "import time; print('up', flush=True); time.sleep(60)",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pid = monitor_of(thawbox)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 125, f"after {delay:.3f} s: exit {process.returncode}, {stderr!r}"
    assert b"the sandbox was lost" in stderr and b"killed" in stderr.lower()


def test_killed_command_takes_its_monitor_along(thawbox):
    process = thawbox.popen("run", "-c", "import time; print('up', flush=True); time.sleep(60)",
                            stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.kill()
    process.wait()
    process.stdout.close()
    assert not thawbox.left_behind()


def test_guest_that_resets_itself(thawbox):
    """reboot(RB_AUTOBOOT) by root of the guest, which any user of a sandbox may become."""
    code = "!sudo python3 -I -S -c 'import ctypes; ctypes.CDLL(None).reboot(0x1234567)'"
    done = thawbox("run", "--timeout", "100", "-c", code)
    assert done.returncode == 125 and b"the sandbox was lost" in done.stderr, done.stderr


def test_interrupted_run(thawbox):
    process = thawbox.popen("run", "-c", "import time; print('up', flush=True); time.sleep(60)",
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def tree(home: Path) -> dict[str, int]:
    """Templates: name and inode of each file but the lock's, and where `current` points."""
    found = {}
    for path in (home / "templates").rglob("*"):
        if path.name == ".lock":
            continue
        found[str(path)] = os.readlink(path) if path.is_symlink() else path.stat().st_ino
    return found


@pytest.fixture
def own_home(template, tmp_path):
    """A copy of the template in a home of its own: a bake may fail there."""
    home = tmp_path / "home"
    to = home / "templates" / "code-interpreter"
    to.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", template, to / template.name], check=True)
    (to / "current").symlink_to(template.name)
    yield home
    shutil.rmtree(home)


def start_bake(thawbox, home: Path) -> subprocess.Popen:
    process = thawbox.popen("template", "build", "--force", "code-interpreter", env={"THAWBOX_HOME": str(home)},
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    monitor_of(thawbox)
    return process


def test_killed_bake_leaves_the_old_template(thawbox, own_home):
    home = {"THAWBOX_HOME": str(own_home)}
    before = tree(own_home)
    bake = start_bake(thawbox, own_home)
    time.sleep(random.uniform(0.5, 8))
    bake.kill()
    bake.communicate()
    assert thawbox.json("-c", "20 + 22", env=home)["results"][-1]["data"]["text/plain"] == "42"

    # The next bake sweeps what the killed one left; an interrupted one leaves nothing.
    bake = start_bake(thawbox, own_home)
    time.sleep(1)
    bake.send_signal(signal.SIGINT)
    bake.communicate(timeout=30)
    assert bake.returncode == 130
    assert tree(own_home) == before
    assert thawbox.json("-c", "20 + 22", env=home)["results"][-1]["data"]["text/plain"] == "42"


def test_second_bake_of_the_same_template(thawbox, own_home):
    """Waits or refuses in words; never writes over the first."""
    first = start_bake(thawbox, own_home)
    second = thawbox.popen("template", "build", "--force", "code-interpreter", env={"THAWBOX_HOME": str(own_home)},
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(2)
    refused = second.poll()
    second.send_signal(signal.SIGINT)
    _, stderr = second.communicate(timeout=30)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert refused is None or (refused == 3 and b"another" in stderr), stderr


