# SPDX-License-Identifier: Apache-2.0
"""bench/sdk.py: that it measures what it says, not how long that takes."""
from __future__ import annotations

import csv
import os
import subprocess
import sys

import pytest
from conftest import BIN, GUARD_S, ROOT


def run(*args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("THAWBOX_URL", "PYTHONPATH")}
    return subprocess.run([sys.executable, ROOT / "bench" / "sdk.py", *args], check=False, capture_output=True, text=True,
                          env={**env, "THAWBOX_BIN": str(BIN)}, timeout=5 * GUARD_S)


@pytest.mark.vm
def test_two_turns(tmp_path):
    done = run("--runs", "2", "--csv", str(tmp_path / "sdk.csv"))
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["way", "n"], ["---", "---"], ["daemon", "2"], ["sdk", "2"]]
    with (tmp_path / "sdk.csv").open() as file:
        table = list(csv.reader(file))
    assert table[0] == ["daemon", "sdk"] and len(table) == 3 and all(float(cell) > 0 for row in table[1:] for cell in row)


def test_wrong_usage():
    assert run("--runs", "0").returncode == 2 and run("--nothing").returncode == 2
