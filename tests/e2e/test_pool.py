# SPDX-License-Identifier: Apache-2.0
"""Monitors forked by a zygote, and what is made of them before anybody asks: shells and standbys."""
import json
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from conftest import BIN
from test_bounds import within
from test_thaw import CLOCKS, drop_caches
from test_unique import AT_ONCE, IDENTITY, NAMES, check_distinct
from vmm import VmmError, Zygote

WAYS = ("fork", "shell", "standby")


@pytest.fixture
def zygote(thawbox, template):
    with Zygote(BIN / "thawbox-vmm", template, env=thawbox.env) as z:
        yield z


def member(zygote: Zygote, way: str):
    return getattr(zygote, way)()


@pytest.mark.parametrize("way", WAYS)
def test_results(zygote, template, way):
    """The first cell, cells by vsock behind it, and a command."""
    with member(zygote, way) as m:
        a, b = random.randrange(10**9), random.randrange(10**9)
        stream = m.thaw(template, f"{a} + {b}")
        assert stream.answer().text == str(a + b)
        assert stream.run("x = 20; x + 22").text == "42"
        assert stream.run("import pandas; pandas.DataFrame({'a': [1, x]}).sum().a").text == "21"
        assert m.connect(m.thawed["agent_port"]).ask(op="exec", argv=["echo", "hello"]).stdout == b"hello\n"


@pytest.mark.parametrize("way", WAYS)
def test_first_operation_is_no_cell(zygote, template, way):
    with member(zygote, way) as m:
        m.thaw(template, None)
        assert m.connect(m.thawed["agent_port"]).ask(op="ping").result["status"] == "ok"
        assert m.connect(m.thawed["port"]).run("20 + 22").text == "42"


@pytest.mark.parametrize("way", WAYS)
def test_who_it_is(zygote, template, way):
    code = "import os, socket; (socket.gethostname(), os.environ['THAWBOX_ID'], os.environ['WHO'])"
    with member(zygote, way) as left, member(zygote, way) as right:
        for m, name in ((left, "left"), (right, "right")):
            cell = m.thaw(template, code, id=f"id-{name}", hostname=name, env={"WHO": f"user of {name}"}).answer()
            assert eval(cell.text) == (name, f"id-{name}", f"user of {name}")
            told = m.connect(m.thawed["agent_port"]).ask(op="exec", shell="hostname").stdout
            assert told.decode().strip() == name


def identities(zygote: Zygote, template, n: int, **members) -> list[list[str]]:
    """What IDENTITY prints in each of n standbys of one zygote, which all wait before the first is taken."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(zygote.standby()) for _ in range(n)]
        rows = [m.thaw(template, IDENTITY, id=f"id-{i}", hostname=f"host-{i}", **members).answer().stdout.decode().split()
                for i, m in enumerate(waiting)]
    assert all(len(row) == len(NAMES) for row in rows)
    return rows


def test_standbys_share_no_random_state(zygote, template):
    check_distinct(identities(zygote, template, AT_ONCE))


def test_without_the_replacement_they_are_equal(zygote, template):
    """The control: it shows that the test above would see shared state."""
    first, second = identities(zygote, template, 2, reseed=False)
    assert first[0] == second[0], "os.urandom differs although nothing replaced the kernel's random state"


def test_clocks_of_a_standby_that_waited(zygote, template):
    with zygote.standby() as m:
        time.sleep(3)
        sent = time.time()
        stream = m.thaw(template, CLOCKS)
        wall, monotonic, boot = eval(stream.answer().text)
        assert sent - 0.05 < wall < time.time() + 0.05
        for _ in range(20):
            before = time.time()
            wall, now, now_boot = eval(stream.run(CLOCKS).text)
            assert before - 0.05 < wall < time.time() + 0.05
            assert now >= monotonic and now_boot >= boot
            monotonic, boot = now, now_boot
        slept = float(stream.run("t = time.monotonic(); time.sleep(0.05); time.monotonic() - t").text)
        assert 0.05 <= slept < 1, "timers"


def test_snapshot_of_a_standby(zygote, template, vmm, tmp_path):
    frozen = tmp_path / "frozen"
    with zygote.standby() as m:
        stream = m.thaw(template, "kept = 6 * 7")
        stream.answer()
        assert stream.run("kept").text == "42"
        m.call("pause")
        m.snapshot(frozen)
    with vmm() as m:
        m.thaw(frozen, None)
        assert m.connect(m.thawed["port"]).run("kept").text == "42"


def counts_of_a_standby(zygote: Zygote, template) -> dict[str, int]:
    with zygote.standby() as m:
        before = m.call("stats")["vcpu"]
        assert m.first_cell(template)[1].text == "2"
        after = m.call("stats")["vcpu"]
    return {f"standby_{name}": after[name] - before[name] for name in ("insn_emulation", "pf_taken")}


def test_counts_of_a_first_cell(zygote, template):
    """The best of three, as in test_bounds.py."""
    within(min((counts_of_a_standby(zygote, template) for _ in range(3)), key=lambda found: sum(found.values())))


@pytest.mark.parametrize("way", ("shell", "standby"))
def test_memory_of_one_that_waits(zygote, way):
    """Two wait: pages of the template's file would count as private to the only one that maps them."""
    with member(zygote, way) as m, member(zygote, way):
        within({f"{way}_kib": sum(m.private_kib().values())})


