# SPDX-License-Identifier: Apache-2.0
"""Damaged, cut, foreign or mismatched parts of a snapshot: refused in words, before anything runs."""
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from vmm import VmmError

PARTS = ("state", "memory", "workset", "manifest")


@pytest.fixture
def copy(template, tmp_path):
    """copy(part) -> snapshot directory in which only `part` is a copy, the rest hard links or copies."""
    def make(part: str) -> Path:
        directory = tmp_path / f"snapshot-{part}"
        directory.mkdir()
        for path in template.iterdir():
            to = directory / path.name
            try:
                if path.name == part:
                    raise OSError
                os.link(path, to)
            except OSError:
                subprocess.run(["cp", "--sparse=always", "--reflink=auto", path, to], check=True)
        return directory

    yield make
    for directory in tmp_path.glob("snapshot-*"):
        shutil.rmtree(directory)


def refused(vmm, directory: Path) -> str:
    with vmm() as m:
        with pytest.raises(VmmError) as error:
            m.thaw(directory, "1+1")
    return str(error.value)


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_the_copy_itself_works(vmm, copy):
    with vmm() as m:
        assert m.thaw(copy("state"), "20 + 22").answer().text == "42"


@pytest.mark.parametrize("place", [0, 0.1, 0.5, 0.9, "last"])
def test_damaged_state(vmm, copy, place):
    path = copy("state") / "state"
    size = path.stat().st_size
    flip(path, size - 1 if place == "last" else int(size * place))
    message = refused(vmm, path.parent)
    assert "state" in message and "|" in message


@pytest.mark.parametrize("part", PARTS[:3])
def test_cut_part(vmm, copy, part):
    path = copy(part) / part
    os.truncate(path, path.stat().st_size // 2)
    assert part in refused(vmm, path.parent)


@pytest.mark.parametrize("part", ("state", "memory", "disk"))
def test_missing_part(vmm, copy, part):
    directory = copy("state")
    next(directory.glob(f"{part}*")).unlink()  # disks are numbered
    assert part in refused(vmm, directory)


def test_workset_of_another_snapshot(vmm, copy):
    path = copy("workset") / "workset"
    flip(path, 16)
    message = refused(vmm, path.parent)
    assert "workset" in message


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 & -(crc & 1))
    return ~crc & 0xFFFFFFFF


def rewrite(state: Path, tag: bytes, change) -> None:
    """Replaces the first section `tag` by change(version, body), with a right checksum (docs/snapshot.md)."""
    data = state.read_bytes()
    at = 8
    while data[at:at + 4] != tag:
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    instance, version, length = struct.unpack_from("<HHI", data, at + 4)
    version, body = change(version, data[at + 16:at + 16 + length])
    head = tag + struct.pack("<HHI", instance, version, len(body))
    state.write_bytes(data[:at] + head + struct.pack("<I", crc32c(head + body)) + body + data[at + 16 + length:])


def test_foreign_cpu(vmm, copy):
    path = copy("state") / "state"

    def other_vendor(version, body):
        assert b"AuthenticAMD" in body or b"GenuineIntel" in body
        return version, body.replace(b"AuthenticAMD", b"SomeOtherCPU").replace(b"GenuineIntel", b"SomeOtherCPU")

    rewrite(path, b"HEAD", other_vendor)
    assert "CPU" in refused(vmm, path.parent)


@pytest.mark.parametrize("tag", [b"HEAD", b"VDEV", b"UART"])
def test_newer_version(vmm, copy, tag):
    path = copy("state") / "state"
    rewrite(path, tag, lambda version, body: (version + 1, body))
    message = refused(vmm, path.parent)
    assert tag.decode() in message and "version" in message


def test_kvm_section_of_another_size(vmm, copy):
    path = copy("state") / "state"
    rewrite(path, b"REGS", lambda version, body: (version, body[:-8]))
    assert "REGS" in refused(vmm, path.parent)


def test_memory_of_another_snapshot(vmm, copy):
    """Right size, wrong id: the page after guest memory holds it."""
    path = copy("memory") / "memory"
    flip(path, path.stat().st_size - 4096 + 12)
    assert "memory" in refused(vmm, path.parent)


def test_verify_finds_what_a_thaw_does_not_hash(thawbox, template, tmp_path):
    """A byte of memory: hashing 512 MiB has no place on the path of a thaw, but verify does it."""
    home = tmp_path / "home"
    to = home / "templates" / "code-interpreter"
    to.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", template, to / template.name], check=True)
    (to / "current").symlink_to(template.name)
    env = {"THAWBOX_HOME": str(home)}
    good = thawbox("template", "verify", "code-interpreter", env=env)
    assert good.returncode == 0, good.stderr
    memory = to / template.name / "memory"
    with open(memory, "rb") as file:
        flip(memory, os.lseek(file.fileno(), 64 << 20, os.SEEK_DATA))
    bad = thawbox("template", "verify", "code-interpreter", env=env)
    assert bad.returncode != 0 and b"memory" in bad.stderr
    shutil.rmtree(home)


def test_inspect(thawbox, template):
    shown = json.loads(thawbox("snapshot", "inspect", "--json", str(template)).stdout)
    text = json.dumps(shown)
    for part in PARTS:
        assert part in text
    plain = thawbox("snapshot", "inspect", str(template))
    assert plain.returncode == 0 and b"memory" in plain.stdout
    assert thawbox("snapshot", "inspect", "/nonexistent").returncode != 0
