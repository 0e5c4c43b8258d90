# SPDX-License-Identifier: Apache-2.0
"""`thawbox-vmm --trace`: the steps of a thaw in their order, as JSON; without it nothing is written. What the table of
the steps comes to is the business of tests/bench/test_breakdown.py, that a thaw without it makes no more system calls
that of test_bounds.py."""
import array
import json
import os
import socket
import subprocess
import time

import pytest

from conftest import BIN
from vmm import Stream, Vmm, request

ORDER = ["process set up", "control line read", "line parsed", "snapshot opened", "memory mapped",
         "vCPU's thread started", "VM made", "KVM_CREATE_VM", "KVM_SET_USER_MEMORY_REGION", "KVM_CREATE_VCPU",
         "CPU state loaded", "KVM_SET_CPUID2", "KVM_SET_LAPIC", "KVM_SET_MSRS", "KVM_SET_CLOCK",
         "guest kernel's state replaced", "resumed", "KVM_RUN", "exit: mmio", "output written"]
"""Steps in the order of their beginnings; two threads share the others, which come when they come."""
OTHERS = {"working set begun", "working set populated", "mailbox written", "devices opened", "answer written"}


def steps_of(trace: dict) -> list[tuple[str, int, float, float]]:
    """(name, thread, begin, end) of each step, in us; checks that they nest. The last exit may still be handled when
    the trace ends, which then is its end."""
    stacks: dict[int, list] = {}
    steps = []
    for e in trace["traceEvents"]:
        if e["ph"] == "B":
            stacks.setdefault(e["tid"], []).append((e["name"], e["ts"]))
        elif e["ph"] == "E":
            name, begin = stacks[e["tid"]].pop()
            assert name == e["name"] and begin <= e["ts"]
            steps.append((name, e["tid"], begin, e["ts"]))
    last = max(e["ts"] for e in trace["traceEvents"] if "ts" in e)
    return steps + [(name, thread, begin, last) for thread, stack in stacks.items() for name, begin in stack]


def first_begin(steps: list) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, _, begin, _ in steps:
        found[name] = min(begin, found.get(name, begin))
    return found


def read(path) -> dict:
    trace = json.loads(path.read_text())
    assert trace["otherData"]["lost"] == 0 and trace["otherData"]["clock"] == "CLOCK_MONOTONIC"
    return trace


def test_steps_of_a_thaw(vmm, template, tmp_path):
    path = tmp_path / "trace"
    with vmm("--trace", str(path)) as m:
        began_ns = m.started_ns
        _, cell = m.first_cell(template, "6*7")
        ended_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        assert cell.text == "42" and not path.exists()
        stats = m.call("stats")
    trace = read(path)
    steps = steps_of(trace)
    begins = first_begin(steps)
    assert sorted(ORDER, key=begins.__getitem__) == ORDER and OTHERS <= begins.keys()
    assert {t for name, t, _, _ in steps if name == "KVM_RUN"} == {2}
    # The clock is the client's.
    start_ns = trace["otherData"]["start_ns"]
    last = max(end for name, _, _, end in steps if name == "output written")
    assert began_ns < start_ns and start_ns + last * 1e3 < ended_ns
    # What is counted is what the machine's own counters say.
    done = trace["otherData"]["at_done"]
    assert done["exits"] == stats["exits"]
    assert sum(name == "exit: mmio" for name, *_ in steps) == stats["exits"]["mmio"]
    for name in ("mmio_exits", "insn_emulation", "pf_taken"):
        assert done["vcpu"].get(name) == stats["vcpu"].get(name)
    assert trace["otherData"]["memory"] == stats["memory"]


def test_no_large_step_is_missing(vmm, template, tmp_path):
    """From main() to the result's last byte some thread is in a step for 80 % of the time. The best of ten: on a busy machine
    all wait."""
    shares = [0.0]
    while max(shares) <= 0.8 and len(shares) <= 10:
        path = tmp_path / "trace"
        with vmm("--trace", str(path)) as m:
            m.first_cell(template)
        steps = steps_of(read(path))
        last = max(end for name, _, _, end in steps if name == "output written")
        covered = at = 0.0
        for _, _, begin, end in sorted((s for s in steps if not s[0].startswith("wait: ")), key=lambda s: s[2]):
            covered += max(0.0, min(end, last) - max(begin, at))
            at = max(at, end)
        shares.append(covered / last)
    assert max(shares) > 0.8, shares


def test_without_it_nothing_is_written(vmm, template, tmp_path):
    before = set(tmp_path.rglob("*"))
    with vmm() as m:
        assert m.first_cell(template)[1].text == "2"
    assert set(tmp_path.rglob("*")) == before


def test_written_while_the_sandbox_lives_on(vmm, template, tmp_path):
    path = tmp_path / "trace"
    with vmm("--trace", str(path)) as m:
        stream = m.thaw(template)
        assert stream.answer().text == "2"
        end = time.monotonic() + 10
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert steps_of(read(path))
        assert stream.run("2+2").text == "4"


def test_written_when_there_is_no_result(vmm, template, tmp_path):
    path = tmp_path / "trace"
    with vmm("--trace", str(path)) as m:
        m.thaw(template, None, paused=True)
    trace = read(path)
    assert "memory mapped" in first_begin(steps_of(trace)) and "at_done" not in trace["otherData"]


def test_a_zygotes_child_has_a_file_of_its_own(vmm, template, tmp_path):
    path = tmp_path / "trace"
    with vmm("--zygote", "--trace", str(path)) as z:
        z.call("open", dir=str(template), overlay_dir=str(tmp_path))
        control, far = socket.socketpair()
        ours, theirs = socket.socketpair()
        with control, far, ours, theirs:
            ours.sendall(request(op="run", code="6*7"))
            line = {"cmd": "thaw", "id": "e2e", "hostname": "e2e", "env": {}, "overlay_dir": str(tmp_path)}
            control.sendmsg([json.dumps(line).encode() + b"\n"],
                            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))])
            pid = z.call("spawn", fd=far.fileno())["pid"]
            assert Stream(ours).answer().text == "42"
            far.close()
        os.waitpid(pid, 0)
        assert not path.exists()
    trace = read(tmp_path / f"trace.{pid}")
    steps = steps_of(trace)
    assert {name for name, thread, _, _ in steps if thread == 0} == {"wait: spawn line", "spawn line parsed", "fork"}
    assert {name for name, *_ in steps} >= {"fork", "process set up", "KVM_RUN", "output written"}
    assert all(e["args"].get("minor_faults", 0) < 1e6 for e in trace["traceEvents"] if e["ph"] == "E")


@pytest.mark.parametrize("where, said", [("nowhere/trace", "No such file"), (".", "Is a directory")])
def test_a_place_that_cannot_be_written_is_an_error_at_once(tmp_path, where, said):
    done = subprocess.run([BIN / "thawbox-vmm", "--control-fd", "0", "--trace", str(tmp_path / where)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and said in done.stderr and "remedy" in done.stderr


def test_a_standbys_trace_has_the_counts_of_the_request_alone(thawbox, template, tmp_path):
    path = tmp_path / "trace"
    with Vmm(BIN / "thawbox-vmm", "--trace", str(path), env=thawbox.env) as m:
        m.call("standby", dir=str(template), overlay_dir=str(thawbox.tmp))
        m.event("standby")
        assert m.first_cell(template)[1].text == "2"
    other = read(path)["otherData"]
    assert other["at_run"]["exits"]["mmio"] > 0
    assert other["at_done"]["exits"]["mmio"] - other["at_run"]["exits"]["mmio"] == 1
