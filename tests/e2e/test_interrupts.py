# SPDX-License-Identifier: Apache-2.0
"""A guest that is frozen while its interrupts are off, in an interrupt's shadow, or in the middle of its console's output.

A kernel that nobody knows goes on exactly where it was. Of one whose memory a thaw changes (`symbols`) no snapshot is made,
and none taken, at a point where it may be changing the same (docs/snapshot.md). The guests are of a few instructions.
"""
import os
import shutil
import socket
import struct
import time

import pytest

from conftest import SOFTWARE_KVM
from test_snapshot import rewrite
from tiny import ENTRY, HALT, IF_NOT_ZERO, IF_ZERO, JUMP, POWER, SERIAL, assemble, elf, store8, store32
from vmm import VmmError

IF = 0x200
RFLAGS = 17 * 8  # its offset in kvm_regs
SHADOW = 11  # the same, of interrupt.shadow in kvm_vcpu_events

LAPIC, IOAPIC, PIN_VMGENID, PIN_SERIAL = 0xFEE00000, 0xFEC00000, 16, 4
VECTOR = 0x40
CODE_SELECTOR = 0x10

VARIABLES = ENTRY + 0x4000
TAKEN, TURNS, NOW, THEN, STACK = VARIABLES, VARIABLES + 4, VARIABLES + 8, VARIABLES + 12, VARIABLES + 0x1000
TABLE = ENTRY + 0x800  # of interrupts, behind what LIDT reads
HANDLER = ENTRY + 0x700
FIELDS = ENTRY + 0x2000

CLI, STI, NOP = b"\xfa", b"\xfb", b"\x90"
UD2 = b"\x0f\x0b"
TEST_EAX = b"\x85\xc0"


def at(address: int) -> bytes:
    return struct.pack("<I", address)


def store(address: int, value: int) -> bytes:
    return b"\xc7\x05" + at(address) + at(value)  # mov dword [address], value


def load(address: int) -> bytes:
    return b"\xa1" + at(address)  # mov eax, [address]


def load8(address: int) -> bytes:
    return b"\xa0" + at(address)  # mov al, [address]


def compare(address: int, value: int) -> bytes:
    return b"\x83\x3d" + at(address) + bytes([value])  # cmp dword [address], value


def spin(turns: int) -> bytes:
    return b"\xb9" + at(turns) + b"\x49\x75\xfd"  # mov ecx, turns; again: dec ecx; jnz again


def with_interrupts(pin: int, code: bytes) -> bytes:
    """`code` behind what makes an edge of that pin a call of a handler that counts in TAKEN, and copies NOW to THEN."""
    begin = b"\xbc" + at(STACK) + b"\x0f\x01\x1d" + at(TABLE)  # mov esp; lidt
    begin += store32(LAPIC + 0xF0, 0x1FF)  # enabled
    begin += store32(IOAPIC, 0x11 + 2 * pin) + store32(IOAPIC + 0x10, 0)
    begin += store32(IOAPIC, 0x10 + 2 * pin) + store32(IOAPIC + 0x10, VECTOR)
    handler = b"\xff\x05" + at(TAKEN) + store(LAPIC + 0xB0, 0)  # inc; EOI
    handler += b"\x8b\x15" + at(NOW) + b"\x89\x15" + at(THEN)
    handler += b"\x5e\x5f\x9d\xff\xe6"  # pop esi, edi; popf; jmp esi: software KVM has no IRET here
    table = struct.pack("<HI", 8 * (VECTOR + 1) - 1, TABLE + 8).ljust(8 + 8 * VECTOR, b"\0")
    table += struct.pack("<HHHH", HANDLER & 0xFFFF, CODE_SELECTOR, 0x8E00, HANDLER >> 16)
    whole = (begin + code).ljust(HANDLER - ENTRY, NOP)
    assert len(whole) == HANDLER - ENTRY
    return (whole + handler).ljust(TABLE - ENTRY, b"\0") + table


# The names that a kernel's `symbols` must have, with their sizes (docs/guest-kernel.md).
SYMBOLS = {
    "crng.key": 32, "crng.generation": 8, "pool.hash": 32, "boot_id": 16, "uts.nodename": 65, "tk": 16, "tk_shadow": 16,
    "tk.seq": 4, "tk.xtime_sec": 8, "tk.wall_to_monotonic.sec": 8, "tk.wall_to_monotonic.nsec": 8, "tk.offs_real": 8,
    "tk.offs_tai": 8, "tk.tai_offset": 4, "tk.clock_was_set_seq": 4, "tk.mono.mult": 4, "tk.mono.shift": 4,
    "tk.mono.cycle_last": 8, "tk.mono.xtime_nsec": 8, "tk.mono.base": 8, "tk.mono.base_real": 8, "tk_fast.0.base_real": 8,
    "tk_fast.1.base_real": 8, "vdso.seq": 4, "vdso.raw_seq": 4, "vdso.realtime.sec": 8, "vdso.realtime.nsec": 8,
    "vdso.realtime_coarse.sec": 8, "vdso.realtime_coarse.nsec": 8, "vdso.tai.sec": 8, "vdso.tai.nsec": 8,
    "hrtimer.realtime": 8, "hrtimer.realtime_soft": 8, "hrtimer.tai": 8, "hrtimer.tai_soft": 8}
