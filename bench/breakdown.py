#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a first result goes: thaws with `thawbox-vmm --trace`, laid beside the client's own clock.

Both sides stamp CLOCK_MONOTONIC. From the last byte of the result the path is followed back to the request: a step that
waited is left for the thread that it waited for, at the moment that one said so. What lies on this path is the wall
time; what of it lies in no step is "not accounted for".
"""
from __future__ import annotations

import argparse
import array
import json
import os
import random
import signal
import socket
import statistics
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import host
from common import BenchError, Monitor, Outcome, Progress, VmmError, figures, now_ns, request

NAME = "breakdown"
TEXT = "Thaws sandboxes one after another and says where the time to the first result goes, on host and in guest."
EXAMPLES = """examples:
  bench/breakdown.py --runs 40
  bench/breakdown.py --mode standby --png standby.png --svg standby.svg
  bench/breakdown.py --mode fresh --cell 'import pandas' --json

modes: exec (a monitor is started), fresh (a zygote forks one), shell, standby (one that was made before takes the
request). A trace of a single thaw, to look into: thawbox-vmm --trace FILE, then https://ui.perfetto.dev.
"""
MODES = ("exec", "fresh", "shell", "standby")
CLIENT, ZYGOTE, LOOP, VCPU = "client", "zygote", "loop", "vCPU"
LANES = (CLIENT, ZYGOTE, LOOP, VCPU)
THREADS = {0: ZYGOTE, 1: LOOP, 2: VCPU}
GUEST = "KVM_RUN"
MOST_LOST = 0.05
"""Of the wall time, p50: more that is in no step, and the table is not to be believed. (A thread that lost its CPU
between two steps makes one run worse.)"""
DETAIL_MS = 0.02
"""Steps inside of others that are shorter are left out of the table; --json has them."""

# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """What a thread did from `begin` to `end`, in ms since the client began."""

    name: str
    lane: str
    begin: float
    end: float
    inside: tuple[str, ...] = ()
    count: int = 0
    faults: int = 0

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        return self.lane, (*self.inside, self.name)


@dataclass(frozen=True)
class Hop:
    """At `end` a lane went on because of what `source` had done at `at`."""

    end: float
    source: str
    at: float


@dataclass
class Run:
    """One thaw: its steps on all lanes, and the ways from one lane to another."""

    wall: float
    steps: list[Step]
    hops: dict[str, list[Hop]]
    counts: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """The path: (lane, from, to), the last first."""

    def on_path(self, step: Step) -> float:
        """How many ms of a step are on the path."""
        return sum(max(0.0, min(step.end, to) - max(step.begin, since))
                   for lane, since, to in self.spans if lane == step.lane)


def read_steps(trace: dict[str, Any], origin_ns: int) -> tuple[list[Step], list[tuple[str, str, float]]]:
    """A trace's steps, and its points as (name, lane, ms). A step that never ended lasts to the last event."""
    start = (trace["otherData"]["start_ns"] - origin_ns) / 1e6
    steps, points, last = [], [], 0.0
    open_steps: dict[str, list[Step]] = {lane: [] for lane in LANES}
    for event in trace["traceEvents"]:
        lane = THREADS.get(event["tid"])
        if event["ph"] == "M" or lane is None:  # names, and vCPUs other than the first
            continue
        at = last = start + event["ts"] / 1e3
        stack = open_steps[lane]
        if event["ph"] == "B":
            stack.append(Step(event["name"], lane, at, at, tuple(step.name for step in stack)))
        elif event["ph"] == "E" and stack and stack[-1].name == event["name"]:
            step = stack.pop()
            step.end, step.count = at, event["args"]["count"]
            step.faults = event["args"].get("minor_faults", 0) + event["args"].get("major_faults", 0)
            steps.append(step)
        elif event["ph"] == "i":
            points.append((event["name"], lane, at))
    for stack in open_steps.values():
        for step in stack:
            step.end = last
            steps.append(step)
    return steps, points


