# SPDX-License-Identifier: Apache-2.0
"""Reported bugs of other monitors, played against a real guest (docs/threat-model.md has the table; rows by number)."""
import re
import socket
import struct
import time
from contextlib import ExitStack


from vmm import frame, request

AGENT = 1024


def thawed(m, directory):
    """Thaws what is no longer at the freeze point: a stream to its default context."""
    m.thaw(directory, None)
    return m.connect(m.thawed["port"])


def test_rows_12_13_15_five_generations(vmm, template, tmp_path):
    """A chain of freeze and thaw: variables, files and sleep go on, MONOTONIC never goes back, REALTIME is the host's."""
    source, last = template, 0.0
    for generation in range(5):
        with vmm() as m:
            if generation == 0:
                stream = m.thaw(source, "import time; history = []")
                assert stream.answer().result["status"] == "ok"
            else:
                stream = thawed(m, source)
            cell = stream.run(f"""
history.append({generation})
open("/home/user/chain", "a").write("{generation} ")
before = time.monotonic(); time.sleep(0.05); after = time.monotonic()
print(history, open("/home/user/chain").read().split(), before, after - before, time.time())""")
            assert cell.result["status"] == "ok", cell.result
            history, chain, rest = re.fullmatch(r"(\[.*?\]) (\[.*?\]) (.*)\n", cell.stdout.decode()).groups()
            assert history == str(list(range(generation + 1)))
            assert chain == str([str(n) for n in range(generation + 1)])
            before, slept, real = map(float, rest.split())
            assert before > last and slept >= 0.05
            assert abs(real - time.time()) < 60, "a stale wall clock"
            last = before + slept
            m.snapshot(tmp_path / f"generation-{generation}")
        source = tmp_path / f"generation-{generation}"


def test_row_4_pause_and_resume_without_a_snapshot(vmm, template):
    """Traffic in both directions afterwards, on the stream that was open and on a new one."""
    with vmm() as m:
        stream = m.thaw(template, "x = 20")
        assert stream.answer().result["status"] == "ok"
        for n in range(3):
            m.call("pause")
            m.call("resume")
            assert stream.run(f"x + {n}").text == str(20 + n)
            assert m.connect(AGENT).ask(op="ping").result["status"] == "ok"


def test_rows_1_2_3_frozen_under_traffic(vmm, template, tmp_path):
    """Bytes were flowing each way at the freeze; the thawed guest answers the first connection, whoever speaks first."""
    with vmm() as m:
        stream = m.thaw(template, "import time")
        assert stream.answer().result["status"] == "ok"
        stream.sock.sendall(request(op="run", code="for i in range(10 ** 6): print('y' * 4096)", max_output=0))
        assert stream.sock.recv(1)  # it prints; nobody reads the rest, so that it stands still with bytes under way
        other = m.connect(AGENT)
        other.sock.sendall(request(op="write", path="/tmp/half", size=1 << 20) + frame(2, b"z" * 65536))
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        m.thaw(tmp_path / "frozen", None)
        agent = m.connect(AGENT)
        assert agent.ask(op="ping").result["status"] == "ok"
        assert m.connect(AGENT).ask(op="stat", path="/tmp").result["status"] == "ok"
        assert m.connect(AGENT).ask(op="stat", path="/tmp/half").result["status"] != "ok", "half a file has its name"


def test_row_18_open_connections_are_reset(vmm, template, tmp_path):
    """One open each way across the freeze: its end in the guest is told, and the next connect works at once."""
    path = tmp_path / "vsock"
    with socket.socket(socket.AF_UNIX) as listener, vmm() as m:
        listener.bind(f"{path}_7000")
        listener.listen()
        listener.settimeout(60)
        stream = m.thaw(template, "import socket", vsock=str(path))
        assert stream.answer().result["status"] == "ok"
        cell = stream.run("s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)\ns.settimeout(60); s.connect((2, 7000))")
        assert cell.result["status"] == "ok", cell.result
        accepted, _ = listener.accept()
        m.snapshot(tmp_path / "frozen")
        accepted.close()
    with vmm() as m:
        stream = thawed(m, tmp_path / "frozen")
        cell = stream.run("try: print(s.recv(1))\nexcept OSError as e: print('OSError')")
        assert cell.stdout in (b"b''\n", b"OSError\n"), cell
        assert m.connect(AGENT).ask(op="ping").result["status"] == "ok"


