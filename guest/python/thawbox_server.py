# SPDX-License-Identifier: Apache-2.0
"""One interpreter kernel: the freeze point, then cells over its own stream (docs/protocol.md
sections 3 and 5)."""
from __future__ import annotations

import builtins
import ctypes
import gc
import json
import os
import pwd
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import _thawbox
import thawbox_files
import thawbox_languages  # for the daemon's cells, too: no path leads to it later
from thawbox_shell import Shell, quote

REQUEST = 0x01
CELL = 0x04
RESULT = 0x10
MORE = 0x80
FRAME_MAX = 1 << 20
PAYLOAD_MAX = 64 << 20
ENTROPY = 64
PARK_AGAIN = 0xFFFFFFFF
PARK_WARM = 0xFFFFFFFD
HEADER = struct.Struct("<IB")
scan_json = json.JSONDecoder().scan_once
REHEARSALS = 3
FIRST_CELLS = ["1+1", "x = 1\nprint('a', x)\nx", "1/0", "def f(a):\n    return a + 'b'\nf('c')",
               "[1, 2.5, 'b', None, {'c': (True, b'd')}]"]
"""Rehearsed before the freeze, each REHEARSALS times."""
SLACK = 16 << 20
"""For Python's objects, and as much for malloc, in bytes: in place before the freeze."""
STACK_SLACK = 256 << 10
QUIET_S = 1.0
"""How long the default kernel lets the guest come to rest before it parks, in seconds."""
NAMED = {"numpy": ["ndarray", "random", "linalg"], "pandas": ["DataFrame", "Series"],
         "matplotlib.pyplot": ["Figure", "Axes"], "os": ["path"], "json": [], "re": [], "math": [],
         "random": [], "datetime": ["datetime", "timedelta"], "collections": [], "itertools": []}
"""Modules and classes whose names cells use."""
COMMON_NAMES = """
a b c d e f g h i j k l m n o p q r s t u v w x y z _ df np pd plt os sys re json math ax fig arr
idx key keys val value values item items name names data result results res total count counts num
nums numbers number text line lines word words row rows col cols column columns index label labels
path file files filename folder out output input args kwargs self cls func function main test tests
list1 list2 df1 df2 tmp temp cur current prev next first last start end stop step size length width
height left right top bottom min_value max_value mean std average sum1 sum2 n1 n2 x1 x2 y1 y2 i1 i2
url response request content status code message msg error err exc date time year month day hour
price prices cost amount quantity sales product products user users id ids age city country score
scores group groups category title color figsize one two three four five six seven eight nine ten
hello world Hello World a1 b1 answer question answers solution primes prime factorial fib fibonacci
matrix vector points point node nodes graph edges edge tree root stack queue visited seen cache memo
""" + " ".join(map(str, range(10)))
"""Names and words of first cells."""
PR_SET_DUMPABLE = 4
BLOCK = 512
"""Bytes of a block of getrusage(2)."""


class ProtocolError(Exception):
    """A request that docs/protocol.md does not allow; answered, and nothing was done."""


def frame(kind: int, payload: bytes) -> bytes:
    """Returns one frame of at most FRAME_MAX bytes."""
    return HEADER.pack(len(payload), kind) + payload


