#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What thawboxd does under load: creates in a closed loop, many idle streams, many busy sandboxes at once."""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import common
from common import BenchError, figures, random_sum
from host import host_line

TEXT = """\
Starts a thawboxd of its own (loopback, no keys) and is its clients, over HTTP/1.1 with kept connections.

  loop   N clients, each again and again: create, run a random sum (checked), kill. `create`, `cell` and `kill` are timed
         apart, `all` is their sum.
  bare   the same sums in standbys of a pool of the same size without a daemon (bench/thaw), half of them before the loop and half
         behind it: what lies between its `cell` and the loop's is the daemon's.
  idle   so many streams (/execute, which wait for a turn in one context) at once; then, beside them, a client of another
         sandbox runs sums.
  busy   so many sandboxes at once, each with a client that runs sums for --seconds; of each cell the time from the request's
         first byte to the answer's last.

Per second is of the whole phase. RSS and threads are the daemon's, at the end of the phase."""
EXAMPLES = """\
examples:
  bench/daemon.py
  bench/daemon.py --loop 1 4 16 --idle 0 --busy 64 --seconds 20 --json
exit codes: 0 done; 1 an answer was wrong or did not come; 2 wrong usage; 130 interrupted"""

TIMEOUT_S = 120.0


class Client:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str, path: str, body: object = None, box: str | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: e2b_00\r\nContent-Type: application/json\r\n"
        if box:
            head += f"E2b-Sandbox-Id: {box}\r\nE2b-Sandbox-Port: 49999\r\n"
        self.writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), fields

    async def body(self, fields: dict[str, str]) -> bytes:
        if fields.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(fields.get("content-length", 0)))
        parts = []
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            parts.append((await self.reader.readexactly(size + 2))[:-2])
        await self.reader.readline()
        return b"".join(parts)

    async def ask(self, method: str, path: str, body: object = None, box: str | None = None) -> tuple[int, bytes]:
        self.send(method, path, body, box)
        status, fields = await self.head()
        return status, await self.body(fields)

    async def create(self) -> str:
        status, text = await self.ask("POST", "/sandboxes", {"templateID": "base", "timeout": 600})
        if status != 201:
            raise BenchError(f"create gave {status}: {text[:200]!r}")
        return json.loads(text)["sandboxID"]

    async def sum(self, box: str) -> None:
        code, value = random_sum()
        status, text = await self.ask("POST", "/execute", {"code": code}, box)
        results = [line for line in map(json.loads, text.splitlines()) if line["type"] == "result"]
        if status != 200 or len(results) != 1 or results[0]["text"] != value:
            raise BenchError(f"{code} gave {status}: {text[:300]!r}")

    async def kill(self, box: str) -> None:
        status, text = await self.ask("DELETE", f"/sandboxes/{box}")
        if status != 204:
            raise BenchError(f"kill gave {status}: {text[:200]!r}")


class Daemon:
    def __init__(self, folder: Path, log: Path, args: list[str]) -> None:
        with log.open("wb") as to:
            self.process = subprocess.Popen([folder / "thawboxd", "--listen", "127.0.0.1:0", "--quiet", "--keys",
                                             log.with_name("keys.json"), *args], stderr=to)
        self.port = self.find_port()

    def find_port(self) -> int:
        """--quiet does not tell it: the socket that the process listens at does."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                inodes = {os.readlink(f"/proc/{self.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{self.process.pid}/fd")}
                for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
                    part = line.split()
                    if part[3] == "0A" and f"socket:[{part[9]}]" in inodes:
                        return int(part[1].split(":")[1], 16)
            time.sleep(0.02)
        raise BenchError("thawboxd did not come up", "run it alone: it says why")

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    @contextlib.asynccontextmanager
    async def clients(self, nr: int) -> AsyncIterator[list[Client]]:
        made = [await self.client() for _ in range(nr)]
        try:
            yield made
        finally:
            for client in made:
                client.writer.close()

    def resident_mib(self) -> float:
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


class Table:
    """Rows of times in ms, printed as they come."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.rows: list[dict] = []

    def add(self, daemon: Daemon, phase: str, what: str, values: list[float], seconds: float) -> None:
        f = figures(values)
        row = {"phase": phase, "what": what, "n": f.n, "p50": round(f.p50, 2), "p90": round(f.p90, 2), "p99": round(f.p99, 2),
               "max": round(f.max, 2), "per_s": round(f.n / seconds, 1), "rss_mib": round(daemon.resident_mib(), 1),
               "threads": daemon.threads()}
        if self.as_json:
            print(json.dumps(row), flush=True)
        elif not self.rows:
            print("".join(f"{name:>9}" if i > 1 else f"{name:12}" for i, name in enumerate(row)))
        self.rows.append(row)
        if not self.as_json:
            print("".join(f"{value:>9}" if i > 1 else f"{value:12}" for i, value in enumerate(row.values())), flush=True)


async def timed(times: list[float], call: Awaitable) -> object:
    begin = time.monotonic_ns()
    answer = await call
    times.append((time.monotonic_ns() - begin) / 1e6)
    return answer


async def measure_loop(daemon: Daemon, table: Table, at_once: int, cycles: int) -> None:
    times: dict[str, list[float]] = {"create": [], "cell": [], "kill": [], "all": []}
    left = iter(range(cycles))

    async def user(client: Client) -> None:
        for _ in left:
            begin = time.monotonic_ns()
            box = await timed(times["create"], client.create())
            await timed(times["cell"], client.sum(box))
            await timed(times["kill"], client.kill(box))
            times["all"].append((time.monotonic_ns() - begin) / 1e6)

    async with daemon.clients(at_once) as clients:
        begin = time.monotonic()
        await asyncio.gather(*map(user, clients))
        seconds = time.monotonic() - begin
    for what, values in times.items():
        table.add(daemon, f"loop {at_once}", what, values, seconds)


