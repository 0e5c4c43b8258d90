# SPDX-License-Identifier: Apache-2.0
"""The daemon itself: keys, limits, bounds, log, metrics, its end."""
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import httpx
import pytest
from conftest import BIN, GUARD_S, KEY, Daemon
from e2b import AuthenticationException, RateLimitException
from e2b.exceptions import ServiceBusyException
from e2b_code_interpreter import Sandbox


def envd(box) -> dict[str, str]:
    return {"E2b_Sandbox_Id": box.sandbox_id, "X_Access_Token": box._envd_access_token}


def thawbox(*args: str) -> str:
    return subprocess.run([BIN / "thawbox", *args], check=True, capture_output=True, text=True).stdout


# ---- who may ----

def test_keys(start, tmp_path):
    keys = ("--keys", str(tmp_path / "keys.json"))
    alice = thawbox("key", "create", *keys, "--max-sandboxes", "1", "alice").strip()
    bob = thawbox("key", "create", *keys, "--rate", "0.01", "bob").strip()
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", alice) and alice[4:] not in (tmp_path / "keys.json").read_text()
    daemon = start()
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key=KEY)
    box = Sandbox.create(api_key=alice)
    with pytest.raises(RateLimitException, match="this key has its 1 sandboxes"):
        Sandbox.create(api_key=alice)
    assert Sandbox.list(api_key=bob).next_items() == [] and not Sandbox.kill(box.sandbox_id, api_key=bob)
    for _ in range(4):
        Sandbox.create(api_key=bob, timeout=100).kill()
    with pytest.raises(RateLimitException, match="may create 0.01 sandboxes a second"):
        Sandbox.create(api_key=bob)
    thawbox("key", "remove", *keys, "alice")
    daemon.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + GUARD_S
    while daemon.get("/v2/sandboxes", X_API_KEY=alice)[0] == 200 and time.monotonic() < end:
        time.sleep(0.02)
    assert daemon.get("/v2/sandboxes", X_API_KEY=alice)[0] == 401
    assert box.run_code("1 + 1").text == "2", "a sandbox outlives its key"


def test_loopback_alone_without_keys(start):
    daemon = start("--listen", "0.0.0.0:0", wait=False)
    assert daemon.process.wait(GUARD_S) == 3
    assert "without keys it listens on loopback alone" in daemon.text() and "thawbox key create" in daemon.text()


def test_tokens(daemon, sandbox):
    path = "/filesystem.Filesystem/Stat"
    body, json_type = {"path": "/"}, {"Content_Type": "application/json"}
    assert daemon.request("POST", path, body, **json_type, **envd(sandbox))[0] == 200
    for token in ({}, {"X_Access_Token": "0" * 48}):
        status, text = daemon.request("POST", path, body, E2b_Sandbox_Id=sandbox.sandbox_id, **json_type, **token)
        assert status == 401 and json.loads(text)["code"] == 401
    status, text = daemon.get("/files?path=x", E2b_Sandbox_Id=sandbox.sandbox_id, X_Access_Token="wrong")
    assert status == 401 and b"does not match" in text


def test_traffic_token(daemon):
    box = Sandbox.create(network={"allow_public_traffic": False})
    try:
        assert box.run_code("1 + 1").text == "2"
        status, _ = daemon.request("POST", "/execute", {"code": "1"}, E2b_Sandbox_Id=box.sandbox_id, E2b_Sandbox_Port="49999")
        assert status == 403
    finally:
        box.kill()


# ---- requests that are wrong ----

