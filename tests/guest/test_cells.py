# SPDX-License-Identifier: Apache-2.0
"""Cells over a kernel's stream: output, limits, interrupts, processes, requests."""
from __future__ import annotations

import base64
import json
import os
import signal
import socket
import struct
import threading
import time

import pytest
from harness import DISPLAY, HEADER, REQUEST, RESULT, STDERR, STDOUT, request


# ---- output ----

def test_output_leaves_while_c_code_is_busy(stream):
    stream.send(request(op="run", code="print('early')\nsum(range(60_000_000))"))
    begin = time.monotonic()
    assert stream.frame() == (STDOUT, b"early\n")
    early = time.monotonic() - begin
    rest = stream.answer()
    whole = time.monotonic() - begin
    assert rest.text == str(sum(range(60_000_000)))
    assert early < whole / 2, "it must not wait for the cell's end"


def test_partial_line_leaves_on_a_stream(stream):
    stream.send(request(op="run", code="import sys; sys.stdout.write('.'); sum(range(60_000_000))"))
    assert stream.frame() == (STDOUT, b".")
    stream.answer()


def test_order_of_python_and_descriptor_output(stream):
    answer = stream.run(
        "import ctypes, os, subprocess, sys\nc = ctypes.CDLL(None)\n"
        "print('1'); os.write(1, b'2\\n'); print('3'); c.puts(b'4'); c.fflush(None); print('5')\n"
        "subprocess.run(['echo', '6']); print('7'); os.system('echo 8'); "
        "sys.stdout.buffer.write(b'9\\n')\nos.write(2, b'e\\n'); print('10')")
    assert answer.stdout.split() == [str(i) for i in range(1, 11)] and answer.stderr == "e\n"
    kinds = [k for k, _ in answer.frames]
    assert kinds.index(STDERR) < len(kinds) - 2


def test_c_code_that_fills_the_pipe_does_not_block(stream):
    answer = stream.run(
        "import ctypes\nc = ctypes.PyDLL(None)\n"  # PyDLL: the GIL is held meanwhile
        "for fd in 1, 2:\n    b = b'x' * 900000\n    while b: b = b[c.write(fd, b, len(b)):]")
    assert answer.error is None
    assert len(answer.stdout) == len(answer.stderr) == 900000


def test_children_write_much(stream):
    answer = stream.run("!head -c 3000000 /dev/zero | tr '\\0' z")
    assert answer.stdout == "z" * 3000000


def test_64_mib(stream):
    answer = stream.run("print('m' * (64 << 20))")
    assert len(answer.stream(STDOUT)) == (64 << 20) + 1
    assert answer.result["cut"] == {"stdout": 0, "stderr": 0}


