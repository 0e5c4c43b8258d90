# SPDX-License-Identifier: Apache-2.0
"""What the benchmark programs share: their options, sandboxes that are gone at the end, percentiles, the host's
state, and output as a table, JSON, CSV and a plot.

Times are taken on the host, CLOCK_MONOTONIC, in ms; memory is in KiB. A sandbox is a `thawbox-vmm` process of its own
that this program drives over the control socket (tests/e2e/vmm.py): nothing is made beforehand, there is no pool.
"""
from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from host import host_line, resident

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests" / "e2e"))
from vmm import (DATA, DISPLAY, END, RESULT, STDERR, STDOUT, Cell, Stream, Vmm, VmmError, frame,  # noqa: E402, F401
                 marked_processes, request)

AGENT_PORT = 1024
ANSWER_S = 60.0
"""How long an answer may take unless a program says otherwise, in seconds."""
PROGRESS_S = 2.0
"""Whatever takes longer says on standard error how far it is."""
DESCRIPTORS = 3
"""A live sandbox costs this program: control socket, first stream, the monitor's standard error."""


class BenchError(Exception):
    """A measurement that cannot go on: what happened, and what to do about it."""

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(message)
        self.remedy = remedy


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


# ---- statistics ------------------------------------------------------------------------------------------------------

def rank(ordered: Sequence[float], percent: float) -> float:
    """The nearest rank of values in rising order: one that was measured, as in bench/thaw.c.

    Raises ValueError without values, or for a percentage outside 0 to 100.
    """
    if not ordered or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(ordered)} values")
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


@dataclass(frozen=True)
class Figures:
    """What is said about a series, in its own unit. Below 100 values p99 is the largest."""

    n: int
    p50: float
    p90: float
    p99: float
    max: float


def figures(values: Iterable[float]) -> Figures:
    """Raises ValueError without values."""
    ordered = sorted(values)
    return Figures(len(ordered), rank(ordered, 50), rank(ordered, 90), rank(ordered, 99), ordered[-1])


# ---- the host --------------------------------------------------------------------------------------------------------

def meminfo() -> dict[str, int]:
    """/proc/meminfo in KiB, its counters brought up to date first (as root; else they lag by up to a second)."""
    if os.geteuid() == 0:
        Path("/proc/sys/vm/stat_refresh").write_text("1")
    return {name: int(value) for name, value in re.findall(r"^(\S+): +(\d+)", Path("/proc/meminfo").read_text(), re.M)}


def smaps_rollup(pid: int) -> dict[str, int]:
    """A process's memory in KiB: Pss, Private_Dirty and so on. Raises FileNotFoundError when it is gone."""
    return {name: int(kib) for name, kib in
            re.findall(r"^(\S+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)}


def cpu_ms(pid: int) -> float:
    """CPU time of all threads of a process so far, user and system (a guest's run is in one of them), in ms."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def switches(pid: int) -> dict[int, int]:
    """Context switches so far, voluntary and not, of each thread of a process. Threads that end meanwhile are left
    out."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(task.name)] = sum(map(int, re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", status, re.M)))
    return found


def template_kib(directory: Path) -> tuple[int, int]:
    """What the page cache holds of a snapshot's files (of holes too, once read), and their size on disk, in KiB."""
    cached, total = resident(path for path in directory.iterdir() if path.is_file())
    return cached >> 10, total >> 10


def conditions(template: Path) -> str:
    """The line that comes first: the host, the template's page cache, the pool."""
    cached, total = template_kib(template)
    return (f"{host_line()}, page cache holds {cached >> 10} MiB of the template ({total >> 10} MiB on disk), "
            "no pool (each sandbox is fresh)")


# ---- sandboxes -------------------------------------------------------------------------------------------------------

def find_programs(directory: str | None) -> Path:
    """The thawbox-vmm of a folder: the one given, that of THAWBOX_BIN, or build/release. Raises BenchError."""
    folder = Path(directory or os.environ.get("THAWBOX_BIN") or TOP / "build" / "release")
    program = folder / "thawbox-vmm"
    if not os.access(program, os.X_OK):
        raise BenchError(f"{program} is missing, or is not a program", "run make build, or name its folder with --bin")
    return program.resolve()


def find_template(name: str) -> Path:
    """A name stands for its current snapshot, what holds a slash is a snapshot itself. Raises BenchError."""
    if "/" in name:
        directory = Path(name)
    else:
        if os.geteuid() == 0:
            home = Path("/var/lib/thawbox")
        else:
            home = Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share"), "thawbox")
        directory = Path(os.environ.get("THAWBOX_HOME", home), "templates", name, "current")
    if not (directory / "manifest").is_file():
        raise BenchError(f"no template {name} ({directory / 'manifest'} is missing)",
                         f"build it: thawbox template build {name}")
    return directory.resolve()


