#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed inputs of the fuzz targets into tests/fuzz/corpus. Run after a format has changed."""
import json
import struct
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
    put("virtq", "outside", ring(0, [(0xFFFFF, 64, 0, 0)], [0]))
    put("virtq", "wrap", ring(0, [(0xFFFFFFFFFFFFFFF0, 64, 0, 0)], [0]))
    put("virtq", "write-then-read", ring(0, [(0x400, 64, NEXT | WRITE, 1), (0x500, 32, 0, 0)], [0]))
    table = struct.pack("<QIHHQIHH", 0x400, 64, NEXT, 1, 0x500, 32, WRITE, 0)
    put("virtq", "indirect", ring(3, [(0x800, 32, INDIRECT, 0)], [0], table))
    put("virtq", "indirect-length", ring(3, [(0x800, 31, INDIRECT, 0)], [0], table))
    nested = struct.pack("<QIHH", 0x800, 16, INDIRECT, 0)
    put("virtq", "indirect-nested", ring(3, [(0x800, 16, INDIRECT, 0)], [0], nested))
    put("virtq", "head-outside", ring(0, [(0x400, 64, 0, 0)], [900]))


def frames() -> None:
    def frame(kind: int, payload: bytes) -> bytes:
        return struct.pack("<IB", len(payload), kind) + payload

    result = json.dumps({"status": "ok", "execution_count": 1, "error": None}).encode()
    display = json.dumps({"kind": "result", "data": {"text/plain": "2"}, "metadata": {}}).encode()
    put("frames", "cell", b"\7" + frame(0x11, b"hello\n") + frame(0x14, display) + frame(0x10, result))
    put("frames", "continued", b"\7" + frame(0x91, b"a" * 300) + frame(0x11, b"b") + frame(0x10, result))
    put("frames", "too-long", b"\7" + struct.pack("<IB", 1 << 21, 0x11) + b"x" * 64)
    put("frames", "empty-end", b"\7" + frame(0x03, b"") + frame(0x10, b"{}"))
    put("frames", "cut", b"\7" + frame(0x10, result)[:-5])
    put("frames", "mixed-continuation", b"\7" + frame(0x91, b"a") + frame(0x12, b"b"))


state()
virtq()
frames()
