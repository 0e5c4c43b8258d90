# SPDX-License-Identifier: Apache-2.0
"""bench/steady.py: a leak is found and named, none is invented."""
import csv
import json
import os
import signal

import common
import pytest
import steady


def test_grown_by_more_than_allowed():
    before = {"descriptors": 5, "Slab_kib": 1000, "other": 0}
    allowed = {"descriptors": 0, "Slab_kib": 100}
    assert steady.grown(before, {"descriptors": 5, "Slab_kib": 1100, "other": 9}, allowed) == {}
    assert steady.grown(before, {"descriptors": 6, "Slab_kib": 1101}, allowed) == {"descriptors": 1, "Slab_kib": 101}


def test_settling_takes_the_least_of_each():
    readings = iter([{"a": 9, "b": 1}, {"a": 1, "b": 9}, {"a": 9, "b": 9}])
    assert steady.settle(lambda: next(readings), {"a": 0, "b": 0}, {"a": 1, "b": 1}) == {"a": 1, "b": 1}


def test_settling_ends():
    assert steady.settle(lambda: {"a": 9}, {"a": 0}, {"a": 1}, most_s=0.3) == {"a": 9}


def test_tenths_hold_every_cycle_once():
    series = steady.Series(1, [{"cycle": i} for i in range(37)])
    assert [row["cycle"] for i in range(10) for row in series.tenth(i)] == list(range(37))


@pytest.mark.parametrize("option", [["--cycles", "9"], ["--at-once", "257"], ["--allow-memory", "much"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("steady", *option, code=2).stderr


QUIET = ["--allow-memory", "1024G", "--json"]


def test_nothing_grows(bench, fake, tmp_path):
    path = tmp_path / "x.csv"
    result = json.loads(bench("steady", *fake, *QUIET, "--cycles", "20", "--at-once", "3", "--csv", str(path), "--plot",
                              str(tmp_path / "x.png")).stdout)
    assert [(each["at_once"], each["n"], each["failed"]) for each in result["series"]] == [(1, 20, []), (3, 20, [])]
    exact = {name for name, most in result["allowed"].items() if most == 0}
    assert exact == {"descriptors", "threads", "monitors", "files"}
    live = [point for point in result["points"] if point["when"] == "live"]
    assert max(point["monitors"] for point in live) >= 1 and {point["at_once"] for point in live} == {1, 3}
    with open(path, newline="") as file:
        assert len(list(csv.DictReader(file))) == 40


@pytest.mark.parametrize("wrong, figure", [("leave-file", "files"), ("leave-process", "monitors")])
def test_a_leak_is_named(bench, fake, wrong, figure):
    try:
        done = bench("steady", *fake, *QUIET, "--cycles", "10", "--at-once", "0", code=1, FAKE_VMM=wrong)
    finally:
        for pid, command in common.marked_processes(bench.mark):
            assert command.startswith("sleep")
            os.kill(pid, signal.SIGKILL)
    assert f"{figure} has grown by 10 in 10 cycles" in done.stderr
    assert json.loads(done.stdout)["grown"] == {figure: 10}


@pytest.fixture
def counted(tmp_path):
    """An empty folder for the count of cells; two of them are the warm-up's."""
    (tmp_path / "count").mkdir()
    return tmp_path / "count"


def test_a_failed_cycle_is_named(bench, fake, counted):
    done = bench("steady", *fake, *QUIET, "--cycles", "12", "--at-once", "0", code=1, FAKE_VMM="wrong-fifth",
                 FAKE_COUNT=str(counted))
    series, = json.loads(done.stdout)["series"]
    assert series["n"] == 10 and [failure.split(":")[0] for failure in series["failed"]] == ["cycle 2", "cycle 7"]
    assert "cycle 7" in done.stderr and "which should be" in done.stderr


def test_interrupt_leaves_nothing(bench, fake, counted):
    """Threads that wait for an answer that never comes are no reason to stay."""
    process = bench.popen("steady", *fake, "--cycles", "40", "--at-once", "4", FAKE_VMM="hang-later",
                          FAKE_COUNT=str(counted))
    bench.wait_for_sandboxes(process, 4)
    process.send_signal(signal.SIGTERM)
    assert "interrupted" in process.communicate(timeout=120)[1] and process.returncode == 130


def test_real(bench, real):
    result = json.loads(bench("steady", *real, *QUIET, "--cycles", "10", "--at-once", "2").stdout)
    assert [series["n"] for series in result["series"]] == [10, 10]
    assert result["after"]["monitors"] == result["after"]["files"] == 0
