# SPDX-License-Identifier: Apache-2.0
"""A daemon that ends and one that begins, and sandboxes that live through it."""
import array
import asyncio
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BIN, GUARD_S, Daemon
from e2b import CommandExitException, SandboxException, TimeoutException
from e2b import FilesystemEventType as Kind
from e2b_code_interpreter import AsyncSandbox, Sandbox


def restart(daemon: Daemon) -> None:
    """Its program again, in the same process."""
    before = daemon.text().count("took over")
    pid = daemon.process.pid
    daemon.process.send_signal(signal.SIGUSR2)
    end = time.monotonic() + GUARD_S
    while daemon.text().count("took over") == before and daemon.process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    assert daemon.text().count("took over") == before + 1, daemon.text()[-4000:]
    assert daemon.process.poll() is None and daemon.process.pid == pid


def test_clients_go_on(start):
    """One with variables in two contexts, a command and a terminal; one that nobody has used yet."""
    daemon = start("--pool", "1")
    box = Sandbox.create(timeout=500, metadata={"a": "b"}, envs={"C": "d"})
    box.run_code("x = 41")
    other = box.create_code_context(cwd="/tmp")
    box.run_code("y = 5", context=other)
    box.files.write("kept.txt", "kept")
    command = box.commands.run("read a; echo got $a; read b; exit 3", background=True, stdin=True, timeout=0)
    fresh = Sandbox.create(metadata={"a": "c"})
    before = box.get_info()
    restart(daemon)
    restart(daemon)
    after = box.get_info()
    assert (after.started_at, after.end_at, after.metadata) == (before.started_at, before.end_at, {"a": "b"})
    assert box.run_code("x += 1; x").text == "42"
    assert box.run_code("import os; os.getcwd() + str(y)", context=other).text == "/tmp5"
    assert [c.id for c in box.list_code_contexts()][-1] == other.id
    assert box.run_code("open('/home/user/kept.txt').read() + __import__('os').environ['C']").text == "keptd"
    assert [p.pid for p in box.commands.list()] == [command.pid]
    again = box.commands.connect(command.pid, timeout=0)
    box.commands.send_stdin(command.pid, "this\n")
    assert next(iter(again))[0] == "got this\n"
    box.commands.send_stdin(command.pid, "end\n")
    with pytest.raises(CommandExitException) as end:
        again.wait()
    assert end.value.exit_code == 3
    assert fresh.run_code("1 + 1").text == "2", "what was never used is there, too"
    status, log = daemon.get(f"/sandboxes/{box.sandbox_id}/logs")
    assert status == 200 and b"created from template" in log and b"thawed in" in log
    assert box.kill() and fresh.kill()
    assert daemon.stop() == 0


def test_what_is_under_way_may_end(start):
    """Within --grace; a client that comes meanwhile waits for the next daemon at most."""
    daemon = start("--grace", "60s")
    box = Sandbox.create()
    box.run_code("import time")
    answers = []
    cell = threading.Thread(target=lambda: answers.append(box.run_code("time.sleep(3); z = 7; z").text))
    cell.start()
    wait_for_cells(daemon, 2)
    restart(daemon)
    cell.join(GUARD_S)
    assert answers == ["7"] and box.run_code("z").text == "7"
    box.kill()


def test_a_cell_that_does_not_end(start):
    """It is interrupted, and one that waited for its turn does not run: both are told so; variables stay."""
    daemon = start()
    box = Sandbox.create()
    box.run_code("x = 1; import time")
    begun = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        cells = [pool.submit(box.run_code, "print('begun', flush=True); time.sleep(1000)", on_stdout=lambda _: begun.set(), timeout=0)]
        assert begun.wait(GUARD_S)
        cells.append(pool.submit(box.run_code, "x = 2", timeout=0))
        wait_for_requests(daemon, 2)
        restart(daemon)
        first, second = (cell.result(GUARD_S) for cell in cells)
    assert (first.error.name, second.error.name) == ("DaemonReplaced", "DaemonReplaced")
    assert "was interrupted" in first.error.value and "did not run" in second.error.value
    assert first.logs.stdout == ["begun\n"]
    assert box.run_code("x").text == "1"
    box.kill()


