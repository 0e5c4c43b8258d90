#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed inputs of the fuzz targets into tests/fuzz/corpus. Run after a format has changed."""
import json
import re
import struct
import zlib
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def put(target: str, name: str, data: bytes) -> None:
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(data)


def section(tag: bytes, version: int, body: bytes, instance: int = 0) -> bytes:
    """A section with checksum 0: the target mends it when the first byte of the input is 1."""
    return tag + struct.pack("<HHII", instance, version, len(body), 0) + body


def state() -> None:
    v1 = struct.pack("<BQ5H", 7, 1 << 40, 1, 2, 3, 4, 5)
    v2 = v1 + struct.pack("<I", 99)
    v3 = v2 + bytes(range(7))
    for n, body in enumerate((v1, v2, v3), 1):
        put("state", f"sample-v{n}", b"\1" + section(b"SAMP", n, body))
    put("state", "too-new", b"\1" + section(b"SAMP", 4, v3))
    put("state", "cut", b"\1" + section(b"SAMP", 3, v3)[:-3])
    put("state", "bad-checksum", b"\0" + section(b"SAMP", 3, v3))
    put("state", "raw", b"\1" + section(b"RAWS", 0, b"x" * 40) + section(b"SAMP", 3, v3))
    queue = struct.pack("<HBQQQHHHB", 64, 1, 0x1000, 0x2000, 0x3000, 5, 5, 4, 1)
    put("state", "virtq", b"\1" + section(b"VIRQ", 1, queue))


