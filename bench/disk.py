#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the guest's disks give: the private overlay and the base image, through the guest's kernel and virtio-blk."""
from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from dataclasses import dataclass
from typing import Any

import common
from common import BenchError, Outcome, Progress, Reply, Sandbox, Sandboxes, figures

NAME = "disk"
TEXT = """\
In a fresh sandbox, by os.read, os.write and their like of a cell in the guest:

  write         a new file on the private overlay, in pieces of 1 MiB, and one fsync
  read          that file, in pieces of 1 MiB, after its pages were dropped from the guest's cache
  base          as much of a large file of the root image (read-only, shared by all sandboxes), dropped likewise
  random write  --ops writes of 4 KiB at random places of the file, and one fsync
  random read   --ops reads of 4 KiB at random places, dropped likewise, without read-ahead
  fsync         a quarter of --ops times: 4 KiB written, then an fsync (a step is the fsync alone)

`ms` is the host's time around the cell that does it, so it holds one round trip of a cell (the first row).
`guest ms` is the sum of the operations alone by the guest's own clock; their steps' percentiles are by it, too.
The host knows every byte of the file (a random seed makes it) and checks the CRC of what was read; the sectors that the
guest's block device counted must be at least those asked for: what came from a cache is an error, not a fast disk.

On software KVM a page of a file costs the guest's interpreted kernel milliseconds: that is measured there, not a disk.
A write ends in the host's page cache: an fsync reaches no disk, as the overlay ends with its sandbox."""
EXAMPLES = """\
examples:
  bench/disk.py
  bench/disk.py --size 64M --ops 4000 --runs 5 --csv disk.csv    on hardware KVM
exit codes: 0 done; 1 an operation failed or gave other bytes; 2 wrong usage; 130 interrupted"""

MIB = 1 << 20
BLOCK = 4096
SECTOR = 512
BASE, OVERLAY = "vda", "vdb"
BASE_FOLDER = "/usr/lib/x86_64-linux-gnu/nodejs/esbuild-wasm"
"""Large, and of no process: what one maps, as the libraries of a warm interpreter, stays in the guest's page cache."""
ROUND_TRIPS = 10
OPERATION_S = 3600.0
GUEST = f'''
import json, os, random, time, zlib

class File:
    """An open file and what was read from it."""

    def __init__(self, path, flags):
        self.path, self.got = os.path.expanduser(path), []
        self.fd = os.open(self.path, flags)

    def timed(self, step, items):
        times = []
        for item in items:
            begin = time.monotonic()
            step(*item)
            times.append((time.monotonic() - begin) * 1e3)
        return times

    def sync(self):
        os.fsync(self.fd)

    def write(self, piece):
        return os.write(self.fd, piece)

    def pwrite(self, place, piece):
        return os.pwrite(self.fd, piece, place)

    def read(self, n):
        self.got.append(os.read(self.fd, n))

    def pread(self, place, n):
        self.got.append(os.pread(self.fd, n, place))

    def drop(self, advice=os.POSIX_FADV_NORMAL):
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(self.fd, 0, 0, advice)
        os.lseek(self.fd, 0, 0)
        self.got = []

    def proof(self):
        return [len(b"".join(self.got)), [zlib.crc32(piece) for piece in self.got]]

def tell(value):
    print(json.dumps(value))

def blocks(seed, n, size):
    source = random.Random(seed)
    return [(source.randrange(size // {BLOCK}) * {BLOCK}, source.randbytes({BLOCK})) for _ in range(n)]

def sectors():
    counts = {{disk: open(f"/sys/block/{{disk}}/stat").read().split() for disk in ("{BASE}", "{OVERLAY}")}}
    return {{disk: {{"read": int(each[2]), "write": int(each[6])}} for disk, each in counts.items()}}

def largest(folder):
    return max((e.stat().st_size, e.path) for e in os.scandir(folder) if e.is_file(follow_symlinks=False))
'''


