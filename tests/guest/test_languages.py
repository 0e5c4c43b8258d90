# SPDX-License-Identifier: Apache-2.0
"""Cells in other languages: the interpreter beside a kernel, its output, values, errors and interrupts.

What needs Debian's own packages of Node.js (acorn) and esbuild is tested in a sandbox (tests/e2b)."""
from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from harness import STDOUT, Answer, Guest, Stream, request

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
needs_acorn = pytest.mark.skipif(
    not shutil.which("node") or subprocess.run(["node", "-e", "require('acorn')"], stderr=subprocess.DEVNULL).returncode != 0,
    reason="node has no acorn, as Debian's own has")


def cell(language: str, code: str) -> str:
    """As the daemon asks for it."""
    return f"__import__('thawbox_languages').run({language!r}, {json.dumps(code, ensure_ascii=False)})"


def run(stream: Stream, language: str, code: str) -> Answer:
    return stream.run(cell(language, code))


def interrupt(guest: Guest, stream: Stream, language: str, code: str) -> Answer:
    """Interrupts a cell once it has said "in"."""
    stream.send(request(op="run", code=cell(language, code)))
    assert stream.frame() == (STDOUT, b"in\n")
    time.sleep(0.2)
    os.kill(guest.kernels[2000], signal.SIGINT)
    return stream.answer()


# ---- bash ----

def test_bash_keeps_its_state(stream):
    assert run(stream, "bash", "x=5; cd /; f() { echo \"f $1\"; }; echo hi").stdout == "hi\n"
    answer = run(stream, "bash", "f $x; pwd; echo 'ü \"q\" \\n' >&2")
    assert (answer.stdout, answer.stderr) == ("f 5\n/\n", "ü \"q\" \\n\n")
    assert answer.result["status"] == "ok" and not answer.displays


def test_bash_tells_an_exit_status(stream):
    error = run(stream, "bash", "echo before; false").error
    assert (error["name"], error["value"]) == ("ExitStatus", "1")
    answer = run(stream, "bash", "if")
    assert "syntax error" in answer.stderr and answer.result["status"] == "error"
    assert run(stream, "bash", "true").result["status"] == "ok"


def test_bash_that_exits_is_started_again(stream):
    run(stream, "bash", "x=1")
    error = run(stream, "bash", "exit 3").error
    assert error["value"] == "3" and "the next cell starts a new one" in error["traceback"]
    assert run(stream, "bash", "echo new${x}").stdout == "new\n"


def test_bash_reads_nothing_of_ours(stream):
    assert run(stream, "bash", "read line; echo \"$? $line\"").stdout == "1 \n"


def test_bash_leaves_a_process_behind(stream):
    """It holds what it has inherited, and nothing waits for it."""
    assert run(stream, "bash", "sleep 1000 & echo started").stdout == "started\n"
    assert run(stream, "bash", "exit 0").result["status"] == "ok"
    assert run(stream, "bash", "echo next").stdout == "next\n"


@pytest.mark.parametrize("code", ["sleep 1000", "while :; do :; done", "while :; do sleep 0.05; done"])
def test_bash_is_interrupted_and_goes_on(guest, stream, code):
    run(stream, "bash", "x=7")
    assert interrupt(guest, stream, "bash", "echo in; " + code).error["name"] == "KeyboardInterrupt"
    assert run(stream, "bash", "echo $x").stdout == "7\n"


def test_bash_that_ignores_two_interrupts_is_given_up(guest, stream):
    stream.send(request(op="run", code=cell("bash", "trap '' INT; echo in; sleep 1000 & while :; do wait; done")))
    assert stream.frame() == (STDOUT, b"in\n")
    for _ in range(2):
        time.sleep(0.3)
        os.kill(guest.kernels[2000], signal.SIGINT)
    assert stream.answer().error["name"] == "KeyboardInterrupt"
    assert run(stream, "bash", "echo its own").stdout == "its own\n"


def test_environment_follows_the_kernels(stream):
    run(stream, "bash", ":")
    stream.run("import os; os.environ['FOO'] = \"b'ar\"")
    assert run(stream, "bash", "echo $FOO").stdout == "b'ar\n"
    stream.run("del os.environ['FOO']")
    assert run(stream, "bash", "echo ${FOO-unset}").stdout == "unset\n"


# ---- JavaScript ----

@needs_node
@pytest.mark.parametrize("code, text", [
    ("1 + 1", "2"), ("'s'", "s"), ("({a: [1, 'b']})", "{ a: [ 1, 'b' ] }"), ("{a: 1}", "{ a: 1 }"), ("undefined", None),
    ("await Promise.resolve('waited')", "waited"), ("Promise.resolve(3)", "3"), ("process.argv.length", "1")])
def test_javascript_values(stream, code, text):
    answer = run(stream, "javascript", code)
    assert answer.text == text and answer.result["status"] == "ok"


@needs_node
def test_javascript_keeps_its_state(stream):
    run(stream, "javascript", "var a = 5; function f(x) { return x + a }")
    answer = run(stream, "javascript", "console.log('out ü'); console.error('err'); f(2)")
    assert (answer.stdout, answer.stderr, answer.text) == ("out ü\n", "err\n", "7")


@needs_node
@pytest.mark.parametrize("code, name, value", [
    ("throw new TypeError('no')", "TypeError", "no"), ("missing", "ReferenceError", "missing is not defined"),
    ("if (", "SyntaxError", "Unexpected end of input"), ("await Promise.reject(new RangeError('far'))", "RangeError", "far"),
    ("throw 5", "Error", "5")])
def test_javascript_errors(stream, code, name, value):
    error = run(stream, "javascript", code).error
    assert (error["name"], error["value"]) == (name, value)
    assert "thawbox_node" not in error["traceback"] and "node:" not in error["traceback"]


