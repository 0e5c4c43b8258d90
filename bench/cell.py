#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What cells cost, warm in one context and as the first of a fresh sandbox: time, usage, and KVM's counters."""
from __future__ import annotations

import argparse
import ast
import base64
import io
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import common
from common import Cell, Outcome, Progress, Reply, Sandboxes, figures

NAME = "cell"
TEXT = """\
Runs cells of several kinds, each with random contents, so that no result can have been there before; all are checked:

  sum        1+1 of random numbers              numpy      sum of a new array of 1,000,000 numbers
  print-1k   prints 1 KiB                       groupby    groupby and sum of a new DataFrame of 100,000 rows
  print-1m   prints 1 MiB                       traceback  an exception two calls deep
  html       a new DataFrame as an HTML table   plot       a line chart, shown: a PNG

warm   one after another in one context (a sandbox for each kind); ms from before the request is sent to the last byte
       of its result. The run before them imports and warms up, and is told apart.
first  each the first cell of a fresh sandbox; ms from just before its monitor's process is started. Its counters stand
       still when they are read: the sandbox is thawed with `hold`.

A series ends after --runs runs, or when --seconds have passed and at least one has been made: n says how many.
  guest ms   wall time in the guest by its own clock (`usage`), without input, output of the result, and vsock
  exits, interpreted, faults   medians of KVM's counters per cell (exits, insn_emulation, pf_taken), what the guest
             did in the background included; interpreted instructions are a matter of software KVM"""
EXAMPLES = """\
examples:
  bench/cell.py
  bench/cell.py --kinds sum,plot --runs 200 --seconds 60 --csv cell.csv --plot cell.svg
exit codes: 0 done; 1 a cell failed or gave another result; 2 wrong usage; 130 interrupted"""

COUNTERS = {"exits": "exits", "interpreted": "insn_emulation", "faults": "pf_taken"}
NUMPY_N = 1_000_000
GROUPBY_N = 100_000
CELL_S = 600.0


# ---- kinds of cells --------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Task:
    """A cell and what proves that it did its work: `check` gives what is there and what must be."""

    code: str
    check: Callable[[Cell], tuple[object, object]]
    raises: bool = False


def sum_cell(rows: int) -> Task:
    code, want = common.random_sum()
    return Task(code, lambda cell: (cell.text, want))


