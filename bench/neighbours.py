#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a saturating sandbox leaves to another one: CPU, disk and streams, without and with rate limits."""
from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from typing import Any

import common
from common import BenchError, Outcome, Progress, Sandbox, Sandboxes, figures

NAME = "neighbours"
TEXT = """\
Two sandboxes on one host. The quiet one does the same piece of work again and again, first alone, then beside a loud one
that does its own without a pause:

  cpu     quiet: a sum over 200,000 numbers; loud: sums without end
  disk    quiet: 64 KiB written to the private overlay, and an fsync; loud: the same without end, in 1 MiB
  vsock   quiet: 64 KiB printed, after 64 KiB of code; loud: prints without end, and its client reads all

`share` is what is left to the quiet one: its p50 alone divided by its p50 beside, 1.00 being all of it. Every piece's
result is checked. `held` is the same with limits on the loud one's disk and streams (--disk-rate, --vsock-rate); its
`waits` says how often a device stopped it. CPU has no limit in a device: there the host's scheduler divides. With --least a share
below that (with limits, where there are any) is an error: two processors are to leave 0.4."""
EXAMPLES = """\
examples:
  bench/neighbours.py
  bench/neighbours.py --runs 50 --disk-rate 4M --vsock-rate 4M
  bench/neighbours.py --least 0.4
exit codes: 0 done; 1 a piece of work failed or gave a wrong result, or less was left; 2 wrong usage; 130 interrupted"""

KIB = 1 << 10
PIECE = 64 * KIB
HELD_S = 60  # for the loud one to spend its burst
GUEST = f'''
import os
fd = os.open("/home/user/neighbour", os.O_CREAT | os.O_RDWR)
small, large = os.urandom(16) * ({PIECE} // 16), b"x" * {1 << 20}

def cpu():
    total = 0
    for i in range(200000):
        total += i * i
    return total

def disk(data=small):
    n = os.pwrite(fd, data, 0)
    os.fsync(fd)
    return n

def loud(name):
    while True:
        if name == "cpu":
            cpu()
        elif name == "disk":
            disk(large)
        else:
            print("x" * {PIECE}, flush=True)
'''
CODE = {"cpu": "cpu()", "disk": "disk()", "vsock": f"t = {'y' * PIECE!r}; print(t, end=''); len(t)"}
WANT = {"cpu": str(sum(i * i for i in range(200000))), "disk": str(PIECE), "vsock": str(PIECE)}


def sandbox_for(sandboxes: Sandboxes, **members: object) -> Sandbox:
    """One that knows the pieces of work. Raises BenchError."""
    sandbox, _ = sandboxes.first_sum(**members)
    common.must_succeed(sandbox.run(GUEST).cell, "the definitions")
    return sandbox


def piece(sandbox: Sandbox, name: str) -> float:
    """Its ms by the host's clock. Raises BenchError."""
    reply = sandbox.run(CODE[name])
    common.must_be(reply.cell.text, WANT[name], name)
    if name == "vsock":
        common.must_be(len(reply.cell.stdout), PIECE, name)
    return reply.ms


class Loud:
    """A neighbour at work for the length of the `with`; a thread reads what it says."""

    def __init__(self, sandboxes: Sandboxes, name: str, limits: dict[str, int]):
        self.sandboxes, self.name = sandboxes, name
        self.sandbox = sandbox_for(sandboxes, **({"limits": limits} if limits else {}))
        if name == "disk":
            self.sandbox.run("disk(large)")  # the first time, the guest finds room for it

    def __enter__(self) -> Loud:
        self.sandbox.stream.sock.sendall(common.request(op="run", code=f"loud({self.name!r})", max_output=0))
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        return self

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self.sandbox.stream.sock.recv(1 << 20):
                pass

    def waits(self) -> int:
        """How often a device of it has stopped for want of tokens."""
        stats = self.sandbox.vmm.call("stats")
        return (sum(disk["throttle"]["waits"] for disk in stats["disks"]) + stats["vsock"]["throttle_to_guest"]["waits"]
                + stats["vsock"]["throttle_to_host"]["waits"])

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.sandbox.stream.sock.shutdown(2)
        self.reader.join()
        self.sandboxes.end(self.sandbox)


