# SPDX-License-Identifier: Apache-2.0
"""bench/disk.py: its guest half on the host's own files, and through a real sandbox."""
import contextlib
import io
import json
import os

import disk
import pytest


def in_guest(scope: dict, code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, scope)
    return out.getvalue()


@pytest.fixture
def guest() -> dict:
    scope: dict = {}
    in_guest(scope, disk.GUEST)
    return scope


def test_both_halves_make_the_same_blocks(guest):
    assert guest["blocks"](7, 20, 1 << 20) == disk.random_blocks(7, 20, 1 << 20)
    assert all(place % disk.BLOCK == 0 and place + disk.BLOCK <= 65536 for place, _ in disk.random_blocks(7, 99, 65536))


def test_guest_reads_what_it_wrote(guest, tmp_path):
    file = guest["File"](str(tmp_path / "f"), os.O_RDWR | os.O_CREAT)
    times = file.timed(file.write, [(b"abc",), (b"def",)])
    assert len(times) == 2 and all(ms >= 0 for ms in times)
    file.drop()
    file.timed(file.read, [(4,), (4,)])
    assert file.proof() == [6, [disk.zlib.crc32(b"abcd"), disk.zlib.crc32(b"ef")]]
    os.close(file.fd)


def test_guest_finds_the_largest_file(guest, tmp_path):
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(b"x" * 99)
    (tmp_path / "link").symlink_to("large")
    assert guest["largest"](str(tmp_path)) == (99, str(tmp_path / "large"))


class FakeSandbox:
    """Runs cells here; the sectors that its device has counted are `moved` for each look."""

    def __init__(self, scope: dict, moved: int):
        self.scope, self.moved = scope, moved

    def run(self, code: str) -> disk.Reply:
        out = in_guest(self.scope, code)
        if code.startswith("tell(sectors"):
            self.moved += self.moved
            out = json.dumps({name: {"read": self.moved, "write": self.moved} for name in (disk.BASE, disk.OVERLAY)})
        return disk.Reply(disk.common.Cell(stdout=out.encode(), result={"status": "ok"}), b"", 1.0, 2.0)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(disk, "BASE_FOLDER", str(tmp_path))
    (tmp_path / "large").write_bytes(b"x" * (1 << 20))
    monkeypatch.setattr(disk, "GUEST", disk.GUEST + "\ndef sectors():\n    pass\n")
    return tmp_path


def test_operations_in_order(home):
    rows = disk.Disks(FakeSandbox({}, 1 << 20), 65536, 8).run(5)
    assert [row.operation for row in rows] == ["write", "read", "base", "random write", "random read", "fsync"]
    assert [len(row.guest_ms) for row in rows] == [2, 1, 1, 9, 8, 2]
    assert rows[1].rate == 65536 / (1 << 20) / 0.002 and rows[4].rate == 8 / 0.002
    assert not (home / "bench-disk").exists()


def test_what_comes_from_a_cache_is_an_error(home):
    with pytest.raises(disk.BenchError, match=r"write: the guest's vdb moved \d+ bytes, not 65536"):
        disk.Disks(FakeSandbox({}, 1), 65536, 8).run(5)


def test_other_bytes_are_an_error(home):
    """A read that loses a byte, as a broken device would."""
    sandbox = FakeSandbox({}, 1 << 20)
    disks = disk.Disks(sandbox, 65536, 8)
    in_guest(sandbox.scope, "File.read = lambda self, n: self.got.append(os.read(self.fd, n)[:-1] + b'x')")
    with pytest.raises(disk.BenchError, match="read gave"):
        disks.run(5)


@pytest.mark.parametrize("option", [["--size", "1K"], ["--size", "1T"], ["--ops", "0"], ["--runs", "0"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("disk", *option, code=2).stderr


def test_real(bench, real, tmp_path):
    done = bench("disk", *real, "--size", "64K", "--ops", "4", "--json", "--csv", str(tmp_path / "x.csv"), "--plot",
                 str(tmp_path / "x.svg"))
    result = json.loads(done.stdout)
    assert [each["operation"] for each in result["operations"]][:3] == ["write", "read", "base"]
    for each in result["operations"]:
        assert 0 < each["guest_ms"] <= each["ms"] * 1.05, "the guest's clock runs as the host's does"
        assert each["rate"] > 0
    assert (tmp_path / "x.csv").read_text().count("\n") == 7
