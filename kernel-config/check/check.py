#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check a built guest kernel: it boots, and every address in `symbols` is what it says.

Boots KERNEL_DIR/vmlinux under QEMU's microvm machine with the guest's memory in a shared file,
stops the machine while it stands in ring 3, replaces random state, boot id, node name and wall
clock through that file (as the monitor does at a thaw), and lets the guest judge the result.
docs/guest-kernel.md explains the procedure; this is its reference in Python.
"""

import argparse
import json
import mmap
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY_MIB = 128
NS = 1_000_000_000
DELTA_NS = 1234567 * NS + 987_654_321  # two weeks and a fraction that carries
SOFTWARE_KVM = ("noxsave clearcpuid=popcnt,cx16,smap,fsgsbase,rdpid,erms,fsrm "
                "no_timer_check lpj=1000000 rodata=off tick_stretch=5")
COMMON = "quiet rdinit=/init"


class Guest:
    """Fields of the guest kernel by name, read and written in guest-physical memory."""

    def __init__(self, memory, symbols_path):
        self.memory = memory
        self.where = {}
        for line in symbols_path.read_text().splitlines():
            name, address, size = line.split()
            self.where[name] = (int(address, 16), int(size, 16))
        self.virtual_base, _ = self.where.pop("virtual_base")

    def bytes(self, name):
        address, size = self.where[name]
        at = address - self.virtual_base
        return self.memory[at : at + size]

    def put_bytes(self, name, data):
        address, size = self.where[name]
        assert len(data) == size, (name, len(data), size)
        at = address - self.virtual_base
        self.memory[at : at + size] = data

    def get(self, name):
        return int.from_bytes(self.bytes(name), "little", signed=True)

    def put(self, name, value):
        _, size = self.where[name]
        self.put_bytes(name, (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little"))

    def add(self, name, value):
        self.put(name, self.get(name) + value)


def move_wall_clock(g, d):
    """CLOCK_REALTIME += d nanoseconds; CLOCK_MONOTONIC stays. The vCPU is stopped with IF = 1."""
    assert g.get("tk.seq") % 2 == 0 and g.get("vdso.seq") % 2 == 0, "an update is open"
    assert g.bytes("tk") == g.bytes("tk_shadow"), "the shadow timekeeper differs"
    shift = g.get("tk.mono.shift")
    # The wall time, in shifted nanoseconds below the second.
    second = NS << shift
    carry, xtime_nsec = divmod(g.get("tk.mono.xtime_nsec") + ((d % NS) << shift), second)
    xtime_sec = g.get("tk.xtime_sec") + d // NS + carry
    # The distance to the monotonic clock, the other way; its nanoseconds stay in 0..999999999.
    offs_real = g.get("tk.offs_real") + d
    wtm_sec, wtm_nsec = divmod(-offs_real, NS)
    base = (xtime_sec + wtm_sec) * NS + wtm_nsec

    g.put("tk.xtime_sec", xtime_sec)
    g.put("tk.mono.xtime_nsec", xtime_nsec)
    g.put("tk.wall_to_monotonic.sec", wtm_sec)
    g.put("tk.wall_to_monotonic.nsec", wtm_nsec)
    g.put("tk.offs_real", offs_real)
    g.add("tk.offs_tai", d)
    g.put("tk.mono.base", base)
    g.put("tk.mono.base_real", base + offs_real)
    g.add("tk.clock_was_set_seq", 1)
    g.put_bytes("tk_shadow", g.bytes("tk"))
    g.add("tk_fast.0.base_real", d)
    g.add("tk_fast.1.base_real", d)
    g.put("vdso.realtime.sec", xtime_sec)
    g.put("vdso.realtime.nsec", xtime_nsec)
    g.put("vdso.realtime_coarse.sec", xtime_sec)
    g.put("vdso.realtime_coarse.nsec", xtime_nsec >> shift)
    g.put("vdso.tai.sec", xtime_sec + g.get("tk.tai_offset"))
    g.put("vdso.tai.nsec", xtime_nsec)
    for base in ("realtime", "realtime_soft", "tai", "tai_soft"):
        g.add("hrtimer." + base, d)
    # A reader that was interrupted between its two looks at the sequence starts again.
    g.add("tk.seq", 2)
    g.add("vdso.seq", 2)
    g.add("vdso.raw_seq", 2)


def replace_random_state(g, key, pool):
    generation = g.get("crng.generation")
    assert g.get("vdso.rng_generation") == generation + 1, "the vDSO's generation does not fit"
    g.put_bytes("crng.key", key)
    g.put("crng.generation", generation + 1)
    g.put("vdso.rng_generation", generation + 2)
    g.put_bytes("pool.hash", bytes(a ^ b for a, b in zip(g.bytes("pool.hash"), pool)))


def chacha20_block(key):
    """The first block for this key with counter and nonce 0, as the kernel's generator uses it."""
    state = list(struct.unpack("<4I", b"expand 32-byte k") + struct.unpack("<8I", key)) + [0] * 4
    x = state[:]

    def quarter(a, b, c, d):
        for p, q, r, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[p] = (x[p] + x[q]) & 0xFFFFFFFF
            v = x[r] ^ x[p]
            x[r] = ((v << n) | (v >> (32 - n))) & 0xFFFFFFFF

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, state)))


def first_random_bytes(key):
    """What getrandom(32) returns first when the generator starts from this base key."""
    return chacha20_block(chacha20_block(key)[32:])[32:]