def member(request: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Returns a member of a request; raises ProtocolError when it is missing or of another type."""
    value = request.get(name, default)
    if type(value) is not kind:
        raise ProtocolError(f'"{name}" must be {kind.__name__}, is {type(value).__name__}')
    return value


class Reader:
    """Whole payloads out of a stream of frames. One system call a request in the common case."""

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._data = bytearray()

    def _need(self, n: int) -> bool:
        """Reads until n bytes are there; False when the stream ends before."""
        while len(self._data) < n:
            piece = self._conn.recv(max(65536, min(n - len(self._data), FRAME_MAX)))
            if not piece:
                return False
            self._data += piece
        return True

    def payload(self) -> tuple[int, bytes] | None:
        """Returns the next type and payload, None at the end of the stream.

        Raises ProtocolError for lengths out of bounds (the stream cannot go on after that) and
        OSError when the stream broke.
        """
        whole = b""
        while True:
            if not self._need(HEADER.size):
                return None
            n, kind = HEADER.unpack_from(self._data)
            if n > FRAME_MAX or len(whole) + n > PAYLOAD_MAX:
                raise ProtocolError(f"a payload of {len(whole) + n} bytes is too large")
            if not self._need(HEADER.size + n):
                return None
            whole += self._data[HEADER.size:HEADER.size + n]
            del self._data[:HEADER.size + n]
            if not kind & MORE:
                return kind, bytes(whole)


class Usage:
    """What the last cell used: differences between two marks. Times in ns and seconds."""

    def __init__(self) -> None:
        try:
            self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self._peak = -1  # then peak_kib is that of the process's life
        self.begin()
        self.end(_thawbox.now())

    @staticmethod
    def now() -> tuple[float, float, int, int, int]:
        """Returns of this process and its waited-for children user and system seconds and blocks that were read
        from disks and written; its own peak in KiB between."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime, own.ru_maxrss,
                own.ru_inblock + children.ru_inblock, own.ru_oublock + children.ru_oublock)

    def begin(self) -> None:
        """Marks a start. Makes system calls, so before the freeze point for the first cell."""
        self.go_on()
        self._used = self.now()
        self.start_ns = _thawbox.now()

    def go_on(self) -> None:
        """Marks the last end as the next start: one system call in place of three."""
        if self._peak >= 0:
            os.pwrite(self._peak, b"5", 0)

    def end(self, now_ns: int) -> None:
        """Computes what was used up to now; now_ns is when the cell ended."""
        user, system, _, blocks_read, blocks_written = self._used
        self._used = self.now()
        self.last = {
            "wall_ms": (now_ns - self.start_ns) / 1e6,
            "cpu_user_ms": (self._used[0] - user) * 1e3,
            "cpu_system_ms": (self._used[1] - system) * 1e3,
            "peak_kib": self._used[2],
            "read_bytes": (self._used[3] - blocks_read) * BLOCK,
            "write_bytes": (self._used[4] - blocks_written) * BLOCK,
            "output_bytes": _thawbox.said(),
        }


class Generators:
    """Python's and numpy's global generators, reached without the pages their seed() touches."""

    def __init__(self) -> None:
        """Raises RuntimeError when this Python's generator is not laid out as _thawbox.c has it."""
        self.numpy = 0
        key = bytes(range(1, 65))
        mine, theirs = random.Random(), random.Random(int.from_bytes(key[:32], "little"))
        _thawbox.reseed(mine, 0, key)
        if mine.getstate() != theirs.getstate():
            raise RuntimeError("random.Random is not that of CPython 3.11: it cannot be reseeded")
        if "numpy.random" in sys.modules:
            state = sys.modules["numpy.random"].mtrand._rand
            state.seed(0)  # forgets a normal deviate that the warm-up left over
            self.numpy = state._bit_generator.ctypes.state_address

    def forget(self) -> None:
        """Drops what was drawn ahead of its use, so that only the states are left to be replaced."""
        random._inst.gauss_next = None
        tempfile._name_sequence = None  # it has a generator of its own, made at first use

    def reseed(self, entropy: bytes) -> None:
        """Replaces both states from 64 bytes."""
        _thawbox.reseed(random._inst, self.numpy, entropy)
        self.forget()


