# SPDX-License-Identifier: Apache-2.0
"""A template that is baked again under a daemon that runs: new sandboxes are of the new one, and the others go on.

The snapshot of this machine under another name is a new one to the daemon: what a build does at its end is to rename the link.
"""
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import BIN, GUARD_S, Daemon
from e2b_code_interpreter import Sandbox
from test_restart import restart


class Template:
    """A home of its own whose snapshots are this machine's, under other names."""

    def __init__(self, home: Path, source: Path) -> None:
        self.home, self.source = home, source
        self.path = home / "templates" / "code-interpreter"
        self.path.mkdir(parents=True)

    def bake(self, name: str, without: str = "") -> str:
        """The same files, or a copy of them; then the link."""
        (self.path / name).mkdir()
        for part in self.source.iterdir():
            if part.name == without:
                continue
            try:
                os.link(part, self.path / name / part.name)
            except OSError:  # another file system
                subprocess.run(["cp", "--sparse=always", part, self.path / name], check=True)
        (self.path / ".current.new").symlink_to(name)
        (self.path / ".current.new").rename(self.path / "current")
        return name

    def is_in_use(self, name: str) -> bool:
        fd = os.open(self.path / name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def wait_unused(self, name: str) -> None:
        end = time.monotonic() + GUARD_S
        while self.is_in_use(name):
            assert time.monotonic() < end, f"{name} is still locked"
            time.sleep(0.05)


@pytest.fixture
def template(tmp_path):
    shown = subprocess.run([BIN / "thawbox", "template", "show", "code-interpreter"], check=True, capture_output=True, text=True)
    it = Template(tmp_path / "home", Path(json.loads(shown.stdout)["dir"]))
    yield it
    shutil.rmtree(it.home)


def of(daemon: Daemon, snapshot: str) -> set[str]:
    """The ids of its sandboxes."""
    return {box["sandboxID"] for box in json.loads(daemon.get(f"/v2/sandboxes?template={snapshot}")[1])}


def test_new_ones_come_from_the_new_one(start, template):
    first = template.bake("1")
    daemon = start(env={"THAWBOX_HOME": str(template.home)})
    box = Sandbox.create()
    box.run_code("x = 41")
    second = template.bake("2")
    daemon.wait_text("code-interpreter: 2 serves now; 1 sandboxes of 1 go on")
    fresh = Sandbox.create()
    assert fresh.run_code("1 + 1").text == "2"
    assert (of(daemon, first), of(daemon, second)) == ({box.sandbox_id}, {fresh.sandbox_id})
    assert box.run_code("x + 1").text == "42", "what lives goes on"
    assert daemon.metric("thawbox_template_rotations_total") == 1
    made, asked = daemon.metric('thawbox_creates_total{"result": "ok"}'), daemon.metric("thawbox_requests_total")
    restart(daemon)
    assert (of(daemon, first), of(daemon, second)) == ({box.sandbox_id}, {fresh.sandbox_id})
    assert box.run_code("x + 1").text == "42" and fresh.run_code("2 + 2").text == "4"
    assert daemon.metric("thawbox_template_rotations_total") == 1 and daemon.metric("thawbox_requests_total") > asked
    assert daemon.metric('thawbox_creates_total{"result": "ok"}') == made, "counters go on"
    assert template.is_in_use(first), "a sandbox of it lives"
    box.kill()
    template.wait_unused(first)
    assert template.is_in_use(second)
    fresh.kill()


def test_what_cannot_be_served_changes_nothing(start, template):
    template.bake("1")
    daemon = start(env={"THAWBOX_HOME": str(template.home)})
    template.bake("2", without="state")
    daemon.wait_text("2 cannot be served")
    assert "1 goes on" in daemon.text()
    box = Sandbox.create()
    assert box.run_code("1 + 1").text == "2" and of(daemon, "1") == {box.sandbox_id}
    box.kill()
    template.bake("3")
    daemon.wait_text("3 serves now")
    template.wait_unused("1")