def find_hops(steps: Sequence[Step], points: Sequence[tuple[str, str, float]]) -> dict[str, list[Hop]]:
    """A wait ends by the signal of its name, if that came while it waited: else it did not wait for it."""
    hops: dict[str, list[Hop]] = {lane: [] for lane in LANES}
    for step in steps:
        if not step.name.startswith("wait: "):
            continue
        name = "signal: " + step.name.removeprefix("wait: ")
        signals = [(at, lane) for point, lane, at in points
                   if point == name and lane != step.lane and step.begin <= at <= step.end]
        if signals:
            at, lane = max(signals)
            hops[step.lane].append(Hop(step.end, lane, at))
    return hops


def follow(run: Run) -> None:
    """Fills run.spans, from the end back to the beginning."""
    lane, at = CLIENT, run.wall
    while at > 0:
        before = [hop for hop in run.hops[lane] if hop.end <= at]
        hop = max(before, key=lambda hop: hop.end, default=Hop(0.0, CLIENT, 0.0))
        # From the signal on the other's time is no longer what this one waits for: it is being woken.
        since = min(hop.at, hop.end)
        run.spans.append((lane, max(0.0, since), at))
        lane, at = hop.source, since
        run.hops = {name: [each for each in hops if each is not hop] for name, hops in run.hops.items()}


def lost(run: Run) -> tuple[float, list[tuple[float, str]]]:
    """The part of the path that is in no step: ms, and its pieces with what they lie between, the longest first."""
    pieces = []
    for lane, since, to in run.spans:
        at, name = since, "the beginning of its part"
        outer = sorted((step for step in run.steps if step.lane == lane and not step.inside and step.end > since),
                       key=lambda step: step.begin)
        for step in [*outer, Step("the end of its part", lane, to, to)]:
            if step.begin > at:
                pieces.append((min(step.begin, to) - at, f"{lane}: {name} .. {step.name}"))
            at, name = max(at, step.end), step.name
            if at >= to:
                break
    return sum(ms for ms, _ in pieces), sorted(pieces, reverse=True)


# ---- one thaw --------------------------------------------------------------------------------------------------------

class Child(Monitor):
    """A monitor that somebody else started: its control socket and its pid."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.events: list[dict[str, Any]] = []
        self._buffer = b""
        self.pid = 0

    def send(self, command: str, *fds: int, **members: Any) -> None:
        line = json.dumps({"cmd": command, **members}).encode() + b"\n"
        self.sock.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def answer(self) -> dict[str, Any]:
        """Raises VmmError when it is an error."""
        while "event" in (line := self._line(60)):
            self.events.append(line)
        if not line["ok"]:
            raise VmmError(f"{line['error']} | {line.get('remedy', '')}")
        return line

    def end(self) -> None:
        """Closes the control socket, which ends the process, and waits for that."""
        self.sock.close()
        if self.pid:
            os.waitpid(self.pid, 0)

    def _last_words(self) -> str:
        return "see what it wrote above"


def read_result(sock: socket.socket) -> tuple[int, bytes]:
    """Reads until the frame RESULT is whole. Returns when its last byte was here, and all frames.

    Raises EOFError when the stream ends before, TimeoutError after a minute.
    """
    data, at, kind = b"", 0, 0
    while kind != common.RESULT:
        chunk = sock.recv(1 << 16)
        end_ns = now_ns()
        if not chunk:
            raise EOFError("the stream ended before the result")
        data += chunk
        while kind != common.RESULT and len(data) - at >= 5:
            length, found = struct.unpack_from("<IB", data, at)
            if len(data) - at < 5 + length:
                break
            kind, at = found, at + 5 + length
    return end_ns, data


@dataclass
class Stamps:
    """The client's: when it began, had sent, had a process (exec only), and had the result."""

    begin_ns: int
    sent_ns: int
    spawned_ns: int | None
    end_ns: int


