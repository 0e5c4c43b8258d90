#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How many live sandboxes a host holds, and what each costs in memory and in CPU while it does nothing."""
from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from common import BenchError, Outcome, Progress, Sandbox, Sandboxes, figures, rank

NAME = "density"
TEXT = """\
Adds sandboxes that stay: each is thawed, answers a first cell (a random sum, checked) and then idles. The time of that
first cell, from just before the monitor's process is started to the last byte of the result, tells when the host is
full: sandboxes are added until

  - p99 of the last 10 first cells is twice (--factor) that of the first 10, and is so again for the 10 that follow (one
    outlier on a busy machine is not a full host; with 10 values p99 is the largest), or
  - MemAvailable falls below 10 % of MemTotal, or
  - there are --max of them, or this program may open no more files, or
  - one more fails, which is an error (exit code 1), as is one that no longer answers a warm cell, checked, at the end.

Before that a batch of --sample sandboxes goes through the life of one, and at each stage the memory of each is taken:
created (thawed, the guest has not run), first cell, numpy (imported, a 300x300 product), idle (--idle seconds later).
`live` in the same table are those of the end, after their first cell. By then pages are shared by more of them.
  pss, dirty    /proc/PID/smaps_rollup: Pss (pages that n sandboxes share count 1/n for each) and Private_Dirty
  avail ...     growth of /proc/meminfo since before the first of them, divided by their number: MemAvailable (taken),
                SUnreclaim, PageTables, SecPageTables (KVM's own), KernelStack. These see other programs' changes too.
  idle CPU      utime + stime of /proc/PID/stat, all threads; wakeups: context switches, voluntary or not, a second
The template's memory is shared page cache: told once."""
EXAMPLES = """\
examples:
  bench/density.py --max 100
  bench/density.py --sample 0 --plot full.svg --csv full.csv     until the host is full: it takes most of its memory
exit codes: 0 done; 1 a sandbox failed or did not answer; 2 wrong usage; 130 interrupted"""

WINDOW = 10
MEMORY_SHARE = 0.10
GAP_S = 0.1
"""Between two sandboxes, so that what a guest does after its first cell (50 ms here) does not count for the next."""
KERNEL = ("SUnreclaim", "PageTables", "SecPageTables", "KernelStack")
NUMPY = "import numpy as np; int((np.arange(90000).reshape(300, 300) @ np.full((300, 300), {k})).sum())"


