# SPDX-License-Identifier: Apache-2.0
"""What a guest kernel can do to its devices. The monitor survives, says why the guest ended, and a neighbour does not
notice. What the guest itself expects of the devices is in payload/*.c; it says "failed:" where that is not so."""
import os
import random

import pytest

from conftest import WAIT_S

# Each ends by powering the machine off.
SCENARIOS = ["late_changes", "queue_sel", "loops", "lengths", "index_jumps", "indirect", "features", "status_games",
             "config_space", "break_storm", "race", "sectors", "vsock_bounds", "credit_lies", "storm", "doorbell",
             "serial_flood", "ioapic", "unmapped", "ports"]

# Those in which a device must have been broken, and the log must say so.
BREAKS = {"late_changes", "loops", "lengths", "index_jumps", "indirect", "features", "break_storm", "vsock_bounds"}
MAY_BREAK = {"ioapic", "race", "status_games"}

# THAWBOX_HOSTILE_SEED=N repeats a run; else each run has new seeds.
SEEDS = [int(os.environ.get("THAWBOX_HOSTILE_SEED", random.randrange(1, 1 << 32))) + n for n in range(3)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(hostile, neighbour, scenario):
    h = hostile(scenario)
    h.console.until(b"begin\n")
    neighbour()
    text = h.console.until(b"end\n")
    assert b"failed:" not in text, text
    assert h.exit_event()["reason"] == "shutdown"
    log = h.finish()
    if scenario not in MAY_BREAK:
        assert ("must reset the device" in log) == (scenario in BREAKS), log


@pytest.mark.parametrize("seed", SEEDS)
def test_random(hostile, neighbour, seed):
    print(f"seed {seed}: repeat with THAWBOX_HOSTILE_SEED={seed}")
    h = hostile("random", seed)
    h.console.until(b"begin\n")
    neighbour()
    text = h.console.until(b"end\n")
    assert b"failed:" not in text, text
    assert h.exit_event()["reason"] == "shutdown"
    h.finish()


def test_a_guest_that_breaks_its_device_for_ever_fills_no_log(hostile):
    h = hostile("break_storm")
    h.console.until(b"end\n")
    assert h.exit_event()["reason"] == "shutdown"
    # 400 times: at most ten lines a second from one place in the code.
    assert len(h.finish().splitlines()) < 300


def test_end_by_fault(hostile):
    h = hostile("triple_fault")
    event = h.exit_event()
    assert event["reason"] == "triple-fault" and "rip=" in event["detail"]
    h.finish()


# An NMI or INIT that the guest sends to itself through the I/O APIC: KVM ends it, or lets it be.
@pytest.mark.parametrize("scenario, word", [("halt", b"halted\n"), ("endless", b"looping\n"),
                                            ("ioapic_nmi", b"sent\n"), ("ioapic_init", b"sent\n")])
def test_a_guest_that_does_not_answer_is_ended_from_outside(hostile, neighbour, scenario, word):
    """The host's deadline: pause, look, go on, quit, whatever the guest does."""
    h = hostile(scenario)
    h.console.until(word)
    h.monitor.call("pause", timeout=WAIT_S)
    exits = h.monitor.call("stats", timeout=WAIT_S)["vcpu"]["exits"]
    neighbour()
    assert h.monitor.call("stats", timeout=WAIT_S)["vcpu"]["exits"] == exits, "a paused guest must not run"
    h.monitor.call("resume", timeout=WAIT_S)
    h.finish()


def test_parking_again_and_again(hostile):
    h = hostile("park")
    for _ in range(3):
        h.monitor.event("parked", WAIT_S)
        h.monitor.call("pause", timeout=WAIT_S)
        h.monitor.call("resume", timeout=WAIT_S)
    text = h.console.until(b"end\n")
    assert b"failed:" not in text, text
    assert h.exit_event()["reason"] == "shutdown"
    h.finish()


def test_hostile_guest_that_is_killed_in_full_flight(hostile):
    h = hostile("random", 7)
    h.console.until(b"begin\n")
    h.monitor.sock.close()  # as when the client dies
    assert h.monitor.process.wait(WAIT_S) == 0
    log = h.monitor.process.stderr.read().decode(errors="replace")
    assert "ERROR: " not in log and "runtime error" not in log, log
