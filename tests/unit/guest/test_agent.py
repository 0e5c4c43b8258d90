#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The agent (guest/init) as a host talks to it, on this machine through a Unix socket.

Run as root or not: python3 tests/unit/guest/test_agent.py. THAWBOX_INIT names the agent; without
it one is built. Nothing is mounted and nobody else's process is touched.
"""
from __future__ import annotations

import getpass
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

REPO = pathlib.Path(__file__).resolve().parents[3]
REQUEST, DATA, END, RESULT, STDOUT, STDERR, EVENT = 1, 2, 3, 0x10, 0x11, 0x12, 0x13
ME = getpass.getuser()

FAKE_PARENT = r"""
import json, os, signal, socket, sys, time
ctl = socket.socket(fileno=3)
def kernel(port, role):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGINT, lambda *a: open(f"{sys.argv[1]}/int-{port}", "w").close())
        if os.fork() == 0 and os.fork() == 0:  # a descendant that hides from ppid
            while True: time.sleep(60)
        while True: time.sleep(60)
    ctl.send(json.dumps({"event": "kernel", "pid": pid, "port": port, "role": role}).encode())
kernel(2001, "spare")
kernel(2000, "default")
ctl.send(b'{"event": "ready"}')
ctl.settimeout(0.05)
while True:
    try:
        m = json.loads(ctl.recv(65536))
        kernel(m["port"], "spare")
    except socket.timeout:
        pass
    try:
        pid, st = os.waitpid(-1, os.WNOHANG)
        if pid:
            ctl.send(json.dumps({"event": "exit", "pid": pid, "signal": os.WTERMSIG(st),
                                 "code": os.WEXITSTATUS(st) if os.WIFEXITED(st) else 0}).encode())
    except ChildProcessError:
        pass