def numpy_cell() -> tuple[str, str]:
    """A matrix product with a random factor, and the value it must have."""
    k = random.randrange(2, 1000)
    return NUMPY.format(k=k), str(90000 * 89999 // 2 * 300 * k)


class Knee:
    """Tells from first-cell times in the order of their sandboxes when the host is full: `factor` times slower; never
    if that is 0."""

    def __init__(self, factor: float, window: int = WINDOW):
        self.factor, self.window = factor, window
        self.values: list[float] = []
        self.candidate = 0
        """Number of sandboxes when p99 first was too large, 0 while it was not."""

    def p99(self, values: list[float]) -> float:
        return rank(sorted(values), 99)

    def add(self, ms: float) -> bool:
        """True once p99 is too large and, a window without any of those values later, still is."""
        self.values.append(ms)
        n = len(self.values)
        if not self.factor or n < 2 * self.window:
            return False
        slow = self.p99(self.values[-self.window:]) >= self.factor * self.p99(self.values[:self.window])
        if not self.candidate:
            self.candidate = n if slow else 0
        elif n == self.candidate + self.window:
            if slow:
                return True
            self.candidate = 0
        return False


# ---- memory and CPU of many ------------------------------------------------------------------------------------------

def memory_each(sandboxes: list[Sandbox], before: dict[str, int]) -> dict[str, float]:
    """Memory of each, on average, in KiB. `before` is meminfo() from before the first of them."""
    n = len(sandboxes)
    rollups = [common.smaps_rollup(sandbox.pid) for sandbox in sandboxes]
    now = common.meminfo()
    each = {"pss_kib": sum(r["Pss"] for r in rollups) / n,
            "private_dirty_kib": sum(r["Private_Dirty"] for r in rollups) / n,
            "MemAvailable_kib": (before["MemAvailable"] - now["MemAvailable"]) / n}
    return {**each, **{f"{name}_kib": (now.get(name, 0) - before.get(name, 0)) / n for name in KERNEL}}


@dataclass
class Idle:
    """CPU and context switches of sandboxes over some seconds in which nothing is asked of them."""

    cpu_ms: list[float]
    switches: list[int]
    s: float

    def figures(self) -> dict[str, float]:
        """cpu_percent is of one CPU."""
        n = len(self.cpu_ms)
        return {"seconds": self.s, "n": n, "cpu_percent_each": sum(self.cpu_ms) / self.s / 10 / n,
                "cpu_percent_all": sum(self.cpu_ms) / self.s / 10, "wakeups_each": sum(self.switches) / self.s / n}


def watch_idle(sandboxes: list[Sandbox], s: float, progress: Progress) -> Idle:
    """Lets `s` seconds pass and looks what each has done in them."""
    begin = time.monotonic()
    cpu = [common.cpu_ms(sandbox.pid) for sandbox in sandboxes]
    switches = [common.switches(sandbox.pid) for sandbox in sandboxes]
    progress.sleep(s, f"{len(sandboxes)} idle")
    cpu = [common.cpu_ms(sandbox.pid) - was for sandbox, was in zip(sandboxes, cpu)]
    woken = []
    for sandbox, was in zip(sandboxes, switches):
        woken.append(sum(n - was.get(thread, 0) for thread, n in common.switches(sandbox.pid).items()))
    return Idle(cpu, woken, time.monotonic() - begin)


FAILURES = (BenchError, common.VmmError, EOFError, OSError)
"""What a sandbox that does not work raises."""


def for_each(sandboxes: list[Sandbox], do: Callable[[Sandbox], Any], what: str, progress: Progress) -> None:
    """Calls `do` with one after another. Raises BenchError that says which failed."""
    for i, sandbox in enumerate(sandboxes):
        progress(f"{what}: {i} of {len(sandboxes)}")
        try:
            do(sandbox)
        except FAILURES as e:
            raise BenchError(f"sandbox {i + 1} of {len(sandboxes)} failed at: {what}: {e}") from None


# ---- the life of one, taken from a batch -----------------------------------------------------------------------------

def go_on(sandbox: Sandbox) -> None:
    sandbox.vmm.call("resume")
    common.must_succeed(sandbox.first().cell, "a first cell")


def work(sandbox: Sandbox) -> None:
    code, want = numpy_cell()
    common.must_be(sandbox.run(code).cell.text, want, code)


def measure_stages(sandboxes: Sandboxes, n: int, idle_s: float, progress: Progress) -> list[dict[str, Any]]:
    """Memory of each of n sandboxes at each stage, and what they do while idle. All are gone at the end."""
    before = common.meminfo()
    batch: list[Sandbox] = []
    stages = []

    def take(name: str) -> None:
        stages.append({"stage": name, "n": n, **memory_each(batch, before)})

    for i in range(n):
        progress(f"batch: {i} of {n} created")
        batch.append(sandboxes.start("1+1", paused=True))
    take("created")
    for name, do in (("first cell", go_on), ("numpy", work)):
        for_each(batch, do, name, progress)
        time.sleep(GAP_S)
        take(name)
    idle = watch_idle(batch, idle_s, progress)
    take("idle")
    stages[-1]["idle"] = idle.figures()
    for sandbox in batch:
        sandboxes.end(sandbox)
    return stages


# ---- until the host is full ------------------------------------------------------------------------------------------

@dataclass
class Full:
    """The sandboxes that were added, one row each, and why no more were."""

    live: list[Sandbox]
    rows: list[dict[str, Any]]
    stopped: str
    knee: Knee
    failed: list[str]


def add_until_full(sandboxes: Sandboxes, most: int, factor: float, progress: Progress) -> Full:
    """One that fails is the last. Raises BenchError when that is the first."""
    full = Full([], [], f"--max {most} reached", Knee(factor), [])
    room = common.room_for_sandboxes()
    while len(full.live) < most:
        try:
            sandbox, reply = sandboxes.first_sum()
        except FAILURES as e:
            full.stopped = f"the next one failed: {e}"
            full.failed.append(f"with {len(full.live)} live sandboxes {full.stopped}")
            if not full.live:
                raise
            break
        info = common.meminfo()
        full.live.append(sandbox)
        full.rows.append({"phase": "density", "live": len(full.live), "first_ms": reply.ms,
                          **{f"{name}_kib": info.get(name, 0) for name in ("MemAvailable", *KERNEL)}})
        progress(f"{len(full.live)} live, the last in {reply.ms:.1f} ms, {info['MemAvailable'] >> 10} MiB available")
        if full.knee.add(reply.ms):
            full.stopped = f"p99 of the first cell is {factor:g} times as large, from sandbox {full.knee.candidate} on"
        elif info["MemAvailable"] < MEMORY_SHARE * info["MemTotal"]:
            full.stopped = f"less than {MEMORY_SHARE:.0%} of memory is available"
        elif len(full.live) >= room:
            full.stopped = "this program may open no more files (ulimit -Hn)"
        else:
            time.sleep(GAP_S)
            continue
        break
    return full


def ask_all(full: Full, progress: Progress) -> list[float | None]:
    """The ms of a warm cell of each; None, and a reason in `failed`, for one that does not answer."""
    warm: list[float | None] = []
    for i, sandbox in enumerate(full.live):
        progress(f"a warm cell of each: {i} of {len(full.live)}")
        try:
            warm.append(sandbox.warm_sum().ms)
        except FAILURES as e:
            warm.append(None)
            full.failed.append(f"sandbox {i + 1} of {len(full.live)} does not answer any more: {e}")
    return warm


def density_figures(full: Full, memory: dict[str, float], idle: Idle,
                    warm: list[float | None]) -> dict[str, Any]:
    times = full.knee.values
    answered = [ms for ms in warm if ms is not None]
    first, last = times[:WINDOW], times[-WINDOW:]
    return {"live": len(full.live), "stopped": full.stopped, "first_cell_ms": figures(times),
            "first_window_ms": figures(first), "last_window_ms": figures(last),
            "factor": full.knee.factor, "slow_from": full.knee.candidate or None,
            "answered": len(answered), "warm_cell_ms": figures(answered) if answered else None, **memory,
            "idle": idle.figures()}


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    sandboxes.end(sandboxes.first_sum()[0])  # the second and every later one finds programs and template in memory
    stages = measure_stages(sandboxes, args.sample, args.idle, progress) if args.sample else []
    before = common.meminfo()
    full = add_until_full(sandboxes, args.max, args.factor, progress)
    time.sleep(GAP_S)
    memory = memory_each(full.live, before)
    idle = watch_idle(full.live, args.idle, progress)
    warm = ask_all(full, progress)
    for row, sandbox, cpu, woken, ms in zip(full.rows, full.live, idle.cpu_ms, idle.switches, warm):
        rollup = common.smaps_rollup(sandbox.pid)
        row |= {"pss_kib": rollup["Pss"], "private_dirty_kib": rollup["Private_Dirty"], "idle_s": idle.s,
                "idle_cpu_ms": cpu, "idle_wakeups": woken, "warm_ms": ms}
    resident, total = common.template_kib(sandboxes.template)
    result = {"template_kib": {"resident": resident, "size": total},
              "overcommit_memory": int(Path("/proc/sys/vm/overcommit_memory").read_text()),
              "swap_kib": before["SwapTotal"], "stages": stages,
              "density": density_figures(full, memory, idle, warm)}
    rows = [{"phase": "stage", **{k: v for k, v in stage.items() if k != "idle"}} for stage in stages] + full.rows
    return Outcome(result, rows, show(result), lambda: draw(full), full.failed)


# ---- output ----------------------------------------------------------------------------------------------------------

def show_idle(idle: dict[str, float]) -> str:
    return (f"idle for {idle['seconds']:.0f} s: each {idle['cpu_percent_each']:.2f} % of a CPU and "
            f"{idle['wakeups_each']:.1f} wakeups a second; all {idle['n']} together {idle['cpu_percent_all']:.1f} %")


def show(result: dict[str, Any]) -> str:
    density = result["density"]
    columns = ["pss_kib", "private_dirty_kib", "MemAvailable_kib", *[f"{name}_kib" for name in KERNEL]]
    rows = [[stage["stage"], stage["n"], *[round(stage[name]) for name in columns]]
            for stage in [*result["stages"], {"stage": "live", "n": density["live"], **density}]]
    heads = ["KiB each", "n", "pss", "dirty", "avail", "slab", "pagetables", "secpagetables", "kernelstack"]
    template = result["template_kib"]
    lines = [common.table(heads, rows), ""]
    lines += [show_idle(stage["idle"]) for stage in result["stages"] if "idle" in stage]
    lines += [f"template, once: {template['resident'] >> 10} MiB of page cache ({template['size'] >> 10} MiB on disk); "
              f"overcommit_memory {result['overcommit_memory']}, swap {result['swap_kib'] >> 10} MiB", "",
              f"{density['live']} live sandboxes: {density['stopped']}; {density['answered']} of them answer",
              show_idle(density["idle"]), "",
              common.table(["ms", "n", "p50", "p90", "p99", "max"],
                           [[name, f.n, f.p50, f.p90, f.p99, f.max] for name, f in
                            (("first cell, first 10", density["first_window_ms"]),
                             ("first cell, last 10", density["last_window_ms"]),
                             ("first cell, all", density["first_cell_ms"]),
                             ("warm cell at the end", density["warm_cell_ms"])) if f])]
    return "\n".join(lines)


def draw(full: Full) -> Any:
    figure, (left, right) = common.new_figure(2)
    live = [row["live"] for row in full.rows]
    left.plot(live, full.knee.values, ".")
    base = full.knee.p99(full.knee.values[:WINDOW])
    left.axhline(base, color="gray", linestyle="--", label=f"p99 of the first {WINDOW}")
    left.set(xlabel="live sandboxes", ylabel="ms to a first result (log)", yscale="log", title="One more sandbox")
    left.legend(fontsize="small")
    right.plot(live, [row["MemAvailable_kib"] / 1024 for row in full.rows])
    right.set(xlabel="live sandboxes", ylabel="MemAvailable, MiB", title="Memory that is left", ylim=(0, None))
    return figure


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--max", type=common.count(1, 100000), default=100000, metavar="N",
                         help="stop at N live sandboxes (default: none)")
    options.add_argument("--factor", type=common.number(0, 1000), default=2, metavar="F",
                         help="how many times slower a full host is; 0: go on until memory ends (default 2)")
    options.add_argument("--sample", type=common.count(0, 1000), default=20, metavar="N",
                         help="batch whose memory is taken at each stage; 0: no stages (default 20)")
    options.add_argument("--idle", type=common.seconds, default=20, metavar="S",
                         help="how long they idle, in seconds (default 20)")
    return options


if __name__ == "__main__":
    sys.exit(common.run_program(NAME, parser().parse_args(), measure))