class Qmp:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        self.file = self.sock.makefile("rw")
        self.file.readline()
        self.run("qmp_capabilities")

    def run(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            answer = json.loads(self.file.readline())
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']['desc']}")

    def stop_in_ring3(self):
        for _ in range(200):
            self.run("stop")
            registers = self.run("human-monitor-command", **{"command-line": "info registers"})
            if re.search(r"CPL=3", registers):
                return
            self.run("cont")
            time.sleep(0.01)
        raise RuntimeError("the guest does not stay in ring 3")


def cpio(name, data, mode):
    """One entry of an uncompressed initramfs ("newc")."""
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    out = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
    out += b"\0" * (-len(out) % 4)
    return out + data + b"\0" * (-len(data) % 4)


def make_initrd(path, init):
    path.write_bytes(cpio("proc", b"", 0o40755) + cpio("init", init.read_bytes(), 0o100755)
                     + cpio("TRAILER!!!", b"", 0))


def kvm_is_software():
    return not any(Path("/sys/module", m).exists() for m in ("kvm_intel", "kvm_amd"))


class Failures:
    def __init__(self):
        self.count = 0

    def expect(self, condition, name, detail=""):
        print(f"  {'ok  ' if condition else 'FAIL'} {name} {'' if condition else detail}")
        self.count += not condition


def host_part(qmp, memory, symbols, said, failures):
    """Runs when the guest said READY. Returns what the guest must say next."""
    time.sleep(0.5)
    qmp.stop_in_ring3()
    g = Guest(memory, symbols)
    failures.expect(g.bytes("uts.nodename").rstrip(b"\0") == b"before", "nodename is found")
    failures.expect(uuid.UUID(bytes=bytes(g.bytes("boot_id"))) == uuid.UUID(said["boot_id"]),
                    "boot id is found")
    failures.expect(0 <= g.get("tk.xtime_sec") - int(said["realtime"]) <= 60,
                    "wall clock is found", f"{g.get('tk.xtime_sec')} {said['realtime']}")
    failures.expect(g.get("tk.offs_real") == -(g.get("tk.wall_to_monotonic.sec") * NS
                                               + g.get("tk.wall_to_monotonic.nsec"))
                    == g.get("hrtimer.realtime"), "its copies agree")
    failures.expect(0 < g.get("crng.generation") < 1000, "generation is found")

    key, boot_id = secrets.token_bytes(32), uuid.uuid4()
    replace_random_state(g, key, secrets.token_bytes(32))
    g.put_bytes("boot_id", boot_id.bytes)
    g.put_bytes("uts.nodename", b"after".ljust(65, b"\0"))
    move_wall_clock(g, DELTA_NS)
    qmp.run("cont")
    return {"random": first_random_bytes(key).hex(), "boot_id": str(boot_id), "nodename": "after"}


def run(args, scratch):
    init = scratch / "init"
    subprocess.run(["gcc", "-std=c11", "-O2", "-static", "-o", init, HERE / "init.c"], check=True)
    make_initrd(scratch / "initrd", init)
    ram = scratch / "ram"
    cmdline = f"console=ttyS0 {COMMON} {SOFTWARE_KVM if kvm_is_software() else ''}"
    qemu = subprocess.Popen(
        ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host,arch-capabilities=off",
         "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
         "-M", "microvm,acpi=off,pit=off,pic=off,rtc=off,memory-backend=m", "-m", str(MEMORY_MIB),
         "-object", f"memory-backend-file,id=m,size={MEMORY_MIB}M,mem-path={ram},share=on",
         "-qmp", f"unix:{scratch}/qmp,server=on,wait=off", "-serial", "stdio",
         "-kernel", args.dir / "vmlinux", "-initrd", scratch / "initrd",
         "-append", f"{cmdline} -- {DELTA_NS}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace")
    started, failures, said, expected, done = time.monotonic(), Failures(), {}, {}, False
    watchdog = threading.Timer(args.timeout, qemu.kill)
    watchdog.start()
    try:
        for line in qemu.stdout:
            line = line.strip()
            word, _, rest = line.partition(" ")
            if word == "say":
                name, _, value = rest.partition(" ")
                said[name] = value
                if name == "init":
                    print(f"  init after {time.monotonic() - started:.1f} s, kernel says {value} ms")
                elif name == "phase":
                    print(f"  {value} the change:")
                if name in expected:
                    failures.expect(value == expected.pop(name), f"{name} replaced", value)
            elif word in ("ok", "FAIL"):
                failures.expect(word == "ok", rest)
            elif line == "READY":
                with open(ram, "r+b") as f, mmap.mmap(f.fileno(), 0) as memory:
                    expected = host_part(Qmp(scratch / "qmp"), memory, args.dir / "symbols", said,
                                         failures)
            elif line == "DONE":
                done = True
                break
            elif line:
                print(f"  guest: {line}")
    finally:
        watchdog.cancel()
        qemu.kill()
        qemu.wait()
    failures.expect(done and not expected, "the guest came to its end", f"missing: {expected}")
    return failures.count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, metavar="KERNEL_DIR", help="for example out/kernel/current")
    parser.add_argument("--timeout", type=int, default=600, help="seconds (default 600)")
    args = parser.parse_args()
    for need, remedy in (("qemu-system-x86_64", "apt-get install qemu-system-x86"),
                         ("gcc", "apt-get install gcc libc6-dev")):
        if not shutil.which(need):
            sys.exit(f"check: {need} is missing: {remedy}")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        sys.exit("check: no access to /dev/kvm: run as root, or give your group access to it")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that QEMU ends too
    if not (args.dir / "symbols").exists():
        sys.exit(f"check: no kernel in {args.dir}: run `make kernel`")
    with tempfile.TemporaryDirectory(prefix="kernel-check-", dir="/dev/shm") as scratch:
        failed = run(args, Path(scratch))
    print(f"check: {'FAILED: ' + str(failed) if failed else 'all right'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