def random_blocks(seed: int, n: int, size: int) -> list[tuple[int, bytes]]:
    """Places in a file of `size` bytes and what is written there: the same as blocks() in the guest."""
    source = random.Random(seed)
    return [(source.randrange(size // BLOCK) * BLOCK, source.randbytes(BLOCK)) for _ in range(n)]


@dataclass
class Row:
    """One operation of one run; `guest_ms` is each of its steps by the guest's clock."""

    operation: str
    bytes: int
    ops: int
    ms: float
    guest_ms: list[float]

    @property
    def rate(self) -> float:
        """By the host's clock: operations a second if they are counted, else MiB a second."""
        return (self.ops or self.bytes / MIB) / (self.ms / 1e3)


class Disks:
    """The operations on one sandbox's disks. Each must be done by the device, and give the right bytes."""

    def __init__(self, sandbox: Sandbox, size: int, ops: int):
        self.sandbox, self.size, self.ops = sandbox, size, ops
        self._cell(GUEST)

    def _cell(self, code: str) -> Reply:
        reply = self.sandbox.run(code)
        common.must_succeed(reply.cell, code)
        return reply

    def _tell(self, expression: str) -> Any:
        return json.loads(self._cell(f"tell({expression})").cell.stdout)

    def _do(self, name: str, code: str, n: int, device: tuple[str, str], ops: int = 0) -> Row:
        """Times an expression, the ms of its steps, which must move n bytes on the device. Raises BenchError."""
        disk, direction = device
        before = self._tell("sectors()")
        reply = self._cell(f"tell({code})")
        moved = (self._tell("sectors()")[disk][direction] - before[disk][direction]) * SECTOR
        if moved < n:
            raise BenchError(f"{name}: the guest's {disk} moved {moved} bytes, not {n}: the rest came from a cache")
        return Row(name, n, ops, reply.ms, json.loads(reply.cell.stdout))

    def run(self, seed: int) -> list[Row]:
        """All operations once, in their order; `seed` makes the contents and places. Raises BenchError."""
        data = bytearray(random.Random(seed).randbytes(self.size))
        self._cell(f"data = random.Random({seed}).randbytes({self.size})\n"
                   f"pieces = [(data[at:at + {MIB}],) for at in range(0, len(data), {MIB})]\n"
                   "f = File('~/bench-disk', os.O_RDWR | os.O_CREAT | os.O_TRUNC)")
        rows = [self._write(), self._read(data), self._base(), self._random_write(data, seed + 1),
                self._random_read(data, seed + 2), self._fsync(seed + 3)]
        self._cell("os.close(f.fd); os.unlink(f.path); del f, data, pieces, todo")
        return rows

    def _write(self) -> Row:
        return self._do("write", "f.timed(f.write, pieces) + f.timed(f.sync, [()])", self.size, (OVERLAY, "write"))

    def _read(self, data: bytearray) -> Row:
        self._cell("f.drop()")
        row = self._do("read", f"f.timed(f.read, [({MIB},)] * len(pieces))", self.size, (OVERLAY, "read"))
        want = [zlib.crc32(data[at:at + MIB]) for at in range(0, self.size, MIB)]
        common.must_be(self._tell("f.proof()"), [self.size, want], "read")
        return row

    def _base(self) -> Row:
        most, path = self._tell(f"largest({BASE_FOLDER!r})")
        n = min(self.size, most // BLOCK * BLOCK)
        self._cell(f"b = File({path!r}, os.O_RDONLY); b.drop()")
        row = self._do("base", f"b.timed(b.read, [(min({MIB}, {n} - at),) for at in range(0, {n}, {MIB})])", n,
                       (BASE, "read"))
        common.must_be(self._tell("b.proof()")[0], n, "base")
        self._cell("os.close(b.fd)")
        return row

    def _random_write(self, data: bytearray, seed: int) -> Row:
        blocks = random_blocks(seed, self.ops, self.size)
        for place, block in blocks:
            data[place:place + BLOCK] = block
        self._cell(f"todo = blocks({seed}, {self.ops}, {self.size})")
        return self._do("random write", "f.timed(f.pwrite, todo) + f.timed(f.sync, [()])",
                        len({place for place, _ in blocks}) * BLOCK, (OVERLAY, "write"), self.ops)

    def _random_read(self, data: bytearray, seed: int) -> Row:
        places = [place for place, _ in random_blocks(seed, self.ops, self.size)]
        self._cell(f"todo = [(place, {BLOCK}) for place, _ in blocks({seed}, {self.ops}, {self.size})]\n"
                   "f.drop(os.POSIX_FADV_RANDOM)")
        row = self._do("random read", "f.timed(f.pread, todo)", len(set(places)) * BLOCK, (OVERLAY, "read"), self.ops)
        want = [zlib.crc32(data[place:place + BLOCK]) for place in places]
        common.must_be(self._tell("f.proof()"), [self.ops * BLOCK, want], "random read")
        return row

    def _fsync(self, seed: int) -> Row:
        n = max(1, self.ops // 4)
        self._cell(f"todo = blocks({seed}, {n}, {self.size})")
        return self._do("fsync", "[f.timed(f.sync, [()])[0] for place, block in todo if f.pwrite(place, block)]",
                        n * BLOCK, (OVERLAY, "write"), n)


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    sandbox, _ = sandboxes.first_sum()
    trips = [sandbox.warm_sum().ms for _ in range(ROUND_TRIPS)]
    disks = Disks(sandbox, args.size, args.ops)
    runs = []
    for i in range(args.runs):
        progress.say(f"run {i + 1} of {args.runs}, {args.size >> 10} KiB and {args.ops} operations")
        runs.append(disks.run(random.getrandbits(32)))
    rows = [{"run": i, "operation": row.operation, "bytes": row.bytes, "ops": row.ops, "ms": row.ms,
             "guest_ms": sum(row.guest_ms)} for i, run in enumerate(runs) for row in run]
    result = {"size": args.size, "ops": args.ops, "runs": args.runs, "round_trip_ms": figures(trips),
              "operations": [operation_figures([run[i] for run in runs]) for i in range(len(runs[0]))]}
    return Outcome(result, rows, show(result), lambda: draw(result))


# ---- output ----------------------------------------------------------------------------------------------------------

def operation_figures(rows: list[Row]) -> dict[str, Any]:
    """Medians over the runs; the steps' percentiles are those of all runs, by the guest's clock."""
    last = rows[0]
    return {"operation": last.operation, "bytes": last.bytes, "ops": last.ops,
            "ms": figures(row.ms for row in rows).p50, "guest_ms": figures(sum(row.guest_ms) for row in rows).p50,
            "unit": "per s" if last.ops else "MiB/s", "rate": figures(row.rate for row in rows).p50,
            "step_guest_ms": figures(ms for row in rows for ms in row.guest_ms)}


def show(result: dict[str, Any]) -> str:
    trip = result["round_trip_ms"]
    rows: list[list[Any]] = [["empty cell", None, None, trip.p50, None, None, None, trip.p50, trip.p90, trip.p99]]
    for each in result["operations"]:
        step = each["step_guest_ms"]
        rows.append([each["operation"], each["bytes"] >> 10, each["ops"] or None, each["ms"], each["guest_ms"],
                     each["rate"], each["unit"], step.p50, step.p90, step.p99])
    heads = ["operation", "KiB", "ops", "ms", "guest ms", "rate", "", "a step p50", "p90", "p99"]
    return "\n".join([common.table(heads, rows), "",
                      f"Medians of {result['runs']} runs; rates by the host's clock. A step is 1 MiB, 4 KiB or one "
                      "fsync, in ms by the guest's clock (the empty cell: by the host's)."])


def draw(result: dict[str, Any]) -> Any:
    figure, axes = common.new_figure(2)
    for each, unit, title in zip(axes, ("MiB/s", "per s"), ("Sequential", "4 KiB at a time")):
        rows = [row for row in result["operations"] if row["unit"] == unit]
        bars = each.bar([row["operation"] for row in rows], [row["rate"] for row in rows])
        each.bar_label(bars, fmt="%.2f")
        each.set(ylabel=unit.replace("per s", "operations a second"), title=title)
    return figure


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--size", type=common.size(64 << 10, 256 << 20), default=2 * MIB, metavar="SIZE",
                         help="of the file, 64K to 256M (default 2M)")
    options.add_argument("--ops", type=common.count(4, 100000), default=64, metavar="N",
                         help="random operations of each kind (default 64)")
    options.add_argument("--runs", type=common.count(1, 1000), default=1, metavar="N",
                         help="how often all of it (default 1)")
    return options


if __name__ == "__main__":
    args = parser().parse_args()
    args.size -= args.size % BLOCK
    sys.exit(common.run_program(NAME, args, measure, OPERATION_S))
