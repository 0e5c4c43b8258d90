# SPDX-License-Identifier: Apache-2.0
"""Cells that never end, or want too much: bounded, told, and the context goes on where it can."""
import re
import threading
import time

import pytest

from repl import Repl

BUSY_IN_C = "import collections, itertools; collections.deque(itertools.repeat(0), maxlen=0)"
FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def timed(thawbox, *args, timeout: float = 120):
    start = time.monotonic()
    done = thawbox("run", *args, timeout=timeout)
    return done, time.monotonic() - start


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1e9)",
                                  "import subprocess; subprocess.run(['sleep', '1000'])"])
def test_endless_cell(thawbox, code):
    done, seconds = timed(thawbox, "--timeout", "2", "-c", f"print('before', flush=True)\n{code}")
    assert (done.returncode, done.stdout) == (124, b"before\n"), done.stderr
    assert b"Timeout" in done.stderr and seconds < 4


def test_endless_cell_as_json(thawbox):
    result = thawbox.json("--timeout", "2", "-c", "print('before')\nwhile True: pass", code=124)
    assert result["stdout"] == "before\n" and result["error"]["name"] == "TimeoutError"


def test_busy_loop_in_c(thawbox):
    """No Python code runs in it, so an interrupt changes nothing: the process must go."""
    done, seconds = timed(thawbox, "--timeout", "2", "-c", f"print('before')\n{BUSY_IN_C}")
    assert (done.returncode, done.stdout) == (124, b"before\n"), done.stderr
    assert seconds < 8


def test_interrupts_ignored(thawbox):
    code = "print('before')\nwhile True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass"
    done, seconds = timed(thawbox, "--timeout", "2", "-c", code)
    assert (done.returncode, done.stdout) == (124, b"before\n") and seconds < 8


def test_fork_bomb(thawbox):
    done, seconds = timed(thawbox, "--timeout", "5", "-c", FORK_BOMB)
    assert done.returncode == 124, done.stderr
    assert seconds < 20


def test_too_much_memory(thawbox):
    result = thawbox.json("-c", "x = bytearray(3 << 30)", code=1)
    assert result["error"]["name"] == "MemoryError"
    done = thawbox("run", "-c", "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))", timeout=1500)
    assert done.returncode == 1 and b"memory" in done.stderr.lower(), done.stderr


def test_100_mib_of_output_is_cut_and_told(thawbox):
    code = "import sys\nprint('first')\nfor i in range(100): sys.stdout.write('x' * (1 << 20))\nprint('last')"
    done = thawbox("run", "-c", code, timeout=300)
    assert done.returncode == 0 and b"cut" in done.stderr
    assert done.stdout.startswith(b"first\n") and done.stdout.endswith(b"last\n")
    assert 4 << 20 < len(done.stdout) <= 9 << 20
    result = thawbox.json("--max-output", "1M", "-c", code, timeout=300)
    assert len(result["stdout"]) <= 1 << 20 and result["cut"]["stdout"] >= 99 << 20


def test_all_output_when_asked(thawbox):
    done = thawbox("run", "--max-output", "0", "-c", "print('x' * (20 << 20))", timeout=300)
    assert done.stdout == b"x" * (20 << 20) + b"\n"


def test_repl_keeps_the_context_over_an_interrupt(thawbox):
    with Repl(thawbox) as repl:
        repl.cell("kept = 41")
        repl.send("import time; print('loop' + 'ing', flush=True); exec('while True: pass')")
        repl.wait_for(re.compile(rb"looping"))
        repl.interrupt()
        repl.wait_for(re.compile(rb"KeyboardInterrupt"), 10)
        repl.wait_for(repl.PROMPT)
        assert "42" in repl.cell("kept + 1")
        assert repl.close() == 0


def test_repl_keeps_the_context_over_a_timeout(thawbox):
    with Repl(thawbox, "--timeout", "2") as repl:
        repl.cell("kept = 41")
        start = time.monotonic()
        assert "Timeout" in repl.cell("exec('while True: pass')")
        assert time.monotonic() - start < 4
        assert "42" in repl.cell("kept + 1")


def test_repl_goes_on_after_a_loop_in_c(thawbox):
    """The context's process had to be killed: its variables are gone, which is told, and it goes on.

    The spare that takes over has touched nothing yet: its first cell takes seconds on software KVM.
    """
    with Repl(thawbox, "--timeout", "15") as repl:
        repl.cell("kept = 41")
        shown = repl.cell(BUSY_IN_C)
        assert "Timeout" in shown and "restart" in shown.lower()
        assert "NameError" in repl.cell("kept")
        assert "4" in repl.cell("2 + 2")


def test_repl_shows_values_errors_and_figures(thawbox, tmp_path):
    with Repl(thawbox, cwd=tmp_path) as repl:
        assert "'AB'" in repl.cell("'ab'.upper()")
        assert "ZeroDivisionError" in repl.cell("1 / 0")
        repl.send("for i in range(2):")
        repl.send("    print('row', i)")
        assert "row 0\nrow 1" in repl.cell("")
        shown = repl.cell("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
        path = [word for word in shown.split() if word.endswith(".png")]
        assert path and (tmp_path / path[0]).read_bytes().startswith(b"\x89PNG")


def test_a_timeout_through_the_agent(vmm, template):
    """The same, by the bare protocol: interrupt on the agent's port while the cell runs."""
    with vmm() as m:
        stream = m.thaw(template, "kept = 41")
        assert stream.answer().result["status"] == "ok"
        timer = threading.Timer(1, lambda: m.connect(m.thawed["agent_port"]).ask(op="interrupt", context="default"))
        timer.start()
        cell = stream.run("print('before')\nwhile True: pass")
        timer.join()
        assert cell.stdout == b"before\n" and cell.result["error"]["name"] == "KeyboardInterrupt"
        assert stream.run("kept + 1").text == "42"