"""


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


class Stream:
    """One operation: a connection and the frames that come back."""

    def __init__(self, path: str, request: object = None, data: bytes | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        while True:
            try:
                self.sock.connect(path)
                break
            except BlockingIOError:  # the backlog is full for the moment
                time.sleep(0.01)
        if request is not None:
            self.send(REQUEST, json.dumps(request).encode())
        if data is not None:
            for i in range(0, len(data), 1 << 20):
                self.send(DATA, data[i:i + (1 << 20)])
            self.send(END)

    def __del__(self) -> None:
        self.sock.close()

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.sock.sendall(frame(kind, payload))

    def exactly(self, n: int) -> bytes:
        out = b""
        while len(out) < n:
            more = self.sock.recv(min(n - len(out), 1 << 20))
            if not more:
                raise EOFError(f"{len(out)} of {n} bytes")
            out += more
        return out

    def frame(self) -> tuple[int, bytes]:
        n, kind = struct.unpack("<IB", self.exactly(5))
        return kind, self.exactly(n)

    def all(self) -> tuple[dict, dict[int, bytes]]:
        """Reads to the RESULT; returns it and the payloads by type."""
        got: dict[int, bytes] = {}
        while True:
            kind, payload = self.frame()
            got[kind & 0x7F] = got.get(kind & 0x7F, b"") + payload
            if kind == RESULT:
                self.sock.close()
                return json.loads(got[RESULT]), got


class Watch(Stream):
    """A "watch" that has started."""

    def __init__(self, path: str, request: object) -> None:
        super().__init__(path, request)
        self.raw: list[dict] = []
        kind, payload = self.frame()
        assert (kind, json.loads(payload)) == (EVENT, {"event": "started"}), payload

    def new(self) -> list[tuple[str, str]]:
        """What has happened since; the frames themselves are in `raw`."""
        self.send(REQUEST, b'{"op":"sync"}')
        self.raw = []
        while (event := json.loads(self.frame()[1]))["event"] != "sync":
            self.raw.append(event)
        return [(event["event"], event["name"]) for event in self.raw]


class AgentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.dir = tempfile.TemporaryDirectory()
        cls.home = os.path.realpath(cls.dir.name)
        init = os.environ.get("THAWBOX_INIT")
        if not init:
            subprocess.run(["make", "-s", "-C", str(REPO / "guest/init"), f"OUT={cls.home}/build"],
                           check=True)
            init = f"{cls.home}/build/init"
        cls.path = f"{cls.home}/agent.sock"
        pathlib.Path(cls.home, "parent.py").write_text(FAKE_PARENT)
        pathlib.Path(cls.home, "template.json").write_text('{"env": {"FROM_TEMPLATE": "yes"}}')
        cls.log = open(f"{cls.home}/console", "w+")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell's children ignore it
        cls.agent = subprocess.Popen(
            [init, "--listen", f"unix:{cls.path}", "--user", ME,
             "--template", f"{cls.home}/template.json",
             "--kernel-parent", sys.executable, f"{cls.home}/parent.py", cls.home],
            stdin=subprocess.DEVNULL, stderr=cls.log, stdout=cls.log)
        cls.wait(lambda: "thawbox: ready" in pathlib.Path(cls.home, "console").read_text())

    @classmethod
    def tearDownClass(cls) -> None:
        for name in ("default", "second"):
            cls.ask(op="kill", context=name)
        cls.ask(op="shutdown")
        status = cls.agent.wait(10)
        cls.log.close()
        console = pathlib.Path(cls.home, "console").read_text()
        cls.dir.cleanup()
        if status != 0:
            raise AssertionError(f"the agent ended with {status}:\n{console}")

    @staticmethod
    def wait(true, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise AssertionError("did not become true in time")
            time.sleep(0.02)

    @classmethod
    def ask(cls, data: bytes | None = None, **request: object) -> dict:
        return Stream(cls.path, request, data).all()[0]

    def run_command(self, data: bytes = b"", **request: object) -> tuple[dict, bytes, bytes]:
        result, got = Stream(self.path, {"op": "exec", **request}, data).all()
        return result, got.get(STDOUT, b""), got.get(STDERR, b"")

    def assert_error(self, result: dict, name: str) -> None:
        self.assertEqual(result["status"], "error", result)
        self.assertEqual(result["error"]["name"], name, result)

    # --- frames and requests

    def test_ping(self) -> None:
        r = self.ask(op="ping")
        self.assertEqual(r["status"], "ok")
        self.assertGreater(r["uptime_ms"], 0)

    def test_request_in_single_bytes_and_continued(self) -> None:
        s = Stream(self.path)
        text = b'{"op":"ping"}'
        for b in frame(REQUEST | 0x80, text[:4]) + frame(REQUEST, text[4:]):
            s.sock.sendall(bytes([b]))
        self.assertEqual(s.all()[0]["status"], "ok")

    def test_bad_frames(self) -> None:
        for raw in (frame(REQUEST, b"{"), frame(REQUEST, b"[1]"), frame(REQUEST, b'{"op":"x"}'),
                    frame(REQUEST, b"{}"), frame(DATA, b"x"), frame(0x55), frame(END),
                    struct.pack("<IB", 0xFFFFFFFF, 1), frame(REQUEST, b"[" * 100000),
                    frame(REQUEST, b'{"op":"\xff"}'),
                    frame(REQUEST | 0x80, b'{"op"') + frame(DATA),
                    frame(REQUEST | 0x80, b"a" * 700000) + frame(REQUEST, b"a" * 700000)):
            s = Stream(self.path)
            s.sock.sendall(raw)
            self.assert_error(s.all()[0], "ProtocolError")
        self.test_ping()

    def test_gone_clients(self) -> None:
        for raw in (b"", b"\x05", frame(REQUEST | 0x80, b"{"), frame(REQUEST, b'{"op":"ping"}')):
            for _ in range(20):
                s = Stream(self.path)
                s.sock.sendall(raw)
                s.sock.close()
        self.test_ping()

    def test_many_streams(self) -> None:
        streams = [Stream(self.path) for _ in range(600)]  # more than are served at a time
        for s in streams:
            s.send(REQUEST, b'{"op":"ping"}')
        for s in streams:
            self.assertEqual(s.all()[0]["status"], "ok")

    # --- exec

    def test_exec(self) -> None:
        r, out, err = self.run_command(b"in", shell="cat; echo E >&2; exit 3")
        self.assertEqual((r["exit"], r["signal"], out, err), (3, 0, b"in", b"E\n"))
        r, out, _ = self.run_command(argv=["printf", "%s|", "a b", "ü"])
        self.assertEqual(out.decode(), "a b|ü|")

    def test_exec_environment(self) -> None:
        r, out, _ = self.run_command(shell="echo $A $FROM_TEMPLATE $USER; pwd; umask; ulimit -u",
                                     env={"A": "1"}, cwd="/usr/../tmp")
        self.assertEqual(out.decode().split("\n")[:3], [f"1 yes {ME}", "/tmp", "0022"])
        r, out, _ = self.run_command(argv=[sys.executable, "-c", "import os, signal;"
            "print(os.getpid() == os.getsid(0), signal.pthread_sigmask(0, []),"
            "signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL or 'ign', len(os.listdir('/proc/self/fd')))"])
        self.assertEqual(out, b"True set() ign 4\n")  # (Python itself ignores SIGPIPE)

    def test_exec_errors(self) -> None:
        self.assert_error(self.run_command(argv=["/no/such"])[0], "FileNotFoundError")
        self.assert_error(self.run_command(argv=["no-such-program"])[0], "FileNotFoundError")
        self.assert_error(self.run_command(argv=["/etc/passwd"])[0], "PermissionError")
        self.assert_error(self.run_command(argv=["true"], cwd="/no")[0], "FileNotFoundError")
        self.assert_error(self.run_command(argv=["true"], cwd="/etc/passwd")[0],
                          "NotADirectoryError")
        self.assert_error(self.run_command(argv=["true"], user="no-such")[0], "KeyError")
        self.assert_error(self.run_command(argv=["true"], env={"A=": "1"})[0], "ValueError")
        for bad in ({}, {"argv": []}, {"argv": [1]}, {"argv": ["a"], "shell": "b"}):
            self.assert_error(self.run_command(**bad)[0], "ValueError")

    def test_exec_signal_status(self) -> None:
        r, _, _ = self.run_command(shell="kill -SEGV $$")
        self.assertEqual((r["exit"], r["signal"]), (-1, signal.SIGSEGV))

    def test_exec_timeout_kills_the_tree_and_keeps_output(self) -> None:
        start = time.monotonic()
        r, out, _ = self.run_command(
            shell="echo before; echo $$; setsid sleep 1000 & sleep 1000", timeout_ms=500)
        self.assert_error(r, "TimeoutError")
        self.assertLess(time.monotonic() - start, 10)
        word, pid = out.split()
        self.assertEqual(word, b"before")
        self.assert_gone(int(pid))

    def assert_gone(self, pid: int) -> None:
        def gone() -> bool:
            try:
                return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] in "ZX"
            except (FileNotFoundError, ProcessLookupError):
                return True
        self.wait(gone)

    def test_exec_closed_stream_kills(self) -> None:
        s = Stream(self.path, {"op": "exec", "shell": "echo $$; exec sleep 1000"})
        pid = int(s.frame()[1])
        s.sock.close()
        self.assert_gone(pid)

    def test_exec_closed_stream_kills_behind_unread_stdin(self) -> None:
        s = Stream(self.path, {"op": "exec", "shell": "echo $$; exec sleep 1000"})
        pid = int(s.frame()[1])
        s.sock.settimeout(0.5)
        with self.assertRaises(TimeoutError):  # the pipe and all buffers are full
            while True:
                s.send(DATA, b"x" * 4096)
        s.sock.close()
        self.assert_gone(pid)

    def test_exec_half_closed_stream_gets_its_result(self) -> None:
        s = Stream(self.path, {"op": "exec", "shell": "sleep 0.2; echo done"}, b"")
        s.sock.shutdown(socket.SHUT_WR)
        r, got = s.all()
        self.assertEqual((r["exit"], got[STDOUT]), (0, b"done\n"))

    def test_exec_back_pressure_both_ways(self) -> None:
        s = Stream(self.path, {"op": "exec", "argv": ["cat"]})
        total, sent, stalled = 8 << 20, 0, 0
        stream = frame(DATA, b"y" * 65536) * (total >> 16)
        s.sock.setblocking(False)
        while stalled < 20 and sent < total:  # nobody reads: the agent must stop taking
            try:
                sent += s.sock.send(stream[sent:sent + 65536])
            except BlockingIOError:
                stalled += 1
                time.sleep(0.01)
        self.assertLess(sent, 2 << 20)
        rss = int(pathlib.Path(f"/proc/{self.agent.pid}/statm").read_text().split()[1]) * 4096
        self.assertLess(rss, 16 << 20)
        s.sock.close()
        data = os.urandom(total)
        r, out = self.run_both(["cat"], data)
        self.assertEqual((r["exit"], out == data), (0, True))

    def run_both(self, argv: list[str], data: bytes) -> tuple[dict, bytes]:
        """Writes and reads at once, as `cat` of more than all buffers needs."""
        s = Stream(self.path, {"op": "exec", "argv": argv})
        r, got = self.all_while_sending(s, data)
        return r, got[STDOUT]

    def all_while_sending(self, s: Stream, data: bytes) -> tuple[dict, dict]:
        """What a stream answers in the end, while another process sends."""
        pid = os.fork()
        if pid == 0:
            for i in range(0, len(data), 1 << 20):
                s.send(DATA, data[i:i + (1 << 20)])
            s.send(END)
            os._exit(0)
        answer = s.all()
        os.waitpid(pid, 0)
        return answer

    def test_exec_ignores_stdin_of_who_does_not_read(self) -> None:
        r, out, _ = self.run_command(b"z" * (3 << 20), shell="exec 0<&-; sleep 0.1; echo ok")
        self.assertEqual((r["exit"], out), (0, b"ok\n"))

    def test_exec_does_not_wait_for_the_background(self) -> None:
        start = time.monotonic()
        r, out, _ = self.run_command(shell="sleep 5 & echo $!")
        self.assertEqual(r["exit"], 0)
        self.assertLess(time.monotonic() - start, 3)
        os.kill(int(out), 0)  # it runs on
        os.kill(int(out), signal.SIGKILL)

    def test_exec_large_output(self) -> None:
        r, out, _ = self.run_command(shell="head -c 20000000 /dev/zero")
        self.assertEqual((r["exit"], len(out)), (0, 20000000))

    def test_exec_control(self) -> None:
        s = Stream(self.path, {"op": "exec", "argv": ["sleep", "1000"], "events": True})
        kind, payload = s.frame()
        self.assertEqual(kind, EVENT)
        os.kill(json.loads(payload)["pid"], 0)
        s.send(REQUEST, b'{"op":"signal","signal":15}')
        self.assertEqual(s.all()[0]["signal"], 15)

    def test_exec_terminal(self) -> None:
        s = Stream(self.path, {"op": "exec", "argv": ["bash", "--norc", "--noediting", "-i"],
                               "pty": {"rows": 33, "cols": 77}, "env": {"PS1": "$?=> ", "TERM": "dumb"}})
        text = b""

        def until(end: bytes) -> None:
            """Reads to `end`, new since the last call: what is typed later finds the shell waiting."""
            nonlocal text
            text = b""
            while end not in text:
                try:
                    text += s.frame()[1]
                except TimeoutError:
                    self.fail(f"no {end!r} in {text!r}")

        until(b"0=> ")
        s.send(DATA, b"tty && stty size\n")
        until(b"0=> ")
        self.assertRegex(text, rb"(?s)/dev/pts/.*33 77")
        s.send(REQUEST, b'{"op":"resize","rows":20,"cols":40}')
        s.send(DATA, b"stty size; sh -c 'echo go$((1+1)); exec sleep 1000'\n")
        until(b"go2")
        self.assertIn(b"20 40", text)
        s.send(DATA, b"\x03")
        until(b"130=> ")
        s.send(DATA, b"exit 7\n")
        self.assertEqual(s.all()[0]["exit"], 7)

    # --- files

    def test_write_and_read(self) -> None:
        for n in (0, 1, 70000, 5 << 20):
            data, path = os.urandom(n), f"{self.home}/deep/er/f{n}"
            r = self.ask(data, op="write", path=path, size=n, mode=0o600)
            self.assertEqual((r["status"], r["size"]), ("ok", n), r)
            self.assertEqual(os.stat(path).st_mode & 0o7777, 0o600)
            r, got = Stream(self.path, {"op": "read", "path": path}).all()
            self.assertEqual((r["size"], r["mode"], got.get(DATA, b"") == data), (n, 0o600, True))
        self.assertEqual(sorted(os.listdir(f"{self.home}/deep/er")),
                         ["f0", "f1", "f5242880", "f70000"])  # and no temporary names

    def test_write_keeps_mode_and_link(self) -> None:
        real, link = f"{self.home}/real", f"{self.home}/link"
        pathlib.Path(real).write_text("old")
        os.chmod(real, 0o751)
        os.symlink(real, link)
        self.assertEqual(self.ask(b"new", op="write", path=link)["status"], "ok")
        self.assertTrue(os.path.islink(link))
        self.assertEqual(pathlib.Path(real).read_text(), "new")
        self.assertEqual(os.stat(real).st_mode & 0o7777, 0o751)

    def test_write_is_all_or_nothing(self) -> None:
        path = f"{self.home}/whole"
        pathlib.Path(path).write_text("old")
        self.assert_error(self.ask(b"12", op="write", path=path, size=3), "ValueError")
        s = Stream(self.path, {"op": "write", "path": path})
        s.send(DATA, b"half")
        s.sock.close()
        self.wait(lambda: not [n for n in os.listdir(self.home) if n.endswith(".tmp")])
        self.assertEqual(pathlib.Path(path).read_text(), "old")

    def test_file_errors(self) -> None:
        self.assert_error(self.ask(b"", op="write", path=self.home), "IsADirectoryError")
        self.assert_error(self.ask(b"x", op="write", path="/dev/null"), "OSError")
        self.assert_error(self.ask(b"", op="write", path=""), "ValueError")
        self.assert_error(self.ask(op="read", path=f"{self.home}/none"), "FileNotFoundError")
        self.assert_error(self.ask(op="read", path=self.home), "IsADirectoryError")
        self.assert_error(self.ask(op="read", path="/dev/zero"), "OSError")
        self.assert_error(self.ask(op="read", path="/" + "x/" * 3000), "OSError")
        self.assert_error(self.ask(op="stat", path="/etc/passwd/x"), "NotADirectoryError")
        self.assert_error(self.ask(op="list", path="/etc/passwd"), "NotADirectoryError")
        self.assert_error(self.ask(op="remove", path="/"), "PermissionError")
        self.assert_error(self.ask(op="remove", path=f"{self.home}/none"), "FileNotFoundError")

    def test_half_closed_read(self) -> None:
        s = Stream(self.path, {"op": "read", "path": "/etc/passwd"})
        s.sock.shutdown(socket.SHUT_WR)
        self.assertEqual(s.all()[0]["status"], "ok")

    def test_read_of_a_file_without_size(self) -> None:
        r, got = Stream(self.path, {"op": "read", "path": "/proc/self/status"}).all()
        self.assertIn(b"Name:\tinit", got[DATA])
        self.assertEqual(r["size"], len(got[DATA]))

    def test_stat_and_list(self) -> None:
        top = f"{self.home}/tree"
        os.makedirs(f"{top}/b/c")
        pathlib.Path(top, "a\udcff").write_bytes(b"123")
        os.symlink("b", f"{top}/l")
        os.symlink("nowhere", f"{top}/z")
        r = self.ask(op="stat", path=f"{top}//b/../b")
        self.assertEqual((r["entry"]["type"], r["entry"]["path"], r["entry"]["owner"]),
                         ("dir", f"{top}/b", ME))
        entries = self.ask(op="list", path=top)["entries"]
        self.assertEqual([(e["name"], e["type"]) for e in entries],
                         [("a?", "file"), ("b", "dir"), ("l", "dir"), ("z", "link")])
        self.assertEqual(entries[0]["size"], 3)
        self.assertEqual(entries[2]["target"], f"{top}/b")
        deep = self.ask(op="list", path=top, depth=9)["entries"]
        self.assertEqual([e["path"].replace(top, "") for e in deep],
                         ["/a?", "/b", "/b/c", "/l", "/z"])

    def test_mkdir_rename_remove(self) -> None:
        top = f"{self.home}/m"
        self.assertEqual(self.ask(op="mkdir", path=f"{top}/x/y")["entry"]["type"], "dir")
        self.assert_error(self.ask(op="mkdir", path=f"{top}/x/y"), "FileExistsError")
        r = self.ask(op="rename", path=f"{top}/x", to=f"{top}/new/z")
        self.assertEqual(r["entry"]["path"], f"{top}/new/z")
        self.assertTrue(os.path.isdir(f"{top}/new/z/y"))
        self.assert_error(self.ask(op="rename", path=f"{top}/x", to=f"{top}/q"),
                          "FileNotFoundError")
        pathlib.Path(top, "new/z/y/f").write_text("x")
        self.assertEqual(self.ask(op="remove", path=f"{top}/new/z/y/f")["status"], "ok")
        self.assertEqual(self.ask(op="remove", path=f"{top}/new/z/y")["status"], "ok")
        if ME == "root":  # a full tree goes by way of a command of root's
            self.assertEqual(self.ask(op="remove", path=top)["status"], "ok")
            self.assertFalse(os.path.exists(top))

    def test_metadata(self) -> None:
        path = f"{self.home}/meta"
        r = self.ask(b"x", op="write", path=path, metadata={"author": "a b", "empty": ""})
        self.assertEqual(r["status"], "ok", r)
        want = {"author": "a b", "empty": ""}
        self.assertEqual(self.ask(op="stat", path=path)["entry"]["metadata"], want)
        self.assertEqual(os.getxattr(path, "user.e2b.author"), b"a b")
        os.setxattr(path, "user.e2b.raw", b"\xff")
        os.setxattr(path, "user.other", b"x")
        self.assertEqual(self.ask(op="rename", path=path, to=path + "2")["entry"]["metadata"], {**want, "raw": "?"})
        (entry,) = [e for e in self.ask(op="list", path=self.home)["entries"] if e["name"] == "meta2"]
        self.assertEqual(entry["metadata"], {**want, "raw": "?"})
        self.assertEqual(self.ask(b"y", op="write", path=path + "2")["status"], "ok")
        self.assertNotIn("metadata", self.ask(op="stat", path=path + "2")["entry"])
        for bad in ({"a": 1}, {"": "x"}, {"k" * 300: "x"}, []):
            self.assert_error(self.ask(b"z", op="write", path=path + "2", metadata=bad), "OSError")
        self.assertEqual(pathlib.Path(path + "2").read_text(), "y")
        self.assertFalse([n for n in os.listdir(self.home) if n.endswith(".tmp")])

    # --- watching

    def watch(self, path: str, **more: object) -> Watch:
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        return Watch(self.path, {"op": "watch", "path": path, **more})

    def test_watch(self) -> None:
        top = f"{self.home}/w1"
        w = self.watch(top)
        pathlib.Path(top, "a").write_text("x")
        os.chmod(f"{top}/a", 0o600)
        os.rename(f"{top}/a", f"{top}/b")
        os.unlink(f"{top}/b")
        os.mkdir(f"{top}/d")
        pathlib.Path(top, "d/unseen").write_text("x")
        self.assertEqual(w.new(), [("create", "a"), ("write", "a"), ("chmod", "a"), ("rename", "a"), ("create", "b"),
                                   ("remove", "b"), ("create", "d")])
        self.assertEqual(w.new(), [])
        os.chmod(top, 0o700)
        self.assertEqual(w.new(), [("chmod", ".")])
        os.unlink(f"{top}/d/unseen")
        os.rmdir(f"{top}/d")
        os.rmdir(top)
        self.assertEqual(w.new(), [("remove", "d"), ("remove", ".")])
        os.mkdir(top)  # another folder of that name
        pathlib.Path(top, "c").write_text("x")
        self.assertEqual(w.new(), [])

    def test_watch_shows_uploads_as_writes_in_place(self) -> None:
        top = f"{self.home}/w2"
        w = self.watch(top)
        self.assertEqual(self.ask(b"data", op="write", path=f"{top}/f")["status"], "ok")
        self.assertEqual(w.new(), [("create", "f"), ("chmod", "f"), ("write", "f")])
        self.ask(b"again", op="write", path=f"{top}/f")
        self.assertEqual(w.new(), [("write", "f")])
        self.assert_error(self.ask(b"12", op="write", path=f"{top}/g", size=3), "ValueError")
        self.assertEqual(w.new(), [])

    def test_watch_all_below(self) -> None:
        top = f"{self.home}/w3"
        os.makedirs(f"{top}/there/deep")
        os.symlink("/usr", f"{top}/link")
        w = self.watch(top, recursive=True)
        pathlib.Path(top, "there/deep/f").write_text("x")
        self.assertEqual(w.new(), [("create", "there/deep/f"), ("write", "there/deep/f")])
        os.makedirs(f"{top}/new/er")
        pathlib.Path(top, "new/er/f").write_text("x")
        seen = w.new()
        self.assertEqual(seen[0], ("create", "new"))
        self.assertEqual({("create", "new/er"), ("create", "new/er/f"), ("write", "new/er/f")} - set(seen), set())
        pathlib.Path(top, "new/er/f").write_text("y")
        self.assertIn(("write", "new/er/f"), w.new())
        os.rename(f"{top}/new", f"{top}/moved")
        pathlib.Path(top, "moved/er/f").write_text("z")
        self.assertEqual(w.new()[:2], [("rename", "new"), ("create", "moved")])
        pathlib.Path(top, "moved/er/f").write_text("z")
        self.assertEqual(set(w.new()), {("write", "moved/er/f")})
        os.rename(f"{top}/moved", f"{self.home}/w3-elsewhere")
        pathlib.Path(self.home, "w3-elsewhere/er/f").write_text("?")
        self.assertEqual(w.new(), [("rename", "moved")])
        self.assertEqual(self.ask(b"1", op="write", path=f"{top}/x/y")["status"], "ok")
        self.assertIn(("write", "x/y"), w.new())

    def test_watch_with_entries(self) -> None:
        top = f"{self.home}/w4"
        w = self.watch(top, entries=True)
        self.ask(b"data", op="write", path=f"{top}/f", metadata={"k": "v"})
        w.new()
        self.assertEqual({e["entry"]["path"] for e in w.raw}, {f"{top}/f"})
        self.assertEqual((w.raw[-1]["entry"]["size"], w.raw[-1]["entry"]["metadata"]), (4, {"k": "v"}))
        os.unlink(f"{top}/f")
        w.new()
        self.assertNotIn("entry", w.raw[-1])

    def test_watch_errors(self) -> None:
        self.assert_error(self.ask(op="watch", path=f"{self.home}/none"), "FileNotFoundError")
        self.assert_error(self.ask(op="watch", path="/etc/passwd"), "NotADirectoryError")
        self.assert_error(self.ask(op="watch", path="/", user="no-such"), "KeyError")
        s = Stream(self.path, {"op": "watch", "path": "/"})
        s.frame()
        s.send(DATA, b"x")
        self.assert_error(s.all()[0], "ProtocolError")

    def test_watch_is_bounded(self) -> None:
        top = f"{self.home}/w5"
        for n in range(4200):
            os.makedirs(f"{top}/{n % 64}/{n}")
        self.assert_error(self.ask(op="watch", path=top, recursive=True), "OSError")
        self.assertIn("watch a part of it", self.ask(op="watch", path=top, recursive=True)["error"]["value"])
        w = self.watch(f"{top}/1", recursive=True)
        self.assertEqual(w.new(), [])

    def test_watch_that_is_not_read_loses_events_and_says_so(self) -> None:
        top = f"{self.home}/w6"
        w = self.watch(top)
        most = int(pathlib.Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for n in range(2 * most):  # what waits in the socket and the agent, and then in the kernel
            os.close(os.open(f"{top}/{n}", os.O_CREAT))
            os.unlink(f"{top}/{n}")
        result, got = w.all()
        self.assert_error(result, "OverflowError")
        rss = int(pathlib.Path(f"/proc/{self.agent.pid}/statm").read_text().split()[1]) * 4096
        self.assertLess(rss, 16 << 20)

    def test_watches_that_are_left_are_closed(self) -> None:
        def held() -> int:
            fds = f"/proc/{self.agent.pid}/fd"
            return sum("inotify" in os.path.realpath(f"{fds}/{fd}") for fd in os.listdir(fds))
        self.wait(lambda: held() == 0)
        watches = [self.watch(f"{self.home}/w7") for _ in range(20)]
        self.assertEqual(held(), 20)
        for w in watches:
            w.sock.close()
        self.wait(lambda: held() == 0)

    # --- ports

    def serve(self, family: int = socket.AF_INET) -> tuple[socket.socket, int]:
        server = socket.socket(family)
        server.settimeout(60)
        server.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        server.listen()
        self.addCleanup(server.close)
        return server, server.getsockname()[1]

    def connect(self, port: int, *parts: tuple[int, bytes]) -> Stream:
        s = Stream(self.path, {"op": "connect", "port": port})
        for kind, payload in parts:
            s.send(kind, payload)
        return s

    def accept(self, server: socket.socket) -> socket.socket:
        peer = server.accept()[0]
        self.addCleanup(peer.close)
        return peer

    def test_connect(self) -> None:
        server, port = self.serve()
        s = self.connect(port, (DATA, b"sent before it is open"))
        self.assertEqual(s.frame(), (EVENT, b'{"event":"started"}'))
        peer = self.accept(server)
        self.assertEqual(peer.recv(100), b"sent before it is open")
        peer.sendall(b"answer")
        self.assertEqual(s.frame(), (DATA, b"answer"))
        s.send(END)
        self.assertEqual(peer.recv(100), b"", "one way has ended")
        peer.sendall(b"and the other goes on")
        self.assertEqual(s.frame(), (DATA, b"and the other goes on"))
        peer.close()
        self.assertEqual(s.frame(), (END, b""))
        self.assertEqual(s.all()[0], {"status": "ok"})

    def test_connect_whose_server_ends_first(self) -> None:
        server, port = self.serve()
        s = self.connect(port)
        s.frame()
        peer = self.accept(server)
        peer.shutdown(socket.SHUT_WR)
        self.assertEqual(s.frame(), (END, b""))
        s.send(DATA, b"still")
        self.assertEqual(peer.recv(100), b"still")
        s.send(END)
        self.assertEqual(s.all()[0], {"status": "ok"})

    def test_connect_by_ipv6(self) -> None:
        try:
            server, port = self.serve(socket.AF_INET6)
        except OSError:
            self.skipTest("no IPv6 on this machine")
        s = self.connect(port, (DATA, b"x"))
        self.assertEqual(s.frame()[0], EVENT)
        self.assertEqual(self.accept(server).recv(10), b"x")

    def test_connect_errors(self) -> None:
        server, port = self.serve()
        server.close()
        self.assert_error(self.connect(port, (DATA, b"x")).all()[0], "ConnectionRefusedError")
        for bad in (0, 65536, -1, "80"):
            self.assert_error(self.ask(op="connect", port=bad), "ValueError")
        server, port = self.serve()
        s = self.connect(port, (DATA, b"not read"))
        s.frame()
        peer = self.accept(server)
        self.wait(lambda: len(peer.recv(100, socket.MSG_PEEK)) == 8)
        peer.close()  # with something unread: a reset
        self.assert_error(s.all()[0], "ConnectionResetError")

    def test_connect_back_pressure_both_ways(self) -> None:
        server, port = self.serve()
        s = self.connect(port)
        s.frame()
        peer = self.accept(server)
        for way in (s.sock, peer):
            way.setblocking(False)
            piece = frame(DATA, b"y" * 65536) if way is s.sock else b"y" * 65536
            sent = at = stalled = 0
            while stalled < 20 and sent < 64 << 20:  # nobody reads at the other end
                try:
                    n = way.send(piece[at:])
                    at = (at + n) % len(piece)
                    sent += n
                    stalled = 0
                except BlockingIOError:
                    stalled += 1
                    time.sleep(0.01)
            self.assertLess(sent, 32 << 20)
        rss = int(pathlib.Path(f"/proc/{self.agent.pid}/statm").read_text().split()[1]) * 4096
        self.assertLess(rss, 16 << 20)

    def test_connect_much_both_ways(self) -> None:
        server, port = self.serve()
        data = os.urandom(8 << 20)
        pid = os.fork()
        if pid == 0:  # an echo
            peer = self.accept(server)
            while piece := peer.recv(65536):
                peer.sendall(piece)
            os._exit(0)
        result, got = self.all_while_sending(self.connect(port), data)
        os.waitpid(pid, 0)
        self.assertEqual((result, got[DATA] == data), ({"status": "ok"}, True))

    def test_connect_that_is_left_is_closed(self) -> None:
        server, port = self.serve()
        s = self.connect(port)
        s.frame()
        peer = self.accept(server)
        s.sock.close()
        peer.settimeout(60)
        self.assertEqual(peer.recv(10), b"")

    # --- kernels

    def test_kernels(self) -> None:
        first = self.ask(op="context")
        self.assertEqual((first["alive"], first["port"], first["restarts"]), (True, 2000, 0))
        self.assertEqual(self.ask(op="interrupt")["status"], "ok")
        self.wait(lambda: os.path.exists(f"{self.home}/int-2000"))
        self.assert_error(self.ask(op="interrupt", context="x"), "KeyError")

        r = self.ask(op="kill")  # the spare takes over, another one is made
        self.assertEqual((r["status"], r["port"]), ("ok", 2001))
        self.assert_gone(first["pid"])
        self.wait(lambda: self.ask(op="context")["spares"] == 1)
        now = self.ask(op="context")
        self.assertEqual((now["alive"], now["restarts"]), (True, 1))
        self.assertNotEqual(now["pid"], first["pid"])

        r = self.ask(op="context", context="second", create=True)
        self.assertEqual((r["status"], r["port"]), ("ok", 2002))
        self.assert_error(self.ask(op="context", context="second", create=True),
                          "FileExistsError")
        r = self.ask(op="kill", context="second")  # no spare may be there yet: waits for one
        self.assertEqual((r["status"], r["port"]), ("ok", 2003))

        os.kill(r["pid"], signal.SIGSEGV)  # an interpreter ends by itself
        self.wait(lambda: not self.ask(op="context", context="second")["alive"])
        dead = self.ask(op="context", context="second")
        self.assertEqual((dead["signal"], dead["oom"]), (signal.SIGSEGV, False))
        self.assert_error(self.ask(op="interrupt", context="second"), "ProcessLookupError")
        self.assertEqual(self.ask(op="kill", context="second")["status"], "ok")
        self.assert_error(self.ask(op="kill", context="default", close=True), "ValueError")
        self.assertEqual(self.ask(op="context", context="default")["alive"], False)
        self.assertEqual(self.ask(op="kill", context="default")["status"], "ok")


if __name__ == "__main__":
    unittest.main(verbosity=2)