class Thaws:
    """Makes traced thaws of one template in one mode."""

    def __init__(self, program: Path, template: Path, mode: str, folder: Path):
        self.program, self.template, self.mode = program, template, mode
        self.trace = folder / "trace"
        self.members = {"id": "bench", "env": {}, "overlay_dir": str(folder), "dir": str(template)}
        self.zygote: Monitor | None = None
        self.child: Child | None = None

    def __enter__(self) -> Thaws:
        if self.mode != "exec":
            self.zygote = Monitor(self.program, "--zygote", "--trace", str(self.trace))
            try:
                self.zygote.call("open", dir=str(self.template), overlay_dir=self.members["overlay_dir"])
            except BaseException:
                self.zygote.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.child:
            self.child.end()
        if self.zygote:
            self.zygote.__exit__()

    def run(self, code: str, prepare: Callable[[], None]) -> tuple[Run, bytes]:
        """One thaw with that first cell; `prepare` is called just before its clock starts."""
        ours, theirs = socket.socketpair()
        control, far = socket.socketpair()
        self.child = Child(control)
        ours.settimeout(60)
        with ours, theirs, far:
            if self.mode in ("shell", "standby"):
                self._make(far)
            prepare()
            stamps, data = self._thaw(code, ours, theirs, far)
            self.child.event("first-done", 60)
            self.child.end()  # the file has been written by then
        file = Path(f"{self.trace}.{self.child.pid}") if self.zygote else self.trace
        self.child = None
        trace = json.loads(file.read_text())
        file.unlink()
        return make_run(trace, stamps), data

    def _make(self, far: socket.socket) -> None:
        """A shell or a standby, which waits for somebody."""
        self._ask_zygote(far)
        self.child.pid = self._pid()
        far.close()  # or it would not see our end closed
        self.child.call(self.mode, overlay_dir=self.members["overlay_dir"])
        if self.mode == "standby":
            self.child.event("standby", 60)

    def _ask_zygote(self, far: socket.socket) -> None:
        self.zygote.sock.sendmsg([b'{"cmd":"spawn"}\n'],
                                 [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [far.fileno()]))])

    def _pid(self) -> int:
        line = self.zygote._line(60)
        if not line["ok"]:
            raise VmmError(f"{line['error']} | {line.get('remedy', '')}")
        return line["pid"]

    def _thaw(self, code: str, ours: socket.socket, theirs: socket.socket, far: socket.socket) -> tuple[Stamps, bytes]:
        members = {**self.members, "hostname": f"tb-{os.urandom(6).hex()}"}
        payload = request(op="run", code=code)
        argv = [str(self.program), "--control-fd", str(far.fileno()), "--trace", str(self.trace)]
        if self.mode == "exec":
            os.set_inheritable(far.fileno(), True)
        begin_ns = now_ns()
        ours.sendall(payload)
        self.child.send("thaw", theirs.fileno(), **members)
        if self.mode == "fresh":
            self._ask_zygote(far)
        sent_ns, spawned_ns = now_ns(), None
        if self.mode == "exec":
            self.child.pid = os.posix_spawn(self.program, argv, os.environ)
            spawned_ns = now_ns()
        end_ns, data = read_result(ours)
        if self.mode == "fresh":
            self.child.pid = self._pid()
        theirs.close()
        far.close()
        self.child.answer()
        return Stamps(begin_ns, sent_ns, spawned_ns, end_ns), data


def make_run(trace: dict[str, Any], stamps: Stamps) -> Run:
    """Raises BenchError when the trace has not all of the thaw."""
    if lost_events := trace["otherData"]["lost"]:
        raise BenchError(f"the trace has no room for {lost_events} of its events", "choose a cell that says less")
    steps, points = read_steps(trace, stamps.begin_ns)
    run = Run((stamps.end_ns - stamps.begin_ns) / 1e6, [], find_hops(steps, points))
    answered = last_output(run, steps)
    steps = [step for step in steps if step.end > 0 and
             step.begin < (answered.end if step.lane == VCPU else run.wall)]
    add_client(run, steps, points, stamps)
    run.hops[CLIENT].append(Hop(run.wall, VCPU, min(answered.end, run.wall)))
    run.steps += steps
    run.counts = counts_of(trace["otherData"], run)
    follow(run)
    return run