def ask_by_path(path, port: int) -> bytes:
    """The first bytes that a program on that port of the guest says, by the convention of the Unix socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(60)
        s.connect(str(path))
        s.sendall(f"CONNECT {port}\n".encode())
        said = b""
        while said.count(b"\n") < 2 and (more := s.recv(4096)):
            said += more
    return said


def test_row_7_clones_at_once_of_one_that_listens(vmm, template, tmp_path):
    """Frozen with a socket path, a program that listens and a connection that is open: clones of it that live at one moment
    have a path each, and each answers for itself. The one of the path that was frozen is free."""
    code = ("import socket, threading\n"
            "listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); listener.bind((0xffffffff, 5000)); listener.listen()\n"
            "def serve():\n"
            "    while True:\n"
            "        s, _ = listener.accept(); s.sendall(f'{who}\\n'.encode())\n"
            "threading.Thread(target=serve, daemon=True).start(); who = 'original'")
    path = tmp_path / "vsock"
    with vmm() as m:
        stream = m.thaw(template, "1", vsock=str(path))
        assert stream.answer().text == "1"
        assert stream.run(code).result["status"] == "ok"
        assert ask_by_path(path, 5000).endswith(b"original\n")
        m.snapshot(tmp_path / "frozen")
    with ExitStack() as stack:
        clones = [stack.enter_context(vmm()) for _ in range(4)]
        paths = [path, *(tmp_path / f"vsock-{n}" for n in range(1, 4))]
        for n, m in enumerate(clones):
            m.thaw(tmp_path / "frozen", None, vsock=str(paths[n]), id=f"clone-{n}", hostname=f"clone-{n}")
        streams = [m.connect(m.thawed["port"]) for m in clones]
        for n, stream in enumerate(streams):
            assert stream.run(f"who = 'clone-{n}'").result["status"] == "ok"
        for _ in range(2):
            for n in range(4):
                assert ask_by_path(paths[n], 5000).endswith(f"clone-{n}\n".encode())
    assert not [p for p in paths if p.exists()]


def test_row_6_connection_storm_right_after_a_thaw(vmm, template, tmp_path):
    """Hundreds of connections before the guest has taken note of the reset: each is answered, none is lost."""
    with vmm() as m:
        stream = m.thaw(template, "1")
        assert stream.answer().text == "1"
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        m.thaw(tmp_path / "frozen", None)
        streams = [m.connect(AGENT) for _ in range(100)]
        for each in streams:
            each.sock.sendall(request(op="ping"))
        for each in streams:
            assert each.answer().result["status"] == "ok"


def test_rows_8_9_10_disk_io_in_flight(vmm, template, tmp_path):
    """Frozen while an fsync is under way (many requests of it held back): its data are whole afterwards."""
    with vmm() as m:
        stream = m.thaw(template, "import os, threading, hashlib, random", limits={"disk_ops": {"rate": 5, "burst": 1}})
        assert stream.answer().result["status"] == "ok"
        cell = stream.run("data = random.Random(5).randbytes(1 << 18)\n"
                          "fd = os.open('/home/user/f', os.O_CREAT | os.O_RDWR)\n"
                          "for at in range(0, len(data), 4096): os.pwrite(fd, data[at:at + 4096], 2 * at)\n"
                          "t = threading.Thread(target=os.fsync, args=(fd,)); t.start()")
        assert cell.result["status"] == "ok", cell.result
        end = time.monotonic() + 60
        while not m.call("stats")["disks"][1]["throttle"]["waits"]:
            assert time.monotonic() < end
            time.sleep(0.02)
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        cell = thawed(m, tmp_path / "frozen").run(
            "t.join(); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            "hashlib.sha256(b''.join(os.pread(fd, 4096, 2 * at) for at in range(0, len(data), 4096))).digest()"
            " == hashlib.sha256(data).digest()")
        assert cell.text == "True", cell


def test_row_14_no_splat_in_the_kernels_log(vmm, template, tmp_path):
    """Thawed as if a month had gone by: no soft lockup, no stall, no clocksource that is marked unstable."""
    with vmm() as m:
        stream = m.thaw(template, "import subprocess", age_s=30 * 86400)
        assert stream.answer().result["status"] == "ok"
        log = stream.run("print(subprocess.run(['sudo', 'dmesg'], capture_output=True, text=True).stdout)").stdout
        assert b"Linux version" in log
        for bad in (b"soft lockup", b"rcu_", b"stall", b"unstable", b"BUG:", b"WARNING:"):
            assert not re.search(re.escape(bad) + rb".*(detected|CPU|on|stuck)", log), (bad, log[-2000:])


def test_row_5_an_idle_clone_stands_still(vmm, template):
    """No thread of the monitor spins: the CPU time of ten idle turns of the clock is a small part of it."""
    with vmm() as m:
        assert m.thaw(template, "1").answer().text == "1"

        def ticks() -> int:
            fields = open(f"/proc/{m.process.pid}/stat").read().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        time.sleep(1)
        before = ticks()
        time.sleep(3)
        assert ticks() - before < 150, "half of a CPU of the interval (100 ticks a second)"


def sections(state: bytes) -> dict[str, bytes]:
    """The first section of each tag (docs/snapshot.md)."""
    at, found = 8, {}
    while at < len(state):
        length = struct.unpack_from("<I", state, at + 8)[0]
        found.setdefault(state[at:at + 4].decode(), state[at + 16:at + 16 + length])
        at += 16 + length
    return found


def msrs(body: bytes) -> dict[int, int]:
    return {index: data for index, _, data in struct.iter_unpack("<IIQ", body)}


def test_row_19_cpu_state_is_the_same_before_and_after(vmm, template, tmp_path):
    """Thawed and frozen again without an instruction between: registers, XSAVE area, CPUID and all MSRs but the clocks."""
    first = tmp_path / "first"
    with vmm() as m:
        assert m.thaw(template, "1").answer().text == "1"
        m.snapshot(first)
    with vmm() as m:
        m.thaw(first, None, paused=True)
        m.snapshot(tmp_path / "second")
    before, after = (sections((tmp_path / name / "state").read_bytes()) for name in ("first", "second"))
    for tag in ("CPID", "REGS", "SREG", "XCRS", "XSAV", "DREG"):
        assert before[tag] == after[tag], tag
    old, new = msrs(before["MSRS"]), msrs(after["MSRS"])
    assert old.keys() == new.keys() and len(old) > 20
    moving = {0x10, 0x6E0}  # TSC and its deadline
    assert {n: v for n, v in old.items() if n not in moving} == {n: v for n, v in new.items() if n not in moving}
    assert new[0x10] >= old[0x10]
