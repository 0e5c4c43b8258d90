# SPDX-License-Identifier: Apache-2.0
"""The ports of a sandbox: a server in it, clients outside."""
import hashlib
import http.client
import json
import os
import socket
import time
from pathlib import Path

import pytest
from conftest import GUARD_S
from e2b_code_interpreter import Sandbox

PORT = 8123


class Client:
    """An HTTP connection to the daemon, for one port of a sandbox by its host name."""

    def __init__(self, daemon, box, port: int = PORT) -> None:
        self.address = daemon.url.removeprefix("http://")
        self.host = f"{port}-{box.sandbox_id}.localhost"
        self.http = http.client.HTTPConnection(self.address, timeout=GUARD_S)

    def ask(self, method: str, target: str, body=None, **headers: str) -> http.client.HTTPResponse:
        headers = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.http.request(method, target, body, headers, encode_chunked=headers.get("Transfer-Encoding") == "chunked")
        return self.http.getresponse()

    def get(self, target: str, **headers: str) -> tuple[int, bytes]:
        answer = self.ask("GET", target, **headers)
        return answer.status, answer.read()

    def socket(self, head: str) -> socket.socket:
        """A request by hand."""
        host, port = self.address.split(":")
        s = socket.create_connection((host, int(port)), GUARD_S)
        s.sendall(f"{head}\r\nHost: {self.host}\r\n".encode())
        return s


@pytest.fixture
def web(daemon, sandbox):
    """A sandbox with server.py."""
    sandbox.files.write("server.py", (Path(__file__).parent / "server.py").read_text())
    handle = sandbox.commands.run(f"exec python3 server.py {PORT}", background=True, timeout=0)
    assert next(iter(handle))[0] == "ready\n"
    client, end = Client(daemon, sandbox), time.monotonic() + GUARD_S
    while client.get("/none")[0] == 502 and time.monotonic() < end:  # it says "ready" a moment before it listens
        time.sleep(0.1)
    sandbox.client = client
    return sandbox


def exactly(s: socket.socket, n: int) -> bytes:
    out = b""
    while len(out) < n and (more := s.recv(n - len(out))):
        out += more
    return out


def test_requests(daemon, web):
    client = web.client
    assert web.get_host(PORT) == f"{client.host}:{client.address.split(':')[1]}"
    answer = client.ask("GET", "/a%2Fb/%c3%a9?x=1+2&x=%20&y", X_Mine="1", X_Access_Token=web._envd_access_token, TE="trailers",
                        E2b_Traffic_Access_Token="t", Cookie="c=d", X_API_KEY="of the guest's own")
    said = json.loads(answer.read())
    headers = {name.lower(): value for name, value in said["headers"]}
    assert said["line"] == "GET /a%2Fb/%c3%a9?x=1+2&x=%20&y HTTP/1.1", "as it was sent"
    assert headers["host"] == client.host and headers["connection"] == "close"
    assert (headers["x-mine"], headers["cookie"], headers["x-api-key"]) == ("1", "c=d", "of the guest's own")
    assert not {"x-access-token", "te", "e2b-traffic-access-token"} & set(headers), "what is the daemon's stays there"
    assert answer.headers["Set-Cookie"] == "a=b" and answer.headers["Content-Type"] == "application/json"
    assert not answer.headers["X-Hop"], "a header that Connection names is between two neighbours"
    status, text = daemon.get("/by-header", E2b_Sandbox_Id=web.sandbox_id, E2b_Sandbox_Port=str(PORT))
    assert status == 200 and "e2b" not in text.decode().lower()
    answer = client.ask("HEAD", "/x")
    assert answer.status == 200 and int(answer.headers["Content-Length"]) > 10 and answer.read() == b""
    assert client.get("/none") == (204, b"")
    assert client.get("/old") == (200, b"o" * 100000)
    assert client.ask("DELETE", "/x").read() and client.ask("OPTIONS", "*").read()


