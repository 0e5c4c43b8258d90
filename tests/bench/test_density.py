# SPDX-License-Identifier: Apache-2.0
"""bench/density.py: when a host is full, and that its figures add up."""
import csv
import json
import signal

import density
import pytest
from density import Knee


def index_of_stop(values) -> int | None:
    knee = Knee(2.0)
    return next((i + 1 for i, ms in enumerate(values) if knee.add(ms)), None)


def test_knee_of_steady_times_never_comes():
    assert index_of_stop([10.0, 19.9] * 100) is None


def test_knee_is_confirmed_by_a_window_of_its_own():
    """The 31st is the first of twice the largest of the first ten; ten more must say so."""
    assert index_of_stop([10.0] * 30 + [20.0] * 30) == 41


def test_one_outlier_is_no_knee():
    assert index_of_stop([10.0] * 25 + [500.0] + [10.0] * 100) is None
    assert index_of_stop([10.0] * 25 + [500.0] + [10.0] * 60 + [20.0] * 30) == 25 + 1 + 60 + 11


def test_knee_never_comes_with_factor_0():
    knee = Knee(0)
    assert not any(knee.add(ms) for ms in [10.0] * 20 + [1000.0] * 50)


def test_knee_counts_from_the_second_window():
    assert index_of_stop([10.0] * 10 + [20.0] * 30) == 30


def test_work_of_the_numpy_stage_is_known():
    """The value that the cell must have, by the host's numpy."""
    np = pytest.importorskip("numpy")
    code, want = density.numpy_cell()
    scope = {"np": np}
    exec(code.split(";")[0], scope)
    assert str(eval(code.split(";")[1].strip(), scope)) == want


@pytest.mark.parametrize("option", [["--max", "0"], ["--sample", "-1"], ["--idle", "soon"], ["--plot", "x.pdf"],
                                    ["more"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("density", *option, code=2).stderr


def test_all_sandboxes_are_told_and_answer(bench, fake, tmp_path):
    path = tmp_path / "x.csv"
    result = json.loads(bench("density", *fake, "--max", "12", "--sample", "0", "--idle", "0.2", "--json", "--csv",
                              str(path), "--plot", str(tmp_path / "x.svg")).stdout)
    found = result["density"]
    assert (found["live"], found["answered"], found["first_cell_ms"]["n"]) == (12, 12, 12)
    assert found["stopped"] == "--max 12 reached" and found["private_dirty_kib"] > 100
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["live"] for row in rows] == [str(i + 1) for i in range(12)]
    assert all(float(row["warm_ms"]) > 0 for row in rows)


def test_a_wrong_answer_fails(bench, fake, tmp_path):
    (tmp_path / "count").mkdir()
    done = bench("density", *fake, "--max", "9", "--sample", "0", "--idle", "0.1", "--json", code=1,
                 FAKE_VMM="wrong-fifth", FAKE_COUNT=str(tmp_path / "count"))
    found = json.loads(done.stdout)["density"]
    assert (found["live"], found["answered"]) == (3, 3), "cells: 1 warms up, 5 is wrong"
    assert "with 3 live sandboxes the next one failed" in done.stderr and "which should be" in done.stderr


def test_one_that_does_not_answer_any_more_fails(bench, fake, tmp_path):
    (tmp_path / "count").mkdir()
    done = bench("density", *fake, "--max", "3", "--sample", "0", "--idle", "0.1", "--json", code=1,
                 FAKE_VMM="wrong-fifth", FAKE_COUNT=str(tmp_path / "count"))
    assert json.loads(done.stdout)["density"]["answered"] == 2, "cells: 1 warms up, 2 to 4 are first, 5 is wrong"
    assert "sandbox 1 of 3 does not answer any more" in done.stderr


def test_interrupt_leaves_nothing(bench, fake):
    process = bench.popen("density", *fake, "--sample", "0", "--idle", "0")
    bench.wait_for_sandboxes(process, 3)
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=120)[1] and process.returncode == 130


def test_real(bench, real):
    result = json.loads(bench("density", *real, "--max", "3", "--sample", "2", "--idle", "1", "--json").stdout)
    stages = {stage["stage"]: stage for stage in result["stages"]}
    assert list(stages) == ["created", "first cell", "numpy", "idle"]
    assert 500 < stages["created"]["private_dirty_kib"] < stages["numpy"]["private_dirty_kib"]
    assert result["density"]["live"] == result["density"]["answered"] == 3
    assert result["density"]["pss_kib"] >= result["density"]["private_dirty_kib"] > 500
    assert result["template_kib"]["resident"] > 1000
