#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures other monitors with thawbox's own guest: restore of a snapshot to the first result of a cell.

Each given peer boots the SAME kernel, root image and interpreter as thawbox, is saved once, warmed up as thawbox's
template is, and then restored again and again, each time in a new process, for one cell whose result is checked. The
clock runs from just before the process is started to the last byte of the result.

Two interpreters, from one snapshot: "run_cell" is IPython's, as users of these monitors have it; "lean" is thawbox's
own way of running plain cells (docs/kernel.md), so that the rest of the difference is the monitor's.
"""
from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import host
from common import TOP, BenchError, Cell, Progress, count, figures, output_file, rank, request, table, write_csv
from peer_monitors import Clock, Firecracker, Guest, Machine, Peer, Qemu, Say, interrupts, settle_disks

EPILOG = """\
Of each series one run is made before the first that counts. Cache "hot" is as a run before left it. Cache "cold":
memory, state and disk files are dropped before each run and seen to be gone, as root everything that no process has
mapped, programs too: as bench/thaw does. A series "at once" starts that many together; its rate is the median over
the rounds of results by the time from the first start to the last result.

A snapshot is made once, in minutes on software KVM, and kept in the store (about as large as the guest's memory); a
change of kernel, root image, peer or options makes another. Remove its folder to have the room back.

Phases, in ms, each from the end of the one before: api (process start to the first answer of the peer's API),
restored (its snapshot is loaded and runs), connected (vsock handshake), result.

Cloud Hypervisor is not here: it needs PCI in the guest's kernel, which ours has not, and its snapshots fail on
software KVM (KVM_GET_NESTED_STATE is EINVAL there).

Examples:
  bench/peers.py --firecracker ~/firecracker --runs 20
  bench/peers.py --qemu qemu-system-x86_64 --cells sum --cache hot --json
  bench/peers.py --firecracker ~/firecracker --interpreters lean --cells sum,pandas --csv runs.csv

Exit: 0 measured; 1 a peer, a guest or a result failed; 2 usage; 130 interrupted. What was measured before a failure is
printed all the same.
"""
MEMORY_MB = 512
INTERPRETERS = {"run_cell": "\n# async", "lean": ""}
"""What is added to a cell's text: the lean path leaves cells with this word to IPython's run_cell."""


# ---- cells ----

@dataclass(frozen=True)
class FirstCell:
    """A cell, and what tells that the answer to it is right."""

    code: str
    is_right: Callable[[Cell], bool]


def number() -> int:
    """A number that nobody could have computed with before."""
    return random.randrange(1_000_000)


def sum_cell() -> FirstCell:
    a, b = number(), number()
    return FirstCell(f"{a}+{b}", lambda cell: cell.text == str(a + b))


def pandas_cell() -> FirstCell:
    a, b, c = number(), number(), number()
    return FirstCell("import pandas as pd\n"
                     f"df = pd.DataFrame({{'k': ['x', 'y', 'x'], 'v': [{a}, {b}, {c}]}})\n"
                     "int(df.groupby('k').v.sum()['x'])", lambda cell: cell.text == str(a + c))


def numpy_cell() -> FirstCell:
    n = 1000 + number() % 100_000
    return FirstCell(f"import numpy as np\nint(np.arange({n}).sum())",
                     lambda cell: cell.text == str(n * (n - 1) // 2))


def print_cell() -> FirstCell:
    token = f"{random.getrandbits(60):015x}\n"
    return FirstCell(f"print({token!r} * 64, end='')", lambda cell: cell.stdout == (token * 64).encode())


def traceback_cell() -> FirstCell:
    n = number()
    return FirstCell(f"def f(n):\n    return n / 0\nf({n})",
                     lambda cell: (cell.result.get("error") or {}).get("name") == "ZeroDivisionError"
                     and f"f({n})" in cell.result["error"]["traceback"])


def plot_cell() -> FirstCell:
    a, b, c = number(), number(), number()
    return FirstCell(f"import matplotlib.pyplot as plt\nplt.plot([{a}, {b}, {c}])\nplt.show()",
                     lambda cell: any(base64.b64decode(d["data"].get("image/png", ""))[:4] == b"\x89PNG"
                                      for d in cell.displays))


CELLS: dict[str, Callable[[], FirstCell]] = {
    "sum": sum_cell, "pandas": pandas_cell, "numpy": numpy_cell, "print": print_cell, "traceback": traceback_cell,
    "plot": plot_cell}


def warm_cells() -> list[str]:
    """What runs in a peer's guest over its stream before it is saved: each kind that is measured, both ways."""
    return [make().code + suffix for make in CELLS.values() for suffix in INTERPRETERS.values() for _ in range(2)]


# ---- measuring ----

@dataclass(frozen=True)
class Series:
    """What is measured in one row."""

    peer: str
    version: str
    interpreter: str
    cell: str
    cache: str
    at_once: int

    @property
    def title(self) -> str:
        """The row's name."""
        together = f", {self.at_once} at once" if self.at_once > 1 else ""
        return f"{self.peer}, {self.interpreter}: {self.cell}, {self.cache}{together}"


@dataclass(frozen=True)
class Run:
    """One run of a series, in ms; start and end on CLOCK_MONOTONIC in ns."""

    series: Series
    number: int
    total: float
    phases: dict[str, float]
    start_ns: int
    end_ns: int


class Bench:
    """Runs series of one peer's snapshot. Folders of machines are made in `room` and removed."""

    def __init__(self, peer: Peer, guest: Guest, snapshot: Path, room: Path) -> None:
        self.peer, self.guest, self.snapshot, self.room = peer, guest, snapshot, room

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A machine's folder with its disks."""
        with tempfile.TemporaryDirectory(dir=self.room) as made:
            folder = Path(made)
            settle_disks(self.guest, folder, self.snapshot / "scratch.img")
            yield folder

    def once(self, folder: Path, series: Series) -> Clock:
        """One run; the process has ended when this returns. Raises BenchError, also for a wrong result."""
        cell = CELLS[series.cell]()
        code = cell.code + INTERPRETERS[series.interpreter]
        clock, answer = self.peer.run(self.guest, self.snapshot, folder, request(op="run", code=code))
        if not cell.is_right(answer):
            raise BenchError(f"{series.peer}: {code!r} gave {answer.text!r}, {answer.stdout!r}, {answer.result}")
        return clock

    def round(self, series: Series, first: int) -> list[Run]:
        """As many runs together as the series says."""
        with contextlib.ExitStack() as stack:
            folders = [stack.enter_context(self.folder()) for _ in range(series.at_once)]
            if series.cache == "cold":
                self.drop(folders)
            if series.at_once == 1:
                clocks = [self.once(folders[0], series)]
            else:
                clocks = self.together(folders, series)
        return [Run(series, first + i, clock.total_ms, clock.phases, clock.start_ns, clock.last_ns)
                for i, clock in enumerate(clocks)]

    def together(self, folders: list[Path], series: Series) -> list[Clock]:
        """One run in each folder, started at the same moment."""
        start = threading.Barrier(len(folders))

        def work(folder: Path) -> Clock:
            start.wait()
            return self.once(folder, series)

        with ThreadPoolExecutor(len(folders)) as pool:
            try:
                return list(pool.map(work, folders))
            except BaseException:
                start.abort()
                Machine.end_all()
                raise

    def drop(self, folders: list[Path]) -> None:
        """Makes the cache cold for what is about to be restored. Raises BenchError."""
        files = [*self.peer.snapshot_files(self.snapshot), self.guest.root]
        for folder in folders:
            with open(folder / "scratch.img", "rb") as disk:
                os.fsync(disk.fileno())
            files.append(folder / "scratch.img")
        try:
            host.drop(files)
        except OSError as e:
            raise BenchError(f"the cache does not get cold: {e}",
                             "end what else uses these files, or --cache hot") from e

    def measure(self, series: Series, runs: int, say: Say) -> list[Run]:
        """All runs of a series; a round before them is not counted."""
        say(f"{series.title}: {runs} runs")
        self.round(series, -series.at_once)
        done: list[Run] = []
        while len(done) < runs:
            done += self.round(series, len(done))
        return done


def plan(peer: str, version: str, args: argparse.Namespace) -> list[Series]:
    """The series of one peer: the sum in all ways, other cells one at a time from a hot cache."""
    out = []
    for interpreter in args.interpreters:
        for cell in args.cells:
            caches = args.cache if cell == "sum" else [c for c in args.cache if c == "hot"]
            out += [Series(peer, version, interpreter, cell, cache, 1) for cache in caches]
            if cell == "sum" and "hot" in args.cache and args.at_once > 1:
                out.append(Series(peer, version, interpreter, cell, "hot", args.at_once))
    return out


def row(runs: list[Run]) -> dict:
    """What --json says about a series' runs, times in ms. Raises ValueError for none."""
    series, totals = runs[0].series, [run.total for run in runs]
    rounds = [runs[i:i + series.at_once] for i in range(0, len(runs), series.at_once)]
    rates = sorted(len(r) / (max(x.end_ns for x in r) - min(x.start_ns for x in r)) * 1e9 for r in rounds)
    found = figures(totals)
    return {**asdict(series), "n": found.n, "p50_ms": found.p50, "p90_ms": found.p90, "p99_ms": found.p99,
            "min_ms": min(totals), "max_ms": found.max, "per_second": rank(rates, 50) if series.at_once > 1 else None,
            "phases": {name: figures([run.phases[name] for run in runs]).p50 for name in runs[0].phases}}


# ---- snapshots ----

def snapshot_of(peer: Peer, guest: Guest, args: argparse.Namespace, progress: Progress) -> Path:
    """The folder of the peer's snapshot of this guest; makes it when there is none. Raises BenchError, OSError."""
    final = args.store / f"{peer.name.lower()}-{peer.key(guest, ','.join(CELLS))}"
    if final.exists() and not args.rebake:
        return final
    args.store.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(args.store).free >> 20
    if free < 2 * guest.memory_mb:
        raise BenchError(f"{args.store} has {free} MiB free, a snapshot needs {2 * guest.memory_mb}",
                         "free some, or name another folder with --store")
    start = time.monotonic()

    def say(text: str) -> None:
        progress(f"{peer.name}: bake, {time.monotonic() - start:.0f} s: {text}")

    progress.say(f"{peer.name}: no snapshot of this guest in {args.store}: makes one (minutes on software KVM)")
    with tempfile.TemporaryDirectory(prefix=".bake-", dir=args.store) as room:
        made = Path(room) / "snapshot"
        made.mkdir()
        peer.bake(guest, made, warm_cells(), say)
        if final.exists():
            shutil.rmtree(final)
        made.rename(final)
    return final


def host_cmdline(thawbox: Path) -> str:
    """What thawbox's monitor tells a kernel on this host, its console and doubles apart. Raises BenchError."""
    try:
        done = subprocess.run([thawbox, "exec", "--", "cat", "/proc/cmdline"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BenchError(f"{thawbox}: {e}", "make build; or name the program with --thawbox") from e
    if done.returncode:
        raise BenchError(f"{thawbox} exec ended with {done.returncode}: {done.stderr.strip()}",
                        "make template; or give the guest's command line with --cmdline")
    return " ".join(word for word in dict.fromkeys(done.stdout.split()) if not word.startswith("console="))


def find_guest(args: argparse.Namespace) -> Guest:
    """The guest's parts. Raises BenchError."""
    for path, remedy in ((args.kernel, "make kernel"), (args.rootfs / "root.img", "make rootfs"),
                         (args.rootfs / "scratch.img", "make rootfs")):
        if not path.exists():
            raise BenchError(f"{path} is not there", remedy)
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise BenchError("/dev/kvm cannot be opened", "run as root, or see thawbox doctor")
    return Guest(args.kernel.resolve(), (args.rootfs / "root.img").resolve(),
                 (args.rootfs / "scratch.img").resolve(), MEMORY_MB, args.cmdline or host_cmdline(args.thawbox))


# ---- output ----

def text(rows: list[dict]) -> str:
    """The rows as two tables: totals, then phases."""
    titles = [Series(*(r[name] for name in Series.__dataclass_fields__)).title for r in rows]
    phases = list(dict.fromkeys(name for r in rows for name in r["phases"]))
    totals = table(["ms from process start to result", "n", "p50", "p90", "p99", "min", "max", "results/s"],
                   [[title, r["n"], *(r[f"{name}_ms"] for name in ("p50", "p90", "p99", "min", "max")),
                     r["per_second"]] for title, r in zip(titles, rows)])
    parts = table(["ms of each phase, p50", *phases],
                  [[title, *(r["phases"].get(name) for name in phases)] for title, r in zip(titles, rows)])
    return f"{totals}\n\n{parts}"


def csv_row(run: Run) -> dict:
    """One line of --csv, times in ms."""
    return {**asdict(run.series), "run": run.number, "total_ms": run.total,
            **{f"{name}_ms": ms for name, ms in run.phases.items()}}


# ---- command line ----

def names_of(known: list[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names."""
    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names
    return parse


def parse(argv: list[str]) -> argparse.Namespace:
    """The options. Ends the process with 2 when they are wrong, with 0 after --help."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    p = argparse.ArgumentParser(prog="bench/peers.py", description=__doc__, epilog=EPILOG,
                                formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--firecracker", type=Path, metavar="PATH", help="measure this Firecracker")
    p.add_argument("--qemu", type=Path, metavar="PATH", help="measure this QEMU (qemu-system-x86_64, microvm machine)")
    p.add_argument("--runs", type=count(1, 10000), default=40, metavar="N", help="a series (default 40)")
    p.add_argument("--at-once", type=count(0, 64), default=8, metavar="N",
                   help="that many sums together, as a series of its own (default 8; 0: none)")
    p.add_argument("--cells", type=names_of(list(CELLS)), default=list(CELLS), metavar="NAMES",
                   help=f"first cells, by comma (default {','.join(CELLS)})")
    p.add_argument("--cache", type=names_of(["hot", "cold"]), default=["hot", "cold"], metavar="NAMES",
                   help="hot, cold or both (default hot,cold; cold: sum only)")
    p.add_argument("--interpreters", type=names_of(list(INTERPRETERS)), default=list(INTERPRETERS), metavar="NAMES",
                   help=f"by comma (default {','.join(INTERPRETERS)})")
    p.add_argument("--json", action="store_true", help="print one object instead of the table")
    p.add_argument("--csv", type=output_file, metavar="FILE", help="write one line a run")
    p.add_argument("--store", type=Path, default=cache / "thawbox" / "peers", metavar="DIR",
                   help="where snapshots are kept (default %(default)s)")
    p.add_argument("--rebake", action="store_true", help="make the snapshots again")
    p.add_argument("--kernel", type=Path, default=TOP / "out/kernel/current/vmlinux", metavar="FILE",
                   help="the guest's kernel (default out/kernel/current/vmlinux)")
    p.add_argument("--rootfs", type=Path, default=TOP / "out/rootfs/current", metavar="DIR",
                   help="folder of root.img and scratch.img (default out/rootfs/current)")
    p.add_argument("--cmdline", metavar="TEXT", help="the guest's command line, without console (default: thawbox's)")
    p.add_argument("--thawbox", type=Path, default=TOP / "build/release/thawbox", metavar="PATH",
                   help="asked for the guest's command line (default build/release/thawbox)")
    args = p.parse_args(argv)
    if not args.firecracker and not args.qemu:
        p.error("no peer is given: --firecracker PATH, --qemu PATH or both")
    if "hot" not in args.cache and "sum" not in args.cells:
        p.error("nothing to measure: of the cells only the sum is measured cold")
    return args


def measure_all(args: argparse.Namespace, progress: Progress, done: list[list[Run]]) -> None:
    """Bakes what is missing, then adds the runs of every series to `done`. Raises BenchError, OSError."""
    peers: list[Peer] = []
    if args.firecracker:
        peers.append(Firecracker(args.firecracker))
    if args.qemu:
        peers.append(Qemu(args.qemu))
    versions = [peer.version() for peer in peers]
    guest = find_guest(args)
    snapshots = [snapshot_of(peer, guest, args, progress) for peer in peers]
    with tempfile.TemporaryDirectory(prefix="thawbox-peers-") as room:
        for peer, version, snapshot in zip(peers, versions, snapshots):
            bench = Bench(peer, guest, snapshot, Path(room))
            for series in plan(peer.name, version, args):
                done.append(bench.measure(series, args.runs, progress.say))


def publish(args: argparse.Namespace, about: str, done: list[list[Run]]) -> None:
    """Writes what was measured where it was asked for. Raises OSError."""
    rows = [row(runs) for runs in done]
    print(json.dumps({"host": about, "rows": rows}, indent=2) if args.json else f"{about}\n\n{text(rows)}", flush=True)
    if args.csv:
        write_csv(args.csv, [csv_row(run) for runs in done for run in runs])


def main(argv: list[str]) -> int:
    """Returns the exit status. Series that were whole before a failure are published all the same."""
    args = parse(argv)
    interrupts.listen()
    about, code = host.host_line(), 0
    done: list[list[Run]] = []
    try:
        measure_all(args, Progress("peers"), done)
    except (BenchError, OSError) as e:
        code = complain(e)
    except KeyboardInterrupt:
        print("peers: interrupted", file=sys.stderr)
        code = 130
    finally:
        Machine.end_all()
    try:
        if done:
            publish(args, about, done)
    except OSError as e:
        code = complain(e)
    return code


def complain(error: Exception) -> int:
    """Says what went wrong, and the remedy where there is one. Returns the exit status."""
    print(f"peers: {error}", file=sys.stderr)
    if remedy := getattr(error, "remedy", ""):
        print(remedy, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
