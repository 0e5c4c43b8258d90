# SPDX-License-Identifier: Apache-2.0
"""Between cells the guest stands still (vmm/idle.h): later cells come by the mailbox, and what a cell has left
behind goes on all the same."""
import contextlib
import re
import select
import socket
import time
from pathlib import Path

import pytest

from vmm import Stream, request


def settle(m) -> None:
    """Returns when the guest has been idle for a moment: its counters stand."""
    last = None
    while (now := counters(m)) != last:
        last = now
        select.select([], [], [], 0.5)


def counters(m) -> tuple[int, int]:
    """Instructions of the guest's kernel that KVM interpreted, and exits to the monitor."""
    stats = m.call("stats")
    return stats["vcpu"].get("insn_emulation", 0), sum(stats["exits"].values())


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_later_cells_come_by_the_mailbox(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "x = 1")
        assert stream.answer().result["status"] == "ok"
        for i in range(5):
            assert stream.run("x += 1\nx").text == str(i + 2)
        assert stream.run("1/0").result["error"]["name"] == "ZeroDivisionError"
        printed = stream.run("for i in range(50000): print(i)", max_output=0)
        assert printed.stdout.split() == [b"%d" % i for i in range(50000)]
        assert stream.run("!echo from a shell").stdout == b"from a shell\n"
        assert stream.ask(op="complete", code="x.bit_l", cursor=7).result["matches"] == ["x.bit_length"]
        assert stream.ask(op="usage").result["wall_ms"] > 0
        assert m.call("stats")["vsock"]["opened"] == 0


def test_no_cpu_while_it_waits(vmm, template):
    """What is left are a few looks around, further and further apart."""
    with vmm() as m:
        stream = m.thaw(template, "x = 1")
        stream.answer()
        stream.run("x")
        time.sleep(8)
        before, looks = cpu_ticks(m.process.pid), m.call("stats")["exits"]["mmio"]
        time.sleep(8)
        assert cpu_ticks(m.process.pid) - before <= 8, "10 ms each: 1 % of 8 s, on a machine that is slowed by others"
        assert m.call("stats")["exits"]["mmio"] - looks <= 20
        assert stream.run("x").text == "1"


def test_threads_go_on(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "import threading, time\nbeats = []\ndef beat():\n    while True:\n"
                                  "        beats.append(time.monotonic())\n        time.sleep(0.2)\n"
                                  "threading.Thread(target=beat, daemon=True).start()")
        assert stream.answer().result["status"] == "ok"
        time.sleep(5)
        n, worst = eval(stream.run("len(beats), max(b - a for a, b in zip(beats, beats[1:]))").text)
        assert n >= 10 and worst < 2, (n, worst)


def test_processes_go_on(vmm, template):
    """One that sleeps, and one that wants all of the processor."""
    with vmm() as m:
        stream = m.thaw(template, "import subprocess\np = subprocess.Popen('for i in 1 2 3; do sleep 1; date +%s.%N; done"
                                  " >/tmp/dates', shell=True)\nq = subprocess.Popen('while :; do :; done', shell=True)")
        assert stream.answer().result["status"] == "ok"
        deadline = time.monotonic() + 120
        while stream.run("p.poll()").text != "0":
            assert time.monotonic() < deadline
            time.sleep(1)
        assert stream.run("q.poll() is None").text == "True"
        dates = eval(stream.run("[float(d) for d in open('/tmp/dates')]").text)
        assert len(dates) == 3 and all(1 <= b - a < 30 for a, b in zip(dates, dates[1:])), dates
        assert stream.run("q.kill(); q.wait()").text == "-9"


def test_the_agent_answers(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "open('/tmp/a', 'w').write('hello')")
        assert stream.answer().text == "5"
        for _ in range(3):
            settle(m)
            done = m.connect(m.thawed["agent_port"]).ask(op="exec", argv=["cat", "/tmp/a"])
            assert done.stdout == b"hello"
        assert stream.run("open('/tmp/a').read()").text == "'hello'"


def test_interrupts_and_signals(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "x = 5")
        stream.answer()
        agent = m.thawed["agent_port"]
        settle(m)
        assert m.connect(agent).ask(op="interrupt", context="default").result["status"] == "ok"
        assert stream.run("x").text == "5", "between cells there is nothing to interrupt"
        stream.sock.sendall(request(op="run", code="print('in it', flush=True)\nwhile True: pass"))
        assert stream.read()[1] == b"in it\n"
        assert m.connect(agent).ask(op="interrupt", context="default").result["status"] == "ok"
        assert stream.answer().result["error"]["name"] == "KeyboardInterrupt"
        assert stream.run("import signal\nsignal.signal(signal.SIGALRM, lambda *a: globals().update(x=6))\n"
                          "signal.setitimer(signal.ITIMER_REAL, 1)").result["status"] == "ok"
        time.sleep(3)
        assert stream.run("x").text == "6"


