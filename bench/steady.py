#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a long run leaves something behind or grows slower: many sandboxes made, used once and destroyed."""
from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
from common import BenchError, Outcome, Progress, Sandboxes, VmmError, figures

NAME = "steady"
TEXT = """\
Makes a fresh sandbox, runs a random sum in it (checked), destroys it; --cycles times one after another, then as many
times with --at-once threads. Each is timed in two parts: `first` from just before the monitor's process is started to
the last byte of the result, `end` from then until that process is gone. A table by tenths of the run shows drift.

What a cycle could leave behind is counted before, between the tenths (nothing is live then), once in each tenth while
sandboxes are live, and after. "After" is the best of up to 10 s of looking, for the kernel frees some things late.
It is a leak when a figure has grown by more than:

  descriptors, threads (of this program)                      0
  monitors (processes with this run's mark), files (in the
  folder where sandboxes keep their private disks)            0
  unix sockets (/proc/net/unix, whole host)                  20
  SUnreclaim, PageTables, SecPageTables                   4 MiB
  memory taken (MemTotal - MemAvailable)         --allow-memory
  Slab                                               not judged: it holds names of files that any program has looked at

From the sockets on, other programs' changes are seen too: run it where nothing else runs. "allowed a cycle" is the
growth a cycle that would just not have been noticed."""
EXAMPLES = """\
examples:
  bench/steady.py
  bench/steady.py --cycles 10000 --at-once 0 --csv steady.csv --plot steady.svg
exit codes: 0 nothing grew; 1 a cycle failed or a figure grew (which one is told); 2 wrong usage; 130 interrupted"""

TENTHS = 10
SETTLE_S = 10.0
FAILURES_MAX = 20
"""So many failed cycles end the run."""
ALLOWED = {"descriptors": 0, "threads": 0, "monitors": 0, "files": 0, "unix_sockets": 20, "SUnreclaim_kib": 4 << 10,
           "PageTables_kib": 4 << 10, "SecPageTables_kib": 4 << 10}
TAKEN = "memory_taken_kib"
"""MemTotal - MemAvailable, so that it grows as the others do."""


# ---- what could be left behind ---------------------------------------------------------------------------------------

def read_figures(sandboxes: Sandboxes) -> dict[str, int]:
    """Everything that may grow, as it is now."""
    info = common.meminfo()
    return {"descriptors": len(os.listdir("/proc/self/fd")) - 1, "threads": len(os.listdir("/proc/self/task")),
            "monitors": sandboxes.processes(), "files": len(os.listdir(sandboxes.folder)),
            "unix_sockets": Path("/proc/net/unix").read_text().count("\n") - 1,
            **{f"{name}_kib": info.get(name, 0) for name in ("SUnreclaim", "Slab", "PageTables", "SecPageTables")},
            TAKEN: info["MemTotal"] - info["MemAvailable"]}


