#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a stream between host and guest gives: bytes a second each way, round trips, and opening one."""
from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import common
from common import DATA, END, Outcome, Progress, Reply, Sandbox, Sandboxes, figures

NAME = "vsock"
TEXT = """\
In a fresh sandbox that has answered its first cell, over virtio-vsock:

throughput, --runs times each, --size bytes (random, compared with what was sent):
  put     host to guest: the agent's `write` of a file; until the agent says that it is in place
  get     guest to host: the agent's `read` of that file
  print   guest to host: a cell prints as many bytes; the interpreter sends them itself

round trips, --trips times each:
  sum     a random sum, checked, on the interpreter's stream, which is open
  usage   the request for the last cell's usage on it: no code runs
  ping    an empty request on a stream to the agent that was opened 0.2 s before
  open    from before the connect command to the first byte of the answer to a ping that was sent at once

Times are from just before the first byte is sent to the last byte of the answer (open: the first). The first of each
kind is told apart and not in the percentiles: it makes pages of the guest private. Of put and get the guest's file
system is a part, of sum Python."""
EXAMPLES = """\
examples:
  bench/vsock.py
  bench/vsock.py --size 64M --runs 20 --trips 1000 --plot vsock.svg    on hardware KVM
exit codes: 0 done; 1 an operation failed or gave other bytes; 2 wrong usage; 130 interrupted"""

MIB = 1 << 20
FRAME = 1 << 20
PATH = "bench-vsock"
OPEN_S = 0.2
OPERATION_S = 3600.0


class Streams:
    """The operations on one sandbox. Each gives its ms, and raises BenchError when it fails."""

    def __init__(self, sandbox: Sandbox, size: int):
        self.sandbox, self.size = sandbox, size
        self.data = os.urandom(size)
        self.text = ""

    def prepare(self) -> None:
        """Random text in the guest that the next print() writes; the host makes the same."""
        seed = random.getrandbits(32)
        self.text = random.Random(seed).randbytes(self.size // 2).hex()
        code = f"import random; text = random.Random({seed}).randbytes({self.size // 2}).hex()"
        common.must_succeed(self.sandbox.run(code).cell, "the text in the guest")

    def put(self) -> float:
        self.data = os.urandom(self.size)
        frames = [common.request(op="write", path=PATH, size=self.size)]
        frames += [common.frame(DATA, self.data[at:at + FRAME]) for at in range(0, self.size, FRAME)]
        return self._agent(b"".join([*frames, common.frame(END, b"")]), "put").ms

    def get(self) -> float:
        reply = self._agent(common.request(op="read", path=PATH), "get")
        common.must_be(reply.data, self.data, "get")
        return reply.ms

    def print(self) -> float:
        self.prepare()
        reply = self.sandbox.run("print(text, end='')")
        common.must_succeed(reply.cell, "print")
        common.must_be(reply.cell.stdout, self.text.encode(), "print")
        return reply.ms

    def sum(self) -> float:
        return self.sandbox.warm_sum().ms

    def usage(self) -> float:
        reply = self.sandbox.ask(op="usage")
        common.must_be("wall_ms" in reply.cell.result, True, "usage")
        return reply.ms

    def ping(self) -> float:
        return self._agent(common.request(op="ping"), "ping").ms

    def open(self) -> float:
        begin_ns = common.now_ns()
        stream = self.sandbox.connect()
        try:
            stream.sock.sendall(common.request(op="ping"))
            reply = common.collect(stream, begin_ns)
        finally:
            stream.close()
        common.must_succeed(reply.cell, "ping")
        return reply.first_byte_ms

    def _agent(self, payload: bytes, what: str) -> Reply:
        """One operation on a stream of its own, which is open when the clock starts."""
        stream = self.sandbox.connect()
        try:
            time.sleep(OPEN_S)
            reply = common.exchange(stream, payload)
        finally:
            stream.close()
        common.must_succeed(reply.cell, what)
        return reply


def repeat(name: str, do: Callable[[], float], n: int, progress: Progress) -> list[float]:
    """The ms of n + 1 runs; the first is the one that is told apart."""
    times = []
    for i in range(n + 1):
        progress(f"{name}: {i} of {n}")
        times.append(do())
    return times


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    streams = Streams(sandboxes.first_sum()[0], args.size)
    plan = [("put", args.runs), ("get", args.runs), ("print", args.runs),
            ("sum", args.trips), ("usage", args.trips), ("ping", args.trips), ("open", args.trips)]
    times = {name: repeat(name, getattr(streams, name), n, progress) for name, n in plan}
    result: dict[str, Any] = {"size": args.size, "throughput": {}, "round_trips": {}}
    for name, (first, *rest) in times.items():
        ms = figures(rest)
        if name in ("put", "get", "print"):
            result["throughput"][name] = {"first_ms": first, "ms": ms, "mib_per_s": args.size / MIB / (ms.p50 / 1e3)}
        else:
            result["round_trips"][name] = {"first_ms": first, "ms": ms}
    rows = [{"kind": name, "run": i, "bytes": args.size if name in result["throughput"] else 0, "ms": ms}
            for name, series in times.items() for i, ms in enumerate(series)]
    return Outcome(result, rows, show(result), lambda: draw(times))


# ---- output ----------------------------------------------------------------------------------------------------------

def show(result: dict[str, Any]) -> str:
    heads = ["ms", "n", "first", "p50", "p90", "p99", "max"]

    def line(name: str, row: dict[str, Any]) -> list[Any]:
        f = row["ms"]
        return [name, f.n, row["first_ms"], f.p50, f.p90, f.p99, f.max]

    return "\n".join([
        common.table([f"{result['size'] / MIB:g} MiB, ms", *heads[1:], "MiB/s at p50"],
                     [[*line(name, row), row["mib_per_s"]] for name, row in result["throughput"].items()]), "",
        common.table(["round trip, ms", *heads[1:]],
                     [line(name, row) for name, row in result["round_trips"].items()])])


def draw(times: dict[str, list[float]]) -> Any:
    figure, (axes,) = common.new_figure()
    common.draw_shares(axes, {name: series[1:] for name, series in times.items()}, "ms", "runs")
    axes.set_title("Streams between host and guest, warm")
    return figure


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--size", type=common.size(2, 64 << 20), default=MIB, metavar="SIZE",
                         help="bytes of put, get and print, 2 to 64M (default 1M)")
    options.add_argument("--runs", type=common.count(1, 10000), default=5, metavar="N",
                         help="of put, get and print each (default 5)")
    options.add_argument("--trips", type=common.count(1, 100000), default=50, metavar="N",
                         help="round trips of each kind (default 50)")
    return options


if __name__ == "__main__":
    args = parser().parse_args()
    args.size -= args.size % 2
    sys.exit(common.run_program(NAME, args, measure, OPERATION_S))