def test_a_request_larger_than_the_mailbox(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "x = 1")
        stream.answer()
        assert stream.run(f"len('{'a' * 200000}')").text == "200000"
        assert m.call("stats")["vsock"]["opened"] == 1
        assert stream.run("x").text == "1"


def test_one_stream_after_another(vmm, template):
    with vmm() as m:
        m.thaw(template, None)
        for i in range(3):
            stream = m.connect(m.thawed["port"])
            assert stream.run(f"x = {i}; x").text == str(i)
            stream.close()
            settle(m)
        assert m.call("stats")["vsock"]["opened"] == 0


def test_requests_in_pieces_and_in_packs(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "1")
        stream.answer()
        data = request(op="run", code="'in pieces'")
        for i in range(len(data)):
            stream.sock.sendall(data[i:i + 1])
            if i % 10 == 0:
                time.sleep(0.05)
        assert stream.answer().text == "'in pieces'"
        stream.sock.sendall(b"".join(request(op="run", code=str(i)) for i in range(5)))
        assert [stream.answer().text for _ in range(5)] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("settled", [False, True])
def test_a_request_that_is_there_before_its_stream(vmm, template, settled):
    with vmm() as m:
        m.thaw(template, None)
        if settled:
            settle(m)
        ours, theirs = socket.socketpair()
        ours.sendall(request(op="run", code="6 * 7"))
        with theirs:
            m.call("connect", port=m.thawed["port"], fd=theirs.fileno())
        assert Stream(ours).answer().text == "42"


def test_two_streams_at_once(vmm, template):
    """The second waits for the end of the first, as by vsock it would."""
    with vmm() as m:
        first = m.thaw(template, "x = 1")
        first.answer()
        settle(m)
        second = m.connect(m.thawed["port"])
        first.close()
        assert second.run("x").text == "1"


def test_the_unix_socket_reaches_the_interpreter(vmm, template, tmp_path):
    with vmm() as m:
        stream = m.thaw(template, "x = 1", vsock=str(tmp_path / "v"))
        stream.answer()
        settle(m)
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(60)
            s.connect(str(tmp_path / "v"))
            s.sendall(b"CONNECT 2000\n")
            stream.close()
            assert re.fullmatch(rb"OK \d+\n", s.recv(64))
            assert Stream(s).run("x").text == "1"


def test_pause_and_freeze_while_it_waits(vmm, template, tmp_path):
    with vmm() as m:
        stream = m.thaw(template, "x = 41")
        stream.answer()
        settle(m)
        m.call("pause")
        stream.sock.sendall(request(op="run", code="x + 1"))
        stream.sock.settimeout(1)
        with pytest.raises(TimeoutError):
            stream.answer()
        stream.sock.settimeout(60)
        m.call("resume")
        assert stream.answer().text == "42"
        m.call("pause")
        m.snapshot(tmp_path / "frozen")
    with vmm() as m:
        assert m.thaw(tmp_path / "frozen", "x + 2").answer().text == "43"
        m.call("pause")
        m.call("resume")
        assert m.connect(m.thawed["agent_port"]).ask(op="ping").result["status"] == "ok"


def test_a_peer_that_goes_in_the_middle_of_a_cell(vmm, template):
    with vmm() as m:
        stream = m.thaw(template, "x = 1")
        stream.answer()
        stream.sock.sendall(request(op="run", code="import time\ntime.sleep(1)\nx = 2\nprint('to nobody')"))
        with contextlib.suppress(OSError):
            stream.sock.shutdown(socket.SHUT_RDWR)
        stream.close()
        time.sleep(3)
        other = m.connect(m.thawed["port"])
        answer = other.run("x")
        assert answer.text == "2" and answer.stdout == b""


def test_a_cell_that_ends_its_interpreter(vmm, template):
    """Nothing comes any more on the stream: the agent knows why, and gives the context to a spare."""
    with vmm() as m:
        stream = m.thaw(template, "x = 1")
        stream.answer()
        stream.sock.sendall(request(op="run", code="import os; os._exit(3)"))
        agent = m.thawed["agent_port"]
        deadline = time.monotonic() + 120
        while True:  # to take the process apart is slow where the guest's kernel is interpreted
            with contextlib.closing(m.connect(agent)) as ask:
                state = ask.ask(op="context", context="default").result
            if not state["alive"]:
                break
            assert time.monotonic() < deadline
            time.sleep(1)
        assert state["exit"] == 3
        spare = m.connect(agent).ask(op="kill", context="default").result
        assert m.connect(spare["port"]).run("'x' in globals()").text == "False"