def grown(before: dict[str, int], after: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """By how much each figure has grown that has grown by more than is allowed."""
    return {name: after[name] - before[name] for name, most in allowed.items() if after[name] - before[name] > most}


def settle(read: Callable[[], dict[str, int]], before: dict[str, int], allowed: dict[str, int],
           most_s: float = SETTLE_S) -> dict[str, int]:
    """The least of each figure while it is read again, until none has grown or the time is over."""
    end = time.monotonic() + most_s
    best = read()
    while grown(before, best, allowed) and time.monotonic() < end:
        time.sleep(0.2)
        best = {name: min(value, best[name]) for name, value in read().items()}
    return best


# ---- cycles ----------------------------------------------------------------------------------------------------------

@dataclass
class Series:
    """Cycles of one kind, in the order in which they ended, and the figures taken between and during them."""

    at_once: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0
    """Spent in cycles alone."""

    def tenth(self, i: int) -> list[dict[str, Any]]:
        n = len(self.rows)
        return self.rows[n * i // TENTHS:n * (i + 1) // TENTHS]


def cycle(sandboxes: Sandboxes, while_live: Callable[[], None] | None) -> dict[str, float]:
    """One sandbox's life, in ms. Raises BenchError, VmmError, EOFError or OSError when it fails; it is gone then."""
    sandbox, reply = sandboxes.first_sum()
    if while_live:
        while_live()
    return {"first_ms": reply.ms, "end_ms": sandboxes.end(sandbox)}


class Runner:
    """Runs the cycles of one series."""

    def __init__(self, sandboxes: Sandboxes, series: Series, progress: Progress):
        self.sandboxes, self.series, self.progress = sandboxes, series, progress
        self._lock = threading.Lock()
        self._stop = False

    def point(self, when: str) -> None:
        self.series.points.append({"at_once": self.series.at_once, "when": when, **read_figures(self.sandboxes)})

    def one(self, i: int, look: bool) -> None:
        """The i-th cycle; with `look` the figures are taken while it lives. What fails is kept as text."""
        if self._stop or len(self.series.failures) >= FAILURES_MAX:
            return
        row: dict[str, Any] = {"at_once": self.series.at_once, "cycle": i}
        try:
            row |= cycle(self.sandboxes, (lambda: self.point("live")) if look else None)
        except (BenchError, VmmError, EOFError, OSError) as e:
            row["failed"] = str(e) or type(e).__name__
        with self._lock:
            if "failed" in row:
                self.series.failures.append(f"cycle {i}: {row['failed']}")
            else:
                self.series.rows.append(row)
            self.progress(f"{self.series.at_once} at once: {len(self.series.rows)} cycles")

    def tenth(self, first: int, end: int) -> None:
        """Cycles first..end-1; the one in the middle is looked at."""
        looked = (first + end) // 2
        begin = time.monotonic()
        if self.series.at_once == 1:
            for i in range(first, end):
                self.one(i, i == looked)
        else:
            with ThreadPoolExecutor(self.series.at_once) as pool:
                try:
                    list(pool.map(lambda i: self.one(i, i == looked), range(first, end)))
                except BaseException:
                    self._stop = True
                    self.sandboxes.kill()
                    raise
        self.series.seconds += time.monotonic() - begin

    def run(self, cycles: int) -> None:
        for i in range(TENTHS):
            self.tenth(cycles * i // TENTHS, cycles * (i + 1) // TENTHS)
            self.point(f"{i + 1}/{TENTHS}")


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    allowed = {**ALLOWED, TAKEN: args.allow_memory >> 10}
    for _ in range(2):
        sandboxes.end(sandboxes.first_sum()[0])  # what is allocated once and kept
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.monotonic).result()
    before = read_figures(sandboxes)
    all_series = []
    for at_once in [1, *([args.at_once] if args.at_once > 1 else [])]:
        series = Series(at_once)
        Runner(sandboxes, series, progress).run(args.cycles)
        all_series.append(series)
    after = settle(lambda: read_figures(sandboxes), before, allowed)
    return report(args.cycles, all_series, before, after, allowed)


# ---- output ----------------------------------------------------------------------------------------------------------

def series_figures(series: Series) -> dict[str, Any]:
    tenths = [figures(row["first_ms"] for row in rows) for i in range(TENTHS) if (rows := series.tenth(i))]
    return {"at_once": series.at_once, "n": len(series.rows), "failed": series.failures,
            "cycles_per_second": len(series.rows) / series.seconds,
            "first_ms": figures(row["first_ms"] for row in series.rows),
            "end_ms": figures(row["end_ms"] for row in series.rows),
            "tenths_first_ms": tenths, "drift": tenths[-1].p50 / tenths[0].p50}


def report(cycles: int, all_series: list[Series], before: dict[str, int], after: dict[str, int],
           allowed: dict[str, int]) -> Outcome:
    leaks = grown(before, after, allowed)
    failures = [failure for series in all_series for failure in series.failures]
    if not all(series.rows for series in all_series):
        raise BenchError(f"no cycle succeeded: {failures[0]}")
    total = cycles * len(all_series)
    result = {"cycles": cycles, "series": [series_figures(series) for series in all_series],
              "before": before, "after": after, "allowed": allowed, "grown": leaks,
              "points": [point for series in all_series for point in series.points]}
    failed = failures + [f"{name} has grown by {n} in {total} cycles ({allowed[name]} allowed)"
                         for name, n in leaks.items()]
    return Outcome(result, [row for series in all_series for row in series.rows], show(result, total),
                   lambda: draw(all_series), failed)


def show(result: dict[str, Any], total: int) -> str:
    parts = [show_series(series) for series in result["series"]]
    live = [point for point in result["points"] if point["when"] == "live"]
    rest = [point for point in result["points"] if point["when"] != "live"]
    rows = []
    for name, before in result["before"].items():
        after, most = result["after"][name], result["allowed"].get(name)
        verdict = "" if most is None else "GROWN" if name in result["grown"] else "ok"
        rows.append([name, before, max(point[name] for point in rest),
                     max((point[name] for point in live), default=None), after, after - before, most,
                     None if most is None else most / total, verdict])
    heads = ["figure", "before", "most between", "most live", "after", "growth", "allowed", "allowed a cycle", ""]
    return "\n".join([*parts, common.table(heads, rows)])


def show_series(series: dict[str, Any]) -> str:
    times = [("first", series["first_ms"]), ("end", series["end_ms"])]
    times += [(f"first, tenth {i + 1}", tenth) for i, tenth in enumerate(series["tenths_first_ms"])]
    return "\n".join([
        f"{series['at_once']} at once: {series['n']} cycles, {len(series['failed'])} failed, "
        f"{series['cycles_per_second']:.1f} a second; the median of the last tenth is {series['drift']:.2f} times that "
        "of the first",
        common.table(["ms", "n", "p50", "p90", "p99", "max"],
                     [[name, f.n, f.p50, f.p90, f.p99, f.max] for name, f in times]), ""])


def draw(all_series: list[Series]) -> Any:
    figure, (left, right) = common.new_figure(2)
    for series in all_series:
        label = f"{series.at_once} at once"
        left.plot(range(len(series.rows)), [row["first_ms"] for row in series.rows], ".", markersize=2, label=label)
        points = [point for point in series.points if point["when"] != "live"]
        for name in ("SUnreclaim_kib", "PageTables_kib"):
            right.plot(range(1, len(points) + 1), [(point[name]) / 1024 for point in points], ".-",
                       label=f"{name[:-4]}, {label}")
    left.set(xlabel="cycle", ylabel="ms to the result", yscale="log", title="Each cycle")
    right.set(xlabel="tenth of the run", ylabel="MiB", title="Kernel memory between the tenths")
    left.legend(fontsize="small")
    right.legend(fontsize="small")
    return figure


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--cycles", type=common.count(10, 1000000), default=1000, metavar="N",
                         help="how many of each series, at least 10 (default 1000)")
    options.add_argument("--at-once", type=common.count(0, 256), default=8, metavar="K",
                         help="threads of the second series; 0 or 1: no second series (default 8)")
    options.add_argument("--allow-memory", type=common.size(0, 1 << 40), default=64 << 20, metavar="SIZE",
                         help="growth of MemTotal - MemAvailable that is no leak (default 64M)")
    return options


if __name__ == "__main__":
    sys.exit(common.run_program(NAME, parser().parse_args(), measure))