def last_output(run: Run, steps: Iterable[Step]) -> Step:
    """The step that wrote the last byte of the result. Raises BenchError when there is none."""
    found = [step for step in steps if step.name == "output written" and step.begin < run.wall]
    if not found:
        raise BenchError("the first cell was not answered by way of the mailbox", "choose a cell that is not so long")
    return max(found, key=lambda step: step.begin)


def first_of(steps: Iterable[Step], name: str, lane: str) -> Step:
    """Raises BenchError when there is none."""
    for step in steps:
        if step.name == name and step.lane == lane:
            return step
    raise BenchError(f"the trace lacks \"{name}\"", "use a monitor of the same version as this program")


def add_client(run: Run, steps: Sequence[Step], points: Sequence[tuple[str, str, float]], stamps: Stamps) -> None:
    """The client's own steps, and how the work came to the monitor and back."""
    def ms(ns: int) -> float:
        return (ns - stamps.begin_ns) / 1e6

    def arrives(name: str, lane: str, end: float, source: str, at: float) -> None:
        """Work that one lane gives to another: the way there is a step of the second."""
        at = min(at, end)
        if name:
            run.steps.append(Step(name, lane, at, end))
        run.hops[lane].append(Hop(end, source, at))

    sent = ms(stamps.sent_ns)
    run.steps.append(Step("request sent", CLIENT, 0, sent))
    if stamps.spawned_ns:
        spawned = ms(stamps.spawned_ns)
        run.steps.append(Step("fork and exec", CLIENT, sent, spawned))
        arrives("loading, linking", LOOP, first_of(steps, "process set up", LOOP).begin, CLIENT, spawned)
    elif any(step.name == "fork" for step in steps):
        woken = first_of(steps, "wait: spawn line", ZYGOTE)
        run.hops[ZYGOTE].append(Hop(woken.end, CLIENT, min(sent, woken.end)))
        begun = first_of(steps, "process set up", LOOP).begin
        arrives("", LOOP, begun, ZYGOTE, begun)
    else:
        read = first_of(steps, "control line read", LOOP)
        arrives("loop woken", LOOP, read.begin, CLIENT, sent)
    runs = next((at for name, lane, at in points if (name, lane) == ("thread runs", VCPU)), 0.0)
    if runs > 0:
        started = first_of(steps, "vCPU's thread started", LOOP)
        arrives("first time on a CPU", VCPU, runs, LOOP, min(started.end, runs))
    waiting = ms(stamps.spawned_ns or stamps.sent_ns)
    run.steps.append(Step("wait: result", CLIENT, waiting, run.wall))


def counts_of(other: dict[str, Any], run: Run) -> dict[str, int]:
    """What was counted between the first KVM_RUN and the result; KVM's part is missing where it has none."""
    done, before = other.get("at_done"), other.get("at_run")
    if not done or not before:
        raise BenchError("the trace has no counters of the first result")
    memory = other["memory"]
    vcpu = {name: value - before.get("vcpu", {}).get(name, 0) for name, value in done.get("vcpu", {}).items()}
    counts = {f"exits, {name}": value - before["exits"][name] for name, value in done["exits"].items()}
    for name, key in (("shadow or EPT faults", "pf_taken"), ("instructions interpreted", "insn_emulation"),
                      ("interrupts injected", "irq_injections"), ("TLB flushes", "tlb_flush")):
        if key in vcpu:
            counts[name] = vcpu[key]
    counts["host faults while the guest ran"] = sum(step.faults for step in run.steps if step.name == GUEST)
    counts["host faults of the monitor, all"] = done["faults"]["minor"] + done["faults"]["major"]
    counts["of these from a disk"] = done["faults"]["major"]
    counts["pages populated"] = memory["populated"]
    for key in ("written", "near", "read", "large", "later"):
        if f"workset_{key}" in memory:
            counts[f"working set, {key}"] = memory[f"workset_{key}"]
    counts["cold"] = int(memory["cold"])
    return counts