@pytest.mark.parametrize("method, path, body, status", [
    ("GET", "/nothing", None, 404), ("PUT", "/sandboxes", b"", 405), ("POST", "/sandboxes", b"{", 400),
    ("POST", "/sandboxes", {}, 400), ("POST", "/sandboxes", {"templateID": "base", "timeout": -1}, 400),
    ("POST", "/sandboxes", {"templateID": "base", "timeout": 10**9}, 400),
    ("POST", "/sandboxes", {"templateID": "base", "metadata": {"a": 1}}, 400),
    ("POST", "/sandboxes", {"templateID": "none"}, 404), ("POST", "/sandboxes", b"x" * (2 << 20), 413),
    ("GET", "/sandboxes/inone", None, 404), ("DELETE", "/sandboxes/..%2f", None, 404),
    ("GET", "/v2/sandboxes?limit=0", None, 400), ("GET", "/v2/sandboxes?startedAfter=now", None, 400),
    ("GET", "/v2/sandboxes?metadata=a", None, 400), ("GET", "/v2/sandboxes?nextToken=zz", None, 400),
    ("GET", "/snapshots", None, 501), ("POST", "/v3/templates", {"name": "x"}, 501),
])
def test_errors(daemon, method, path, body, status):
    got, text = daemon.request(method, path, body)
    assert got == status, text
    assert json.loads(text)["code"] == status and json.loads(text)["message"]


def test_allowed_methods(daemon):
    answer = httpx.put(daemon.url + "/sandboxes", headers={"X-API-KEY": KEY})
    assert answer.status_code == 405 and answer.headers["allow"] == "POST, GET"


@pytest.mark.parametrize("body", [
    {"secure": "no"}, {"autoPause": 1}, {"network": []}, {"network": {"denyOut": "all"}}, {"network": {"denyOut": [1]}},
    {"network": {"allowPublicTraffic": 0}}, {"allow_internet_access": []}, {"timeout": 1.5}])
def test_types(daemon, body):
    """What is of another type is not taken for a default."""
    status, text = daemon.request("POST", "/sandboxes", {"templateID": "base", **body})
    assert status == 400 and "must be" in json.loads(text)["message"]


def test_sandbox_that_is_gone(daemon):
    for port in ("49983", "49999", "8000"):
        status, text = daemon.get("/health", E2b_Sandbox_Id="inone", E2b_Sandbox_Port=port)
        assert status == 502
        assert json.loads(text) == {"sandboxId": "inone", "message": "The sandbox was not found", "code": 502}
    assert daemon.get("/health", Host="49983-inone.example.com")[0] == 502


def test_host_names(daemon, sandbox):
    assert daemon.get("/health", Host=f"49983-{sandbox.sandbox_id}.localhost")[0] == 204
    assert daemon.get("/health", Host=f"49999-{sandbox.sandbox_id}.localhost")[0] == 200
    assert daemon.get("/", Host=f"8000-{sandbox.sandbox_id}.localhost")[0] == 502


# ---- bounds ----

