#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench/thaw over a small set of cells and cache states; writes CSV files, a plot and the docs' table.

Usage: bench.py THAW OUTPUT-DIR [RUNS]. The table goes between the markers of docs/benchmarks.md and README.md, the
plot to docs/thaw.svg, one CSV file a series (one line a run, ms since the start) and all.json to OUTPUT-DIR.
"""
import csv
import json
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)

TOP = Path(__file__).resolve().parent.parent
DOCS = TOP / "docs"
BEGIN, END = "<!-- figures begin: make bench -->", "<!-- figures end -->"
PANDAS = "import pandas as pd; pd.DataFrame({'k': [1, 2, 1], 'v': [1., 2., 3.]}).groupby('k').v.sum()"
DAY = str(24 * 3600)
# name, share of the runs, arguments
SERIES = [
    ("plain cell, hot", 1.0, ["--cache", "hot"]),
    ("plain cell, cold", 0.3, ["--cache", "cold"]),
    ("plain cell, hot, a day old", 0.5, ["--cache", "hot", "--age", DAY]),
    ("pandas groupby, hot", 0.5, ["--cache", "hot", "--cell", PANDAS]),
    ("plain cell, hot, 8 at once", 0.8, ["--cache", "hot", "--at-once", "8"]),
]


def measure(thaw: str, out: Path, runs: int) -> list[dict]:
    results = []
    for name, share, arguments in SERIES:
        at_once = int(arguments[arguments.index("--at-once") + 1]) if "--at-once" in arguments else 1
        n = max(at_once, round(runs * share) // at_once * at_once)
        path = out / (name.replace(", ", "-").replace(" ", "-") + ".csv")
        command = [thaw, "--runs", str(n), *arguments, "--csv", str(path), "--json"]
        print(f"bench: {name}, n {n}", flush=True)
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        with open(path, newline="") as file:
            result["runs"] = [float(row["result_ms"]) for row in csv.DictReader(file)]
        results.append({"name": name, **result})
    return results


def table(results: list[dict]) -> str:
    lines = ["| series | n | p50 ms | p90 ms | p99 ms | max ms |", "|---|---|---|---|---|---|"]
    for r in results:
        lines.append(f"| {r['name']} | {r['n']} | {r['p50_ms']:.1f} | {r['p90_ms']:.1f} | {r['p99_ms']:.1f} | "
                     f"{r['max_ms']:.1f} |")
    reached = ", ".join(f"{name} {ms:.2f}" for name, ms in results[0]["parts"].items())
    lines += ["", f"Reached after, plain cell, hot (p50, ms): {reached}.", "", f"Host: {results[0]['host']}."]
    return "\n".join(lines)


def plot(results: list[dict], path: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "thawbox"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(8, 4))
    for r in results:
        runs = sorted(r["runs"])
        axes.step(runs, [(i + 1) / len(runs) for i in range(len(runs))], where="post", label=r["name"])
    axes.set_xscale("log")
    axes.set_xlabel("ms from process start to the result (log)")
    axes.set_ylabel("share of runs")
    axes.set_title("Fresh sandboxes: first result")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    results = measure(sys.argv[1], out, int(sys.argv[3]) if len(sys.argv) == 4 else 40)
    (out / "all.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, DOCS / "thaw.svg")
    for page in (DOCS / "benchmarks.md", TOP / "README.md"):
        text = page.read_text()
        if text.count(BEGIN) != 1 or text.count(END) != 1:
            sys.exit(f"bench: {page} lacks the markers {BEGIN} and {END}")
        head, tail = text[:text.index(BEGIN)], text[text.index(END):]
        page.write_text(f"{head}{BEGIN}\n{table(results)}\n{tail}")
    print(table(results))
    print(f"bench: CSV in {out}, table in docs/benchmarks.md and README.md, plot in docs/thaw.svg")


if __name__ == "__main__":
    main()
