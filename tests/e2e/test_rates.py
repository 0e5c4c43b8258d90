# SPDX-License-Identifier: Apache-2.0
"""Rate limits of disks and streams, asked for on the control line and on the command line: they hold, nothing is lost."""
import json
import time

import pytest

from vmm import DATA, END, VmmError, Zygote, frame, request
from conftest import BIN

PAYLOAD = 60_000
WRITE = """
import hashlib, os
data = bytes(range(256)) * 256
fd = os.open("/home/user/f", os.O_CREAT | os.O_RDWR)
os.write(fd, data); os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.pread(fd, len(data), 0) == data
"""


def waits(stats: dict) -> dict[str, int]:
    return {"disk": sum(disk["throttle"]["waits"] for disk in stats["disks"]),
            "to_guest": stats["vsock"]["throttle_to_guest"]["waits"],
            "to_host": stats["vsock"]["throttle_to_host"]["waits"]}


def until(happens, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def exercise(m, stream) -> None:
    """A disk write, and many bytes each way by vsock: right to the last one."""
    assert stream.run(WRITE).result["status"] == "ok"
    cat = m.connect(m.thawed["agent_port"])
    cat.sock.sendall(request(op="exec", argv=["cat"]) + frame(DATA, b"y" * PAYLOAD) + frame(END, b""))
    assert cat.answer().stdout == b"y" * PAYLOAD


def test_limits_of_a_fresh_sandbox(vmm, template):
    limits = {"disk_ops": {"rate": 20, "burst": 1}, "vsock_bytes": {"rate": 100_000, "burst": 2000}}
    with vmm() as m:
        stream = m.thaw(template, "1+1", limits=limits)
        assert stream.answer().text == "2"
        exercise(m, stream)
        stats = m.call("stats")
        assert all(waits(stats).values()), stats
        assert sum(disk["bytes_written"] for disk in stats["disks"]) >= 65536


def test_without_limits_nothing_waits(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "1+1")
        assert stream.answer().text == "2"
        exercise(m, stream)
        assert not any(waits(m.call("stats")).values())


@pytest.mark.parametrize("way", ["shell", "standby"])
def test_limits_come_with_the_thaw_of_a_pools_member(thawbox, template, way):
    with Zygote(BIN / "thawbox-vmm", template, env=thawbox.env) as zygote, getattr(zygote, way)() as m:
        stream = m.thaw(template, "1+1", limits={"vsock_bytes": {"rate": 100_000, "burst": 2000}})
        assert stream.answer().text == "2"
        exercise(m, stream)
        found = waits(m.call("stats"))
        assert found["to_guest"] and found["to_host"] and not found["disk"]


def test_frozen_while_held_back(vmm, template, tmp_path):
    """What the limit kept in the queue at the freeze is written by the thawed machine."""
    with vmm() as m:
        stream = m.thaw(template, "import os, threading", limits={"disk_ops": {"rate": 1, "burst": 1}})
        assert stream.answer().result["status"] == "ok"
        cell = stream.run("fd = os.open('/home/user/f', os.O_CREAT | os.O_RDWR)\n"
                          "for i in range(8): os.pwrite(fd, b'%d' % i * 4096, i * 65536)\n"
                          "t = threading.Thread(target=os.fsync, args=(fd,)); t.start()")
        assert cell.result["status"] == "ok", cell.result
        until(lambda: waits(m.call("stats"))["disk"])
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        m.thaw(tmp_path / "frozen", None)
        cell = m.connect(m.thawed["port"]).run(
            "t.join(); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            "all(os.pread(fd, 4096, i * 65536) == b'%d' % i * 4096 for i in range(8))")
        assert cell.text == "True", cell


@pytest.mark.parametrize("limits", [{"disk": 1}, {"disk_ops": "many"}, {"vsock_bytes": {"rate": -1}}, []])
def test_limits_that_make_no_sense(vmm, template, limits):
    with vmm() as m, pytest.raises(VmmError, match="limits"):
        m.thaw(template, "1+1", limits=limits)


def test_options_of_the_command(thawbox, tmp_path):
    (tmp_path / "in").write_bytes(b"abc" * 10_000)
    limits = ["--disk-rate", "4M/s", "--disk-ops", "200", "--vsock-rate", "1M/s"]
    done = thawbox("run", "--json", *limits, "--put", f"{tmp_path}/in:/tmp/in", "--get", f"/tmp/in:{tmp_path}/out",
                   "-c", "len(open('/tmp/in').read())")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][-1]["data"]["text/plain"] == "30000"
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    assert thawbox("exec", *limits, "--", "echo hello").stdout == b"hello\n"
    wrong = thawbox("run", "--disk-rate", "fast", "-c", "1")
    assert wrong.returncode == 2 and b"50M/s" in wrong.stderr