class Kernel:
    """Answers requests in one shell. Everything runs on the main thread."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.running = False
        self.usage = Usage()
        self.generators = Generators()
        signal.signal(signal.SIGINT, self.on_sigint)

    def on_sigint(self, number: int, where: Any) -> None:
        """Interrupts a cell; between cells there is nothing to interrupt."""
        if self.running or _thawbox.cell_runs():
            raise KeyboardInterrupt

    # ---- requests ----

    def answer(self, kind: int, payload: bytes, is_mailed: bool = False) -> None:
        """Answers one request; frames are sent when this returns."""
        self.ended_ns = 0
        try:
            request = self.parse(kind, payload)
            result = self.OPS[request["op"]](self, request, is_mailed)
        except ProtocolError as e:
            result = b'{"status":"error","error":{"name":"ProtocolError","value":%s}}' \
                % quote(str(e)).encode("ascii")
        _thawbox.frame(RESULT, result)
        _thawbox.flush()
        if self.ended_ns:
            self.usage.end(self.ended_ns)

    def parse(self, kind: int, payload: bytes) -> dict[str, Any]:
        """Returns the request, with an "op" that exists. Raises ProtocolError."""
        if kind != REQUEST:
            raise ProtocolError(f"frame type 0x{kind:02x} where a REQUEST was expected")
        try:
            text = payload.decode("utf-8")
            request, end = scan_json(text, 0)
        except (ValueError, RecursionError, StopIteration) as e:
            raise ProtocolError(f"the request is not JSON: {e}") from None
        if text[end:].strip():
            raise ProtocolError("the request goes on after its JSON")
        if not isinstance(request, dict):
            raise ProtocolError("the request is not a JSON object")
        if member(request, "op", str) not in self.OPS:
            raise ProtocolError(f'unknown op {request["op"]!r}; one of {", ".join(self.OPS)}')
        return request

    def op_run(self, request: dict[str, Any], is_mailed: bool) -> bytes:
        """Runs a cell. Returns the RESULT."""
        code = member(request, "code", str)
        silent = member(request, "silent", bool, False)
        max_output = member(request, "max_output", int, 0)
        if not 0 <= max_output < 1 << 40:
            raise ProtocolError(f'"max_output" must be 0 or a number of bytes, is {max_output}')
        wants_usage = member(request, "usage", bool, False)
        wants_files = member(request, "files_changed", bool, False)
        if is_mailed:
            self.usage.start_ns = _thawbox.now()
        else:
            self.usage.begin()
        count = self.shell.execution_count
        since_ns = thawbox_files.mark() if wants_files else 0
        _thawbox.begin(max_output)
        error = self.guarded(code, silent)
        if not wants_usage and not wants_files or _thawbox.forked():
            return self.end_cell(error, count)
        ended_ns = _thawbox.now()
        more = self.files_changed(since_ns) if wants_files else {}
        result = self.end_cell(error, count)
        self.ended_ns = ended_ns
        if wants_usage:
            self.usage.end(ended_ns)
            self.ended_ns = 0
            more["usage"] = self.usage.last
        return result[:-1] + b"," + json.dumps(more)[1:].encode("ascii")

    @staticmethod
    def files_changed(since_ns: int) -> dict[str, Any]:
        """Returns members of a RESULT: which files have changed since, and how many are left out. The cell's
        output need not wait for the look."""
        _thawbox.hint()
        try:
            files, more = thawbox_files.changed(since_ns)
        except Exception:  # of what the user has put in the place of os.scandir(), say
            files, more = [], 1
        return {"files_changed": files, "files_cut": more}

    def end_cell(self, error: dict[str, str] | None, count: int) -> bytes:
        """Ends a cell that has run. Returns the RESULT."""
        if _thawbox.forked():
            self.leave_child(error)
        cut_out, cut_err = _thawbox.end()
        self.ended_ns = _thawbox.now()
        return b'{"status":"%s","execution_count":%d,"error":%s,"cut":{"stdout":%d,"stderr":%d}}' \
            % (b"error" if error else b"ok", count,
               json.dumps(error).encode("ascii") if error else b"null", cut_out, cut_err)

    def guarded(self, code: str, silent: bool) -> dict[str, str] | None:
        """Runs a cell, interruptible; an interrupt that strikes the shell's own code ends the
        cell as one in the cell's code does."""
        try:
            self.running = True
            error = self.shell.run(code, silent)
            self.running = False
        except BaseException as e:
            self.running = False
            error = self.describe(e)
        return error

    @staticmethod
    def describe(e: BaseException) -> dict[str, str]:
        """Returns the RESULT's error for an exception of the shell's own."""
        name = type(e).__name__
        return {"name": name, "value": str(e), "traceback": f"{name}: {e}".rstrip(": ")}

    def leave_child(self, error: dict[str, str] | None) -> None:
        """Ends a process that the cell forked: it must not go on as a second kernel."""
        if error and error["name"] != "SystemExit":
            _thawbox.write(1, error["traceback"] + "\n")
        _thawbox.hint()
        code = error["value"] if error and error["name"] == "SystemExit" else ""
        os._exit(int(code) & 0xFF if code.isdecimal() else int(bool(error)))

    def op_usage(self, request: dict[str, Any], is_mailed: bool) -> bytes:
        """Returns what the last cell used."""
        return json.dumps(self.usage.last).encode("ascii")

    def op_complete(self, request: dict[str, Any], is_mailed: bool) -> bytes:
        """Returns completions at a cursor, counted in characters."""
        code = member(request, "code", str)
        cursor = member(request, "cursor", int)
        if not 0 <= cursor <= len(code):
            raise ProtocolError(f'"cursor" must be in 0..{len(code)}, is {cursor}')
        try:
            matches, start, end = self.shell.complete_at(code, cursor)
        except Exception:  # an object of the user's, looked into, may raise anything
            matches, start, end = [], cursor, cursor
        return json.dumps({"matches": matches, "start": start, "end": end}).encode("ascii")

    OPS: dict[str, Callable[[Kernel, dict[str, Any], bool], bytes]] = {
        "run": op_run, "usage": op_usage, "complete": op_complete}

    # ---- the stream ----

    def serve(self, listener: socket.socket, on_first: Callable[[], None] | None = None) -> None:
        """Serves connections one after another, for ever. on_first runs before the first of them.
        """
        os.register_at_fork(after_in_child=listener.close)
        while True:
            conn, _ = listener.accept()
            if on_first:
                on_first()
                on_first = None
            with conn:
                _thawbox.attach(conn.fileno())
                self.serve_stream(Reader(conn))
                _thawbox.attach(-1)

    def serve_stream(self, reader: Reader) -> None:
        """Answers requests until the stream ends, or until what comes is no frame."""
        try:
            while (got := reader.payload()) is not None:
                self.answer(*got)
        except ProtocolError as e:
            _thawbox.frame(RESULT, json.dumps(
                {"status": "error", "error": {"name": "ProtocolError", "value": str(e)}}).encode())
            _thawbox.flush()
        except OSError:
            pass  # the peer reset the stream: the next connection is a new one

    # ---- the freeze point ----

    def first(self) -> int:
        """Parks; at the thaw takes the wake, then answers the first request if there is one.

        Between the reads of PARK and the write of DONE, nothing may enter the kernel, and little may be
        touched: that is why _thawbox.first() does it (docs/kernel.md). Returns what PARK read.
        """
        count = self.shell.execution_count
        self.generators.forget()
        n, rest = _thawbox.first(self.shell.run, random._inst, self.generators.numpy,
                                 os.environ._data, count)
        if rest:
            self.end_mailed(count, rest)
        return n

    def rest(self) -> None:
        """Answers what comes by the mailbox, the guest standing still between, until the stream goes on by
        vsock."""
        while True:
            self.usage.go_on()
            count = self.shell.execution_count
            try:
                rest = _thawbox.next(self.shell.run, count)
            except BaseException:  # of a signal handler that a cell has left behind
                traceback.print_exc()
                continue
            if rest is None:
                return
            self.end_mailed(count, rest)

    def end_mailed(self, count: int, rest: bytes | tuple[int, int, Any]) -> None:
        """Answers a request that came by the mailbox as far as _thawbox has not done so."""
        if isinstance(rest, bytes):
            self.answer(rest[4], rest[HEADER.size:], True)
        else:
            self.end_cell_mailed(count, *rest)

    def end_cell_mailed(self, count: int, start_ns: int, ended_ns: int, error: Any) -> None:
        """Notes what the cell used; answers it, if it went wrong."""
        self.usage.start_ns = start_ns
        if not ended_ns:
            if isinstance(error, BaseException):
                error = self.describe(error)
            _thawbox.frame(RESULT, self.end_cell(error, count))
            _thawbox.flush()
            ended_ns = self.ended_ns
        self.usage.end(ended_ns)

    def rehearse(self, code: str) -> None:
        """Runs a first cell without a monitor, then forgets it: the code and the pages of the real
        one have been used when it comes."""
        cell = struct.pack("<IBBQ", 9 + len(code), CELL, 0, 1 << 20) + code.encode("ascii")
        env = b"HOSTNAME=sandbox\0THAWBOX_ID=rehearsal\0"
        message = struct.pack("<4sI", b"WAKE", len(env)) + os.urandom(ENTROPY) \
            + struct.pack("<Q", time.time_ns()) + env + cell
        _thawbox.rehearse(message, len(cell))
        self.first()
        _thawbox.rehearse(None, 0)
        del os.environ["THAWBOX_ID"], os.environ["HOSTNAME"]
        self.shell.forget()

    def rehearse_all(self, cells: list[str]) -> None:
        """Runs each kind of first cell until it finds everything in place."""
        for code in cells * REHEARSALS:
            self.rehearse(code)

    def freeze(self, code: str, warm_up: Callable[[], None]) -> None:
        """Parks for good: returns when the sandbox's first request has been answered, or is not
        for this stream. A PARK that says "again" is a null request: it costs a rehearsal, which
        makes the pages of a first cell this sandbox's own; one that says "warm" does so with those of
        the first cells in the template's warm-up, too."""
        gc.collect()
        gc.freeze()
        while True:
            self.rehearse(code)
            self.usage.begin()
            n = self.first()
            if n == PARK_WARM:
                warm_up()
                self.rehearse_all(FIRST_CELLS)
                gc.collect()
                gc.freeze()
            elif n != PARK_AGAIN:
                return