def random_sum() -> tuple[str, str]:
    """A cell whose value nobody could have computed before, and that value."""
    a, b = random.randrange(1000000), random.randrange(1000000)
    return f"{a}+{b}", str(a + b)


@dataclass
class Reply:
    """An answer and when it came: its first and its last byte, in ms since the measurement began."""

    cell: Cell
    data: bytes
    first_byte_ms: float
    ms: float


def collect(stream: Stream, begin_ns: int) -> Reply:
    """Reads one answer to its end; it is taken apart after the clock has stopped.

    Raises EOFError when the stream ends before, TimeoutError when nothing comes for as long as the stream waits.
    """
    try:
        if not stream.sock.recv(1, socket.MSG_PEEK):
            raise EOFError("the stream ended before the first byte of an answer")
        first_ns = now_ns()
        frames = [stream.read()]
        while frames[-1][0] != RESULT:
            frames.append(stream.read())
        end_ns = now_ns()
    except TimeoutError:
        raise TimeoutError(f"no answer for {stream.sock.gettimeout():g} s") from None

    def joined(kind: int) -> bytes:
        return b"".join(payload for k, payload in frames if k == kind)

    cell = Cell(joined(STDOUT), joined(STDERR), [json.loads(p) for k, p in frames if k == DISPLAY],
                json.loads(frames[-1][1]))
    return Reply(cell, joined(DATA), (first_ns - begin_ns) / 1e6, (end_ns - begin_ns) / 1e6)


def exchange(stream: Stream, payload: bytes) -> Reply:
    """Sends frames and reads the answer; the clock starts before the first byte is sent. Raises as collect()."""
    begin_ns = now_ns()
    stream.sock.sendall(payload)
    return collect(stream, begin_ns)


def must_succeed(cell: Cell, what: str) -> None:
    """Raises BenchError unless the operation ended without an error."""
    if cell.result.get("status") != "ok":
        raise BenchError(f"{what} failed in the guest: {cell.result.get('error')}")


def must_be(found: object, wanted: object, what: str) -> None:
    """Raises BenchError when a result is not what it must be."""
    if found != wanted:
        raise BenchError(f"{what} gave {str(found)[:80]!r}, which should be {str(wanted)[:80]!r}")


