#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark suite in a short form and refreshes the docs: tables of docs/benchmarks.md and README.md, the
breakdown in docs/thaw.md, and their pictures.

Usage: bench.py BIN OUTPUT-DIR [RUNS [PEERS-OPTION...]]

BIN is the folder of the programs. Each series leaves a CSV file in OUTPUT-DIR, and all.json has the figures. RUNS is
the number of runs of the main series (default 100); the others are shares of it. PEERS-OPTIONs go to bench/peers.py
(--firecracker PATH, --qemu PATH), which then runs between our own series.
"""
from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import TOP, draw_shares, new_figure, save_figure

DOCS = TOP / "docs"
DAY = str(24 * 3600)
CELLS = {
    "sum of two numbers": [],
    "print of 1 KiB": ["--cell", "print('x' * 1023)"],
    "numpy reduction": ["--cell", "import numpy as np; np.arange(10000.).reshape(100, 100).sum(axis=0).mean()"],
    "pandas groupby": ["--cell", "import pandas as pd; pd.DataFrame({'k': [1, 2, 1], 'v': [1., 2., 3.]})"
                                 ".groupby('k').v.sum()"],
    "traceback": ["--cell", "def f(n):\n    return n / 0\nf(1)", "--raises"],
    "plot to PNG": ["--cell", "import io, matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2, 3])\n"
                              "b = io.BytesIO()\nfig.savefig(b, format='png')\nplt.close(fig)\nlen(b.getvalue())"],
}
"""What is asked first, and the options of bench/thaw for it."""
AT_ONCE = (1, 2, 4, 8, 16, 32)


@dataclass
class Suite:
    """Runs programs and keeps what they found."""

    bin: Path
    out: Path
    runs: int
    found: dict[str, Any] = field(default_factory=dict)

    def thaw(self, name: str, share: float, *options: str) -> dict[str, Any]:
        """One series of bench/thaw; n is a share of the runs, and a multiple of what starts together."""
        together = next((int(options[i + 1]) for i, o in enumerate(options) if o in ("--at-once", "--burst")), 1)
        n = max(together, round(self.runs * share) // together * together)
        path = self.out / (name.replace(", ", "-").replace(" ", "-") + ".csv")
        print(f"bench: {name}, n {n}", file=sys.stderr, flush=True)
        done = subprocess.run([self.bin / "thaw", "--runs", str(n), *options, "--csv", path, "--json"], check=True,
                              stdout=subprocess.PIPE)
        result = json.loads(done.stdout)
        with open(path, newline="") as file:
            result["runs"] = [float(row["result_ms"]) for row in csv.DictReader(file)]
        self.found[name] = result
        return result

    def program(self, name: str, *options: str) -> str:
        """One of the Python programs, with its CSV file: what it prints, as a block of text for a page."""
        print(f"bench: {name}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, TOP / "bench" / f"{name}.py", *options, "--csv",
                               self.out / f"{name}.csv"], check=True, stdout=subprocess.PIPE, text=True)
        return f"```\n{done.stdout.strip()}\n```"


def figures(result: dict[str, Any]) -> str:
    return " | ".join(f"{result[f'{p}_ms']:.2f}" for p in ("min", "p50", "p90", "p99", "max"))


# ---- tables ----------------------------------------------------------------------------------------------------------

def ways(suite: Suite) -> str:
    """A random sum, each way to create, hot; then cold and old."""
    lines = ["| way | cache | n | min | p50 | p90 | p99 | max ms |", "|---|---|---|---|---|---|---|---|"]
    for mode, cache, share, options in (
            ("exec", "hot", 1, []), ("fresh", "hot", 2, []), ("shell", "hot", 1, []), ("standby", "hot", 2, []),
            ("exec", "cold", 0.2, []), ("fresh", "cold", 0.4, []), ("fresh, a day old", "hot", 0.4, ["--age", DAY])):
        result = suite.thaw(f"{mode}, {cache}", share, "--mode", mode.split(",")[0], "--cache", cache, *options)
        lines.append(f"| {mode} | {cache} | {result['n']} | {figures(result)} |")
    return "\n".join(lines)


def first_cells(suite: Suite) -> str:
    """p50 and p90 of real first cells."""
    lines = ["| first cell | fresh p50 | p90 | standby p50 | p90 | warm p50 | p90 ms |", "|---|---|---|---|---|---|---|"]
    for name, options in CELLS.items():
        row = []
        for mode in ("fresh", "standby", "warm"):
            result = suite.thaw(f"{name}, {mode}", 0.2 if mode == "fresh" else 0.1, "--mode", mode, *options)
            row.append(f"{result['p50_ms']:.1f} | {result['p90_ms']:.1f}")
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def load(suite: Suite) -> str:
    """Closed loop, then open loop at half of what it could do, then a burst; fresh."""
    lines = ["| load, fresh | n | results a second | p50 | p90 | p99 | max ms |", "|---|---|---|---|---|---|---|"]

    def add(name: str, result: dict[str, Any]) -> None:
        lines.append(f"| {name} | {result['n']} | {result['results_per_s']:.0f} | {result['p50_ms']:.1f} | "
                     f"{result['p90_ms']:.1f} | {result['p99_ms']:.1f} | {result['max_ms']:.1f} |")

    best = 0.0
    for n in AT_ONCE:
        result = suite.thaw(f"closed loop {n}", 0.64, "--mode", "fresh", "--at-once", str(n))
        best = max(best, result["results_per_s"])
        add(f"closed loop, {n} at once", result)
    rate = best / 2
    add(f"open loop, Poisson, {rate:.0f} a second (half of the most)",
        suite.thaw("open loop", 2, "--mode", "fresh", "--arrive", f"{rate:.1f}"))
    add("burst of 8", suite.thaw("burst 8", 0.4, "--mode", "fresh", "--burst", "8"))
    return "\n".join(lines)


PROGRAMS = {"density": ["--max", "12", "--idle", "10"], "steady": ["--cycles", "100"],
            "vsock": ["--size", "512K", "--runs", "2", "--trips", "30"], "cell": ["--runs", "3", "--seconds", "4"], "disk": [],
            "neighbours": ["--runs", "10"]}


def others(suite: Suite) -> str:
    """What the other programs say in a short form."""
    return "\n\n".join(f"`bench/{' '.join([f'{name}.py', *options])}`\n{suite.program(name, *options)}"
                       for name, options in PROGRAMS.items())


def put(page: Path, mark: str, text: str) -> None:
    """Replaces what stands between the marks of a page. Ends the program where they are missing."""
    begin, end = f"<!-- {mark} begin: make bench -->", f"<!-- {mark} end -->"
    old = page.read_text()
    if old.count(begin) != 1 or old.count(end) != 1:
        sys.exit(f"bench: {page} lacks the marks {begin} and {end}")
    page.write_text(f"{old[:old.index(begin)]}{begin}\n{text}\n{old[old.index(end):]}")


def plot(suite: Suite) -> None:
    figure, (axes,) = new_figure()
    names = ("exec, hot", "fresh, hot", "shell, hot", "standby, hot", "fresh, cold")
    draw_shares(axes, {name: suite.found[name]["runs"] for name in names}, "ms from the request to the result", "runs")
    axes.set_title("First result of a new sandbox, by way of making it")
    for ending in ("svg", "png"):
        save_figure(figure, DOCS / f"thaw.{ending}")


def main() -> None:
    if len(sys.argv) < 3 or not (sys.argv[3:4] or ["1"])[0].isdecimal():
        sys.exit(__doc__)
    suite = Suite(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 100)
    suite.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    main_table = ways(suite)
    cells_table = first_cells(suite)
    load_table = load(suite)
    breakdown = suite.program("breakdown", "--runs", "30", "--svg", str(DOCS / "breakdown.svg"),
                              "--png", str(DOCS / "breakdown.png"))
    more = others(suite)
    if sys.argv[4:]:
        more = f"`bench/peers.py`\n{suite.program('peers', *sys.argv[4:])}\n\n{more}"
    (suite.out / "all.json").write_text(json.dumps(suite.found, indent=1) + "\n")
    plot(suite)
    host = f"Host: {suite.found['fresh, hot']['host']}."
    put(DOCS / "benchmarks.md", "figures", f"{main_table}\n\n{cells_table}\n\n{load_table}\n\n{host}")
    put(DOCS / "benchmarks.md", "more", more)
    put(DOCS / "thaw.md", "breakdown", breakdown)
    put(TOP / "README.md", "figures", f"{main_table}\n\n{host}")
    print(f"{main_table}\n\n{cells_table}\n\n{load_table}\n\n{host}")
    print(f"bench: {time.monotonic() - begun:.0f} s; CSV in {suite.out}, tables in docs/benchmarks.md and README.md")


if __name__ == "__main__":
    main()