def test_bodies(web):
    client, data = web.client, os.urandom(3 << 20)
    for more in ({}, {"Transfer_Encoding": "chunked"}):
        body = data if not more else (data[at:at + 100000] for at in range(0, len(data), 100000))
        for path in ("/fast", "/slow"):  # its server makes the client wait
            body = data if not more else (data[at:at + 100000] for at in range(0, len(data), 100000))
            said = json.loads(client.ask("POST", path, body, **more).read())
            assert (said["length"], said["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert json.loads(client.ask("PUT", "/empty", b"").read())["length"] == 0
    assert json.loads(client.ask("POST", "/x", b"1", Expect="100-continue").read())["length"] == 1
    answer = client.ask("POST", "/refuse", data)
    assert answer.status == 413 and answer.read() == b"too much", "an answer before the body was read"


def test_answers_are_streamed(daemon, web):
    answer = web.client.ask("GET", "/stream")
    assert answer.read(5) == b"first", "it comes while the server goes on"
    assert Client(daemon, web).get("/go") == (200, b"")
    assert answer.read() == b"second"


def test_what_is_not_there(daemon, web):
    wanted = {"sandboxId": web.sandbox_id, "message": "The sandbox is running but port is not open", "port": 9, "code": 502}
    status, text = Client(daemon, web, 9).get("/")
    assert (status, json.loads(text)) == (502, wanted)
    assert Client(daemon, web, 0).get("/")[0] == 400
    answer = Client(daemon, web, 9).ask("POST", "/", b"x" * (2 << 20))
    assert answer.status == 502 and json.loads(answer.read()) == wanted
    status, text = web.client.get("/rude")
    assert status == 502 and "not HTTP" in json.loads(text)["message"]
    with pytest.raises((http.client.HTTPException, ConnectionResetError)):  # cut in the middle, or before it began
        web.client.get("/broken")
    s = web.client.socket("GET /a b HTTP/1.1")
    s.sendall(b"\r\n")
    assert s.recv(12) == b"HTTP/1.1 400"


def test_a_client_that_leaves_is_seen(daemon, web):
    s = web.client.socket("GET /endless HTTP/1.1")
    s.sendall(b"\r\n")
    assert s.recv(12) == b"HTTP/1.1 200"
    s.close()
    assert web.client.get("/left") == (200, b"left")


def test_slow_clients_make_nothing_grow(daemon, web):
    """Of an answer that does not end, and of a tunnel whose client does not read."""
    before = daemon.status_kib("VmRSS")
    clients = [web.client.socket("GET /endless HTTP/1.1") for _ in range(4)]
    for s in clients:
        s.sendall(b"\r\n")
        assert s.recv(12) == b"HTTP/1.1 200"
    tunnel = web.client.socket("GET /ws HTTP/1.1")
    tunnel.sendall(b"Connection: Upgrade\r\nUpgrade: echo\r\n\r\n")
    assert tunnel.recv(12) == b"HTTP/1.1 101"
    tunnel.settimeout(3)
    with pytest.raises(TimeoutError):
        while True:
            tunnel.sendall(b"t" * 65536)
    end = time.monotonic() + GUARD_S
    web.get_metrics()
    while True:
        time.sleep(2)
        if (used := web.get_metrics()[0].cpu_used_pct) < 20 or time.monotonic() > end:
            break
    assert used < 20, "the guest goes on writing"
    assert daemon.status_kib("VmRSS") - before < 16384
    for s in (*clients, tunnel):
        s.close()
    assert web.client.get("/none") == (204, b"")


def test_upgrade(daemon, web):
    s = web.client.socket("GET /ws HTTP/1.1")
    s.sendall(b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\nearly ")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += s.recv(1)
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith("http/1.1 101") and "upgrade: websocket" in lines and "sec-websocket-accept: for you" in lines
    assert sum(line.startswith("connection:") for line in lines) == 1
    assert exactly(s, 11) == b"helloearly "
    data = os.urandom(1 << 20)
    for at in range(0, len(data), 1 << 16):
        s.sendall(data[at:at + (1 << 16)])
        assert exactly(s, 1 << 16) == data[at:at + (1 << 16)]
    s.shutdown(socket.SHUT_WR)
    assert exactly(s, 100) == b"bye", "one way ends, the other goes on"
    assert web.client.get("/x", Connection="Upgrade", Upgrade="h2c")[0] == 200, "a server may not want to"
    s = web.client.socket("GET /ws HTTP/1.1")
    s.sendall(b"\r\n")
    assert s.recv(12) == b"HTTP/1.1 502", "nobody asked for it"


def test_many_at_once(daemon, web):
    clients = [Client(daemon, web) for _ in range(40)]
    for n, client in enumerate(clients):
        client.http.request("GET", f"/n{n}", headers={"Host": client.host})
    for n, client in enumerate(clients):
        assert json.loads(client.http.getresponse().read())["line"] == f"GET /n{n} HTTP/1.1"


def test_its_end_cuts_connections(daemon):
    box = Sandbox.create()
    box.run_code("""
import socket, threading
server = socket.create_server(("127.0.0.1", 8124))
def serve():
    while True:
        client = server.accept()[0]
        client.recv(1000)
        client.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\nbegin")
        threading.Event().wait()
threading.Thread(target=serve, daemon=True).start()
""")
    client = Client(daemon, box, 8124)
    answer = client.ask("GET", "/")
    assert answer.read(5) == b"begin"
    box.kill()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    assert Client(daemon, box, 8124).get("/")[0] == 502


def test_traffic_token(daemon):
    box = Sandbox.create(network={"allow_public_traffic": False})
    try:
        client = Client(daemon, box, 9)
        assert client.get("/")[0] == 403
        assert client.get("/", E2b_Traffic_Access_Token="0" * 48)[0] == 403
        assert client.get("/", E2b_Traffic_Access_Token=box.traffic_access_token)[0] == 502
    finally:
        box.kill()