class Monitor(Vmm):
    """A Vmm for many at once (select(2) there does not know descriptors over 1023), whose errors say why it died."""

    def call(self, command: str, **members: Any) -> dict[str, Any]:
        try:
            return super().call(command, **members)
        except (BrokenPipeError, ConnectionResetError):
            raise VmmError(f"thawbox-vmm ended by itself: {self._last_words()}") from None

    def _line(self, timeout: float) -> dict[str, Any]:
        end = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while b"\n" not in self._buffer:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError(f"no line from thawbox-vmm within {timeout:g} s")
            chunk = self.sock.recv(65536)
            if not chunk:
                raise VmmError(f"thawbox-vmm ended by itself: {self._last_words()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self) -> str:
        code = self.process.wait(10)
        return self.process.stderr.read().decode(errors="replace").strip() or f"exit {code}"


class Sandbox:
    """One live sandbox, thawed with a first cell on its way. Each answer may take `answer_s` seconds."""

    def __init__(self, vmm: Vmm, stream: Stream, answer_s: float = ANSWER_S):
        self.vmm = vmm
        self.stream = stream
        self.answer_s = answer_s
        stream.sock.settimeout(answer_s)

    @property
    def pid(self) -> int:
        return self.vmm.process.pid

    def first(self) -> Reply:
        """The first cell's answer; its times count from just before the monitor's process was started.

        Raises BenchError when the sandbox is lost, TimeoutError when it does not answer.
        """
        try:
            return collect(self.stream, self.vmm.started_ns)
        except EOFError:
            raise BenchError(f"the sandbox was lost: {self._why_lost()}") from None

    def ask(self, **members: object) -> Reply:
        """One request on the interpreter's stream. Raises as first()."""
        try:
            return exchange(self.stream, request(**members))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise BenchError(f"the sandbox was lost: {self._why_lost()}") from None

    def _why_lost(self) -> str:
        """How the guest or its monitor has ended, or that it has not."""
        try:
            event = self.vmm.event("exit", 2)
            return f"{event['reason']}: {event['detail']}"
        except (VmmError, TimeoutError, OSError) as e:
            return f"its stream ended; {e}"

    def run(self, code: str) -> Reply:
        """One cell; an error in it is in the reply."""
        return self.ask(op="run", code=code)

    def warm_sum(self) -> Reply:
        """A random sum in the warm context, its value checked. Raises BenchError."""
        code, want = random_sum()
        reply = self.run(code)
        must_be(reply.cell.text, want, code)
        return reply

    def connect(self) -> Stream:
        """A new stream to the agent."""
        stream = self.vmm.connect(AGENT_PORT)
        stream.sock.settimeout(self.answer_s)
        return stream

    def counters(self) -> dict[str, int]:
        """KVM's counters of the vCPU since the thaw. The first call makes the vCPU come out of the guest once."""
        return self.vmm.call("stats")["vcpu"]


class Sandboxes:
    """Starts sandboxes of one template; at the end of the `with` all are gone, and so is their folder for disks.

    start() and end() may be called by several threads.
    """

    def __init__(self, program: Path, template: Path, answer_s: float = ANSWER_S):
        self.program, self.template, self.answer_s = program, template, answer_s
        self.mark = f"THAWBOX_BENCH_MARK={uuid.uuid4()}"
        self.live: dict[int, Sandbox] = {}

    def __enter__(self) -> Sandboxes:
        self.folder = Path(tempfile.mkdtemp(prefix="thawbox-bench-"))
        return self

    def __exit__(self, *_: object) -> None:
        sandboxes = list(self.live.values())
        try:
            for sandbox in sandboxes:
                sandbox.vmm.sock.close()  # they end at the same time, not one after another
            for sandbox in sandboxes:
                self.end(sandbox)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, code: str, **members: object) -> Sandbox:
        """Thaws with a first cell; `members` are those of the thaw command. Raises BenchError."""
        name, value = self.mark.split("=")
        vmm = Monitor(self.program, env={**os.environ, name: value})
        try:
            stream = vmm.thaw(self.template, code, hostname=f"tb-{os.urandom(6).hex()}",
                              overlay_dir=str(self.folder), **members)
        except BaseException as e:
            vmm.__exit__()
            if not isinstance(e, VmmError):
                raise
            message, _, remedy = str(e).partition(" | ")
            raise BenchError(f"thaw: {message}", remedy) from None
        sandbox = Sandbox(vmm, stream, self.answer_s)
        self.live[id(sandbox)] = sandbox
        return sandbox

    def first_sum(self, **members: object) -> tuple[Sandbox, Reply]:
        """A fresh sandbox whose first cell is a random sum, its value checked. Raises BenchError; then it is gone."""
        code, want = random_sum()
        sandbox = self.start(code, **members)
        try:
            reply = sandbox.first()
            must_be(reply.cell.text, want, code)
        except BaseException:
            self.end(sandbox)
            raise
        return sandbox, reply

    def end(self, sandbox: Sandbox) -> float:
        """Ends one. Returns the ms until its process was gone."""
        begin_ns = now_ns()
        self.live.pop(id(sandbox), None)
        sandbox.stream.close()
        sandbox.vmm.__exit__()
        return (now_ns() - begin_ns) / 1e6

    def processes(self) -> int:
        """How many processes of these sandboxes there are on this host, by the mark in their environment."""
        return len(marked_processes(self.mark))

    def kill(self) -> None:
        """Kills all of them at once, so that threads that wait for an answer get an error."""
        for pid, _ in marked_processes(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def room_for_sandboxes() -> int:
    """Raises the limit of open files as far as it goes. Returns how many live sandboxes it has room for."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else (hard - 64) // DESCRIPTORS


# ---- options ---------------------------------------------------------------------------------------------------------

def count(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number within bounds."""
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text}: must be a whole number from {low} to {high}")
        return int(text)
    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: any number within bounds."""
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: must be a number from {low:g} to {high:g}")
        return value
    return parse


seconds = number(0, 3600)
"""An argparse type: seconds, up to an hour."""


def size(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: bytes, as 65536, 64K or 4M, within bounds."""
    def parse(text: str) -> int:
        match = re.fullmatch(r"(\d+)([KMG]?)", text)
        value = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else -1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: must be a size from {low} to {high} bytes, such as 64K or 4M")
        return value
    return parse