@pytest.mark.slow
def test_slow_client_makes_nothing_grow(daemon, sandbox):
    """A command that writes for ever, to a client that does not read: the guest has to wait."""
    body = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", "yes"]}, "stdin": False}).encode()
    host, port = daemon.url.removeprefix("http://").split(":")
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in envd(sandbox).items())

    before = daemon.status_kib("VmRSS")
    with socket.create_connection((host, int(port))) as client:
        client.settimeout(GUARD_S)
        client.sendall((f"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\n{head}Content-Type: application/connect+json\r\n"
                        f"Content-Length: {len(body) + 5}\r\n\r\n").encode() + bytes(1) + len(body).to_bytes(4, "big") + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        end = time.monotonic() + GUARD_S
        sandbox.get_metrics()
        while True:  # all queues on the way fill up, the host's sockets among them; then the guest stands still
            time.sleep(2)
            if (used := sandbox.get_metrics()[0].cpu_used_pct) < 20 or time.monotonic() > end:
                break
        assert used < 20, "the guest goes on writing"
        assert daemon.status_kib("VmRSS") - before < 8192
    end = time.monotonic() + GUARD_S
    while not sandbox.commands.list() and time.monotonic() < end:
        time.sleep(0.1)
    sandbox.commands.kill(sandbox.commands.list()[0].pid)


def test_an_upload_is_not_held_in_memory(start, tmp_path):
    """The client is faster than the guest: it waits, and the daemon's peak stays where it was."""
    daemon = start()
    box = Sandbox.create(timeout=3600)
    content = os.urandom(16 << 20)
    box.files.write("first", content[:100000])
    before = daemon.status_kib("VmHWM")
    (tmp_path / "large").write_bytes(content)
    with open(tmp_path / "large", "rb") as large:
        box.files.write("large", large, request_timeout=5 * GUARD_S)
    after = daemon.status_kib("VmHWM")
    code = "import hashlib; hashlib.file_digest(open('large', 'rb'), 'sha256').hexdigest()"
    assert box.run_code(code).text == hashlib.sha256(content).hexdigest()
    assert after - before < 1024, "KiB more for an upload of 16 MiB"
    assert box.kill()


def test_output_of_a_cell_is_cut(start):
    start("--max-output", "64K")
    box = Sandbox.create()
    cell = box.run_code("print('x' * 1000000); print('end')")
    text = "".join(cell.logs.stdout)
    assert len(text) < 80000 and text.endswith("end\n")
    assert re.search(r"of its middle \d+ bytes of stdout", cell.logs.stderr[-1])
    assert box.kill()


def test_deadline_of_a_cell(start):
    start("--cell-timeout", "3s")
    box = Sandbox.create()
    box.run_code("x = 1")
    cell = box.run_code("print('before')\nwhile True: pass")
    assert cell.error.name == "TimeoutError" and "ran longer than 3 s" in cell.error.value
    assert cell.logs.stdout == ["before\n"]
    assert box.kill()


@pytest.mark.slow
def test_many_idle_streams(daemon, sandbox):
    """A thousand clients that wait cost no thread, and do not hold up one that works."""
    sandbox.run_code("x = 1")
    task = f"/proc/{daemon.process.pid}/task"
    threads = len(os.listdir(task))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(sandbox.run_code, "import time; time.sleep(15); 'long'")
        time.sleep(1)
        clients = [open_stream(daemon, sandbox) for _ in range(1000)]
        for client in clients:
            assert client.recv(12) == b"HTTP/1.1 200", "headers come at once, before the cell's turn"
        assert len(os.listdir(task)) == threads
        other = Sandbox.create()
        assert other.run_code("6 * 7").text == "42"
        other.kill()
        for client in clients:
            client.close()
        assert long.result().text == "long"
    assert sandbox.run_code("x").text == "1"


@pytest.mark.slow
def test_idle_streams_and_busy_sandboxes_at_once(start):
    """A thousand that wait, and 64 sandboxes that all run a cell at the same moment, each its own."""
    from concurrent.futures import ThreadPoolExecutor

    daemon = start("--pool", "4")
    box = Sandbox.create(timeout=3600)
    box.run_code("import time")
    threads = len(os.listdir(f"/proc/{daemon.process.pid}/task"))
    with ThreadPoolExecutor(65) as pool:
        long = pool.submit(box.run_code, "time.sleep(3000)", timeout=0)
        end = time.monotonic() + GUARD_S
        while daemon.metric("thawbox_cells_total") < 2 and time.monotonic() < end:
            time.sleep(0.02)
        waiting = [open_stream(daemon, box) for _ in range(1000)]
        for client in waiting:
            assert client.recv(12) == b"HTTP/1.1 200"
        boxes = [Sandbox.create(timeout=3600) for _ in range(64)]
        for n, cell in enumerate([pool.submit(box.run_code, f"{n} * 7", timeout=0) for n, box in enumerate(boxes)]):
            assert cell.result().text == str(7 * n)
        code = "sum(range({} * 1000))"
        for n, cell in enumerate([pool.submit(box.run_code, code.format(n), timeout=0) for n, box in enumerate(boxes)]):
            assert cell.result().text == str(sum(range(n * 1000))), "and a later one"
        assert len(os.listdir(f"/proc/{daemon.process.pid}/task")) == threads
        assert daemon.metric("thawbox_sandboxes") == 65 and daemon.metric("thawbox_open_requests") > 1000
        for client in waiting:
            client.close()
        for each in (*boxes, box):
            each.kill()
        with pytest.raises(Exception):
            long.result()


def open_stream(daemon: Daemon, box: Sandbox) -> socket.socket:
    """A cell that has to wait for another one."""
    host, port = daemon.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), GUARD_S)
    body = json.dumps({"code": "1"})
    client.sendall((f"POST /execute HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {box.sandbox_id}\r\nE2b-Sandbox-Port: 49999\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    return client


def test_too_many_sandboxes(start):
    start("--max-sandboxes", "1")
    box = Sandbox.create()
    with pytest.raises(RateLimitException, match="larger --max-sandboxes"):
        Sandbox.create()
    box.kill()
    Sandbox.create().kill()


# ---- what it says ----

def test_metrics(daemon):
    before = daemon.metric('thawbox_creates_total{"result": "ok"}')
    cells = daemon.metric("thawbox_cells_total")
    thaws = daemon.metric("thawbox_thaw_seconds_count")
    box = Sandbox.create()
    assert daemon.metric("thawbox_sandboxes") == 1
    box.run_code("1")
    box.kill()
    assert daemon.metric('thawbox_creates_total{"result": "ok"}') == before + 1
    assert daemon.metric("thawbox_cells_total") == cells + 1
    assert daemon.metric("thawbox_thaw_seconds_count") == thaws + 1
    assert daemon.metric('thawbox_thaw_seconds_bucket{"le": "+Inf"}') == thaws + 1
    assert daemon.metric("thawbox_sandboxes") == 0


def test_log(start):
    daemon = start("--log-json")
    box = Sandbox.create()
    box.run_code("'secret text'")
    box.kill()
    daemon.stop()
    lines = [json.loads(line) for line in daemon.text().splitlines()]
    (cell,) = (line for line in lines if line.get("path") == "/execute")
    assert cell["status"] == 200 and cell["sandbox"] == box.sandbox_id and cell["request"] > 0 and cell["ms"] > 0
    assert "secret" not in daemon.text()


# ---- its end ----

def test_stops_at_once(start):
    daemon = start()
    box = Sandbox.create()
    box.run_code("1")
    assert daemon.stop() == 0


def test_stop_waits(start):
    daemon = start("--grace", "60s")
    box = Sandbox.create()
    box.run_code("x = 1")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_text("stopping")
    assert box.run_code("x").text == "1", "what is there goes on"
    with pytest.raises(ServiceBusyException, match="stopping"):
        Sandbox.create()
    box.kill()
    assert daemon.process.wait(GUARD_S) == 0


def test_kill_9_leaves_nothing(start):
    daemon = start()
    boxes = [Sandbox.create() for _ in range(2)]
    boxes[0].run_code("1")
    daemon.stop(signal.SIGKILL)


def test_up(tmp_path):
    """`thawbox up` prints what clients need, and is the daemon."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    up = subprocess.Popen([BIN / "thawbox", "up", "--port", str(port), "--", "--pool", "1", "--keys", tmp_path / "keys.json"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        values = dict(up.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(5))
        assert values["E2B_API_URL"] == values["E2B_SANDBOX_URL"] == values["THAWBOX_URL"] == f"http://127.0.0.1:{port}"
        assert "serves" in up.stderr.readline()
        os.environ.update(values, E2B_API_KEY=KEY)
        box = Sandbox.create()
        assert box.run_code("1 + 1").text == "2"
        box.kill()
    finally:
        up.terminate()
        up.communicate(timeout=GUARD_S)
    assert up.returncode == 0