def bare(folder: Path, at_once: int, cycles: int, pool: int) -> list[float]:
    runs = max(1, cycles // 2 // at_once) * at_once
    with tempfile.TemporaryDirectory(prefix="thawbox-bench-") as tmp:
        path = Path(tmp, "csv")
        subprocess.run([folder / "thaw", "--mode", "standby", "--pool", str(pool), "--runs", str(runs), "--at-once", str(at_once),
                        "--csv", path], check=True, stdout=subprocess.DEVNULL)
        with path.open(newline="") as file:
            return [float(row["result_ms"]) for row in csv.DictReader(file)]


async def measure_both(daemon: Daemon, folder: Path, table: Table, at_once: int, args: argparse.Namespace) -> None:
    begin = time.monotonic()
    values = await asyncio.to_thread(bare, folder, at_once, args.cycles, args.pool)
    seconds = time.monotonic() - begin
    await measure_loop(daemon, table, at_once, args.cycles)
    begin = time.monotonic()
    values += await asyncio.to_thread(bare, folder, at_once, args.cycles, args.pool)
    table.add(daemon, f"bare {at_once}", "cell", values, seconds + time.monotonic() - begin)


async def measure_idle(daemon: Daemon, table: Table, streams: int, cells: int) -> None:
    """The first cell of a context sleeps: all others wait behind it, their headers sent."""
    heads: list[float] = []
    sums: list[float] = []
    async with daemon.clients(streams + 2) as (first, worker, *waiting):
        box, other = await first.create(), await worker.create()
        await worker.sum(other)
        first.send("POST", "/execute", {"code": "import time; time.sleep(3600)"}, box)
        await first.head()
        begin = time.monotonic()
        for client in waiting:
            client.send("POST", "/execute", {"code": "1"}, box)
            await timed(heads, client.head())
        table.add(daemon, f"idle {streams}", "opened", heads, time.monotonic() - begin)
        begin = time.monotonic()
        for _ in range(cells):
            await timed(sums, worker.sum(other))
        table.add(daemon, f"idle {streams}", "cell", sums, time.monotonic() - begin)
        await worker.kill(other)
        await worker.kill(box)


async def measure_busy(daemon: Daemon, table: Table, nr: int, seconds: float) -> None:
    firsts: list[float] = []
    times: list[float] = []
    async with daemon.clients(nr) as clients:
        boxes = []
        begin = time.monotonic()
        for client in clients:  # one after another: it is not the pool that is measured
            boxes.append(await client.create())
            await timed(firsts, client.sum(boxes[-1]))
        table.add(daemon, f"busy {nr}", "first cell", firsts, time.monotonic() - begin)

        async def user(client: Client, box: str) -> None:
            while time.monotonic() < end:
                await timed(times, client.sum(box))

        begin = time.monotonic()
        end = begin + seconds
        await asyncio.gather(*map(user, clients, boxes))
        table.add(daemon, f"busy {nr}", "cell", times, time.monotonic() - begin)
        await asyncio.gather(*(client.kill(box) for client, box in zip(clients, boxes)))


@contextlib.contextmanager
def serving(folder: Path, args: list[str]) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="thawbox-bench-") as tmp:
        daemon = Daemon(folder, Path(tmp, "log"), args)
        try:
            yield daemon
        finally:
            daemon.process.terminate()
            daemon.process.wait(TIMEOUT_S)
            sys.stderr.write(Path(tmp, "log").read_text(errors="replace"))


async def measure(daemon: Daemon, folder: Path, args: argparse.Namespace) -> None:
    table = Table(args.json)
    for at_once in args.loop:
        if at_once:
            await asyncio.wait_for(measure_both(daemon, folder, table, at_once, args), 10 * TIMEOUT_S)
    if args.idle:
        await asyncio.wait_for(measure_idle(daemon, table, args.idle, args.cycles), 10 * TIMEOUT_S)
    for nr in args.busy:
        if nr:
            await asyncio.wait_for(measure_busy(daemon, table, nr, args.seconds), 10 * TIMEOUT_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__ + "\n\n" + TEXT, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", type=int, nargs="*", default=[1, 4], metavar="N", help="clients at once (1 4)")
    parser.add_argument("--cycles", type=int, default=40, metavar="N", help="of each loop, and cells beside idle streams (40)")
    parser.add_argument("--idle", type=int, default=1000, metavar="N", help="idle streams; 0: leave out (1000)")
    parser.add_argument("--busy", type=int, nargs="*", default=[16], metavar="N", help="sandboxes at once (16)")
    parser.add_argument("--seconds", type=float, default=15, help="of each busy phase (15)")
    parser.add_argument("--pool", type=int, default=4, help="the daemon's (4)")
    parser.add_argument("--bin", metavar="DIR", help="folder of the programs ($THAWBOX_BIN, build/release)")
    parser.add_argument("--json", action="store_true", help="an object a row instead of the table")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        folder = common.find_programs(args.bin).parent
        if not args.json:
            print(f"{host_line()}, pool of {args.pool} standbys\n")
        with serving(folder, ["--pool", str(args.pool)]) as daemon:
            asyncio.run(measure(daemon, folder, args))
    except BenchError as error:
        print(f"daemon: {error}" + (f"\n  {error.remedy}" if error.remedy else ""), file=sys.stderr)
        return 1
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        print(f"daemon: the connection failed: {error or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