def virtq() -> None:
    def ring(flags: int, descs: list[tuple[int, int, int, int]], avail: list[int], table: bytes = b"") -> bytes:
        size_log2, desc, av, used = 3, 0x0, 0x100, 0x200
        mem = bytearray(0x1000)
        for i, d in enumerate(descs):
            struct.pack_into("<QIHH", mem, desc + 16 * i, *d)
        struct.pack_into(f"<HH{len(avail)}H", mem, av, 0, len(avail), *avail)
        mem[0x800:0x800 + len(table)] = table
        return struct.pack("<BBHHHH", flags, size_log2, desc // 4, av // 4, used // 4, 0) + bytes(mem)

    NEXT, WRITE, INDIRECT = 1, 2, 4
    put("virtq", "read-write", ring(0, [(0x400, 64, NEXT, 1), (0x500, 32, WRITE, 0)], [0]))
    put("virtq", "two-chains", ring(2, [(0x400, 64, 0, 0), (0x500, 32, WRITE, 0)], [0, 1]))
    put("virtq", "loop", ring(0, [(0x400, 64, NEXT, 1), (0x500, 32, NEXT, 0)], [0]))
    put("virtq", "outside", ring(0, [(0x1FFFF, 64, 0, 0)], [0]))
    put("virtq", "wrap", ring(0, [(0xFFFFFFFFFFFFFFF0, 64, 0, 0)], [0]))
    put("virtq", "write-then-read", ring(0, [(0x400, 64, NEXT | WRITE, 1), (0x500, 32, 0, 0)], [0]))
    table = struct.pack("<QIHHQIHH", 0x400, 64, NEXT, 1, 0x500, 32, WRITE, 0)
    put("virtq", "indirect", ring(3, [(0x800, 32, INDIRECT, 0)], [0], table))
    put("virtq", "indirect-length", ring(3, [(0x800, 31, INDIRECT, 0)], [0], table))
    nested = struct.pack("<QIHH", 0x800, 16, INDIRECT, 0)
    put("virtq", "indirect-nested", ring(3, [(0x800, 16, INDIRECT, 0)], [0], nested))
    put("virtq", "head-outside", ring(0, [(0x400, 64, 0, 0)], [900]))


def frames() -> None:
    result = json.dumps({"status": "ok", "execution_count": 1, "error": None}).encode()
    display = json.dumps({"kind": "result", "data": {"text/plain": "2"}, "metadata": {}}).encode()
    put("frames", "cell", b"\7" + frame(0x11, b"hello\n") + frame(0x14, display) + frame(0x10, result))
    put("frames", "continued", b"\7" + frame(0x91, b"a" * 300) + frame(0x11, b"b") + frame(0x10, result))
    put("frames", "too-long", b"\7" + struct.pack("<IB", 1 << 21, 0x11) + b"x" * 64)
    put("frames", "empty-end", b"\7" + frame(0x03, b"") + frame(0x10, b"{}"))
    put("frames", "cut", b"\7" + frame(0x10, result)[:-5])
    put("frames", "mixed-continuation", b"\7" + frame(0x91, b"a") + frame(0x12, b"b"))


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


RESULT = frame(0x10, json.dumps({"status": "ok", "execution_count": 1, "error": None, "alive": False, "port": 2001,
                                 "size": 5, "mode": 420, "exit": 0, "matches": []}).encode())
DISPLAY = frame(0x14, json.dumps({"kind": "result", "data": {"text/plain": "2"}, "metadata": {}}).encode())


def blk() -> None:
    """driver.h's operations, and requests of the honest driver: kind, fill, sector, sectors, cuts."""
    def honest(flags: int, *requests: bytes) -> bytes:
        return bytes([flags | 4, 0]) + b"".join(requests)

    read, write, discard, zeroes = (lambda *a, k=k: bytes([k, *a]) for k in range(4))
    for name, flags in (("base", 0), ("overlay", 1), ("readonly", 2)):
        put("blk", f"honest-{name}", honest(flags, write(9, 1, 3) + b"\x00\x01\x10\x00", read(0, 0, 8) + b"\x40\x02",
                                            discard(0, 0, 30), zeroes(0, 5, 3), write(7, 8, 16)))
    put("blk", "honest-beyond-the-end", honest(1, write(1, 63, 4), zeroes(0, 64, 1), discard(0, 66, 66)))
    put("blk", "hostile", bytes([1, 0]) + bytes([1, 0, 0, 0, 0, 0x40, 3, 1, 1,  # a header of 16 bytes, then
                                                 1, 0, 1, 0, 0, 0x42, 1, 2, 0,  # a status of one
                                                 2, 0, 0, 5, 0, 6, 0, 7, 0]))
    put("blk", "reset-in-flight", bytes([0, 0]) + bytes([1, 0, 0, 0, 0, 0x40, 9, 2, 0, 2, 0, 0, 5, 0, 8, 0, 0, 5, 0, 6, 0]))


def vsock() -> None:
    def packet(op: int, kind: int = 0, tail: bytes = b"") -> bytes:
        """Ports are the last ones; `kind` has the flags of send_packet()."""
        return bytes([0, op | kind, 0, 0]) + tail

    connect = bytes([0, 1 | 0x10, 0x81, 0x81, 0])  # guest port 1 to host port 1
    turn, rx = bytes([4]), bytes([3])
    put("vsock", "guest-connects", b"\0\0" + connect + turn + rx + turn + packet(5, 0x80, b"\x10\0\0") + turn)
    put("vsock", "refused", b"\1\0" + connect + turn + rx + turn)
    put("vsock", "host-connects", b"\0\0" + bytes([2, 0]) + turn + bytes([2, 6]) + turn + turn + bytes([2, 36, 2]) +
        turn + packet(2) + turn + bytes([2, 12, 4]) + b"word" + turn)
    put("vsock", "credit-lie", b"\0\0" + connect + turn + packet(6, 0x40, b"\0" + bytes([0xff] * 8)) + turn)
    put("vsock", "storm", b"\0\0" + b"".join(bytes([0, 1 | 0x10, 0xe0 + n, 0x81, 0]) for n in range(24)) + turn * 4)


def accesses() -> None:
    def write(device: int, reg: int, value: int) -> bytes:
        return bytes([0, 0x40, reg, device]) + struct.pack("<I", value)

    regs = [0x14, 0x20, 0x24, 0x30, 0x38, 0x44, 0x50, 0x64, 0x70, 0x80, 0x90, 0xA0, 0x08, 0x10, 0x18, 0x0C]
    reg = {r: i for i, r in enumerate(regs)}
    put("mmio", "start-all", b"\1" + bytes([5, 0, 0, 5, 1, 0, 5, 2, 0, 6]))
    put("mmio", "kick-all", b"\0" + bytes([5, 0, 0, 5, 1, 0, 5, 2, 0]) + write(0, reg[0x50], 1) + write(1, reg[0x50], 0) + b"\6")
    put("mmio", "size-after-driver-ok", b"\1" + bytes([5, 1, 0]) + write(1, reg[0x38], 0xFFFF) + write(1, reg[0x80], 0xFFFFFFF0))
    put("mmio", "queue-sel-out-of-range", b"\1" + write(1, reg[0x30], 0xFFFFFFFF) + write(1, reg[0x38], 8) + write(1, reg[0x44], 1))
    put("mmio", "ioapic-storm", b"\0" + b"".join(bytes([0, 0x40, 12, 5]) + struct.pack("<I", n) for n in range(16)))
    put("mmio", "doorbell", b"\0" + b"".join(bytes([0, 0x40, 0xa0, 4]) + struct.pack("<HI", r, v) for r, v in (
        (4, 0x1000), (8, 0), (4, 0x2000), (8, 0), (0x0C, 2000))) + bytes([0, 0x80, 0xa0, 4, 0x10, 0, 7, 2]) +
        bytes([0, 0x40, 0xa0, 4]) + struct.pack("<HI", 0x14, 100) + bytes([0, 0x40, 0xa0, 4]) + struct.pack("<HI", 0x18, 0xFFFFFFFF))
    for flags in range(8):
        put("serial", f"burst-{flags}", bytes([flags, 2, 40, 6, 0, 4, 200, 2, 255, 3, 0, 4, 255, 1, 0, 15, 0, 1, 0, 2, 0, 0, 2, 5, 3]) + b"abc" + b"\6\0\3\0\0\0")
    put("ioapic", "edges", b"".join(bytes([0, n, 1, 0]) + struct.pack("<BI", 0x10 + 2 * n, 0x30 + n) for n in range(24)))
    put("ioapic", "masked", bytes([1, 0, 0x12]) + struct.pack("<I", 0x10031) + bytes([0, 1, 1, 0, 0x12]) + struct.pack("<I", 0x31))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def queue(instance: int, ready: int) -> bytes:
    at = 0x800 * (instance % 3)
    return section(b"VIRQ", 1, struct.pack("<HBQQQHHHB", 16, ready, at, at + 0x200, at + 0x400, 3, 3, 3, 1), instance)


def device(instance: int, queues: int, status: int, own: bytes) -> bytes:
    vdev = section(b"VDEV", 1, struct.pack("<IIIIIIQ", status, 1, 0, 0, 0, 0, 1 << 32), instance)
    return vdev + b"".join(queue(3 * instance + q, status // 15) for q in range(queues)) + own


def snapshot() -> None:
    """A machine of 1 MiB with one vCPU and two disks; sizes are those of Linux's KVM structures."""
    head = section(b"HEAD", 1, bytes(16) + struct.pack("<QQII", 1 << 20, 0, 1, 2) + bytes(96))
    head += section(b"DISK", 1, struct.pack("<BQI", 1, 4096, crc32c(bytes(4096))) + b"image".ljust(256, b"\0"), 0)
    head += section(b"DISK", 1, struct.pack("<BQI", 0, 4096, 0) + bytes(256), 1)
    cpu = section(b"GSYM", 1, bytes(36 * 8 + 4)) + section(b"CLCK", 1, bytes(8))
    for tag, size in (("CPID", 40), ("REGS", 144), ("SREG", 312), ("XCRS", 392), ("XSAV", 4096), ("DREG", 128),
                      ("LAPC", 1024)):
        cpu += section(tag.encode(), 0, bytes(size))
    cpu += section(b"MSRS", 0, struct.pack("<IIQ", 0x10, 0, 1)) + section(b"EVNT", 0, bytes(64))
    cpu += section(b"MPST", 0, bytes(4)) + section(b"TSCD", 0, bytes(24))

    def machine(status: int, replies: int, pages: list[int]) -> bytes:
        bell = struct.pack("<IIII64QI", 1, 2000, 0, len(pages), *pages, *[0] * (64 - len(pages)), 2)
        apic = struct.pack("<III24Q", 0, 0, 0, *[1 << 16] * 24)
        uart = struct.pack("<9BII64B", *[0] * 5, 1, 0, 0, 0, 0, 0, *[0] * 64)
        lost = struct.pack("<QIIIHI", 3, 1, 0, 0, 0, replies) + bytes(64 * 18)
        return (section(b"BELL", 2, bell) + section(b"IOAP", 1, apic) + section(b"UART", 1, uart) +
                device(0, 3, status, section(b"VSCK", 1, lost)) +
                device(1, 1, status, section(b"BLK ", 1, struct.pack("<QB", 4096, 1), 1)) +
                device(2, 1, status, section(b"BLK ", 1, struct.pack("<QB", 4096, 0), 2)))

    put("snapshot", "idle", b"THAWBOX1" + head + cpu + machine(0, 0, []))
    put("snapshot", "running", b"THAWBOX1" + head + cpu + machine(15, 64, [0x1000, 0x2000]))
    put("snapshot", "mailbox-outside", b"THAWBOX1" + head + cpu + machine(15, 0, [1 << 40, 0x2000]))
    put("snapshot", "head-only", b"THAWBOX1" + head)


def memory() -> None:
    def runs(*entries: tuple[int, int, int]) -> bytes:
        head = bytes(16) + struct.pack("<IIIIII", len(entries), 1, 1, 1, 1, 1)
        return section(b"WSET", 4, head) + section(b"RUNS", 0, b"".join(struct.pack("<QII", *e) for e in entries))

    put("workset", "all-classes", runs((0, 1, 0), (0x1000, 2, 1), (0x4000, 1, 2), (0x100000000, 4, 3), (0x6000, 9, 4)))
    put("workset", "outside", runs((0x1F000, 2, 1)))
    put("workset", "wraps", runs((0xFFFFFFFFFFFFF000, 0xFFFFFFFF, 1)))
    put("workset", "no-runs", runs())

    def entry(table: int, slot: int, kind: int, to: int) -> bytes:
        return struct.pack("<BHBB", table, slot, kind, to)

    chain = entry(0, 0, 3, 1) + entry(1, 0, 3, 2) + entry(2, 0, 3, 3)
    put("guestpages", "one-page", b"\0\0" + chain + entry(3, 5, 7, 9) + entry(3, 6, 1, 8))
    put("guestpages", "loop", b"\0\0" + b"".join(entry(0, n, 7, 0) for n in range(6)))
    put("guestpages", "large", b"\0\0" + chain + entry(2, 1, 11, 4) + entry(1, 1, 11, 4))
    put("guestpages", "upper-half", b"\0\0" + entry(0, 300, 3, 1) + chain)

    names = re.findall(r'SYM\("([\w.]+)", (\w+)', (CORPUS.parents[2] / "vmm" / "guestsym.c").read_text())
    base = 0xFFFFFFFF81000000
    text = f"virtual_base {base:x} 0\n" + "".join(
        f"{name} {base + 0x1000 + 0x400 * n:x} {65 if size == 'NODENAME_LEN' else int(size) or 256:x}\n"
        for n, (name, size) in enumerate(names))
    put("guestsym", "symbols", b"\0" + text.encode())
    put("guestsym", "symbols-twice", b"\0" + (text + text.split("\n")[1] + "\n").encode())
    now = struct.pack("<QQ", 1800000100 * 10**9, 5)
    put("guestsym", "apply-all", b"\1\x8f" + now + b"\0")
    put("guestsym", "apply-at-the-edge", b"\1\x87" + now + b"\1\5\xe0\1")


def lines_and_streams() -> None:
    def request(**members) -> bytes:
        return frame(0x01, json.dumps(members).encode())

    put("first", "cell", request(op="run", code="1+1"))
    put("first", "cell-whole", request(op="run", code="print('\u00e9')", silent=True, max_output=1000) + RESULT)
    put("first", "other", request(op="usage") + b"rest")
    put("first", "too-long", struct.pack("<IB", 70000, 1) + b"x" * 100)

    def piece(text: str, fds: int = 0) -> bytes:
        return struct.pack("<BH", fds, len(text)) + text.encode()

    put("ctl", "before-a-machine", piece('{"cmd":"stats"}\n{"cmd":"pause"}\n{"cmd":"no"}\nno\n[]\n{"cmd":"quit"}\n'))
    put("ctl", "boot", piece('{"cmd":"boot","kernel":"k","memory_mb":64,"vcpus":1,"serial":"fd",'
                             '"disks":[{"path":"d","readonly":true}]}\n', 1))
    put("ctl", "boot-without-disk-path", piece('{"cmd":"boot","kernel":"k","disks":[{}]}\n'))
    put("ctl", "thaw", piece('{"cmd":"thaw","dir":"d","env":{"A":"b"},"id":"i","hostname":"h"}\n', 2))
    put("ctl", "in-pieces", piece('{"cmd":"sn', 1) + piece('apshot"}\n', 3) + piece('{"cmd":"connect","port":0}\n', 4))
    put("ctl", "deep", piece("[" * 3000 + "\n"))
    put("fdt", "usual", b"\1\2\0\x10\0" + struct.pack("<Q", 0x1FFFF000))
    put("fdt", "no-room", b"\1\7\x40\0\0")
    put("fdt", "too-many-disks", b"\1\0\0\x10\1" + struct.pack("<IQ", 0xFFFFFFFF, 0))
    good = "00" * 16
    put("template", "checksums", b"\0" + f"{good}  memory\n{good}  state\n".encode())
    put("template", "checksums-above", b"\0" + f"{good}  ..\n{good}  ../x\n".encode())
    put("template", "manifest", b"\1" + json.dumps({"name": "t", "memory_mb": 512, "vcpus": 1}).encode())
    put("template", "manifest-numbers", b"\1" + json.dumps({"name": "t", "memory_mb": -1, "vcpus": 1e300}).encode())
    put("template", "current", b"\x02" + b"1")
    put("template", "current-above", b"\x02" + b"../t/1")

    def cell_input(op: int, kernel: bytes, agent: bytes = b"", lines: bytes = b"") -> bytes:
        agent += b"\0" * (len(agent) % 2)
        return bytes([op, len(agent) // 2]) + agent + bytes([len(lines)]) + lines + kernel

    whole = frame(0x11, b"out\n") + frame(0x12, b"err\n") + DISPLAY + RESULT
    put("cell", "cell", cell_input(0, whole))
    put("cell", "first-cell", cell_input(1, whole))
    put("cell", "cell-flood", cell_input(0, frame(0x11, b"x" * 9000) + RESULT))
    put("cell", "cell-dies", cell_input(0xE0, frame(0x11, b"last"), RESULT))
    put("cell", "cell-no-status", cell_input(0, frame(0x10, b"{}")))
    put("cell", "usage", cell_input(2, RESULT))
    put("cell", "complete", cell_input(3, RESULT))
    put("cell", "call", cell_input(4, b"", RESULT))
    put("cell", "get", cell_input(5, b"", frame(2, b"bytes") + frame(3, b"") + RESULT))
    put("cell", "put", cell_input(6, b"", RESULT))
    put("cell", "exec", cell_input(7, b"", frame(0x11, b"hi") + RESULT))
    put("cell", "monitor-lies", cell_input(0, b"", RESULT, b'{"event":"exit","reason":"x"}\nno\n'))


def answers() -> None:
    ok = b"HTTP/1.1 200 OK\r\n"
    put("answer", "length", b"\x08" + ok + b"Content-Length: 5\r\nSet-Cookie: a=b\r\n\r\nhello")
    put("answer", "chunked", b"\x1c" + ok + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n0123456789\r\n0\r\nT: t\r\n\r\n")
    put("answer", "until-it-closes", b"\x00HTTP/1.0 404 Not Found\n\nbody")
    put("answer", "to-head", b"\x05" + ok + b"Content-Length: 5\r\n\r\n")
    put("answer", "upgrade", b"\x06HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi")
    put("answer", "interim", b"\x0cHTTP/1.1 100 Continue\r\n\r\n" + ok + b"Content-Length: 1\r\n\r\nx")
    put("answer", "folded", b"\x0c" + ok + b"A: b\r\n c\r\n\r\n")
    put("answer", "huge-chunk", b"\x0c" + ok + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nx")


def http() -> None:
    """fuzz_http.c's operations. Routes are named by their place in the daemon's tables, as the sources list them."""
    daemon = CORPUS.parents[2] / "api" / "daemon"
    tables = [re.findall(r'^\t\{ "(\w+)", "(/[^"]*)"', (daemon / name).read_text(), re.M)
              for name in ("control.c", "filesystem.c", "interpreter.c")]
    types = ["json", "connect", "multipart", "raw", "charset", "text", "edgeless"]

    def ask(method: str, path: str, body: bytes = b"", *, kind: str = "json", query: bytes = b"", headers: bytes = b"",
            words: bytes = b"default", other: bool = False, chunked: bool = False, client: int = 0) -> bytes:
        table, row = next((t, rows.index((method, path))) for t, rows in enumerate(tables) if (method, path) in rows)
        flags = types.index(kind) << 2 | chunked << 1 | other
        return (bytes([0, client, 0, table, row, flags, len(words)]) + words + bytes([len(query)]) + query +
                bytes([len(headers)]) + headers + struct.pack("<H", len(body)) + body)

    def raw(data: bytes, client: int = 0) -> bytes:
        return bytes([0, client, 0xa0]) + struct.pack("<H", len(data)) + data

    def say(kind: int, payload: bytes, stream: int = 0, guest: int = 0) -> bytes:
        """A frame: 0 RESULT, 1 STDOUT, 2 STDERR, 3 EVENT, 4 DISPLAY, 5 DATA, 6 END."""
        return bytes([1, guest, stream, kind]) + struct.pack("<H", len(payload)) + payload

    def envelope(data: bytes, flags: int = 0) -> bytes:
        return struct.pack(">BI", flags, len(data)) + data

    leave, look, half = bytes([0, 0, 0xe0]), bytes([0, 0, 0xf0]), bytes([0, 0, 0xd0])
    ok = json.dumps({"status": "ok", "path": "/home/user/a", "exit": 0, "port": 2001, "size": 5, "mode": 420, "mtime_ns": 1,
                     "entry": {"name": "a", "path": "/a", "type": "file", "size": 1, "mode": 420, "mtime_ns": 1}}).encode()
    no = json.dumps({"status": "error", "error": {"name": "FileNotFoundError", "value": "no such file"}}).encode()
    cell = json.dumps({"status": "ok", "execution_count": 1, "error": None}).encode()
    picture = json.dumps({"kind": "result", "data": {"text/plain": "'2'", "image/png": "aGk="}, "metadata": {}}).encode()

    put("http", "raw", b"\0" + raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") + look +
        raw(b"GET /v2/sandboxes?limit=2&state=running%2Cpaused HTTP/1.0\r\nX-API-KEY: k\r\n\r\n", 1) +
        raw(b"GET / HTTP/1.1\r\nHost: 49983-inone.example.com\r\n\r\n", 2) + raw(b"\x16\x03\x01\0\xff nonsense\r\n\r\n", 3))
    put("http", "create", b"\1" + ask("POST", "/sandboxes", json.dumps({
        "templateID": "base", "timeout": 60, "metadata": {"a": "b"}, "envVars": {"C": "d"}, "secure": True,
        "network": {"allowPublicTraffic": False}}).encode(), chunked=True) + look +
        ask("POST", "/v2/sandboxes", b'{"templateID":"t:latest"}') + look)
    put("http", "list", b"\0" + ask("GET", "/v2/sandboxes", query=b"metadata=k%252520k%3Dv%252526v&limit=1&order=asc&startedAfter="
        b"2026-01-01T00:00:00.123456%2B01:00&template=base&nextToken=1_i") + look)
    put("http", "one", b"\0" + ask("GET", "/sandboxes/{}") + ask("POST", "/sandboxes/{}/connect", b'{"timeout":5}') +
        ask("GET", "/sandboxes/{}/metrics", query=b"start=1&end=99999999999") + ask("GET", "/sandboxes/{}/logs") +
        ask("POST", "/sandboxes/{}/timeout", b'{"timeout":0}') + look + ask("DELETE", "/sandboxes/{}", words=b"a%00b", other=True))
    put("http", "kill", b"\0" + ask("DELETE", "/sandboxes/{}") + look + ask("GET", "/health"))
    put("http", "cell", b"\0" + ask("POST", "/execute", b'{"code":"1+1","language":"python","env_vars":{"A":"b"}}') +
        say(1, b"out\xe2\x82") + say(1, b"\xac\n") + say(2, b"err") + say(4, picture) + say(0, cell) + say(1, b"out") +
        say(0, cell) + say(0, cell) + look)
    put("http", "cell-left", b"\2" + ask("POST", "/execute", b'{"code":"while True: pass"}') + say(1, b"x") + leave +
        say(0, ok, 1) + say(0, cell))
    put("http", "cell-nonsense", b"\0" + ask("POST", "/execute", b'{"code":"1"}') + say(0, b"[]"))
    put("http", "contexts", b"\0" + ask("POST", "/contexts", b'{"cwd":"/tmp"}') + say(0, ok) + look + ask("GET", "/contexts") +
        ask("POST", "/contexts/{}/restart") + say(0, ok) + ask("DELETE", "/contexts/{}"))
    put("http", "files", b"\0" + ask("POST", "/filesystem.Filesystem/ListDir", b'{"path":"","depth":2}',
        headers=b"Authorization: Basic cm9vdDo=\r\nConnect-Timeout-Ms: 1000\r\n") +
        say(0, b'{"status":"ok","entries":[{"name":"l","path":"/l","type":"link","target":"x","mode":511,"mtime_ns":-1}]}') +
        ask("POST", "/filesystem.Filesystem/MakeDir", b'{"path":"d"}') + say(0, no.replace(b"NotFound", b"Exists")) +
        say(0, ok) + ask("POST", "/filesystem.Filesystem/Move", b'{"source":"a","destination":"b"}') + say(0, no) + look)
    put("http", "download", b"\0" + ask("GET", "/files", query=b"path=a+b.txt&username=root") + say(5, b"content" * 9) +
        say(6, b"") + say(0, ok) + look)
    put("http", "signed", b"\0" + raw(b"GET /files?path=a&signature=v1_abc&signature_expiration=12 HTTP/1.1\r\nHost: x\r\n\r\n") + look)
    part = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="b/c %22q%22.txt"\r\n\r\n'
    put("http", "multipart", b"\0" + ask("POST", "/files", part + b"hello\r\n" + part.replace(b"b/c", b"d") + b"\r\n--edge--\r\n",
        kind="multipart") + say(0, ok) + say(0, ok, 1) + look)
    put("http", "multipart-cut", b"\0" + ask("POST", "/files", part + b"hello", kind="multipart", query=b"path=x") + say(0, no) + look)
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    put("http", "gzip", b"\0" + ask("POST", "/files", packed.compress(b"a" * 3000) + packed.flush(), kind="raw", query=b"path=a.txt",
        headers=b"Content-Encoding: gzip\r\n", chunked=True) + say(0, ok) + look)
    put("http", "process", b"\0" + ask("POST", "/process.Process/Start", envelope(
        b'{"process":{"cmd":"/bin/cat","args":["-"],"envs":{"A":"b"},"cwd":"/"},"stdin":true,"tag":"t"}'), kind="connect",
        headers=b"Keepalive-Ping-Interval: 50\r\n") + say(3, b'{"event":"started","pid":7}') + say(1, b"hi") +
        ask("POST", "/process.Process/List", b"{}", client=1) +
        ask("POST", "/process.Process/SendInput", b'{"process":{"pid":7},"input":{"stdin":"aGV5"}}', client=1) +
        ask("POST", "/process.Process/StreamInput", envelope(b'{"start":{"process":{"tag":"t"}}}') +
            envelope(b'{"data":{"input":{"stdin":"aGV5"}}}') + envelope(b'{"keepalive":{}}') + envelope(b"{}", 2),
            kind="connect", client=1) +
        ask("POST", "/process.Process/Connect", envelope(b'{"process":{"pid":7}}'), kind="connect", client=2) +
        ask("POST", "/process.Process/CloseStdin", b'{"process":{"pid":7}}', client=1) +
        ask("POST", "/process.Process/SendSignal", b'{"process":{"pid":7},"signal":"SIGNAL_SIGTERM"}', client=1) +
        say(0, b'{"status":"ok","signal":9}') + look)
    put("http", "terminal", b"\0" + ask("POST", "/process.Process/Start", envelope(
        b'{"process":{"cmd":"/bin/bash"},"pty":{"size":{"rows":24,"cols":80}}}'), kind="connect") +
        say(3, b'{"event":"started","pid":7}') + ask("POST", "/process.Process/Update", b'{"process":{"pid":7},"pty":{"size":{"rows":1}}}',
        client=1) + leave + say(0, no))
    put("http", "envelopes", b"\0" + ask("POST", "/process.Process/Start", envelope(b"{}", 1), kind="connect") + look +
        ask("POST", "/process.Process/StreamInput", b"\0\xff\xff\xff\xff", kind="connect", client=1) + half)
    put("http", "monitor-ends", b"\0" + ask("POST", "/execute", b'{"code":"1"}') + say(0xf8, b'{"event":"exit","reason":"guest-panic"}\n') + look)
    put("http", "monitor-lies", b"\0" + ask("GET", "/files", query=b"path=x") + say(0xf8, b"no\n") + look)


for make in (state, virtq, frames, blk, vsock, accesses, snapshot, memory, lines_and_streams, answers, http):
    make()