@needs_node
@pytest.mark.parametrize("code", ["while (true);", "await new Promise(() => 0)"])
def test_javascript_is_interrupted_and_goes_on(guest, stream, code):
    run(stream, "javascript", "var kept = 1")
    assert interrupt(guest, stream, "javascript", "console.log('in'); " + code).error["name"] == "KeyboardInterrupt"
    assert run(stream, "javascript", "kept").text == "1"


@needs_node
def test_javascript_that_fails_later_goes_on(stream):
    run(stream, "javascript", "var kept = 2; setTimeout(() => { throw new Error('late') }, 1); 0")
    assert run(stream, "javascript", "await new Promise((done) => setTimeout(done, 50)); kept").text == "2"
    assert run(stream, "javascript", "process.exit(4)").error["value"] == "4"
    assert run(stream, "javascript", "typeof kept").text == "undefined"


@needs_acorn
def test_javascript_declares_again_and_imports(stream):
    run(stream, "javascript", "const a = 1; class B { f() { return 1 } }")
    assert run(stream, "javascript", "const a = 2; class B { f() { return a } }; new B().f()").text == "2"
    code = "import { readFileSync as r } from 'fs'\nimport path, * as all from 'path'\n[typeof r, path.sep, typeof all]"
    assert run(stream, "javascript", code).text == "[ 'function', '/', 'object' ]"


# ---- an interpreter that was there before the freeze ----

@pytest.fixture
def spare(start):
    """The first spare, which has all of them."""
    guest = start("--imports", "", spares=1)
    stream = guest.connect(2001)
    guest.connect(2000)  # it is there, and ends with the test
    pids = stream.run("import thawbox_languages as t; [(i.language, i.process.pid) for i in t.ready]").text
    stream.pids = dict(eval(pids))
    return stream


def test_the_ready_bash_becomes_the_contexts_own(spare):
    spare.run("import os; os.mkdir('a $b'); os.chdir('a $b'); os.environ['FOO'] = 'bar'")
    answer = run(spare, "bash", "echo $$ $FOO $SECONDS; pwd; x=3")
    first, second = answer.stdout.splitlines()
    assert first == f"{spare.pids['bash']} bar 0" and second.endswith("/home/a $b") and not answer.stderr
    assert run(spare, "bash", "cd /; echo $x; exit 0").stdout == "3\n"
    assert run(spare, "bash", "echo $$").stdout != f"{spare.pids['bash']}\n"


def test_the_ready_bash_draws_its_own_numbers(spare):
    """RANDOM is seeded from the kernel, not from what it was before: two that begin differ."""
    code = ("import thawbox_languages as t, os; os.urandom = lambda n: {!r} * n\n"
            "b = t.Bash('bash'); b.run(':'); b.begin('bash'); b.run('echo $RANDOM $RANDOM $RANDOM')")
    draws = [spare.run(code.format(byte)).stdout for byte in (b"a", b"a", b"b")]
    assert draws[0] == draws[1] != draws[2]


@needs_node
def test_the_ready_one_becomes_the_contexts_own(spare, tmp_path):
    spare.run(f"import os; os.chdir({str(tmp_path)!r}); os.environ['FOO'] = 'bar'")
    answer = run(spare, "javascript", "console.log('only this'); [process.pid, process.cwd(), process.env.FOO, typeof a, typeof B]")
    assert answer.text.split() == ["[", f"{spare.pids['typescript']},", f"'{tmp_path}',", "'bar',", "'undefined',", "'undefined'", "]"]
    assert (answer.stdout, answer.stderr) == ("only this\n", "")
    assert "cell-2:1" in run(spare, "javascript", "throw new Error('x')").error["traceback"]
    assert run(spare, "javascript", "process.pid").text == str(spare.pids['typescript'])


@needs_node
def test_the_ready_one_draws_its_own_numbers(spare):
    assert "native code" not in run(spare, "javascript", "String(Math.random)").text
    drawn = run(spare, "javascript", "var d = Array.from({length: 5000}, Math.random);"
                                     "[new Set(d).size, d.every((x) => x >= 0 && x < 1), d.reduce((a, b) => a + b) / 5000]").text
    size, in_range, mean = drawn.strip("[] ").split(", ")
    assert (size, in_range) == ("5000", "true") and 0.45 < float(mean) < 0.55
    maps = open(f"/proc/{spare.pids['typescript']}/maps", encoding="utf-8").read()
    assert "thawbox_reseed.node" in maps


@needs_node
def test_the_ready_one_is_taken_once(spare):
    """Also where the kernel's folder is gone."""
    spare.run("import os; os.makedirs('gone'); os.chdir('gone'); os.rmdir('../gone')")
    answer = run(spare, "javascript", "[process.pid, process.cwd(), /native/.test(Math.random)]")
    assert answer.text == f"[ {spare.pids['typescript']}, '/', false ]"
    spare.run("os.chdir('/')")
    assert run(spare, "javascript", "process.exit(0)").result["status"] == "ok"
    assert run(spare, "javascript", "process.pid").text != str(spare.pids['typescript'])


# ---- both ----

def test_what_is_not_there(stream):
    stream.run("import os; path = os.environ['PATH']; os.environ['PATH'] = '/nonexistent'")
    error = run(stream, "typescript", "1").error
    stream.run("os.environ['PATH'] = path")
    assert error["name"] == "FileNotFoundError" and "build the template with its package" in error["traceback"]


def test_it_ends_with_its_kernel(start):
    guest = start("--spares", "0")
    stream = guest.connect()
    pid = int(run(stream, "bash", "echo $$").stdout)
    os.kill(guest.kernels[2000], signal.SIGKILL)
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")
