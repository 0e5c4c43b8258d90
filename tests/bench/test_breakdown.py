# SPDX-License-Identifier: Apache-2.0
"""bench/breakdown.py: the path through made-up traces is the right one; real thaws leave little out."""
import csv
import json

import breakdown
import pytest
from breakdown import CLIENT, LOOP, VCPU, Hop, Run, Stamps, Step
from common import BenchError

COUNTERS = {"exits": {"mmio": 1, "io": 0, "interrupted": 0, "other": 0}, "faults": {"minor": 5, "major": 1},
            "vcpu": {"pf_taken": 100, "insn_emulation": 1}}
NO_COUNTERS = {"exits": dict.fromkeys(COUNTERS["exits"], 0), "faults": {"minor": 0, "major": 0}}
START_NS = 5_000_000
"""When the made-up monitor began: 2 ms after its client."""


def event(phase: str, thread: int, us: float, name: str, count: int = 0, faults: int = 0) -> dict:
    return {"ph": phase, "tid": thread, "ts": us, "name": name, "pid": 1,
            "args": {"count": count, "minor_faults": faults, "major_faults": 0}}


def thaw_events() -> list[dict]:
    """main() at 0; the loop makes a thread and waits for it; the guest runs from 3 to 9 ms, the answer is out at 10."""
    steps = [(1, 0, 500, "process set up"), (1, 500, 1000, "control line read"), (1, 1000, 1200, "vCPU's thread started"),
             (1, 1300, 2500, "wait: the vCPU's thread"), (1, 2500, 2700, "resumed"), (2, 1500, 2400, "VM made"),
             (2, 1600, 2000, "KVM_CREATE_VM"), (2, 2450, 2800, "wait: work"), (2, 3000, 9000, "KVM_RUN"),
             (2, 9000, 10100, "exit: mmio"), (2, 9100, 10000, "output written"), (2, 10200, 99000, "KVM_RUN")]
    points = [(2, 1400, "thread runs"), (2, 2400, "signal: the vCPU's thread"), (1, 2600, "signal: work")]
    events = [event("B", thread, begin, name) for thread, begin, _, name in steps]
    events += [event("E", thread, end, name, faults=7 if name == "KVM_RUN" else 0) for thread, _, end, name in steps]
    events += [event("i", thread, at, name) for thread, at, name in points]
    return sorted(events, key=lambda e: (e["ts"], e["ph"] == "B"))


def a_trace(events: list[dict] | None = None, **other: object) -> dict:
    memory = {"populated": 400, "workset_written": 300, "cold": False}
    return {"traceEvents": thaw_events() if events is None else events,
            "otherData": {"start_ns": START_NS, "lost": 0, "memory": memory, "at_run": NO_COUNTERS,
                          "at_done": COUNTERS, **other}}


STAMPS = Stamps(3_000_000, 3_100_000, 4_000_000, 15_200_000)


@pytest.fixture
def run() -> Run:
    return breakdown.make_run(a_trace(), STAMPS)


def test_the_path(run):
    """Times are of the client: 2 ms more than the trace's."""
    found = [(lane, round(since, 3), round(to, 3)) for lane, since, to in reversed(run.spans)]
    assert found == [(CLIENT, 0, 1.0), (LOOP, 1.0, 3.2), (VCPU, 3.2, 4.4), (LOOP, 4.4, 4.6), (VCPU, 4.6, 12.0),
                     (CLIENT, 12.0, 12.2)]
    assert run.wall == pytest.approx(sum(to - since for _, since, to in run.spans))


def test_what_of_a_step_is_on_the_path(run):
    path = {step.name: round(run.on_path(step), 3) for step in run.steps}
    assert path == {"request sent": 0.1, "fork and exec": 0.9, "loading, linking": 1.0, "process set up": 0.5,
                    "control line read": 0.5, "vCPU's thread started": 0.2, "first time on a CPU": 0.2, "VM made": 0.9,
                    "KVM_CREATE_VM": 0.4, "wait: the vCPU's thread": 0.1, "resumed": 0.1, "wait: work": 0.2,
                    "KVM_RUN": 6.0, "exit: mmio": 1.0, "output written": 0.9, "wait: result": 0.2}


def test_what_is_in_no_step(run):
    ms, pieces = breakdown.lost(run)
    assert ms == pytest.approx(0.3)
    assert pieces[0] == (pytest.approx(0.2), "vCPU: wait: work .. KVM_RUN")
    assert pieces[1] == (pytest.approx(0.1), "vCPU: first time on a CPU .. VM made")


def test_steps_add_up_to_the_wall_time(run):
    rows = breakdown.summarise([run, run])
    whole = breakdown.totals([run, run], rows)
    assert whole["sum_of_steps_ms"] + whole["not_accounted_ms"] == pytest.approx(run.wall)
    assert whole["not_accounted_share"] == whole["not_accounted_p50"] == pytest.approx(0.3 / run.wall)
    names = [row["step"] for row in rows]
    assert names.index("VM made") + 1 == names.index("KVM_CREATE_VM") and names[-1] == "output written"
    assert [row["depth"] for row in rows if row["step"] in ("VM made", "KVM_CREATE_VM")] == [0, 1]


def test_a_step_that_is_left_out_shows():
    """Which is what the row is for."""
    events = [e for e in thaw_events() if e["name"] != "control line read"]
    ms, pieces = breakdown.lost(breakdown.make_run(a_trace(events), STAMPS))
    assert ms == pytest.approx(0.8) and pieces[0][1] == "loop: process set up .. vCPU's thread started"