# ---- the guest's share -----------------------------------------------------------------------------------------------

BLOCK = 200_000
PRICE_CELLS = ["1", *[f"len(bytearray({n * BLOCK}))" for n in (1, 2, 3, 4, 5)],
               *["open('/proc/self/stat').close()"] * 2]
"""Between them they differ in the pages that they touch, without entering the guest's kernel, and in how often they
enter it: what is left is a plain cell. Memory of the C library's heap, which a template has mapped already."""


def guest_ms(run: Run) -> float:
    return sum(step.end - step.begin for step in run.steps if step.name == GUEST)


def solve(rows: list[tuple[float, float, float]]) -> tuple[float, float] | None:
    """The prices of a fault and of an interpreted instruction in us, out of (guest ms, faults, instructions)."""
    import numpy as np
    matrix = np.array([[1.0, faults, instructions] for _, faults, instructions in rows])
    if len(rows) < 3 or np.linalg.matrix_rank(matrix) < 3:
        return None
    found = np.linalg.lstsq(matrix, np.array([ms for ms, _, _ in rows]), rcond=None)[0]
    return (float(found[1]) * 1e3, float(found[2]) * 1e3) if min(found[1:]) > 0 else None


def prices(thaws: Thaws, tries: int, say: Callable[[str], None]) -> tuple[float, float] | None:
    """Measured by cells that differ in both; the shortest of some tries of each, as what disturbs only adds."""
    best: dict[str, tuple[float, float, float]] = {}
    for i in range(tries):
        for code in PRICE_CELLS:
            say(f"prices: {i + 1} of {tries}")
            run, _ = thaws.run(code, lambda: None)
            if "shadow or EPT faults" not in run.counts:
                return None
            row = (guest_ms(run), run.counts["shadow or EPT faults"], run.counts["instructions interpreted"])
            best[code] = min(best.get(code, row), row)
    return solve(list(best.values()))


def guest_share(runs: Sequence[Run], price: tuple[float, float] | None) -> dict[str, Any]:
    """Medians of what the guest's time is made of, in ms. Without prices, or with such as come to more than there is
    (a fault that copies a page costs more than one that does not), there is only what a fault costs at most."""
    ms = statistics.median(guest_ms(run) for run in runs)
    share: dict[str, Any] = {"guest_ms": ms}
    if "shadow or EPT faults" not in runs[0].counts:
        return share
    faults = statistics.median(run.counts["shadow or EPT faults"] for run in runs)
    instructions = statistics.median(run.counts["instructions interpreted"] for run in runs)
    share["us_per_fault_at_most"] = ms * 1e3 / faults if faults else None
    if price and faults * price[0] + instructions * price[1] > ms * 1e3:
        share["us_per_copying_fault"] = price[0]
    elif price:
        share |= {"us_per_fault": price[0], "us_per_instruction": price[1], "faults_ms": faults * price[0] / 1e3,
                  "instructions_ms": instructions * price[1] / 1e3}
        share["user_code_ms"] = ms - share["faults_ms"] - share["instructions_ms"]
    return share


# ---- figures ---------------------------------------------------------------------------------------------------------

def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a step, in the order of their beginnings, those inside of others behind them; p50 over the runs in
    which it was. `path_ms` is the mean over all: what is on the path differs from run to run, and must add up."""
    rows = []
    for key in {step.key for run in runs for step in run.steps}:
        each = [[step for step in run.steps if step.key == key] for run in runs]
        there = [steps for steps in each if steps]
        if len(there) * 2 < len(runs):
            continue
        lane, names = key
        paths = [sum(run.on_path(step) for step in steps) for run, steps in zip(runs, each)]
        rows.append({"step": names[-1], "thread": lane, "depth": len(names) - 1, "names": list(names),
                     "start_ms": statistics.median(max(0.0, steps[0].begin) for steps in there),
                     "end_ms": statistics.median(steps[-1].end for steps in there),
                     "ms": statistics.median(sum(s.end - max(0.0, s.begin) for s in steps) for steps in there),
                     "path_ms": statistics.mean(paths), "share": sum(paths) / sum(run.wall for run in runs),
                     "times": statistics.median(len(steps) for steps in there),
                     "faults": statistics.median(sum(s.faults for s in steps) for steps in there)})
    starts = {(row["thread"], *row["names"]): row["start_ms"] for row in rows}

    def place(row: dict[str, Any]) -> list[Any]:
        """By its outermost step's beginning, then inwards."""
        names = row["names"]
        return [(starts.get((row["thread"], *names[:n + 1]), 0.0), LANES.index(row["thread"]), names[n])
                for n in range(len(names))]

    return sorted(rows, key=place)


