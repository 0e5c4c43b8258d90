#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs: from Sandbox.create() to the first result, beside the same requests without it."""
from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "sdk" / "python" / "src"))

TEXT = """\
Starts a thawboxd of its own on a Unix socket, then takes turns: `daemon` writes the two requests (create, execute) of a
random sum to that socket by hand and waits for the last byte of the second answer; `sdk` does Sandbox.create() and
run_code(). Every result is checked. Before each turn the pool is full, and the sandbox of the turn before is gone: so both
take a standby that waits, hot. Times are on the client's clock."""
EXAMPLES = """\
examples:
  bench/sdk.py                          # with a Python that has httpx: that of `make sdk` in out/sdk/
  bench/sdk.py --runs 100 --csv sdk.csv
exit codes: 0 measured; 1 a turn failed; 2 wrong usage"""
GUARD_S = 120.0


class Raw:
    """One connection, HTTP by hand: as little as a client can do."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(GUARD_S)
        self.sock.connect(path)
        self.file: IO[bytes] = self.sock.makefile("rb")

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        named = {"Host": "thawboxd", "X-API-KEY": "e2b_00", "Content-Type": "application/json",
                 "Content-Length": str(len(data)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self.sock.sendall(head.encode() + b"\r\n" + data)
        status = int(self.file.readline().split()[1])
        fields = {}
        while (line := self.file.readline().strip()):
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip()
        if fields.get(b"transfer-encoding") == b"chunked":
            parts = []
            while (size := int(self.file.readline(), 16)):
                parts.append(self.file.read(size))
                self.file.readline()
            self.file.readline()
            return status, b"".join(parts)
        return status, self.file.read(int(fields.get(b"content-length", b"0")))


def rank(ordered: list[float], percent: float) -> float:
    """The nearest rank, as in bench/thaw.c."""
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1]


def check(what: str, text: object, wanted: int) -> None:
    if str(text) != str(wanted):
        raise SystemExit(f"sdk: a result of {what} is {text!r}, not {wanted}")


def wait_full(raw: Raw, pool: int) -> None:
    """Until the pool is as before."""
    end = time.monotonic() + GUARD_S
    while time.monotonic() < end:
        found = re.search(rb"^thawbox_pool_members\{[^}]*state=\"ready\"[^}]*\} (\d+)", raw.ask("GET", "/metrics")[1], re.MULTILINE)
        if found and int(found[1]) >= pool:
            return
        time.sleep(0.02)
    raise SystemExit("sdk: the pool was not refilled")


def by_hand(raw: Raw, number: int) -> float:
    begin = time.perf_counter()
    status, text = raw.ask("POST", "/sandboxes", {"templateID": "code-interpreter"})
    made = json.loads(text)
    if status != 201:
        raise SystemExit(f"sdk: create: {text!r}")
    _, text = raw.ask("POST", "/execute", {"code": f"{number} + 1", "context_id": "default"},
                      E2b_Sandbox_Id=made["sandboxID"], E2b_Sandbox_Port="49999")
    took = 1000 * (time.perf_counter() - begin)
    lines = [json.loads(line) for line in text.splitlines() if line]
    check("the daemon", next((line["text"] for line in lines if line["type"] == "result"), None), number + 1)
    raw.ask("DELETE", f"/sandboxes/{made['sandboxID']}")
    return took


def by_package(url: str, number: int) -> float:
    from thawbox import Sandbox

    begin = time.perf_counter()
    sandbox = Sandbox.create(url=url)
    text = sandbox.run_code(f"{number} + 1").text
    took = 1000 * (time.perf_counter() - begin)
    check("the package", text, number + 1)
    sandbox.kill()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=TEXT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="turns of each (%(default)s)")
    parser.add_argument("--pool", type=int, default=2, help="standbys that wait (%(default)s)")
    parser.add_argument("--bin", type=Path, default=os.environ.get("THAWBOX_BIN", TOP / "build" / "release"),
                        help="folder of thawboxd (%(default)s)")
    parser.add_argument("--csv", type=Path, help="every turn, in ms")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/d.sock"
        daemon = subprocess.Popen([Path(options.bin) / "thawboxd", "--unix", path, "--keys", f"{folder}/keys", "--pool",
                                   str(options.pool), "--exit-with-stdin"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert daemon.stdin and daemon.stderr
        try:
            while b" serves " not in (line := daemon.stderr.readline()):
                if not line:
                    raise SystemExit("sdk: thawboxd did not come up")
            threading.Thread(target=daemon.stderr.read, daemon=True).start()
            times = measure(path, options.runs, options.pool)
        finally:
            daemon.stdin.close()
            daemon.wait()
    print("| way | n | min | p50 | p90 | p99 | max ms |\n|---|---|---|---|---|---|---|")
    for way, values in times.items():
        ordered = sorted(values)
        row = [ordered[0], *(rank(ordered, p) for p in (50, 90, 99)), ordered[-1]]
        print(f"| {way} | {len(values)} | " + " | ".join(f"{value:.2f}" for value in row) + " |")
    if options.csv:
        with options.csv.open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(times)
            writer.writerows(zip(*times.values(), strict=True))
    return 0


def measure(path: str, runs: int, pool: int) -> dict[str, list[float]]:
    raw = Raw(path)
    times: dict[str, list[float]] = {"daemon": [], "sdk": []}
    for turn in range(-2, runs):  # the first two of each are not counted: imports, the first connection
        for way in times:
            wait_full(raw, pool)
            number = int.from_bytes(os.urandom(3), "big")
            took = by_hand(raw, number) if way == "daemon" else by_package(f"unix:{path}", number)
            if turn >= 0:
                times[way].append(took)
    return times


if __name__ == "__main__":
    sys.exit(main())