# ---- a kernel's life ----

def run_kernel(parent: Any, listener: socket.socket, role: str, port: int, say: int, is_polyglot: bool) -> None:
    """The life of a kernel that a thawbox_parent.Parent has just forked; never returns."""
    try:
        os.setsid()
        if parent.user:
            os.seteuid(0)
        kernel = Kernel(parent.shell)
        is_parking = role == "default" and parent.args.doorbell != "none"
        if is_parking:
            open_doorbell(parent.args.doorbell, port)
        drop_rights(parent.user)
        slack = SLACK if is_parking else 0
        _thawbox.slack(slack, slack, STACK_SLACK)
        _thawbox.capture()
        if is_parking:
            make_ready(parent, kernel, say)
            kernel.freeze(FIRST_CELLS[0],
                          lambda: parent.warm_up(lambda text: None, first_only=True))
            kernel.rest()
            kernel.serve(listener)
        else:
            if is_polyglot:
                thawbox_languages.make_ready()
            os.close(say)
            kernel.serve(listener, lambda: kernel.generators.reseed(os.urandom(64)))
    except BaseException:
        _thawbox.release()
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)


def make_ready(parent: Any, kernel: Kernel, say: int) -> None:
    """Brings the default kernel to its freeze point; `say` leads to the parent, and is closed."""
    # What a user's first cells write must be this process's own: a page still shared with its
    # relatives costs a guest page fault at the first write.
    parent.warm_up(lambda text: os.write(say, f"own {text}\n".encode()))
    visit_names()
    os.write(say, b"rehearse the first cell\n")
    kernel.rehearse_all(FIRST_CELLS)
    os.sync()  # or each sandbox's kernel goes on writing what the bake has left dirty
    os.write(say, b"ready\n")
    _thawbox.rest(QUIET_S)
    os.close(say)


def visit_names() -> None:
    """Makes the pages that a cell's names lead to this process's own: compiling a cell counts a
    reference to each name that exists, and enters each that does not into one large table."""
    owners: list[Any] = [builtins, str, bytes, int, float, list, tuple, dict, set, range, Exception]
    for module, names in NAMED.items():
        if module in sys.modules:
            owners.append(sys.modules[module])
            owners += [getattr(sys.modules[module], name) for name in names]
    for name in COMMON_NAMES.split():
        sys.intern(name)
    for owner in owners:
        for name in dir(owner):
            sys.intern(name)
    for i in range(4096):  # new ones, at places that their hashes say: on every page of the table
        sys.intern(f"thawbox {i}")


def open_doorbell(kind: str, port: int) -> None:
    """Opens the doorbell of the default kernel."""
    if kind == "mmio":
        _thawbox.open(port)
    elif kind.startswith("fake:"):
        _thawbox.open_fake(*map(int, kind[5:].split(",")), port)


def drop_rights(user: pwd.struct_passwd | None) -> None:
    """Becomes the user for good. The process stays one that its user may look into."""
    if not user:
        return
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
