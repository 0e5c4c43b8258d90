# SPDX-License-Identifier: Apache-2.0
"""Monitors in their jails, as root starts them and as a user without any right but /dev/kvm.

Run by root, each test runs for both: the user is a number that nobody has, whom an access list lets open /dev/kvm
until the end. Run by another user, for that one alone.
"""
from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "e2e")]
from tiny import elf, interpreter  # noqa: E402
from vmm import RESULT, Forked, Vmm, frame  # noqa: E402

_spec = importlib.util.spec_from_file_location("e2e_conftest", Path(__file__).parents[1] / "e2e" / "conftest.py")
e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(e2e)
BIN, Thawbox, pytest_configure = e2e.BIN, e2e.Thawbox, e2e.pytest_configure
NOBODY = 1_234_567
ACL = "system.posix_acl_access"
ANSWER = frame(RESULT, b'{"status":"ok","execution_count":1,"error":null}')


def access_list(mode: int, uid: int) -> bytes:
    """The file's mode, and read and write for one more user."""
    none = 0xFFFFFFFF
    entries = [(1, mode >> 6 & 7, none), (2, 6, uid), (4, mode >> 3 & 7, none), (0x10, 6, none), (0x20, mode & 7, none)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.fixture(scope="session")
def kvm_for_nobody():
    """A user's access to /dev/kvm, as membership of a group would give it; taken away again."""
    mode = os.stat("/dev/kvm").st_mode
    try:
        before = os.getxattr("/dev/kvm", ACL)
    except OSError:
        before = None
    os.setxattr("/dev/kvm", ACL, access_list(mode, NOBODY))
    yield
    if before is None:
        os.removexattr("/dev/kvm", ACL)
        os.chmod("/dev/kvm", mode & 0o7777)
    else:
        os.setxattr("/dev/kvm", ACL, before)


@dataclass
class Who:
    """Who starts the monitors."""

    uid: int
    folder: Path
    programs: Path
    env: dict[str, str]

    @property
    def root(self) -> bool:
        return self.uid == 0

    def popen(self, args: list, **kwargs) -> subprocess.Popen:
        """A program of ours as that user."""
        if self.uid != os.geteuid():
            kwargs.update(user=self.uid, group=self.uid, extra_groups=[])
        return subprocess.Popen(args, **{"env": self.env, "cwd": self.folder, **kwargs})

    def thawbox(self, *args: str, **kwargs) -> subprocess.Popen:
        return self.popen([self.programs / "thawbox", *args], **kwargs)

    def vmm(self, *args: str) -> Vmm:
        """A monitor that is started directly, and so without a pid namespace."""
        who = self

        class Started(Vmm):
            def _start(self, child, program, *more, env=None):
                return who.popen([program, "--control-fd", str(child.fileno()), *more], pass_fds=[child.fileno()],
                                 stderr=subprocess.PIPE)

        return Started(self.programs / "thawbox-vmm", *args)


@pytest.fixture(scope="session")
def programs(tmp_path_factory) -> Path:
    """Where every user may run them."""
    folder = Path(subprocess.run(["mktemp", "-d", "/tmp/thawbox-isolation.XXXXXX"], check=True, capture_output=True,
                                 text=True).stdout.strip())
    folder.chmod(0o755)
    for name in ("thawbox", "thawbox-vmm"):
        shutil.copy(BIN / name, folder / name)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["root", "user"] if os.geteuid() == 0 else ["user"])
def who(request, programs, tmp_path_factory):
    uid = 0 if request.param == "root" else NOBODY if os.geteuid() == 0 else os.geteuid()
    if uid == NOBODY:
        request.getfixturevalue("kvm_for_nobody")
    folder = Path(subprocess.run(["mktemp", "-d", "/tmp/thawbox-isolation.XXXXXX"], check=True, capture_output=True,
                                 text=True).stdout.strip())
    if uid != os.geteuid():
        os.chown(folder, uid, uid)
    box = Thawbox(folder / "private-tmp")
    if uid != os.geteuid():
        os.chown(box.tmp, uid, uid)
    env = {**box.env, "THAWBOX_SECRET": "hunter2-of-the-host"}
    yield Who(uid, folder, programs, env)
    left = box.left_behind()
    shutil.rmtree(folder)
    assert not left


@pytest.fixture
def kernel(who) -> Path:
    """A guest of a few instructions that parks at the freeze point and answers one cell."""
    path = who.folder / "kernel"
    path.write_bytes(elf(interpreter(ANSWER), pvh=True))
    return path


@pytest.fixture
def frozen(who, kernel) -> Path:
    """A snapshot of it, with a writable disk; made by `who`."""
    disk, directory = who.folder / "disk.img", who.folder / "snapshot"
    disk.write_bytes(b"disk".ljust(1 << 20, b"\0"))
    with who.vmm() as m:
        m.call("boot", kernel=str(kernel), memory_mb=64, disks=[{"path": str(disk), "overlay": True}],
               overlay_dir=str(who.folder))
        m.event("parked", 20)
        m.snapshot(directory)
    return directory


class Zygote:
    """Monitors forked by a zygote that `who` has started."""

    def __init__(self, who: Who, directory: Path, *args: str):
        self.vmm = who.vmm("--zygote", *args)
        self.folder = str(who.folder)
        self.vmm.call("open", dir=str(directory), overlay_dir=self.folder)

    def member(self, way: str, directory: Path) -> Forked:
        m = Forked(self.vmm)
        if way == "shell":
            m.call("shell", overlay_dir=self.folder)
        elif way == "standby":
            m.call("standby", overlay_dir=self.folder)
            m.event("standby")
        else:
            m.thaw(directory, "1+1", overlay_dir=self.folder).answer()
        return m


@pytest.fixture
def zygote(who, frozen):
    z = Zygote(who, frozen)
    yield z
    z.vmm.__exit__()


@contextlib.contextmanager
def running(way: str, who: Who, frozen: Path, *args: str):
    if way == "exec":
        with who.vmm(*args) as m:
            m.thaw(frozen, "1+1", overlay_dir=str(who.folder)).answer()
            yield m
        return
    z = Zygote(who, frozen, *args)
    try:
        with z.member(way, frozen) as m:
            yield m
    finally:
        z.vmm.__exit__()


@pytest.fixture(params=["exec", "fork", "shell"])
def monitor(request, who, frozen):
    """A monitor with a machine, and without filters: what stops a call then is another layer."""
    with running(request.param, who, frozen, "--seccomp", "off") as m:
        yield m


@pytest.fixture(params=["exec", "fork", "shell"])
def filtered(request, who, frozen):
    """A monitor as it is."""
    with running(request.param, who, frozen) as m:
        yield m