def totals(runs: Sequence[Run], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    losses = [lost(run) for run in runs]
    wall = sum(run.wall for run in runs)
    pieces: dict[str, float] = {}
    for _, found in losses:
        for ms, where in found:
            pieces[where] = pieces.get(where, 0.0) + ms / len(runs)
    return {"wall_ms": figures(run.wall for run in runs), "mean_wall_ms": wall / len(runs),
            "sum_of_steps_ms": sum(row["path_ms"] for row in rows if row["depth"] == 0),
            "not_accounted_ms": statistics.mean(ms for ms, _ in losses),
            "not_accounted_share": sum(ms for ms, _ in losses) / wall,
            "not_accounted_p50": statistics.median(ms / run.wall for run, (ms, _) in zip(runs, losses)),
            "largest_gaps": [{"where": where, "ms": ms}
                             for where, ms in sorted(pieces.items(), key=lambda item: -item[1])[:5]]}


def value_of(data: bytes) -> str | None:
    """text/plain of the cell's value. Raises BenchError unless the cell ended without an error."""
    found, at = None, 0
    while at < len(data):
        length, kind = struct.unpack_from("<IB", data, at)
        payload, at = data[at + 5:at + 5 + length], at + 5 + length
        if kind == common.DISPLAY and (display := json.loads(payload))["kind"] == "result":
            found = display["data"].get("text/plain")
        elif kind == common.RESULT and (result := json.loads(payload))["status"] != "ok":
            raise BenchError(f"the cell failed in the guest: {result.get('error')}")
    return found


def measure(args: argparse.Namespace, thaws: Thaws, progress: Progress) -> Outcome:
    def prepare() -> None:
        if args.cache == "cold":
            host.drop(path for path in thaws.template.iterdir() if path.is_file())

    def one() -> Run:
        code, want = (args.cell, None) if args.cell else common.random_sum()
        run, data = thaws.run(code, prepare)
        value = value_of(data)
        if want:
            common.must_be(value, want, code)
        return run

    thaws.run("1", lambda: None)  # "hot" is what the second and every later user sees
    runs = []
    for i in range(args.runs):
        progress(f"{i} of {args.runs}")
        runs.append(one())
    price = prices(thaws, args.price_tries, progress) if args.price_tries else None
    rows = summarise(runs)
    result = {"mode": args.mode, "cache": args.cache, "cell": args.cell or "a random sum", **totals(runs, rows),
              "steps": rows, "guest": guest_share(runs, price),
              "counts": {name: statistics.median(run.counts[name] for run in runs) for name in runs[0].counts}}
    failed = []
    if result["not_accounted_p50"] > MOST_LOST:
        failed.append(f"{result['not_accounted_p50']:.1%} of the time is in no step; the largest gap: "
                      f"{result['largest_gaps'][0]['where']}")
    csv = [{"run": i, "step": " / ".join((*step.inside, step.name)), "thread": step.lane, "begin_ms": step.begin,
            "end_ms": step.end, "path_ms": run.on_path(step), "faults": step.faults, "count": step.count}
           for i, run in enumerate(runs) for step in run.steps]
    return Outcome(result, csv, show(result), lambda: draw(result), failed)


# ---- output ----------------------------------------------------------------------------------------------------------

def thread_of(row: dict[str, Any]) -> str:
    return "guest" if row["step"] == GUEST else row["thread"]


def show(result: dict[str, Any]) -> str:
    lines = [["  " * row["depth"] + row["step"], thread_of(row), row["start_ms"], row["ms"],
              row["path_ms"] if row["path_ms"] >= 0.005 else None,
              f"{row['share']:.1%}" if row["path_ms"] >= 0.005 else None, int(row["faults"]) or None]
             for row in result["steps"] if not row["depth"] or row["ms"] >= DETAIL_MS]
    lines += [["not accounted for", "", None, None, result["not_accounted_ms"],
               f"{result['not_accounted_share']:.1%}", None],
              ["sum of the steps", "", None, None, result["sum_of_steps_ms"],
               f"{result['sum_of_steps_ms'] / result['mean_wall_ms']:.1%}", None],
              ["request to result, by the client's clock", "", None, result["wall_ms"].p50, result["mean_wall_ms"],
               "100.0%", None]]
    wall = result["wall_ms"]
    return "\n".join([
        f"{result['mode']}, page cache {result['cache']}, {result['cell']}: p50 {wall.p50:.2f} ms, p90 {wall.p90:.2f}, "
        f"max {wall.max:.2f}, n {wall.n}", "",
        common.table(["step", "thread", "start ms", "ms", "on the path", "share", "faults"], lines), "",
        "start, ms and faults (the host's, by that thread): p50. On the path: mean, which adds up; of a wait it is the",
        f"wake-up after the signal. Steps inside of others are part of those, and left out below {DETAIL_MS} ms.",
        "", *show_guest(result["guest"], result["counts"]), "",
        common.table(["counts", "p50"], [[name, int(n)] for name, n in result["counts"].items()])])


def show_guest(share: dict[str, Any], counts: dict[str, float]) -> list[str]:
    ms = share["guest_ms"]
    if "us_per_fault_at_most" not in share:
        return [f"In the guest {ms:.2f} ms; this KVM counts nothing."]
    faults, instructions = counts["shadow or EPT faults"], counts["instructions interpreted"]
    if "us_per_fault" not in share:
        at_most, copying = share["us_per_fault_at_most"], share.get("us_per_copying_fault")
        return [f"In the guest {ms:.2f} ms: {faults:.0f} faults"
                + (f", at most {at_most:.1f} us each" if at_most else "")
                + (f" (such as copy a page: {copying:.1f})." if copying else ".")]
    return [f"In the guest {ms:.2f} ms, about:",
            f"  {share['faults_ms']:6.2f} ms  {faults:.0f} shadow or EPT faults at {share['us_per_fault']:.1f} us",
            f"  {share['instructions_ms']:6.2f} ms  {instructions:.0f} instructions of its kernel interpreted at "
            f"{share['us_per_instruction']:.1f} us",
            f"  {share['user_code_ms']:6.2f} ms  the rest: user code, and what the prices miss"]


COLOURS = {CLIENT: "#7f7f7f", ZYGOTE: "#9467bd", LOOP: "#1f77b4", VCPU: "#2ca02c", "guest": "#ff7f0e"}


def boxes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is drawn: every step at its lane and depth; the guest has a lane of its own."""
    found = []
    for row in rows:
        lane = thread_of(row)
        found.append({"lane": lane, "level": 0 if lane == "guest" else row["depth"], "from": row["start_ms"],
                      "to": max(row["end_ms"], row["start_ms"]), "name": row["step"],
                      "wait": row["step"].startswith("wait: "), "path": row["path_ms"] > 0})
    return found


def draw(result: dict[str, Any]) -> Any:
    figure, (axes,) = common.new_figure()
    drawn = boxes(result["steps"])
    end = result["wall_ms"].p50
    base, marks = 0, []
    for lane in (*LANES, "guest"):
        mine = [box for box in drawn if box["lane"] == lane]
        if not mine:
            continue
        levels = 1 + max(box["level"] for box in mine)
        for box in mine:
            draw_box(axes, box, base + box["level"], end)
        marks.append((base + (levels - 1) / 2, lane))
        base += levels + 0.5
    figure.set_size_inches(14, 1.6 + 0.36 * base)
    axes.set(xlim=(0, end * 1.01), ylim=(base - 0.25, -0.75), xlabel="ms since the client began (p50 of each step)",
             title=f"{result['mode']}, page cache {result['cache']}: {end:.2f} ms from the request to the result")
    axes.set_yticks(*zip(*marks))
    axes.grid(axis="y", visible=False)
    axes.axvline(end, color="black", linewidth=0.8)
    return figure


def draw_box(axes: Any, box: dict[str, Any], y: float, end: float) -> None:
    colour = COLOURS[box["lane"]]
    since, to = box["from"], min(box["to"], end)
    if to <= since:
        return
    axes.barh(y, to - since, left=since, height=0.9, facecolor="white" if box["wait"] else colour, edgecolor=colour,
              linewidth=0.5, alpha=1.0 if box["path"] and not box["wait"] else 0.45,
              hatch="////" if box["wait"] else None)
    room = int((to - since) / end * 220)  # letters of this size in the picture's width
    if room >= 4:
        name = box["name"] if len(box["name"]) <= room else box["name"][:room - 1] + "…"
        axes.text(since + (to - since) / 2, y, name, ha="center", va="center", fontsize=6.5,
                  color="black" if box["wait"] or not box["path"] else "white")


# ---- a program -------------------------------------------------------------------------------------------------------

def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--runs", type=common.count(1, 10000), default=20, metavar="N",
                         help="how many thaws (default 20)")
    options.add_argument("--mode", choices=MODES, default="exec", help="how the sandbox comes about (default exec)")
    options.add_argument("--cache", choices=("hot", "cold"), default="hot",
                         help="cold drops the template's files from the page cache before each (default hot)")
    options.add_argument("--cell", metavar="CODE", help="the first cell (default a random sum, whose value is checked)")
    options.add_argument("--price-tries", type=common.count(0, 100), default=3, metavar="N",
                         help="thaws of each of the cells that measure what a fault costs; 0: none (default 3)")
    options.add_argument("--svg", type=common.output_file, metavar="FILE", help="as --plot; both may be given")
    options.add_argument("--png", type=common.output_file, metavar="FILE", help="the same")
    return options


def plots(args: argparse.Namespace) -> list[Path]:
    """Raises BenchError for a name whose ending says something else than its option."""
    for name in ("svg", "png"):
        if (path := getattr(args, name)) and path.suffix != f".{name}":
            raise BenchError(f"--{name} {path}: the name must end in .{name}")
    return [path for path in (args.svg, args.png) if path]


def run_once(args: argparse.Namespace) -> Outcome:
    """Measures and publishes. Raises BenchError, VmmError, EOFError, OSError."""
    if args.cache == "cold" and args.mode == "standby":
        raise BenchError("a standby has its pages already", "take --mode shell for the cold page cache")
    extra = plots(args)
    template = common.find_template(args.template)
    program = common.find_programs(args.bin)
    line = host.host_line()
    if not args.json:
        print(line, end="\n\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="thawbox-bench-") as folder, \
            Thaws(program, template, args.mode, Path(folder)) as thaws:
        outcome = measure(args, thaws, Progress(NAME))
    for path in extra:
        common.save_figure(outcome.draw(), path)
    common.publish(args, line, outcome)
    return outcome


def main() -> int:
    args = parser().parse_args()
    random.seed()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, common.interrupt)
    try:
        outcome = run_once(args)
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted", file=sys.stderr)
        return 130
    except (BenchError, VmmError, EOFError, OSError) as e:
        print(f"{NAME}: {e or type(e).__name__}", file=sys.stderr)
        if remedy := getattr(e, "remedy", ""):
            print(remedy, file=sys.stderr)
        return 1
    for why in outcome.failed:
        print(f"{NAME}: {why}", file=sys.stderr)
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