ADDRESS = {name: FIELDS + 128 * n for n, name in enumerate(SYMBOLS)}


def with_fields(code: bytes) -> bytes:
    """`code` with fields in which the clock of a kernel is plausible."""
    now = int(time.time())
    values = {"crng.generation": 1, "tk.xtime_sec": now, "tk.offs_real": now * 10**9, "tk.mono.mult": 1}
    image = bytearray(code.ljust(FIELDS - ENTRY + 128 * len(SYMBOLS), b"\0"))
    for name, value in values.items():
        where = ADDRESS[name] - ENTRY
        image[where:where + SYMBOLS[name]] = value.to_bytes(SYMBOLS[name], "little")
    return bytes(image)


def section(directory, tag: bytes) -> bytes:
    state, here = (directory / "state").read_bytes(), 8
    while state[here:here + 4] != tag:
        here += 16 + struct.unpack_from("<I", state, here + 8)[0]
    return state[here + 16:here + 16 + struct.unpack_from("<I", state, here + 8)[0]]


def is_masked(directory) -> bool:
    return not struct.unpack_from("<Q", section(directory, b"REGS"), RFLAGS)[0] & IF


def memory(directory, address: int, n: int) -> bytes:
    with open(directory / "memory", "rb") as file:
        return os.pread(file.fileno(), n, address)


@pytest.fixture
def boot(vmm, tmp_path):
    """boot(code, known=False) -> (monitor, console): the guest has said `r`."""
    opened = []

    def start(code: bytes, known: bool = False):
        path, symbols = tmp_path / "kernel", tmp_path / "symbols"
        path.write_bytes(elf(with_fields(code), pvh=True))
        symbols.write_text("virtual_base 1 0\n" + "".join(f"{n} {ADDRESS[n] + 1:x} {size:x}\n" for n, size in SYMBOLS.items()))
        monitor = vmm().__enter__()
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
        opened.extend((monitor, ours))
        with theirs:
            monitor.call("boot", kernel=str(path), memory_mb=64, serial="fd", fd=theirs.fileno(),
                         **({"symbols": str(symbols)} if known else {}))
        ours.settimeout(60)
        assert ours.recv(1) == b"r"
        return monitor, ours

    yield start
    for thing in opened:
        thing.__exit__(None, None, None)


