# SPDX-License-Identifier: Apache-2.0
"""The bare machine: guests of a few instructions, and how the monitor tells their end."""
import os
import socket
import struct

import pytest

from conftest import SOFTWARE_KVM
from tiny import HALT, POWER, SERIAL, elf, store32, store8
from vmm import VmmError


@pytest.fixture
def boot(vmm, tmp_path):
    """boot(code) -> (monitor, console): a machine that runs it."""
    opened = []

    def start(code: bytes, *, pvh: bool = True, image: bytes | None = None, **members):
        path = tmp_path / "kernel"
        path.write_bytes(elf(code, pvh=pvh) if image is None else image)
        monitor = vmm().__enter__()
        ours, theirs = socket.socketpair()
        opened.extend((monitor, ours))
        with theirs:
            monitor.call("boot", kernel=str(path), memory_mb=64, serial="fd", fd=theirs.fileno(), **members)
        ours.settimeout(20)
        return monitor, ours

    yield start
    for thing in opened:
        thing.__exit__(None, None, None)


def test_serial_and_power_off(boot):
    text = b"hello\n"
    monitor, console = boot(b"".join(store8(SERIAL, c) for c in text) + store32(POWER, 1) + HALT)
    seen = b""
    while len(seen) < len(text):
        seen += console.recv(64)
    assert seen == text
    assert monitor.event("exit")["reason"] == "shutdown"


def test_reset_by_the_keyboard_controller(boot):
    monitor, _ = boot(b"\xb0\xfe\xe6\x64" + HALT)
    assert monitor.event("exit")["reason"] == "reboot"


@pytest.mark.parametrize("pvh", [True, False])
def test_triple_fault(boot, pvh):
    """An invalid instruction with nobody to handle it, at the 64-bit and at the PVH entry."""
    monitor, _ = boot(b"\x0f\x0b", pvh=pvh)
    end = monitor.event("exit")
    assert end["reason"] == "triple-fault" and end["detail"]


@pytest.mark.skipif(not SOFTWARE_KVM, reason="hardware KVM runs every instruction")
def test_instruction_that_software_kvm_cannot_do(boot):
    """The report must show where and what, or nobody can mend such a kernel."""
    monitor, _ = boot(b"\x90" * 16 + b"\xf3\x0f\xb8\xc0" + HALT)
    end = monitor.event("exit")
    assert end["reason"] == "kvm-error"
    assert "instruction=f30fb8c0" in end["detail"].lower() and "rip=0x200010" in end["detail"].lower()


def test_endless_guest_can_be_paused_measured_and_quit(boot):
    monitor, _ = boot(b"\xeb\xfe")
    monitor.call("pause")
    first = monitor.call("stats")["vcpu"]
    assert monitor.call("stats")["vcpu"]["exits"] == first["exits"], "a paused guest must not run"
    monitor.call("resume")
    monitor.call("quit")
    assert monitor.process.wait(10) == 0


def test_access_to_nothing_does_no_harm(boot):
    """Holes, odd widths and the end of the address space: read as ones or zeros, written to nobody."""
    code = b""
    for address in (SERIAL + 0x800, 0xD0001FFF, 0xD000F040, 0xD0009000, 0xFEC00800, 0xFFFFFFFC):
        code += b"\xa1" + struct.pack("<I", address) + b"\xa3" + struct.pack("<I", address)
    monitor, _ = boot(code + store32(POWER, 1) + HALT)
    assert monitor.event("exit")["reason"] == "shutdown"


@pytest.mark.parametrize("image, word", [
    (b"", "kernel"),
    (b"\x7fELF" + bytes(60), "kernel"),
    (elf(HALT, pvh=True)[:100], "kernel"),
    (elf(HALT, pvh=False, entry=0x7FFFFFFF), "entry"),
    (os.urandom(8192), "kernel"),
])
def test_kernels_that_are_refused(boot, image, word):
    with pytest.raises(VmmError) as error:
        boot(b"", image=image)
    assert word in str(error.value).lower()


def test_disks_that_are_refused(boot, tmp_path):
    with pytest.raises(VmmError, match="missing.img"):
        boot(HALT, disks=[{"path": str(tmp_path / "missing.img"), "readonly": True}])
    odd = tmp_path / "odd.img"
    odd.write_bytes(bytes(1000))
    with pytest.raises(VmmError, match="1000 bytes"):
        boot(HALT, disks=[{"path": str(odd), "readonly": True}])