def print_cell(n: int) -> Task:
    word = f"{random.getrandbits(32):08x}"
    return Task(f"print('{word}' * {n // 8})", lambda cell: (cell.stdout, word.encode() * (n // 8) + b"\n"))


def numpy_cell(rows: int) -> Task:
    k = random.randrange(2, 1000)
    return Task(f"import numpy as np\nint((np.arange({NUMPY_N}) * {k}).sum())",
                lambda cell: (cell.text, str(NUMPY_N * (NUMPY_N - 1) // 2 * k)))


def groupby_cell(rows: int) -> Task:
    k = random.randrange(2, 1000)
    want = [sum(range(rest, GROUPBY_N, 7)) * k for rest in range(7)]
    return Task(f"import numpy as np, pandas as pd\ni = np.arange({GROUPBY_N})\n"
                f"pd.DataFrame({{'k': i % 7, 'v': i * {k}}}).groupby('k').v.sum().tolist()",
                lambda cell: (ast.literal_eval(cell.text or "None"), want))


def html_cell(rows: int) -> Task:
    base = random.randrange(1000000)
    code = ("import pandas as pd\nfrom IPython.display import HTML\n"
            f"HTML(pd.DataFrame({{'a': range({base}, {base + rows}), 'b': range({rows})}}).to_html())")

    def check(cell: Cell) -> tuple[object, object]:
        html = "".join(display["data"].get("text/html", "") for display in cell.displays)
        ends = [f"<td>{base}</td>" in html, f"<td>{base + rows - 1}</td>" in html]
        return [html.count("<tr>"), *ends], [rows, True, True]
    return Task(code, check)


def traceback_cell(rows: int) -> Task:
    k = random.randrange(1000000)

    def check(cell: Cell) -> tuple[object, object]:
        error = cell.result.get("error") or {}
        return [error.get("name"), error.get("value"), "return inner(n)[0]" in error.get("traceback", "")], \
            ["KeyError", str(k), True]
    return Task(f"def inner(n):\n    return {{}}[n]\ndef outer(n):\n    return inner(n)[0]\nouter({k})", check, True)


def plot_cell(rows: int) -> Task:
    values = [random.randrange(100) for _ in range(10)]

    def check(cell: Cell) -> tuple[object, object]:
        pictures = [display["data"]["image/png"] for display in cell.displays if "image/png" in display["data"]]
        return len(pictures) == 1 and is_drawn(base64.b64decode(pictures[0])), True
    return Task(f"import matplotlib.pyplot as plt\nplt.plot({values})\nplt.title('{values[0]}')\nplt.show()", check)


def is_drawn(png: bytes) -> bool:
    """Whether a PNG decodes, has the size of a figure and more than one colour. Raises OSError or SyntaxError when it
    does not decode."""
    import matplotlib.image
    pixels = matplotlib.image.imread(io.BytesIO(png), format="png")
    return min(pixels.shape[:2]) > 100 and float(pixels.std()) > 0.01


KINDS: dict[str, Callable[[int], Task]] = {
    "sum": sum_cell, "print-1k": lambda rows: print_cell(1 << 10), "print-1m": lambda rows: print_cell(1 << 20),
    "html": html_cell, "numpy": numpy_cell, "groupby": groupby_cell, "traceback": traceback_cell, "plot": plot_cell}


def proven(task: Task, reply: Reply) -> Reply:
    """The reply of a cell that did what it should. Raises BenchError."""
    if not task.raises:
        common.must_succeed(reply.cell, task.code)
    found, want = task.check(reply.cell)
    common.must_be(found, want, task.code)
    return reply


# ---- series ----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Limits:
    """When a series ends: after that many runs, or the first that is over after so many seconds."""

    runs: int
    s: float

    def repeat(self, do: Callable[[], dict[str, Any]], say: Callable[[int], None]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        end = time.monotonic() + self.s
        while len(rows) < self.runs and (not rows or time.monotonic() < end):
            say(len(rows))
            rows.append(do())
        return rows


def row_of(reply: Reply, usage: dict[str, Any], counts: dict[str, int | None]) -> dict[str, Any]:
    return {"ms": reply.ms, "guest_ms": usage["wall_ms"], "cpu_user_ms": usage["cpu_user_ms"],
            "cpu_system_ms": usage["cpu_system_ms"], "peak_kib": usage["peak_kib"], **counts}


def warm_series(sandboxes: Sandboxes, make: Callable[[], Task], limits: Limits,
                say: Callable[[int], None]) -> list[dict[str, Any]]:
    """Rows of one context; the first of them is the run that warms it up."""
    sandbox, _ = sandboxes.first_sum()

    def one() -> dict[str, Any]:
        task = make()
        before = sandbox.counters()
        reply = proven(task, sandbox.run(task.code))
        after = sandbox.counters()
        counts = {name: after[key] - before[key] if key in after else None for name, key in COUNTERS.items()}
        return row_of(reply, sandbox.ask(op="usage").cell.result, counts)

    sandbox.counters()
    say(0)
    rows = [one(), *limits.repeat(one, say)]
    sandboxes.end(sandbox)
    return rows


def first_series(sandboxes: Sandboxes, make: Callable[[], Task], limits: Limits,
                 say: Callable[[int], None]) -> list[dict[str, Any]]:
    """Rows of fresh sandboxes."""
    def one() -> dict[str, Any]:
        task = make()
        sandbox = sandboxes.start(task.code, hold=True)
        reply = proven(task, sandbox.first())
        sandbox.vmm.event("first-done")
        sandbox.vmm.call("pause")
        counters = sandbox.counters()
        sandbox.vmm.call("resume")
        usage = sandbox.ask(op="usage").cell.result
        sandboxes.end(sandbox)
        return row_of(reply, usage, {name: counters.get(key) for name, key in COUNTERS.items()})

    return limits.repeat(one, say)


def series_figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Percentiles of ms; medians of the rest."""
    medians = {name: figures(row[name] for row in rows).p50 if rows[0][name] is not None else None
               for name in ("guest_ms", "cpu_user_ms", "cpu_system_ms", "peak_kib", *COUNTERS)}
    return {"ms": figures(row["ms"] for row in rows), **medians}


def measure(args: argparse.Namespace, sandboxes: Sandboxes, progress: Progress) -> Outcome:
    sandboxes.end(sandboxes.first_sum()[0])  # the second and every later one finds programs and template in memory
    limits = Limits(args.runs, args.seconds)
    all_rows, result = [], {}
    for kind in args.kinds:
        for how, run, rows_of_html in (("warm", warm_series, args.rows), ("first", first_series, args.first_rows)):
            if how not in args.only:
                continue
            rows = run(sandboxes, lambda: KINDS[kind](rows_of_html), limits,  # noqa: B023
                       lambda n: progress(f"{kind}, {how}: {n} of {args.runs}"))  # noqa: B023
            all_rows += [{"kind": kind, "how": how, "run": i, **row} for i, row in enumerate(rows)]
            warm_up, rows = (rows[0]["ms"], rows[1:]) if how == "warm" else (None, rows)
            result[f"{kind}, {how}"] = {"warm_up_ms": warm_up, **series_figures(rows)}
    outcome = {"html_rows": {"warm": args.rows, "first": args.first_rows}, "cells": result}
    return Outcome(outcome, all_rows, show(outcome), lambda: draw(all_rows))


# ---- output ----------------------------------------------------------------------------------------------------------

def show(result: dict[str, Any]) -> str:
    rows = []
    for name, each in result["cells"].items():
        f = each["ms"]
        rows.append([name, f.n, each["warm_up_ms"], f.p50, f.p90, f.p99, f.max, each["guest_ms"],
                     each["cpu_user_ms"] + each["cpu_system_ms"], each["peak_kib"] >> 10,
                     *[each[name] for name in COUNTERS]])
    heads = ["cell, ms", "n", "warm-up", "p50", "p90", "p99", "max", "guest", "CPU", "peak MiB", *COUNTERS]
    rows_of = result["html_rows"]
    return "\n".join([common.table(heads, rows), "",
                      f"html: {rows_of['warm']} rows warm, {rows_of['first']} first. guest, CPU, peak and counters are "
                      "medians; CPU, by the guest's account, is that of sending the result, too."])


def draw(rows: list[dict[str, Any]]) -> Any:
    import matplotlib.pyplot as plt
    figure, (axes,) = common.new_figure()
    names = list(dict.fromkeys((row["kind"], row["how"]) for row in rows))
    for i, name in enumerate(names):
        values = [row["ms"] for row in rows if (row["kind"], row["how"]) == name]
        colour = plt.get_cmap("tab10")(0 if name[1] == "warm" else 1)
        axes.plot(values, [i] * len(values), "|", color=colour, markersize=9)
        axes.plot(figures(values).p50, i, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(names)), [", ".join(name) for name in names], fontsize="small")
    axes.set(xscale="log", xlabel="ms (log); each run a stroke, the median a dot", title="Cells")
    axes.invert_yaxis()
    return figure


def names_of(known: list[str]) -> Callable[[str], list[str]]:
    """An argparse type: a list of names out of those known."""
    def parse(text: str) -> list[str]:
        if wrong := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {','.join(known)}")
        return text.split(",")
    return parse


def parser() -> argparse.ArgumentParser:
    options = common.make_parser(NAME, TEXT, EXAMPLES)
    options.add_argument("--kinds", type=names_of(list(KINDS)), default=list(KINDS), metavar="A,B",
                         help="which kinds (default all)")
    options.add_argument("--only", type=names_of(["warm", "first"]), default=["warm", "first"], metavar="HOW",
                         help="warm or first (default both)")
    options.add_argument("--runs", type=common.count(1, 100000), default=30, metavar="N",
                         help="at most so many of each (default 30)")
    options.add_argument("--seconds", type=common.seconds, default=10, metavar="S",
                         help="no further run of a kind after S seconds (default 10)")
    options.add_argument("--rows", type=common.count(1, 130000), default=100000, metavar="N",
                         help="rows of html, warm (default 100000; over 130000 the guest cuts it)")
    options.add_argument("--first-rows", type=common.count(1, 130000), default=1000, metavar="N",
                         help="rows of html, first (default 1000)")
    return options


if __name__ == "__main__":
    sys.exit(common.run_program(NAME, parser().parse_args(), measure, CELL_S))
