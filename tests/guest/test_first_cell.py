# SPDX-License-Identifier: Apache-2.0
"""The freeze point: what happens between the return of PARK and DONE."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from harness import AREA, DONE, LOOK, NEXT, OUT, PORT, PYTHON, WARMUP, YIELD, Guest, cell, request


def minor_faults(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rsplit(")", 1)[1].split()[7])


def run(code: str, **members) -> bytes:
    return request(op="run", code=code, **{"silent": False, "max_output": 1 << 20, **members})


def park(guest: Guest) -> int:
    """Brings a guest to its freeze point; returns the default kernel's pid."""
    guest.bell.wait_parked()
    guest.until("ready")
    return guest.kernels[2000]


@pytest.mark.parametrize(("code", "bells"), [
    ("1+1", [DONE]),
    ("'a' * 3", [DONE]),
    ("x = [1, 2.5, 'three']\nx", [DONE]),
    ("print('hello', 1)", [OUT, DONE]),
    ("for i in range(3):\n    total = i * 2\nprint(total)\ntotal", [OUT, DONE]),
])
def test_no_page_fault(start, code, bells):
    guest = start(doorbell=True, warmup=WARMUP)
    pid = park(guest)
    assert guest.bell.trace == [(PORT, 2000), (0x10, 0)]
    before = minor_faults(pid)
    answer = guest.bell.thaw(run(code), hostname=f"tb-{os.urandom(6).hex()}", id=os.urandom(8).hex(),
                             env={f"KEY_{os.urandom(4).hex()}": os.urandom(20).hex()})
    after = minor_faults(pid)
    assert answer.result["status"] == "ok" and answer.result["execution_count"] == 1
    assert [off for off, _ in guest.bell.trace] == bells
    assert after - before == 0


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_no_system_call(start, tmp_path):
    guest = start("--imports", "numpy", doorbell=True)
    pid = park(guest)
    log = tmp_path / "strace"
    tracer = subprocess.Popen(["strace", "-f", "-o", str(log), "-p", str(pid)],
                              stderr=subprocess.PIPE, text=True)
    assert "attached" in tracer.stderr.readline()
    answer = guest.bell.thaw(run("print('x', 1)\n1+1"))
    assert answer.stdout == "x 1\n" and answer.text == "2"
    time.sleep(0.2)
    tracer.terminate()
    tracer.wait()
    calls = [re.sub(r"^\d+ +", "", line).split("(")[0] for line in log.read_text().splitlines()]
    # Each bell of the fake doorbell is a write and a read; the first read is PARK's, under way.
    assert "".join(c[0] for c in calls if c in ("read", "write")).lstrip("r") == "wrwr"
    assert {c for c in calls if not c.startswith(("+++", "<..."))} == {"read", "write"}


