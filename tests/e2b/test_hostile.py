# SPDX-License-Identifier: Apache-2.0
"""A hostile interpreter against the daemon: code in a context writes to the very stream on which its results travel.

It is a user's code in a real guest, so it finds that socket among its own descriptors. Whatever it says there, the daemon
reports an error, ends that sandbox and goes on; what it holds is bounded, and another sandbox is served meanwhile. (A hostile agent and a
monitor that was taken over: tests/unit/api/daemon/test_machine.c.)
"""
import http.client
import json
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import GUARD_S
from e2b_code_interpreter import Sandbox

# say(bytes, times): writes to the stream itself, past the interpreter. 0: until it is closed.
SAY = """
import os, socket, struct
def stream():
    for fd in map(int, os.listdir('/proc/self/fd')):
        try: s = socket.socket(fileno=os.dup(fd))
        except OSError: continue
        if s.family == socket.AF_VSOCK:
            try: s.getpeername(); return s
            except OSError: pass
        s.close()
def frame(kind, payload): return struct.pack('<IB', len(payload), kind) + payload
def say(data, times=1):
    s, n = stream(), 0
    s.setblocking(True)
    while not times or n < times:
        s.sendall(data)
        n += 1
"""
EVIL = {
    "giant length": r"say(b'\xff\xff\xff\xff\x10')",
    "unknown type": r"say(b'\x02\0\0\0\x55{}')",
    "two payloads mixed": r"say(b'\x01\0\0\0\x90{' + b'\x01\0\0\0\x94{')",
    "deep JSON": r"say(frame(0x10, b'{\"a\":' * 100000))",
    "wide JSON": r"say(frame(0x14, b'{\"a\":[' + b'[],' * 300000 + b'0]}'))",
    "display that is no object": r"say(frame(0x14, b'[1]'))",
    "result that is no object": r"say(frame(0x10, b'null'))",
    "result with wrong members": r"say(frame(0x10, b'{\"status\":7,\"execution_count\":{},\"error\":[[]]}'))",
    "JSON without an end": r"say(frame(0x90, b'x' * 65536), 0)",
    "output without an end": r"say(frame(0x11, b'x' * 65536), 3000)",
    "results one after another": r"say(frame(0x10, b'{\"status\":\"ok\",\"execution_count\":1,\"error\":null}'), 50)",
    "gone in the middle": r"say(b'\xff\0\0\0\x10{'); os._exit(1)",
}
BORNE = {"results one after another", "gone in the middle"}  # of these only the context, if anything, is lost


def execute(daemon, box, context: str, code: str) -> tuple[int, list[dict]]:
    """POST /execute, raw: the SDK's own parsing is not the question here."""
    body = json.dumps({"code": code, "context_id": context}).encode()
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49999", "X-Access-Token": box._envd_access_token}
    try:
        with urllib.request.urlopen(urllib.request.Request(daemon.url + "/execute", body, headers), timeout=GUARD_S) as answer:
            try:
                return answer.status, [json.loads(line) for line in answer.read().splitlines()]
            except (http.client.IncompleteRead, ConnectionResetError):
                return answer.status, [{"type": "cut off"}]  # the sandbox has ended meanwhile
    except urllib.error.HTTPError as error:
        return error.code, [json.loads(error.read() or b"{}")]


@pytest.fixture(scope="module")
def neighbour(shared):
    shared.use()
    box = Sandbox.create(timeout=3600)
    yield box
    box.kill()


@pytest.mark.parametrize("what", EVIL)
def test_hostile_interpreter(shared, neighbour, what):
    shared.use()
    box = Sandbox.create(timeout=600)
    try:
        context = box.create_code_context().id
        status, lines = execute(shared, box, context, SAY + "1 + 1")
        assert status == 200 and not [line for line in lines if line["type"] == "error"], lines
        before = shared.status_kib("VmRSS")
        stop = threading.Event()

        def ask_the_neighbour() -> int:
            n = 0
            while True:
                assert neighbour.run_code(f"{n} + 1").text == str(n + 1)
                n += 1
                if stop.is_set():
                    return n

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask_the_neighbour)
            try:
                status, lines = execute(shared, box, context, EVIL[what])
            finally:
                stop.set()
            assert asked.result(GUARD_S) > 0
        print(f"{what}: {status}, {len(lines)} lines, the last {lines[-1:]!r:.300}")
        assert shared.status_kib("VmRSS") - before < 96 << 10
        if what in BORNE:
            assert box.run_code("20 + 22").text == "42", "its default context is another process"
        else:
            assert status != 200 or lines[-1]["type"] != "end_of_execution" or "error" in [line["type"] for line in lines]
            assert re.search(f"{box.sandbox_id}.*broke the protocol", shared.text()) and not box.is_running()
    finally:
        box.kill()
    assert shared.process.poll() is None