def refused(m, command: str, **members) -> str:
    with pytest.raises(VmmError) as error:
        m.call(command, **members)
    return str(error.value)


@pytest.mark.parametrize("way", ("shell", "standby"))
def test_commands_at_the_wrong_stage(zygote, template, tmp_path, way):
    with member(zygote, way) as m:
        for command in ("pause", "resume", "snapshot", "connect"):
            assert "thaw a machine first" in refused(m, command, dir=str(tmp_path / "x"))
        for command in ("shell", "standby", "boot"):
            assert "has its machine already" in refused(m, command, kernel="/vmlinux")
        stream = m.thaw(template, "1+1")
        assert stream.answer().text == "2"
        assert "has its machine already" in refused(m, "thaw", dir=str(template))
        assert stream.run("2+2").text == "4", "a refusal harms nothing"


def test_thaw_that_comes_too_early(zygote, template):
    with zygote.fork() as m:
        m.call("standby", overlay_dir="/tmp")
        assert "not yet ready" in refused(m, "thaw", dir=str(template))
        m.event("standby")
        assert m.thaw(template, "1+1").answer().text == "2"


@pytest.mark.parametrize("way", ("shell", "standby"))
def test_member_of_another_snapshot(zygote, template, tmp_path, way):
    with member(zygote, way) as m:
        assert f"this machine is of {template}" in refused(m, "thaw", dir=str(tmp_path))


def test_zygote_of_a_missing_snapshot(thawbox, tmp_path):
    with pytest.raises(VmmError, match="missing"):
        Zygote(BIN / "thawbox-vmm", tmp_path / "missing", env=thawbox.env)


def test_killed_zygote_hurts_nobody(zygote, template):
    with zygote.standby() as waiting, zygote.fork() as used:
        stream = used.thaw(template, "x = 1")
        stream.answer()
        zygote.process.send_signal(signal.SIGKILL)
        zygote.process.wait(10)
        assert stream.run("x + 1").text == "2"
        assert waiting.thaw(template, "1+1").answer().text == "2"


@pytest.mark.parametrize("way", WAYS)
def test_at_once(zygote, template, way):
    def use(m) -> str:
        return m.thaw(template, "import os; os.getrandom(8).hex()").answer().text

    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as threads:
        members = [stack.enter_context(member(zygote, way)) for _ in range(AT_ONCE)]
        assert len(set(threads.map(use, members))) == AT_ONCE


def test_standby_that_ends_before_it_is_taken(zygote, thawbox):
    """It needs no order to: its control socket closes."""
    with zygote.standby() as m:
        m.sock.close()
        assert m.process.wait(10) == 0


# ---- the same by the library's pool ----------------------------------------------------------------


def bench(thawbox, *arguments: str) -> dict:
    done = subprocess.run([BIN / "thaw", "--json", *arguments], env=thawbox.env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", ("exec", "fresh", "shell", "standby"))
def test_bench_modes(thawbox, mode):
    result = bench(thawbox, "--mode", mode, "--runs", "12", "--at-once", "4")
    assert (result["mode"], result["n"]) == (mode, 12)
    assert result["pool"] == (8 if mode in ("shell", "standby") else None)
    assert not result["misses"] and not result["lost"]
    assert 0 < result["min_ms"] <= result["p50_ms"] <= result["max_ms"]
    assert result["results_per_s"] > 0
    assert ("spawn" in result["parts"]) == (mode in ("exec", "fresh"))


def test_bench_pool_that_is_too_small(thawbox):
    """They wait for the next member, and all get one."""
    result = bench(thawbox, "--mode", "standby", "--burst", "8", "--pool", "2", "--runs", "16")
    assert result["misses"] >= 2 * (8 - 2 - 4)
    assert result["makespan"]["max_ms"] >= result["max_ms"]


def test_bench_arrivals(thawbox):
    result = bench(thawbox, "--mode", "standby", "--arrive", "40", "--runs", "20")
    assert result["arrive_per_s"] == 40
    assert result["p50_ms"] > 0


@pytest.mark.parametrize("mode", ("fresh", "shell"))
def test_bench_cold(thawbox, template, mode):
    """A zygote that lives, and shells that wait, hold nothing of the template's pages."""
    drop_caches(template)
    assert bench(thawbox, "--mode", mode, "--cache", "cold", "--runs", "3")["cache"] == "cold"


@pytest.mark.parametrize("arguments", (
    ["--mode", "standby", "--cache", "cold"], ["--mode", "fresh", "--pool", "3"], ["--arrive", "0"],
    ["--arrive", "5", "--at-once", "2"], ["--arrive", "5", "--cache", "cold"], ["--burst", "3", "--runs", "4"]))
def test_bench_refuses_what_does_not_go_together(arguments):
    assert subprocess.run([BIN / "thaw", *arguments], capture_output=True).returncode == 2