def test_generators_follow_the_entropy(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    entropy = bytes(range(64))
    answer = guest.bell.thaw(run(
        "import random, numpy\n"
        "repr([random.random(), random.gauss(0, 1), *numpy.random.rand(2), numpy.random.randn()])"),
        entropy=entropy)
    expected = subprocess.run([PYTHON, "-c", (
        "import random, numpy, struct\n"
        f"e = {entropy!r}\n"
        "random.seed(int.from_bytes(e[:32], 'little'))\n"
        "numpy.random.seed(list(struct.unpack('<8I', e[32:])))\n"
        "print(repr(repr([random.random(), random.gauss(0, 1), *numpy.random.rand(2), "
        "numpy.random.randn()])))")], capture_output=True, text=True, check=True).stdout.strip()
    assert answer.text == expected
    assert guest.bell.map[8:72] == bytes(64), "the entropy is wiped from the mailbox"


def test_wake_sets_environment_and_then_the_stream_serves(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(
        run("import os\n[os.environ[k] for k in ('KEY', 'HOSTNAME', 'THAWBOX_ID')]\n"),
        env={"KEY": "v\u00e9"}, hostname="box", id="abc")
    assert answer.text == "['v\u00e9', 'box', 'abc']"
    guest.bell.serve()
    stream = guest.connect()
    usage = stream.call(op="usage").result
    assert 0 < usage["wall_ms"] < 5000 and usage["peak_kib"] > 10000
    assert usage["cpu_user_ms"] >= 0 and usage["cpu_system_ms"] >= 0
    again = stream.run("os.environ['KEY'], _")
    assert again.text == "('v\u00e9', ['v\u00e9', 'box', 'abc'])"
    assert again.result["execution_count"] == 2
    child = stream.run("import subprocess; subprocess.run('echo $KEY', shell=True)")
    assert child.stdout == "v\u00e9\n"


def test_no_trace_of_the_bake(start):
    guest = start(doorbell=True, warmup=WARMUP)
    park(guest)
    answer = guest.bell.thaw(run(
        "import json, os, sys, threading\n"
        "print(json.dumps([sorted(k for k in globals() if not k.startswith('__')), len(In), Out, _,"
        "[k for k in os.environ if 'THAWBOX' in k], threading.active_count(),"
        "hasattr(sys, 'last_value'), os.listdir('.')]))"))
    names, inputs, outputs, last, env, threads, failed, files = json.loads(answer.stdout)
    assert names == sorted(["In", "Out", "_", "_dh", "_i", "_i1", "_ih", "_ii", "_iii", "_oh",
                            "exit", "get_ipython", "quit", "json", "os", "sys", "threading"])
    assert (inputs, outputs, last, env, threads, failed) == (2, {}, "", [], 1, False)
    assert not [f for f in files if not f.startswith(".")]


def test_output_larger_than_the_mailbox_keeps_its_order(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(run(
        "import sys, os\nfor i in range(30000): print(i)\n"
        "sys.stderr.write('e' * 100000)\nos.write(1, b'raw\\n')\nprint('end')\n"
        "'v' * 200000", max_output=0))
    assert answer.stdout == "".join(f"{i}\n" for i in range(30000)) + "raw\nend\n"
    assert answer.stderr == "e" * 100000 and len(answer.text) == 200002
    assert answer.result["cut"] == {"stdout": 0, "stderr": 0}


def test_a_part_of_a_line_goes_out_when_print_ends(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    frame = run("print('waiting', end='')\nx = sum(range(10))\nprint('.', end='', flush=True)")
    answer = guest.bell.thaw(frame)
    assert answer.stdout == "waiting."
    assert [off for off, _ in guest.bell.trace] == [OUT, OUT, DONE]


@pytest.mark.parametrize("code", ["1/0", "print('a'", "raise SystemExit(3)", "!echo hi", "await x"])
def test_errors_and_magics_as_the_first_cell(start, code):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(run(code))
    name = {"1/0": "ZeroDivisionError", "print('a'": "SyntaxError", "await x": "NameError",
            "raise SystemExit(3)": "SystemExit"}.get(code)
    assert (answer.error or {}).get("name") == name
    assert answer.stdout == ("hi\n" if code == "!echo hi" else "")


def test_park_zero_takes_the_wake_and_serves(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    guest.bell.put(b"", env={"A": "1"})
    guest.bell.serve(0)
    assert guest.connect().run("import os; os.environ['A']").text == "'1'"


def test_park_again_parks_again(start):
    guest = start("--imports", "numpy", doorbell=True)
    pid = park(guest)
    for _ in range(2):
        guest.bell.reply(0xFFFFFFFF)
        guest.bell.wait_parked()
    before = minor_faults(pid)
    answer = guest.bell.thaw(run("1+1"))
    assert answer.text == "2" and answer.result["execution_count"] == 1
    assert minor_faults(pid) - before == 0


def test_park_warm_runs_the_warm_up_and_forgets_it(start, tmp_path):
    warmup = tmp_path / "warmup.py"
    warmup.write_text("# %%\nassert 'once' not in globals()\n# %% first\nimport os\nos.environ['RUNS'] = os.environ.get('RUNS', '') + 'x'\ny = 7\n")
    guest = start("--imports", "numpy", doorbell=True, warmup=warmup)
    park(guest)
    guest.bell.reply(0xFFFFFFFD)
    guest.bell.wait_parked()
    answer = guest.bell.thaw(run("os.environ['RUNS'] if 'os' in globals() else __import__('os').environ['RUNS']"))
    assert answer.text == "'xxx'", "in the parent, in the kernel, and once more"
    guest.bell.serve()
    assert guest.connect().run("y").error["name"] == "NameError"


@pytest.mark.parametrize(("code", "name"), [("1/0", "ZeroDivisionError"), ("raise SystemExit(3)", "SystemExit")])
def test_first_cell_that_fails(start, code, name):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(run(f"print('so far')\n{code}"))
    assert answer.error["name"] == name and answer.stdout == "so far\n"
    assert answer.result["execution_count"] == 1
    guest.bell.serve()
    stream = guest.connect()
    assert stream.call(op="usage").result["wall_ms"] > 0
    assert stream.run("2").result["execution_count"] == 2


def test_first_cell_that_forks(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(run(
        "import os\npid = os.fork()\nif pid == 0:\n    raise SystemExit(5)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"))
    assert answer.text == "5"


def test_hooks_of_the_first_cell_count_at_once(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(run(
        "(get_ipython().display_formatter.formatters['text/plain'].for_type(int, lambda o, p, c: p.text('mine')), 5)[1]"))
    assert answer.text == "mine"


def test_a_first_request_other_than_a_cell(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    answer = guest.bell.thaw(request(op="nonsense"))
    assert answer.error["name"] == "ProtocolError" and guest.bell.trace[-1][0] == DONE
    guest.bell.serve()
    assert guest.connect().run("1").result["execution_count"] == 1


def test_later_cells_come_by_the_mailbox(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    assert guest.bell.thaw(run("x = 5\nx")).text == "5"
    assert guest.bell.next(run("x + 1")).text == "6"
    again = guest.bell.next(run("print('so far')\n1/0"))
    assert again.error["name"] == "ZeroDivisionError" and again.stdout == "so far\n"
    assert guest.bell.next(request(op="complete", code="x.bit_l", cursor=7)).result["matches"]
    assert guest.bell.next(request(op="usage")).result["wall_ms"] > 0
    last = guest.bell.next(run("!echo $HOME | wc -c; exit 3"))
    assert last.result["execution_count"] == 4
    guest.bell.serve()
    assert guest.connect().run("x").text == "5"


def test_a_request_that_is_looked_at_twice(start):
    """LOOK and YIELD mean: read again. Signals and other threads have their turn meanwhile."""
    guest = start("--imports", "numpy", doorbell=True)
    pid = park(guest)
    guest.bell.thaw(run("import signal, threading, time\nhits = []\n"
                        "signal.signal(signal.SIGUSR1, lambda *a: hits.append('signal'))\n"
                        "signal.signal(signal.SIGUSR2, lambda *a: 1/0)\n"
                        "threading.Timer(0.2, lambda: hits.append('thread')).start()"))
    guest.bell.wait_next()
    os.kill(pid, 10)
    time.sleep(0.5)
    guest.bell.reply(LOOK)
    assert guest.bell.access()[0] == NEXT
    os.kill(pid, 12)
    guest.bell.reply(YIELD)
    assert guest.bell.access()[0] == NEXT
    os.kill(pid, 2)
    frame = run("sorted(hits)")
    guest.bell.reply(LOOK)
    assert guest.bell.access()[0] == NEXT
    guest.bell.map[:len(cell(frame))] = cell(frame)
    guest.bell.reply(len(cell(frame)))
    answer = guest.bell.collect()
    assert answer.text == "['signal', 'thread']" and "ZeroDivisionError" in answer.stderr


def test_request_fills_the_mailbox(start):
    guest = start("--imports", "numpy", doorbell=True)
    park(guest)
    about = len(json.dumps({"id": "", "hostname": "", "env": {}}))
    room = AREA - 80 - about - len(run("#"))
    answer = guest.bell.thaw(run("#" * (room + 1)))
    assert answer.result["status"] == "ok"
