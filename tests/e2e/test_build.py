# SPDX-License-Identifier: Apache-2.0
"""`thawbox template build` around a machine that is ready at once (fake_monitor.py): rotation by age, two at a time, full
disks, machines that fail. Whatever happens, the template that was there stays usable, and nothing lies about."""
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import BIN

FAKE = Path(__file__).with_name("fake_monitor.py")
GUARD_S = 60
DAY = 86400


class Builds:
    """A home of its own, and a template `tiny` to be built there."""

    def __init__(self, thawbox, tmp: Path):
        self.thawbox, self.home, self.log = thawbox, tmp / "home", tmp / "monitors.log"
        self.source = tmp / "tiny"
        for folder in (self.home, self.source, tmp / "images"):
            folder.mkdir()
        (self.source / "template.json").write_text('{"name": "tiny", "memory_mb": 128}')
        for name in ("root.img", "scratch.img", "vmlinux", "symbols"):
            (tmp / "images" / name).write_bytes(name.encode())
        self.env = {"THAWBOX_HOME": str(self.home), "THAWBOX_VMM": str(FAKE), "FAKE_MONITOR_LOG": str(self.log)}
        self.options = [str(self.source), "--rootfs", str(tmp / "images"), "--kernel", str(tmp / "images" / "vmlinux"),
                        "--symbols", str(tmp / "images" / "symbols"), "--json"]
        self.path = self.home / "templates" / "tiny"
        self.started: list[subprocess.Popen] = []

    def __call__(self, *args: str, code: int = 0, fake: str = "") -> dict | str:
        """What was built as JSON, or with another code what was said on standard error."""
        done = self.thawbox("template", "build", *self.options, *args, env={**self.env, "FAKE_MONITOR": fake})
        assert done.returncode == code, (done.returncode, done.stderr.decode())
        return json.loads(done.stdout) if code == 0 else done.stderr.decode()

    def start(self, *args: str, fake: str = "") -> subprocess.Popen:
        self.started.append(self.thawbox.popen("template", "build", *self.options, *args, stdout=subprocess.PIPE,
                                               stderr=subprocess.PIPE, env={**self.env, "FAKE_MONITOR": fake}))
        return self.started[-1]

    def run(self, *args: str) -> str:
        done = self.thawbox(*args, env=self.env)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def make_older(self, seconds: float) -> None:
        path = self.current / "template.json"
        info = json.loads(path.read_text())
        info["built"] -= int(seconds)
        path.write_text(json.dumps(info))
        sums = self.current / "checksums"
        sums.write_text("".join(line for line in sums.read_text().splitlines(True) if not line.endswith(" template.json\n")))

    @property
    def current(self) -> Path:
        return (self.path / "current").resolve(strict=True)

    @property
    def machines(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def check(self) -> None:
        """One snapshot, whole, and nothing else."""
        assert {path.name for path in self.path.iterdir()} == {"current", self.current.name, ".lock", ".times"}
        assert {path.name for path in self.current.iterdir()} == {"state", "memory", "workset", "template.json", "checksums"}


@pytest.fixture
def build(thawbox, tmp_path):
    builds = Builds(thawbox, tmp_path)
    yield builds
    for process in builds.started:
        process.kill()
        process.communicate()
    if builds.path.exists():
        builds.check()


def test_built_once(build):
    assert build()["built"]
    build.run("template", "verify", "tiny")
    first, machines = build.current, build.machines
    assert not build()["built"] and build.current == first and build.machines == machines, "nothing has changed"
    assert build("--force")["built"] and build.current != first


# --- rotation ---------------------------------------------------------------------------------------------------------------

def test_rotation(build):
    build()
    first = build.current
    assert not build("--rotate")["built"], "it is young"
    build.make_older(6.9 * DAY)
    assert not build("--rotate")["built"]
    build.make_older(0.2 * DAY)
    assert not build()["built"], "nobody asked for its age"
    assert build("--rotate")["built"] and build.current != first
    assert not build("--rotate")["built"]


def test_age_of_ones_own(build):
    build()
    first = build.current
    build.make_older(3600)
    assert not build("--max-age", "2h")["built"]
    assert build("--max-age", "30m")["built"] and build.current != first


def test_age_is_told(build):
    build()
    assert build.run("template", "list").rstrip().endswith(" s")
    build.make_older(10 * DAY)
    assert build.run("template", "list").rstrip().endswith("10 days")
    (listed,) = json.loads(build.run("template", "list", "--json"))
    assert 10 * DAY <= listed["age_s"] < 10 * DAY + 600
    os.rename(build.path, build.path.with_name("code-interpreter"))
    done = build.thawbox("doctor", "--json", env={"THAWBOX_HOME": str(build.home)})
    lines = json.loads(done.stdout)
    line = next(line for line in lines if line["name"] == "template")
    assert line["level"] == "warning" and "10 days" in line["detail"] and "--rotate" in line["remedy"]
    os.rename(build.path.with_name("code-interpreter"), build.path)


def test_old_one_serves_until_the_new_one_is_ready(build, tmp_path):
    """And for as long as a sandbox of it lives; then it goes with a later build."""
    build()
    build.make_older(8 * DAY)
    old, go = build.current, tmp_path / "go"
    rotation = build.start("--rotate", fake=f"wait={go}")
    wait_for(go.with_suffix(".here"))
    assert build.current == old
    build.run("template", "verify", "tiny")
    lock = os.open(old, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)  # as who uses it does
    go.touch()
    _, stderr = rotation.communicate(timeout=GUARD_S)
    assert rotation.returncode == 0, stderr
    assert build.current != old and (old / "memory").exists()
    os.close(lock)
    assert not build()["built"] and not old.exists(), "swept"


def wait_for(path: Path) -> None:
    end = time.monotonic() + GUARD_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.01)