@pytest.mark.parametrize("size", [100, 4096, 1 << 20])
def test_max_output_keeps_head_and_tail(stream, size):
    n = 3 * size
    answer = stream.run(f"import sys\nfor i in range({n // 10}): print(f'{{i:09d}}')\n"
                        "sys.stderr.write('E' * 10)", max_output=size)
    whole = b"".join(b"%09d\n" % i for i in range(n // 10)) + b"E" * 10
    head, tail = size // 2, size - size // 2
    got = answer.stream(STDOUT) + answer.stream(STDERR)
    assert got == whole[:head] + whole[-tail:]
    assert answer.result["cut"] == {"stdout": len(whole) - size, "stderr": 0}


def test_max_output_counts_each_stream(stream):
    answer = stream.run("import sys\nfor i in range(100):\n    print('o' * 9)\n"
                        "    print('e' * 4, file=sys.stderr)", max_output=300)
    cut = answer.result["cut"]
    assert cut["stdout"] == 1000 - len(answer.stdout) and cut["stderr"] == 500 - len(answer.stderr)
    assert len(answer.stdout) + len(answer.stderr) == 300
    assert stream.run("1", max_output=300).result["cut"] == {"stdout": 0, "stderr": 0}


def test_head_is_streamed_before_the_end(stream):
    stream.send(request(op="run", code="print('a' * 99)\nsum(range(60_000_000))\nprint('b' * 999)",
                        max_output=100))
    assert stream.frame() == (STDOUT, b"a" * 50)
    assert stream.answer().stdout == "b" * 49 + "\n"


def test_threads_that_outlive_the_cell(stream):
    answer = stream.run(
        "import threading, time\ndef late():\n    time.sleep(.3)\n    print('late')\n"
        "t = threading.Thread(target=late); t.start()\nprint('now')")
    assert answer.stdout == "now\n"
    time.sleep(0.5)
    assert stream.run("t.join(); print('next')").stdout == "late\nnext\n"


def test_child_that_outlives_the_cell_never_blocks(stream):
    assert stream.run("import subprocess\np = subprocess.Popen('sleep .2; head -c 200000 /dev/zero "
                      "| tr \"\\\\0\" k', shell=True)").stdout == ""
    time.sleep(0.7)
    answer = stream.run("p.wait(5)", max_output=1 << 20)
    assert answer.text == "0" and answer.stdout == "k" * 65536
    assert answer.result["cut"]["stdout"] == 200000 - 65536


def test_stream_objects(stream):
    answer = stream.run(
        "import io, sys, contextlib\nsys.stdout.reconfigure(encoding='utf-8')\n"
        "with contextlib.redirect_stdout(io.StringIO()) as s: print('in')\n"
        "sys.stdout.writelines(['a', 'b']); sys.__stdout__.write('c'); sys.stdout.close()\n"
        "print('d', file=sys.stdout, flush=True)\n"
        "(s.getvalue(), sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.fileno(), "
        "sys.stderr.fileno(), sys.stdout.closed, sys.stdout.writable())")
    assert answer.stdout == "abcd\n"
    assert answer.text == "('in\\n', 'utf-8', False, 1, 2, False, True)"
    assert stream.run("sys.stdout.write(1)").error["name"] == "TypeError"


def test_unusual_text(stream):
    answer = stream.run("print('\\ud800\\x00\\u00e9')")
    assert answer.stream(STDOUT) == b"\\ud800\0\xc3\xa9\n"
    assert stream.run("raise ValueError('\\udcff\\x00')").error["value"] == "\\udcff\0"


# ---- rich results ----

def png(display: dict) -> bytes:
    return base64.b64decode(display["data"]["image/png"])


def test_figures_are_shown_at_the_cells_end(stream):
    answer = stream.run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
                        "print('x')")
    assert [d["kind"] for d in answer.displays] == ["display"]
    assert png(answer.displays[0]).startswith(b"\x89PNG")
    answer = stream.run("plt.plot([1]); plt.show(); plt.figure(); plt.plot([3]);")
    assert [png(d)[:4] for d in answer.displays] == [b"\x89PNG"] * 2
    assert stream.run("plt.get_fignums()").text == "[]"
    failed = stream.run("plt.plot([1])\n1/0")
    assert failed.error["name"] == "ZeroDivisionError" and len(failed.displays) == 1


def test_values_too_large_are_cut_with_a_note(stream):
    text = stream.run("'v' * (11 << 20)").text
    assert len(text) < (10 << 20) + 200 and text.endswith("over 10 MiB]") and "1048578" in text
    answer = stream.run("class P:\n    def _repr_png_(self): return b'p' * (9 << 20)\n"
                        "    def __repr__(self): return 'P()'\nP()")
    data = answer.displays[0]["data"]
    assert "image/png" not in data
    assert data["text/plain"].startswith("P()\n[thawbox: image/png dropped: 12582912 bytes")
    value = stream.run("raise ValueError('x' * (11 << 20))").error["value"]
    assert value.endswith("over 10 MiB]") and len(value) < (10 << 20) + 200


def test_json_and_html(stream):
    data = stream.run("from IPython.display import JSON\nJSON({'a': [1]})").displays[0]["data"]
    assert json.loads(data["application/json"]) == {"a": [1]}
    assert "application/json" not in stream.run("JSON([float('nan')])").displays[0]["data"]
    data = stream.run("import pandas as pd; pd.DataFrame({'a': [1]})").displays[0]["data"]
    assert data["text/html"].lstrip().startswith("<div>") and "a" in data["text/plain"]


def test_payload_longer_than_a_frame(stream):
    stream.send(request(op="run", code="'w' * (3 << 20)"))
    kinds, payload = [], b""
    while True:
        head = b""
        while len(head) < 5:
            head += stream.sock.recv(5 - len(head))
        n, kind = HEADER.unpack(head)
        body = bytearray()
        while len(body) < n:
            body += stream.sock.recv(n - len(body))
        kinds.append((kind, n <= 1 << 20))
        payload += body if kind & 0x7F == DISPLAY else b""
        if kind == RESULT:
            break
    assert kinds == [(DISPLAY | 0x80, True)] * 3 + [(DISPLAY, True), (RESULT, True)]
    assert json.loads(payload)["data"]["text/plain"] == repr("w" * (3 << 20))


def test_wide_tables_keep_their_columns_as_text(stream):
    text = stream.run("import pandas as pd\n"
                      "pd.DataFrame({f'column_{i}': [i] for i in range(15)})").text
    assert all(f"column_{i}" in text for i in range(15))


def test_display_between_cells_waits_for_nobody(stream):
    stream.run("import threading, time\n"
               "def late():\n    time.sleep(.2)\n    for i in range(2000): display('x' * 99)\n"
               "t = threading.Thread(target=late); t.start()")
    time.sleep(0.6)
    answer = stream.run("t.join()\n1")
    assert answer.text == "1" and len(answer.frames) < 2002


# ---- IPython ----

def test_top_level_await_and_asyncio_run(stream):
    stream.run("import asyncio\nasync def f(n):\n    await asyncio.sleep(.01)\n    return n")
    assert stream.run("await f(3)").text == "3"
    assert stream.run("asyncio.run(f(4))").text == "4"
    assert stream.run("[x async for x in f(1)]").error["name"] == "TypeError"


def test_magics(stream, guest):
    assert stream.run("!echo $((1+2)); echo e >&2; false").stdout == "3\n"
    assert stream.run("_exit_code").text == "1"
    assert stream.run("files = !printf 'a\\nb'\nfiles").text == "['a', 'b']"
    assert "loop" in stream.run("%timeit -n 2 -r 1 1+1").stdout
    assert stream.run("%%bash\necho one\necho two >&2").stdout == "one\n"
    assert stream.run("%cd -q /\n%pwd").text == "'/'"
    stream.run("%cd -q ~")
    assert stream.run("%%capture c\nprint('kept')\n2").stdout == ""
    assert stream.run("c.stdout").text == r"'kept\n'"
    assert stream.run("%pip --version").stdout.startswith("pip ")
    assert "Cell magic `%%nonsense` not found" in stream.run("%%nonsense\nx").stderr
    assert stream.run("len?").error is None
    assert stream.run("%run /nonexistent.py").error["name"] in ("Exception", "UsageError")
    assert stream.run("%reset -f").error is None
    assert stream.run("1+1").text == "2" and stream.run("_").text == "2"
    assert "1+41" in (stream.run("1+41"), stream.run("%history -n 1-9999"))[1].stdout


def test_stdin_has_nobody(stream):
    for code in ("input('? ')", "import getpass; getpass.getpass()"):
        error = stream.run(code).error
        assert error["name"] == "StdinNotImplementedError" and "in the code" in error["value"]
    assert stream.run("import sys; sys.stdin.read()").text == "''"


def test_exit_leaves_the_context(stream):
    stream.run("kept = 7")
    for code in ("exit()", "quit()", "exit", "import sys; sys.exit(2)", "raise SystemExit"):
        assert stream.run(code).error["name"] == "SystemExit"
    assert stream.run("kept").text == "7"


def test_classes_pickle_and_spawned_interpreters_are_plain(stream):
    assert stream.run("import pickle\nclass K: pass\n"
                      "type(pickle.loads(pickle.dumps(K()))).__name__").text == "'K'"
    assert stream.run("import subprocess, sys; subprocess.run([sys.executable, '-c', "
                      "'import sys; print(sys.path[0] == str(), len(sys.argv))'])"
                      ).stdout == "True 1\n"
    assert stream.run("sys.path[0], sys.argv, __name__").text == "('', [''], '__main__')"


def test_deep_recursion(stream):
    answer = stream.run("def r(n): return r(n + 1)\nr(0)")
    assert answer.error["name"] == "RecursionError" and len(answer.error["traceback"]) < 100000
    stream.run("import sys; old = sys.getrecursionlimit(); sys.setrecursionlimit(20000)")
    assert stream.run("def d(n): return n and 1 + d(n - 1)\nd(15000)").text == "15000"
    stream.run("sys.setrecursionlimit(old)")


# ---- interrupts ----

@pytest.mark.parametrize("code", [
    "import time; time.sleep(30)", "while True: pass", "import subprocess; "
    "subprocess.run(['sleep', '30'])", "import asyncio; await asyncio.sleep(30)",
    "import threading; threading.Event().wait(30)",
    "try:\n    while True: pass\nexcept ValueError: pass"])
def test_interrupt(guest, stream, code):
    begin = time.monotonic()
    stream.send(request(op="run", code="print('in')\n" + code))
    assert stream.frame() == (STDOUT, b"in\n")
    time.sleep(0.2)
    os.kill(guest.kernels[2000], signal.SIGINT)
    answer = stream.answer()
    assert answer.error["name"] == "KeyboardInterrupt", answer.error
    assert time.monotonic() - begin < 20
    assert stream.run("1").text == "1"


def test_an_interrupted_await_does_not_go_on_later(guest, stream):
    stream.run("import asyncio")
    stream.send(request(op="run", code="print('in')\nawait asyncio.sleep(1)\nwent_on = True"))
    stream.frame()
    time.sleep(0.2)
    os.kill(guest.kernels[2000], signal.SIGINT)
    answer = stream.answer()
    assert answer.error["name"] == "KeyboardInterrupt" and not answer.stderr
    count = answer.result["execution_count"]
    assert stream.run("await asyncio.sleep(1.5)").result["execution_count"] == count + 1
    later = stream.run("'went_on' in globals()")
    assert later.text == "False" and later.result["execution_count"] == count + 2


def test_interrupts_between_cells_are_ignored(guest, stream):
    for _ in range(5):
        os.kill(guest.kernels[2000], signal.SIGINT)
        time.sleep(0.01)
    assert stream.run("2").text == "2"


def test_a_storm_of_interrupts_never_kills(guest, stream):
    stop = threading.Event()

    def storm():
        while not stop.is_set():
            os.kill(guest.kernels[2000], signal.SIGINT)
            time.sleep(0.002)

    thread = threading.Thread(target=storm)
    thread.start()
    names = set()
    for code in ("1", "x = 1", "print(1)", "1/0", "%precision", "sum(range(10**6))") * 10:
        names.add((stream.run(code).error or {"name": ""})["name"])
    stop.set()
    thread.join()
    assert names <= {"", "KeyboardInterrupt", "ZeroDivisionError"}
    assert stream.run("3").text == "3"


# ---- processes ----

def test_forked_children_do_not_serve(stream):
    answer = stream.run(
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('child' if not pid else "
        "'parent', flush=True)\npid and 'value'")
    assert sorted(answer.stdout.split()) == ["child", "parent"] and answer.text == "'value'"
    answer = stream.run("pid = os.fork()\nif not pid: 1/0\nos.waitstatus_to_exitcode("
                        "os.waitpid(pid, 0)[1])")
    assert answer.text == "1" and "ZeroDivisionError" in answer.stderr and answer.error is None
    answer = stream.run("import sys\npid = os.fork()\nif not pid: sys.exit(9)\n"
                        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
    assert answer.text == "9"
    assert stream.run("1").text == "1"


def test_multiprocessing(stream):
    answer = stream.run("import multiprocessing as mp\ndef sq(n):\n    print('w', flush=True)\n"
                        "    return n * n\nwith mp.get_context('fork').Pool(2) as p: "
                        "r = p.map(sq, range(4))\nr")
    assert answer.text == "[0, 1, 4, 9]" and answer.stdout.split() == ["w"] * 4


def test_stream_ends_though_children_live(guest, stream):
    stream.run("import os, time\nif not os.fork():\n    time.sleep(5); os._exit(0)")
    stream.close()
    other = guest.connect()
    assert other.run("5").text == "5"
    other.close()


# ---- requests ----

def test_peer_that_leaves_mid_cell(guest, stream):
    stream.send(request(op="run", code="left = 1\nimport time\nfor i in range(20):\n"
                                       "    print('x' * 9999); time.sleep(.02)\nleft = 2"))
    stream.frame()
    stream.close()
    other = guest.connect()
    assert other.run("left").text == "2"
    other.close()


@pytest.mark.parametrize(("payload", "says"), [
    (b"{", "not JSON"), (b"[]", "not a JSON object"), (b"\xff", "not JSON"), (b"", "not JSON"),
    (b'{"op":"run"}', '"code" must be str'), (b'{"op":"run","code":5}', '"code" must be str'),
    (b'{"op":"run","code":"1","silent":1}', '"silent" must be bool'),
    (b'{"op":"run","code":"1","max_output":-1}', '"max_output"'),
    (b'{"op":"run","code":"1","max_output":true}', '"max_output"'),
    (b'{"op":"jump"}', "unknown op 'jump'"), (b'{"op":[]}', '"op" must be str'),
    (b'{"op":"usage"} x', "goes on"),
    (b'{"op":"complete","code":"a","cursor":9}', '"cursor" must be in 0..1'),
    (b"[" * 100000, "not JSON")])
def test_bad_requests(stream, payload, says):
    count = stream.run("").result["execution_count"]
    stream.send(HEADER.pack(len(payload), REQUEST) + payload)
    error = stream.answer().error
    assert error["name"] == "ProtocolError" and says in error["value"]
    assert stream.run("1").result["execution_count"] == count


def test_bad_frames(guest, stream):
    stream.send(HEADER.pack(0, RESULT))
    assert "type 0x10" in stream.answer().error["value"]
    stream.send(struct.pack("<IB", 0xFFFFFFFF, REQUEST) + b"x" * 100)
    assert "too large" in stream.answer().error["value"]
    with pytest.raises((EOFError, ConnectionResetError)):
        stream.frame()
    other = guest.connect()
    assert other.run("1").text == "1"
    other.close()


def test_request_in_pieces(stream):
    whole = json.dumps({"op": "run", "code": "len(%r)" % ("c" * 1500000)}).encode()
    stream.send(HEADER.pack(1 << 20, REQUEST | 0x80) + whole[:1 << 20])
    rest = whole[1 << 20:]
    frame = HEADER.pack(len(rest), REQUEST) + rest
    for at in range(0, len(frame), 100000):
        stream.send(frame[at:at + 100000])
    assert stream.answer().text == "1500000"


def test_two_requests_at_once(stream):
    stream.send(request(op="run", code="'first'") + request(op="run", code="'second'"))
    assert (stream.answer().text, stream.answer().text) == ("'first'", "'second'")


def test_complete(stream):
    stream.run("import os\nalpha_one = alpha_two = {}")
    got = stream.call(op="complete", code="x = 1\nalpha_\ny", cursor=12).result
    assert got == {"matches": ["alpha_one", "alpha_two"], "start": 6, "end": 12}
    assert "os.path" in stream.call(op="complete", code="os.pa", cursor=5).result["matches"]
    stream.run("class Trap:\n    def __dir__(self): raise KeyboardInterrupt\ntrap = Trap()")
    assert isinstance(stream.call(op="complete", code="trap.", cursor=5).result["matches"], list)


def test_usage(stream):
    stream.run("import time\nt = time.process_time()\nwhile time.process_time() < t + .2: pass\n"
               "time.sleep(.2)")
    usage = stream.call(op="usage").result
    assert usage["wall_ms"] >= 390 and 150 < usage["cpu_user_ms"] + usage["cpu_system_ms"] < 390
    stream.run("b = bytearray(200 << 20); del b")
    peak = stream.call(op="usage").result["peak_kib"]
    stream.run("1")
    assert peak - stream.call(op="usage").result["peak_kib"] > 150 << 10
    stream.run("!timeout 5 sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'")
    assert stream.call(op="usage").result["cpu_user_ms"] > 20


def test_one_connection_at_a_time(guest, stream):
    stream.run("1")
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(str(guest.folder / "2000.sock"))
    waiting.sendall(request(op="run", code="'second stream'"))
    waiting.settimeout(0.3)
    with pytest.raises(TimeoutError):
        waiting.recv(10)
    stream.close()
    waiting.settimeout(30)
    assert b"second stream" in waiting.recv(65536)
    waiting.close()