def until_held(loud: Loud, quiet: Sandbox, name: str) -> None:
    """Pieces that do not count, until the loud one has spent its burst. Raises BenchError."""
    end = time.monotonic() + HELD_S
    while not loud.waits():
        if time.monotonic() > end:
            raise BenchError(f"{name}: the limits have not held the loud one back", "choose lower ones")
        piece(quiet, name)


def series(sandbox: Sandbox, name: str, runs: int) -> list[float]:
    piece(sandbox, name)  # the first one warms up
    return [piece(sandbox, name) for _ in range(runs)]


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    quiet = sandbox_for(sandboxes)
    held = {"disk_bytes": args.disk_rate, "vsock_bytes": args.vsock_rate}
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"runs": args.runs, "limits": held, "resources": {}}
    for name in CODE:
        progress.say(f"{name}: alone")
        times, waits = {"alone": series(quiet, name, args.runs)}, 0
        for way, limits in (("beside", {}), ("held", held)):
            if way == "held" and name == "cpu":
                continue
            progress.say(f"{name}: {way}")
            with Loud(sandboxes, name, limits) as loud:
                if limits:
                    until_held(loud, quiet, name)
                times[way] = series(quiet, name, args.runs)
                waits = loud.waits()
        rows += [{"resource": name, "way": way, "run": i, "ms": ms} for way in times for i, ms in enumerate(times[way])]
        result["resources"][name] = {"waits": waits, **{way: figures(each) for way, each in times.items()}}
    check_least(result, args.least)
    return Outcome(result, rows, show(result), lambda: draw(result))


# ---- output ----------------------------------------------------------------------------------------------------------

def share(each: dict[str, Any], way: str) -> float:
    return each["alone"].p50 / each[way].p50


def check_least(result: dict[str, Any], least: float) -> None:
    """Raises BenchError when less is left to the quiet one, with limits where there are any."""
    shares = {name: share(each, "held" if "held" in each else "beside") for name, each in result["resources"].items()}
    if short := [f"{name} {left:.2f}" for name, left in shares.items() if left < least]:
        raise BenchError(f"less than {least} is left: {', '.join(short)}\n{show(result)}", "end what else is at work on this host")


def show(result: dict[str, Any]) -> str:
    rows: list[list[Any]] = []
    for name, each in result["resources"].items():
        for way in ("alone", "beside", "held"):
            if way in each:
                f = each[way]
                rows.append([f"{name}, {way}", f.n, f.p50, f.p90, f.max, share(each, way),
                             each["waits"] if way == "held" else None])
    text = common.table(["ms of a piece", "n", "p50", "p90", "max", "share", "waits"], rows)
    limits = result["limits"]
    return f"{text}\n\nheld: {limits['disk_bytes'] >> 10} KiB/s of disk, {limits['vsock_bytes'] >> 10} KiB/s of streams"


def draw(result: dict[str, Any]) -> Any:
    figure, (axes,) = common.new_figure()
    names = [f"{name}, {way}" for name, each in result["resources"].items() for way in ("beside", "held") if way in each]
    values = [share(each, way) for each in result["resources"].values() for way in ("beside", "held") if way in each]
    axes.bar_label(axes.bar(names, values), fmt="%.2f")
    axes.set(ylabel="share of the speed alone", title="What a saturating neighbour leaves")
    return figure


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--runs", type=common.count(1, 10000), default=20, metavar="N",
                         help="pieces of each kind (default 20)")
    options.add_argument("--disk-rate", type=common.size(4 << 10, 1 << 30), default=64 * KIB, metavar="SIZE",
                         help="bytes a second of the loud one's disks (default 64K)")
    options.add_argument("--vsock-rate", type=common.size(4 << 10, 1 << 30), default=64 * KIB, metavar="SIZE",
                         help="bytes a second of the loud one's streams (default 64K)")
    options.add_argument("--least", type=common.number(0, 1), default=0.0, metavar="SHARE",
                         help="fail when less is left to the quiet one (default 0)")
    return options


if __name__ == "__main__":
    sys.exit(common.run_program(NAME, parser().parse_args(), measure))
