#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz.py BUILD-DIR SECONDS TARGET...: seeds and past findings first, then SECONDS of libFuzzer for each target, two at
a time; a table at the end. What is new stays in BUILD-DIR/corpus, an input that fails in BUILD-DIR/crash-TARGET-*."""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests" / "fuzz"

# What each target is for: the sources whose lines its coverage counts.
SOURCES = {
    "answer": ["api/daemon/answer.c"],
    "blk": ["devices/blk.c", "devices/blk_image.c"],
    "boot": ["vmm/boot.c", "vmm/boot_elf.c", "vmm/boot_bzimage.c", "vmm/boot_setup.c"],
    "cell": ["api/cell.c", "api/agent.c", "api/sandbox.c"],
    "ctl": ["vmm/ctl.c", "vmm/lines.c"],
    "fdt": ["vmm/fdt.c"],
    "first": ["vmm/first.c"],
    "frames": ["api/frames.c"],
    "guestpages": ["vmm/guestpages.c"],
    "guestsym": ["vmm/guestsym.c"],
    "http": [f"api/daemon/{name}.c" for name in (
        "box", "context", "control", "files", "filesystem", "http", "interpreter", "jobs", "kernel", "language", "listing", "machine", "port",
        "process", "process_input", "route", "rpc", "server", "stats", "text", "tunnel", "upload", "usage", "watch")],
    "ioapic": ["devices/ioapic.c"],
    "mmio": ["devices/vmmio.c", "devices/vdev.c", "devices/doorbell.c", "vmm/vm.c"],
    "serial": ["devices/serial.c"],
    "snapshot": ["vmm/snapshot.c", "vmm/machine_state.c", "vmm/cpu.c"],
    "state": ["core/state.c"],
    "template": ["api/template.c", "api/bake_plan.c"],
    "virtq": ["devices/virtq.c", "core/gmem.c"],
    "vsock": ["devices/vsock.c", "devices/vsock_conn.c", "devices/vsock_stream.c", "devices/vsock_table.c",
              "devices/vsock_unix.c"],
    "workset": ["vmm/pagein.c"],
}


def given(target: str) -> list[str]:
    """The folders of inputs that are in the tree."""
    return [str(d) for d in (FUZZ / "corpus" / target, FUZZ / "regress" / target) if d.is_dir()]


def run(build: Path, target: str, seconds: float) -> dict:
    grown = build / "corpus" / target
    grown.mkdir(parents=True, exist_ok=True)
    inputs = given(target)
    if not inputs:
        return {"target": target, "failed": f"no seeds in tests/fuzz/corpus/{target}"}
    options = [f"-max_total_time={seconds:g}" if seconds else "-runs=0", "-timeout=20", "-rss_limit_mb=2048",
               "-print_final_stats=1", f"-artifact_prefix={build}/crash-{target}-"]
    env = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1",
           "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([build / f"fuzz_{target}", *options, grown, *inputs], env=env, capture_output=True,
                          stdin=subprocess.DEVNULL)
    out = done.stderr.decode(errors="replace")
    stats = dict(re.findall(r"^stat::(\w+): +(\d+)", out, re.M))
    status = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)/", out)
    if done.returncode or not stats or not status:
        return {"target": target, "failed": "\n".join(out.splitlines()[-60:]) + f"\nexit {done.returncode}"}
    edges, features, corpus = map(int, status[-1])
    return {"target": target, "runs": int(stats["number_of_executed_units"]),
            "runs_per_s": int(stats["average_exec_per_sec"]), "edges": edges, "features": features, "corpus": corpus}


def coverage(build: Path, corpora: Path, target: str) -> float:
    """Lines of the target's own sources that the seeds and what has grown from them reach, in percent."""
    raw, merged = build / f"{target}.profraw", build / f"{target}.profdata"
    program = build / f"fuzz_{target}"
    inputs = [str(p) for p in (corpora / "corpus" / target,) if p.is_dir()] + given(target)
    subprocess.run([program, "-runs=0", *inputs], env={**os.environ, "LLVM_PROFILE_FILE": str(raw)}, check=True,
                   capture_output=True)
    subprocess.run(["llvm-profdata-14", "merge", "-o", merged, raw], check=True)
    report = subprocess.run(["llvm-cov-14", "export", "-summary-only", f"-instr-profile={merged}", program,
                             *[str(ROOT / s) for s in SOURCES[target]]], check=True, capture_output=True)
    lines = json.loads(report.stdout)["data"][0]["totals"]["lines"]
    return round(lines["percent"], 1)


def table(rows: list[dict]) -> None:
    columns = ["target", "runs", "runs_per_s", "edges", "features", "corpus"]
    columns += ["lines_percent"] if any("lines_percent" in r for r in rows) else []
    print("  " + "".join(f"{c:>14}" if i else f"{c:12}" for i, c in enumerate(columns)))
    for row in rows:
        print("  " + "".join(f"{row.get(c, ''):>14}" if i else f"{row[c]:12}" for i, c in enumerate(columns)))
    print(f"  {'all':12}{sum(r['runs'] for r in rows):>14}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("seconds", type=float, help="for each target; 0: only the inputs that there are")
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--coverage", type=Path, help="folder of the programs that count lines")
    parser.add_argument("--json", action="store_true", help="an object a target instead of the table")
    args = parser.parse_args()
    for target in args.targets:
        missing = [s for s in SOURCES.get(target, ["its line in SOURCES"]) if not (ROOT / s).exists()]
        if missing:
            parser.error(f"{target}: {', '.join(missing)}: not there")
    args.build = args.build.resolve()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda t: run(args.build, t, args.seconds), args.targets))
    for row in (r for r in rows if "failed" in r):
        print(f"{row['failed']}\nfuzz: {row['target']} FAILED; its input is {args.build}/crash-{row['target']}-*",
              file=sys.stderr)
    if any("failed" in r for r in rows):
        return 1
    if args.coverage:
        for row in rows:
            row["lines_percent"] = coverage(args.coverage.resolve(), args.build, row["target"])
    if args.json:
        print("\n".join(json.dumps(r) for r in rows))
    else:
        table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