# --- failures ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("fake", ["refuse=boot", "refuse=parts", "refuse=snapshot", "refuse=standby", "refuse=workset",
                                  "refuse=thaw", "die=boot", "die=snapshot", "die=thaw", "die=standby"])
def test_machine_that_fails(build, fake):
    build()
    before = build.current
    message = build("--force", code=3, fake=fake)
    assert "told to" in message, message
    assert build.current == before
    build.run("template", "verify", "tiny")


def test_two_at_once(build, tmp_path):
    """The second waits for the first and then finds nothing left to do."""
    go = tmp_path / "go"
    first = build.start(fake=f"wait={go}")
    wait_for(go.with_suffix(".here"))
    second = build.start()
    assert b"another build" in second.stderr.readline()
    go.touch()
    for process, built in ((first, True), (second, False)):
        out, err = process.communicate(timeout=GUARD_S)
        assert process.returncode == 0, err
        assert json.loads(out)["built"] == built
    assert build.machines == 5, "one bake: the machine, two that record, two that prove"


@pytest.mark.parametrize("how", [9, 15])
def test_killed_while_the_second_waits(build, tmp_path, how):
    """It goes on by itself and sweeps what the first one left."""
    go = tmp_path / "go"
    first = build.start(fake=f"wait={go}")
    wait_for(go.with_suffix(".here"))
    second = build.start()
    first.send_signal(how)
    first.communicate(timeout=GUARD_S)
    out, err = second.communicate(timeout=GUARD_S)
    assert second.returncode == 0, err
    assert json.loads(out)["built"]


# --- full disks --------------------------------------------------------------------------------------------------------------

FULL = """
import json, os, subprocess, sys
home, size, programs, builds, env = json.loads(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", home], check=True)
def tree():
    return sorted(f"{path} {os.lstat(path).st_ino} {os.lstat(path).st_size}" for top, folders, names in os.walk(home)
                  for path in (os.path.join(top, name) for name in folders + names) if not path.endswith("/.times"))
def build(fake, *args):
    done = subprocess.run([f"{programs}/thawbox", "template", "build", *builds, *args], capture_output=True, text=True,
                          env={**os.environ, **env, "FAKE_MONITOR": fake})
    return [done.returncode, done.stderr]
first = build("memory=64")
before = tree()
failed = build("memory=65536", "--force")
after = tree()
verified = subprocess.run([f"{programs}/thawbox", "template", "verify", "tiny"], env={**os.environ, **env},
                          capture_output=True).returncode
again = build("memory=64", "--force")
print(json.dumps([first, before, failed, after, verified, again, len(tree())]))
"""


@pytest.mark.parametrize("size", [300, 700, 2000])
def test_disk_that_is_full(build, size):
    """In a mount namespace with a small home: the bake fails, says why, and what was there is as it was."""
    namespace = ["-m"] if os.geteuid() == 0 else ["-rm"]
    arguments = json.dumps([str(build.home), size, str(BIN), build.options, build.env])
    done = subprocess.run(["unshare", *namespace, "--propagation", "private", sys.executable, "-c", FULL, arguments],
                          env=build.thawbox.env, capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, done.stderr
    first, before, failed, after, verified, again, left = json.loads(done.stdout)
    assert first[0] == 0, first
    assert failed[0] == 3 and "No space left on device" in failed[1] and "free some disk space" in failed[1], failed
    assert before == after and verified == 0
    assert again[0] == 0 and left == len(before), again