def test_a_wait_for_what_was_there_already_is_no_way_to_another_thread():
    steps = [Step("wait: X", LOOP, 5, 6)]
    assert breakdown.find_hops(steps, [("signal: X", VCPU, 4.0)])[LOOP] == []
    assert breakdown.find_hops(steps, [("signal: X", VCPU, 5.5)])[LOOP] == [Hop(6, VCPU, 5.5)]
    assert breakdown.find_hops(steps, [("signal: Y", VCPU, 5.5)])[LOOP] == []


def test_what_comes_after_the_result_is_not_counted(run):
    assert breakdown.guest_ms(run) == pytest.approx(6.0)
    assert run.counts["host faults while the guest ran"] == 7
    assert run.counts["shadow or EPT faults"] == 100 and run.counts["exits, mmio"] == 1


def test_a_step_without_an_end_lasts_to_the_last_event():
    steps, _ = breakdown.read_steps(a_trace([event("B", 1, 0, "a"), event("B", 1, 10, "b"), event("i", 2, 50, "p")]),
                                    START_NS)
    assert {(step.name, step.end) for step in steps} == {("a", 0.05), ("b", 0.05)}


@pytest.mark.parametrize("trace, why", [(a_trace(lost=3), "no room for 3"), (a_trace([]), "mailbox"),
                                        (a_trace(at_done=None), "no counters")])
def test_a_trace_that_lacks_something_is_refused(trace, why):
    with pytest.raises(BenchError, match=why):
        breakdown.make_run(trace, STAMPS)


def test_prices():
    rows = [(1 + 0.01 * faults + 0.001 * instructions, faults, instructions)
            for faults, instructions in ((100, 1), (300, 1), (500, 1), (200, 7000))]
    assert breakdown.solve(rows) == (pytest.approx(10), pytest.approx(1))
    assert breakdown.solve(rows[:3]) is None, "all with as many instructions"
    assert breakdown.solve([(10 - ms, *counts) for ms, *counts in rows]) is None, "cheaper with more faults"


def test_share_of_the_guest(run):
    share = breakdown.guest_share([run], (20.0, 1.0))
    assert share["faults_ms"] == pytest.approx(2) and share["user_code_ms"] == pytest.approx(6 - 2.001)
    assert share["us_per_fault_at_most"] == pytest.approx(60)
    assert breakdown.show_guest(breakdown.guest_share([run], (61.0, 1.0)), run.counts) == [
        "In the guest 6.00 ms: 100 faults, at most 60.0 us each (such as copy a page: 61.0)."], "more than there is"
    text = breakdown.show_guest(share, run.counts)
    assert any("100 shadow or EPT faults at 20.0 us" in line for line in text)
    assert breakdown.show_guest(breakdown.guest_share([run], None), run.counts) == [
        "In the guest 6.00 ms: 100 faults, at most 60.0 us each."]


def test_a_kvm_without_counters():
    exits = {"exits": COUNTERS["exits"], "faults": COUNTERS["faults"]}
    run = breakdown.make_run(a_trace(at_done=exits), STAMPS)
    assert breakdown.show_guest(breakdown.guest_share([run], None), run.counts) == [
        "In the guest 6.00 ms; this KVM counts nothing."]


@pytest.mark.parametrize("option", [["--mode", "warm"], ["--cache", "lukewarm"], ["--runs", "0"],
                                    ["--price-tries", "x"], ["--svg", "/nowhere/x.svg"]])
def test_wrong_usage(bench, option):
    assert option[0] in bench("breakdown", *option, code=2).stderr


def test_what_cannot_be_is_said(bench, fake):
    assert "has its pages" in bench("breakdown", *fake, "--mode", "standby", "--cache", "cold", code=1).stderr
    assert "must end in .svg" in bench("breakdown", *fake, "--svg", "x.png", code=1).stderr


def test_a_cell_that_fails(bench, real):
    assert "ZeroDivisionError" in bench("breakdown", *real, "--cell", "1/0", "--runs", "1", "--price-tries", "0",
                                        code=1).stderr


@pytest.mark.parametrize("mode", breakdown.MODES)
def test_real(bench, real, tmp_path, mode):
    files = {kind: tmp_path / f"x.{kind}" for kind in ("svg", "png", "csv")}
    named = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    done = bench("breakdown", *real, "--mode", mode, "--runs", "5", "--price-tries", "1", "--json", *named)
    result = json.loads(done.stdout)
    assert result["not_accounted_p50"] < breakdown.MOST_LOST
    assert result["sum_of_steps_ms"] + result["not_accounted_ms"] == pytest.approx(result["mean_wall_ms"], rel=0.01)
    assert result["counts"]["exits, mmio"] == 1
    names = {step["step"] for step in result["steps"]}
    assert {"request sent", "control line read", "mailbox written", "KVM_RUN", "output written"} <= names
    assert ("fork and exec" in names, "fork" in names) == (mode == "exec", mode == "fresh")
    assert ("KVM_CREATE_VM" in names) == (mode in ("exec", "fresh"))
    assert 0 < result["guest"]["guest_ms"] < result["wall_ms"]["max"]
    assert files["png"].read_bytes().startswith(b"\x89PNG") and "<svg" in files["svg"].read_text()
    with open(files["csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == set("01234")


def test_real_in_words(bench, real):
    out = bench("breakdown", *real, "--runs", "3", "--price-tries", "0").stdout
    assert "not accounted for" in out and "In the guest" in out and "KVM" in out.splitlines()[0]