def wait_for_requests(daemon: Daemon, nr: int) -> None:
    """Beside the one that asks."""
    end = time.monotonic() + GUARD_S
    while daemon.metric("thawbox_open_requests") < nr + 1 and time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_command_that_does_not_end(start):
    """It runs on; who reads it is told to connect to it again."""
    daemon = start()
    box = Sandbox.create()
    command = box.commands.run("read a; echo got $a; exit 5", background=True, stdin=True, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(command.wait)
        restart(daemon)
        with pytest.raises(SandboxException, match="(?i)aborted.*the command runs on: connect to it again"):
            reader.result(GUARD_S)
    again = box.commands.connect(command.pid, timeout=0)
    box.commands.send_stdin(command.pid, "it\n")
    with pytest.raises(CommandExitException) as end:
        again.wait()
    assert (end.value.exit_code, end.value.stdout) == (5, "got it\n")
    box.kill()


# ---- streams of others: watches, ports ----

def test_watchers_go_on(start):
    """What happened before, and what happens afterwards."""
    daemon = start()
    box = Sandbox.create()
    box.files.make_dir("seen")
    watch, quiet = box.files.watch_dir("seen"), box.files.watch_dir("/tmp")
    box.files.write("seen/a", "x")
    restart(daemon)
    box.files.write("seen/b", "y")
    assert [(e.type, e.name) for e in watch.get_new_events()] == [
        (kind, name) for name in "ab" for kind in (Kind.CREATE, Kind.CHMOD, Kind.WRITE)]
    restart(daemon)
    assert watch.get_new_events() == quiet.get_new_events() == []
    another = box.files.watch_dir("seen")
    box.files.write("seen/a", "z")
    assert watch.get_new_events() and another.get_new_events() and quiet.get_new_events() == []
    watch.stop()
    with pytest.raises(SandboxException, match="no such watcher"):
        watch._closed = False
        watch.get_new_events()
    box.kill()


@pytest.mark.asyncio
async def test_a_watch_that_streams_is_told(start):
    daemon = start()
    box = await AsyncSandbox.create()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    await box.files.watch_dir("/tmp", on_event=print, on_exit=ended.set_result, timeout=0)
    await loop.run_in_executor(None, restart, daemon)
    error = await asyncio.wait_for(ended, GUARD_S)
    assert isinstance(error, SandboxException) and "watch the folder again" in str(error)
    seen = asyncio.Queue()
    await box.files.watch_dir("/tmp", on_event=seen.put_nowait, timeout=0)
    await box.files.write("/tmp/a", "b")
    assert (await asyncio.wait_for(seen.get(), GUARD_S)).name == "a"
    await box.kill()


SERVER = """
import socket, threading
def serve(port, answer):
    server = socket.create_server(("127.0.0.1", port))
    def run():
        while True:
            client = server.accept()[0]
            client.recv(4096)
            client.sendall(answer)
            clients.append(client)
    threading.Thread(target=run, daemon=True).start()
clients = []
head = b"HTTP/1.1 101 Go\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n"
serve(8001, head + b"\\x81\\x02hi")
serve(8002, head + b"\\x81\\x02h")
serve(8003, b"")
serve(8004, b"HTTP/1.1 200 OK\\r\\n\\r\\nbegin")
"""


def test_connections_to_ports(start):
    """Between two frames a WebSocket is closed with a reason, in the middle of one it just ends; no answer is cut short unseen."""
    daemon = start()
    box = Sandbox.create()
    assert box.run_code(SERVER).error is None
    host, port = daemon.url.removeprefix("http://").split(":")

    def ask(guest_port: int, *more: str) -> socket.socket:
        s = socket.create_connection((host, int(port)), GUARD_S)
        lines = [f"GET / HTTP/1.1\r\nHost: {guest_port}-{box.sandbox_id}.localhost", *more]
        s.sendall("\r\n".join([*lines, "\r\n"]).encode())
        return s

    def read_to(s: socket.socket, text: bytes) -> bytes:
        got = b""
        while text not in got and (piece := s.recv(4096)):
            got += piece
        assert text in got, got
        return got

    upgrade = ("Connection: Upgrade", "Upgrade: websocket")
    between, inside, silent, begun = ask(8001, *upgrade), ask(8002, *upgrade), ask(8003), ask(8004)
    assert read_to(between, b"hi") and read_to(inside, b"\x81\x02h") and read_to(begun, b"begin")
    wait_for_requests(daemon, 4)
    restart(daemon)
    assert read_to(between, b"\x88\x02\x03\xf4").endswith(b"\x88\x02\x03\xf4") and between.recv(1) == b""
    assert inside.recv(1) == b""
    assert read_to(silent, b"ask again").startswith(b"HTTP/1.1 503 ")
    with pytest.raises(ConnectionResetError):  # an answer without an end
        while begun.recv(4096):
            pass
    for s in (between, inside, silent, begun):
        s.close()
    assert b"begin" in read_to(ask(8004), b"begin"), "the server is there, and is reached anew"
    box.kill()


def wait_for_cells(daemon: Daemon, nr: int) -> None:
    end = time.monotonic() + GUARD_S
    while daemon.metric("thawbox_cells_total") < nr and time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.slow
def test_times_go_on(start):
    """The end of a sandbox and of a command are where they were."""
    daemon = start()
    box = Sandbox.create(timeout=300)
    with pytest.raises((TimeoutException, SandboxException)):
        handle = box.commands.run("sleep 1000", background=True, timeout=20)
        restart(daemon)
        box.commands.connect(handle.pid, timeout=0).wait()
    end = time.monotonic() + GUARD_S
    while box.commands.list() and time.monotonic() < end:
        time.sleep(0.1)
    assert box.commands.list() == [], "killed at its deadline"
    box.set_timeout(3)
    restart(daemon)
    while box.is_running() and time.monotonic() < end:
        time.sleep(0.1)
    assert not box.is_running()
    assert daemon.stop() == 0, "and its monitor was reaped"


def test_owner_and_token_stay(start, tmp_path):
    import subprocess

    key = subprocess.run([BIN / "thawbox", "key", "create", "--keys", tmp_path / "keys.json", "alice"], check=True,
                         capture_output=True, text=True).stdout.strip()
    daemon = start()
    box = Sandbox.create(api_key=key)
    restart(daemon)
    assert [b.sandbox_id for b in Sandbox.list(api_key=key).next_items()] == [box.sandbox_id]
    assert daemon.get("/v2/sandboxes")[0] == 401
    assert daemon.get("/files?path=x", E2b_Sandbox_Id=box.sandbox_id, X_Access_Token="0" * 48)[0] == 401
    assert box.run_code("1 + 1").text == "2"
    assert box.kill(api_key=key)


@pytest.mark.slow
def test_monitor_that_dies_meanwhile(start):
    """The next daemon finds it dead, and says so as ever."""
    daemon = start("--grace", "60s")
    box, other = Sandbox.create(), Sandbox.create()
    box.run_code("1")
    monitors = [pid for pid, line in daemon.processes() if "thawbox-vmm" in line]
    restart(daemon)
    for pid in monitors:  # those of the pool went with the daemon before
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    end = time.monotonic() + GUARD_S
    while json.loads(daemon.get("/v2/sandboxes")[1]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not box.is_running() and not other.is_running()
    again = Sandbox.create()
    assert again.run_code("2").text == "2"
    again.kill()


# ---- systemd's descriptor store ----

class Store:
    """The part of a service manager that keeps descriptors: sd_notify(3)."""

    def __init__(self, path) -> None:
        self.path = str(path)
        self.held: dict[str, int] = {}
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            data, ancillary, _, _ = self.sock.recvmsg(4096, socket.CMSG_SPACE(64))
            if data == b"over":
                return
            fds = array.array("i")
            for _, _, rights in ancillary:
                fds.frombytes(rights)
            fields = dict(line.split("=", 1) for line in data.decode().splitlines())
            if fields.get("FDSTORE") == "1":
                self.held[fields["FDNAME"]] = fds.pop()
            elif fields.get("FDSTOREREMOVE") == "1":
                os.close(self.held.pop(fields["FDNAME"]))
            for fd in fds:  # of a barrier
                os.close(fd)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"over", self.path)
        self.thread.join(GUARD_S)
        self.sock.close()
        for fd in self.held.values():
            os.close(fd)


@pytest.fixture
def store(tmp_path):
    it = Store(tmp_path / "notify")
    yield it
    it.close()


def test_a_stop_leaves_them_to_the_store(start, store):
    env = {"NOTIFY_SOCKET": store.path}
    first = start("--keep", env=env)
    box = Sandbox.create()
    box.run_code("x = 41")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(GUARD_S) == 0, first.text()
    assert first.processes(), "its monitor lives on"
    names = list(store.held)
    assert "thawbox-0" in names
    second = start("--keep", fds=tuple(store.held.values()), env={**env, "LISTEN_FDNAMES": ":".join(names)})
    second.wait_text("took over 1 sandboxes")
    assert second.url == first.url, "the socket was kept, too"
    assert box.run_code("x + 1").text == "42"
    end = time.monotonic() + GUARD_S
    while store.held and time.monotonic() < end:
        time.sleep(0.02)
    assert not store.held, "what was taken is not kept any more"
    box.kill()
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(GUARD_S) == 0
    first.wait_gone()
    second.wait_gone()


def test_a_store_that_is_dropped_ends_them(start, store):
    """As `systemctl stop` does: nothing is left behind."""
    daemon = start("--keep", env={"NOTIFY_SOCKET": store.path})
    box = Sandbox.create()
    box.run_code("1")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(GUARD_S) == 0
    assert daemon.processes()
    while store.held:
        os.close(store.held.popitem()[1])
    daemon.wait_gone()


def test_keep_needs_a_store(start):
    daemon = start("--keep", wait=False, env={"NOTIFY_SOCKET": ""})
    assert daemon.process.wait(GUARD_S) == 2
    assert "NOTIFY_SOCKET is not set" in daemon.text()


def test_second_signal_ends_it(start, store):
    daemon = start("--keep", "--grace", "60s", env={"NOTIFY_SOCKET": store.path})
    box = Sandbox.create()
    box.run_code("import time")
    cell = threading.Thread(target=lambda: pytest.raises(Exception, box.run_code, "time.sleep(1000)", timeout=0))
    cell.start()
    wait_for_cells(daemon, 2)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_text("leaving 1 sandboxes")
    assert daemon.stop() == 0
    cell.join(GUARD_S)
    assert not store.held