READY = store8(SERIAL, ord("r"))
PENDING = LAPIC + 0x200 + 0x10 * (VECTOR // 32)  # bit 0: VECTOR waits

# Waits with interrupts off for one that is pending, lets it come, and powers off; dies of an instruction that there is not when it
# comes before it may: while they are off, or in the shadow of STI.
CAREFUL = with_interrupts(PIN_VMGENID, assemble(
    CLI, READY,
    "wait", b"\xff\x05" + at(TURNS), compare(TAKEN, 0), (IF_NOT_ZERO, "bad"), load(PENDING), b"\xa8\x01", (IF_ZERO, "wait"),
    compare(TAKEN, 0), (IF_NOT_ZERO, "bad"), STI, load(TAKEN), NOP, TEST_EAX, (IF_NOT_ZERO, "bad"), spin(10_000),
    compare(TAKEN, 1), (IF_NOT_ZERO, "bad"), store32(POWER, 1), HALT,
    "bad", UD2))


def test_unknown_kernel_goes_on_with_its_interrupts_off(vmm, boot, tmp_path):
    """It is told of the thaw by an interrupt, which waits until it may come."""
    monitor, _ = boot(CAREFUL)
    monitor.snapshot(tmp_path / "frozen")
    assert is_masked(tmp_path / "frozen")
    assert memory(tmp_path / "frozen", TAKEN, 4) == bytes(4)
    for _ in range(3):
        with vmm() as m:
            m.thaw(tmp_path / "frozen", None)
            end = m.event("exit")
            assert end["reason"] == "shutdown", end


# Turns on and off for ever, and powers off when an interrupt has come; dies when NOW was 0 then: no interrupt may come between STI
# and the instruction behind it.
SHADOWED = with_interrupts(PIN_VMGENID, assemble(
    READY,
    "again", CLI, store(NOW, 0), STI, store(NOW, 1), compare(TAKEN, 0), (IF_ZERO, "again"),
    CLI, compare(THEN, 1), (IF_NOT_ZERO, "bad"), store32(POWER, 1), HALT,
    "bad", UD2))


def test_frozen_in_the_shadow_of_sti(vmm, boot, tmp_path):
    monitor, _ = boot(SHADOWED)
    for n in range(200):
        frozen = tmp_path / f"frozen{n}"
        monitor.snapshot(frozen)
        if section(frozen, b"EVNT")[SHADOW]:
            break
        shutil.rmtree(frozen)
        monitor.call("resume")
    else:
        assert not SOFTWARE_KVM, "software KVM stops behind every instruction"
        pytest.skip("this KVM does not stop a vCPU there")
    assert not is_masked(frozen)
    with vmm() as m:
        m.thaw(frozen, None, paused=True)
        m.snapshot(tmp_path / "again")
        assert section(tmp_path / "again", b"EVNT") == section(frozen, b"EVNT")
        m.call("resume")
        end = m.event("exit")
        assert end["reason"] == "shutdown", end


BURST = b"".join(store8(SERIAL, ord("x")) for _ in range(16))
BURSTS = 1024
LAST = assemble(b"\xff\x05" + at(TURNS), b"\x81\x3d" + at(TURNS) + at(BURSTS))  # inc; cmp dword [TURNS], BURSTS
POLLED = assemble(READY, "again", load8(SERIAL + 5), b"\xa8\x20", (IF_ZERO, "again"), BURST, LAST, (IF_NOT_ZERO, "again"),
                  store32(POWER, 1), HALT)
INTERRUPTED = with_interrupts(PIN_SERIAL, assemble(
    CLI, READY, store8(SERIAL + 1, 2),
    "again", BURST,
    "wait", STI, b"\xf4", CLI, load8(SERIAL + 2), load8(SERIAL + 5), b"\xa8\x20", (IF_ZERO, "wait"), LAST, (IF_NOT_ZERO, "again"),
    store32(POWER, 1), HALT))


@pytest.mark.parametrize("code", [POLLED, INTERRUPTED], ids=["polled", "interrupted"])
def test_frozen_in_the_middle_of_its_consoles_output(vmm, boot, tmp_path, code):
    """With its transmitter busy, as nobody reads: the thawed guest, whose console is another, can say the rest."""
    monitor, console = boot(code)
    turns = []
    while len(turns) < 2 or turns[-1] != turns[-2]:
        monitor.snapshot(tmp_path / f"frozen{len(turns)}")
        turns.append(struct.unpack("<I", memory(tmp_path / f"frozen{len(turns)}", TURNS, 4))[0])
        monitor.call("resume")
        time.sleep(0.1)  # of output; how long it is does not matter
    assert 0 < turns[-1] < BURSTS
    for n in (0, len(turns) - 1):
        with vmm() as m:
            m.thaw(tmp_path / f"frozen{n}", None)
            assert m.event("exit")["reason"] == "shutdown"
    with pytest.raises(TimeoutError):
        monitor.event("exit", 0.1)  # the one that was frozen still waits,
    said = 0
    while said < 16 * BURSTS:  # until somebody listens
        said += len(console.recv(65536))
    assert monitor.event("exit")["reason"] == "shutdown"


def flashing(off: int, on: int) -> bytes:
    """Off and on for ever."""
    return assemble(CLI, READY, "again", spin(off), STI, spin(on), CLI, (JUMP, "again"))


def test_known_kernel_is_frozen_with_its_interrupts_on(vmm, boot, tmp_path):
    """However rarely they are; its random state is replaced at each thaw."""
    monitor, _ = boot(flashing(3000, 1000), known=True)
    keys = set()
    for n in range(10):
        monitor.snapshot(tmp_path / f"frozen{n}")
        assert not is_masked(tmp_path / f"frozen{n}")
        monitor.call("resume")
    for n in range(3):
        with vmm() as m:
            m.thaw(tmp_path / "frozen0", None)
            m.snapshot(tmp_path / f"again{n}")
        keys.add(memory(tmp_path / f"again{n}", ADDRESS["crng.key"], 32))
    assert len(keys) == 3 and bytes(32) not in keys


def test_known_kernel_that_keeps_them_off_is_not_frozen(boot, tmp_path):
    monitor, _ = boot(assemble(CLI, READY, "again", b"\xff\x05" + at(TURNS), (JUMP, "again")), known=True)
    with pytest.raises(VmmError, match="interrupts off.*idle"):
        monitor.snapshot(tmp_path / "frozen")
    monitor.call("resume")
    monitor.call("pause")


@pytest.mark.parametrize("way", ["thaw", "shell", "standby"])
def test_state_of_a_known_kernel_with_its_interrupts_off(vmm, boot, tmp_path, way):
    """Made by something else than this monitor."""
    monitor, _ = boot(flashing(100, 100), known=True)
    monitor.snapshot(tmp_path / "frozen")

    def mask(version, body):
        return version, body[:RFLAGS] + struct.pack("<Q", 2) + body[RFLAGS + 8:]

    rewrite(tmp_path / "frozen" / "state", b"REGS", mask)
    with vmm() as m:
        with pytest.raises(VmmError, match=r"interrupts off.*\| freeze"):
            m.call(way, dir=str(tmp_path / "frozen"), overlay_dir="/tmp")
        m.process.wait(60)  # that was its machine