def output_file(text: str) -> Path:
    """An argparse type: a file that can be made, so that a long run does not end in an error."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: cannot be written; name a file in a folder of yours")
    return path


def plot_file(text: str) -> Path:
    """An argparse type: as output_file(), with an ending that says what is drawn."""
    if Path(text).suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"{text}: must end in .svg or .png")
    return output_file(text)


def make_parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser with the options that all programs have."""
    about = "Percentiles are nearest rank: each is a run that took place. Below 100 runs p99 is the maximum."
    parser = argparse.ArgumentParser(prog=f"bench/{name}.py", description=description, epilog=f"{about}\n\n{epilog}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--template", default="code-interpreter", metavar="T",
                        help="name, or the directory of a snapshot (default code-interpreter)")
    parser.add_argument("--bin", metavar="DIR", help="folder of thawbox-vmm (default THAWBOX_BIN, else build/release)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write one line a run")
    parser.add_argument("--plot", type=plot_file, metavar="FILE", help="draw it: .svg or .png")
    return parser


# ---- output ----------------------------------------------------------------------------------------------------------

class Progress:
    """Tells on standard error how far a long measurement is, at most every two seconds."""

    def __init__(self, name: str):
        self.name = name
        self._said = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._said >= PROGRESS_S:
            self.say(text)

    def say(self, text: str) -> None:
        """Says it now: what follows takes long by itself."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)
        self._said = time.monotonic()

    def sleep(self, s: float, why: str) -> None:
        if s >= PROGRESS_S:
            self.say(f"{why}, {s:g} s")
        time.sleep(s)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of text: the first to the left, figures to the right with two decimals; None is a dash."""
    def text(value: object) -> str:
        return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = [list(heads), *[[text(value) for value in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) if i else cell.ljust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """One line a row under the names of all members, in the order of their first appearance. Raises OSError."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()}
                         for row in rows)


def new_figure(columns: int = 1) -> tuple[Any, list[Any]]:
    """A matplotlib figure, and its axes from left to right."""
    import matplotlib
    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    plt.rcParams["svg.hashsalt"] = "thawbox"  # the same figures give the same file
    figure, axes = plt.subplots(1, columns, figsize=(max(8, 5.5 * columns), 4), squeeze=False)
    for each in axes[0]:
        each.grid(alpha=0.3)
    return figure, list(axes[0])


def draw_shares(axes: Any, series: Mapping[str, Iterable[float]], unit: str, what: str) -> None:
    """A step curve for each series: the share of `what` that took at most so many units, on a log scale."""
    for name, values in series.items():
        ordered = sorted(values)
        axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], where="post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel(f"{unit} (log)")
    axes.set_ylabel(f"share of {what}")
    axes.legend(fontsize="small")


def save_figure(figure: Any, path: Path) -> None:
    """Writes .svg or .png, the same bytes for the same figures. Raises OSError."""
    import matplotlib.pyplot as plt
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None}, dpi=120)
    plt.close(figure)


# ---- a program -------------------------------------------------------------------------------------------------------

@dataclass
class Outcome:
    """What a measurement came to. `figures` is what --json prints, `rows` what --csv writes; `failed` says why the
    exit code must be 1 although there are figures."""

    figures: dict[str, Any]
    rows: list[dict[str, Any]]
    text: str
    draw: Callable[[], Any]
    """Makes the figure that --plot saves."""
    failed: list[str] = field(default_factory=list)


Measure = Callable[[argparse.Namespace, Sandboxes, Progress], Outcome]


def publish(args: argparse.Namespace, host: str, outcome: Outcome) -> None:
    """Prints the result, with the load at its end (what the measurement does not need is other programs'), then writes
    the files that were asked for. Raises OSError."""
    load = os.getloadavg()[0]
    if args.json:
        print(json.dumps({"host": host, "load_at_end": load, **outcome.figures}, indent=2, default=asdict))
    else:
        print(f"{outcome.text}\n\nload at the end: {load:.1f}")
    sys.stdout.flush()
    if args.csv:
        write_csv(args.csv, outcome.rows)
    if args.plot:
        save_figure(outcome.draw(), args.plot)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run_program(name: str, args: argparse.Namespace, measure: Measure, answer_s: float = ANSWER_S) -> int:
    """Measures and publishes. Returns the exit code: 0; 1 with the reason on standard error; 130 when interrupted,
    by SIGTERM or SIGHUP too. (A wrong command line has ended with 2 before.)"""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, interrupt)
    try:
        template = find_template(args.template)
        host = conditions(template)
        if not args.json:
            print(host, end="\n\n", flush=True)
        with Sandboxes(find_programs(args.bin), template, answer_s) as sandboxes:
            outcome = measure(args, sandboxes, Progress(name))
        publish(args, host, outcome)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except (BenchError, VmmError, EOFError, OSError) as e:
        print(f"{name}: {e or type(e).__name__}", file=sys.stderr)
        if remedy := getattr(e, "remedy", ""):
            print(remedy, file=sys.stderr)
        return 1
    for why in outcome.failed:
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if outcome.failed else 0
